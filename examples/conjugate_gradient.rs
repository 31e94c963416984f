//! Conjugate gradients that survive deaths: each rank has some rows of a grid, and keeps a copy of its
//! neighbour's. When a rank dies, the others agree on who is left, divide the rows anew, restore them from the
//! copies, and go on. Shows `World::survivors` and `World::agree`.
//!
//! ```sh
//! cargo run --release --example conjugate_gradient
//! deckrun -n 4 --on-failure survive target/release/examples/conjugate_gradient --kill 2 --after 50
//! ```
//!
//! The heat of a plate with a source in each cell is sought. The sources are those of a known solution, and so
//! each rank checks every cell.

use std::{collections::BTreeMap, ops::Range, thread, time::Duration};

use clap::Parser;
use rustix::process::{Signal, getpid, kill_process};
use udeck::{Error, Group, Result, op::Sum};

/// Solves Poisson's equation on a square grid. A rank may die.
#[derive(Parser)]
struct Options {
    /// Cells along each side of the grid
    #[arg(long, default_value_t = 200)]
    size: usize,
    /// A rank, which is killed
    #[arg(long, value_name = "RANK")]
    kill: Option<usize>,
    /// Milliseconds from the start of that rank to its death
    #[arg(long, default_value_t = 50)]
    after: u64,
}

/// Iterations between two checkpoints.
const INTERVAL: usize = 20;
/// Length of the residual, relative to the sources', at which the solution counts as found.
const RESIDUAL: f64 = 1e-10;
/// Upper bound of a cell's error.
const TOLERANCE: f64 = 1e-6;

fn main() -> Result {
    let options = Options::parse();
    let world = udeck::init()?;
    if options.kill == Some(world.rank()) {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(options.after));
            kill_process(getpid(), Signal::KILL)
        });
    }
    if options.size < world.size() {
        world.abort(1, &format!("{} rows are too few for {} ranks", options.size, world.size()));
    }
    let mut checkpoint = Checkpoint { size: options.size, parts: BTreeMap::new() };
    let mut group = world.survivors()?;
    let cells = loop {
        let solved = solve(&group, &mut checkpoint);
        if !matches!(&solved, Ok(_) | Err(Error::PeerLost { .. } | Error::GroupFailed { .. })) {
            return solved.map(drop); // not caused by a death; to the others it is one
        }
        // The last call may have failed at some members only. All of them have the solution, or all go on.
        let agreement = world.agree(u64::from(solved.is_ok()))?;
        match solved {
            Ok(cells) if agreement.flags == 1 && agreement.ranks == group.ranks() => break cells,
            _ => group = world.survivors()?,
        }
    };
    check(options.size, rows(&group, group.rank(), options.size), &cells);
    if group.rank() == 0 {
        println!("{0} x {0} cells are right, on ranks {1:?}", options.size, group.ranks());
    }
    world.finish()
}

/// Rows of a member.
fn rows(group: &Group, member: usize, size: usize) -> Range<usize> {
    member * size / group.size()..(member + 1) * size / group.size()
}

/// Returns this rank's cells of the solution. Begins with those of the checkpoint: the method may begin anywhere.
fn solve(group: &Group, checkpoint: &mut Checkpoint) -> Result<Vec<f64>> {
    let size = checkpoint.size;
    let mut x = checkpoint.restore(group)?;
    let b = sources(size, rows(group, group.rank(), size));
    let mut r = b.clone();
    add(&mut r, -1.0, &multiply(group, size, &x)?);
    let (mut p, mut rho) = (r.clone(), dot(group, &r, &r)?);
    let enough = RESIDUAL.powi(2) * dot(group, &b, &b)?;
    for iteration in 1.. {
        if rho <= enough {
            break;
        }
        let q = multiply(group, size, &p)?;
        let step = rho / dot(group, &p, &q)?;
        add(&mut x, step, &p);
        add(&mut r, -step, &q);
        let before = std::mem::replace(&mut rho, dot(group, &r, &r)?);
        p.iter_mut().zip(&r).for_each(|(p, r)| *p = r + rho / before * *p);
        if iteration % INTERVAL == 0 {
            checkpoint.save(group, &x)?;
        }
    }
    Ok(x)
}

fn add(to: &mut [f64], factor: f64, what: &[f64]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += factor * what);
}

fn dot(group: &Group, a: &[f64], b: &[f64]) -> Result<f64> {
    let mut sum = [a.iter().zip(b).map(|(a, b)| a * b).sum()];
    group.all_reduce(&mut sum, Sum)?;
    Ok(sum[0])
}

/// Multiplies by the matrix: from four times each cell its four neighbours are subtracted. The rows above and below
/// this rank's come from the ranks that have them.
fn multiply(group: &Group, size: usize, cells: &[f64]) -> Result<Vec<f64>> {
    let (me, last) = (group.rank(), group.size() - 1);
    let (mut above, mut below) = (vec![0.0; size], vec![0.0; size]);
    let (mut to, mut from) = (Vec::new(), Vec::new());
    if me > 0 {
        to.push((me - 1, &cells[..size]));
        from.push((me - 1, &mut above[..]));
    }
    if me < last {
        to.push((me + 1, &cells[cells.len() - size..]));
        from.push((me + 1, &mut below[..]));
    }
    group.neighbours(&to, &mut from)?;
    let whole = [&above[..], cells, &below[..]].concat();
    let product = |at: usize| {
        let column = at % size;
        let left = if column > 0 { whole[at - 1] } else { 0.0 };
        let right = if column + 1 < size { whole[at + 1] } else { 0.0 };
        4.0 * whole[at] - whole[at - size] - whole[at + size] - left - right
    };
    Ok((size..size + cells.len()).map(product).collect())
}

/// Cells of this rank and of its left neighbour, as they were some iterations ago.
struct Checkpoint {
    /// Cells along each side of the grid.
    size: usize,
    /// First row and cells of each rank.
    parts: BTreeMap<usize, (usize, Vec<f64>)>,
}

impl Checkpoint {
    /// Keeps this rank's cells, and those of its left neighbour.
    fn save(&mut self, group: &Group, cells: &[f64]) -> Result {
        let (me, members) = (group.rank(), group.size());
        let (left, right) = ((me + members - 1) % members, (me + 1) % members);
        let mut copy = vec![0.0; rows(group, left, self.size).len() * self.size];
        group.neighbours(&[(right, cells)], &mut [(left, &mut copy)])?;
        let part = |member, cells| (group.ranks()[member], (rows(group, member, self.size).start, cells));
        self.parts = [part(left, copy), part(me, cells.to_vec())].into();
        Ok(())
    }

    /// Returns the cells of this rank's rows, which may be other rows than before. The cells of a dead rank come
    /// from its neighbour; if that is dead, too, they are 0.
    fn restore(&self, group: &Group) -> Result<Vec<f64>> {
        let mut whole = vec![0.0; self.size * self.size];
        let me = group.ranks()[group.rank()];
        for (_, (first, cells)) in
            self.parts.iter().filter(|(of, _)| **of == me || !group.ranks().contains(*of))
        {
            whole[first * self.size..][..cells.len()].copy_from_slice(cells);
        }
        // Two ranks may have a cell, if one died while they saved: either will do.
        group.all_reduce(&mut whole, |a: f64, b: f64| if a.abs() < b.abs() { b } else { a })?;
        let mine = rows(group, group.rank(), self.size);
        Ok(whole[mine.start * self.size..mine.end * self.size].to_vec())
    }
}

/// The solution. It is 0 beyond the grid's edges.
fn exact(size: usize, row: isize, column: isize) -> f64 {
    let place = |cell: isize| (cell + 1) as f64 / (size + 1) as f64;
    let (x, y) = (place(column), place(row));
    x * (1.0 - x) * y * (1.0 - y) * (1.0 + x + 3.0 * y * y)
}

/// The right side of the equation: the matrix, multiplied by the solution.
fn sources(size: usize, rows: Range<usize>) -> Vec<f64> {
    let source = |row: isize, column: isize| {
        let at = |down, across| exact(size, row + down, column + across);
        4.0 * at(0, 0) - at(-1, 0) - at(1, 0) - at(0, -1) - at(0, 1)
    };
    rows.flat_map(|row| (0..size).map(move |column| source(row as isize, column as isize))).collect()
}

fn check(size: usize, rows: Range<usize>, cells: &[f64]) {
    for (row, cells) in rows.zip(cells.chunks(size)) {
        for (column, cell) in cells.iter().enumerate() {
            let wanted = exact(size, row as isize, column as isize);
            assert!((cell - wanted).abs() < TOLERANCE, "row {row}, column {column}: {cell} is not {wanted}");
        }
    }
}
