//! Heat spreads over a square plate whose rim is kept cold. Each rank computes a strip of rows; at each step it needs the row
//! above its strip and the one below, which its neighbours post to it: a *halo exchange*. Shows how to compute while messages
//! travel, and how to read a received row where it lies.
//!
//! ```sh
//! cargo run --release --example heat2d
//! deckrun -n 4 target/release/examples/heat2d --size 2000 --steps 500 --output plate.png
//! ```
//!
//! The plate begins with three waves. The exact decay of a wave under this method is known, and so rank 0
//! checks every cell.

use std::{error::Error, f64::consts::PI, fs::File, io::BufWriter, ops::Range, path::PathBuf, time::Instant};

use clap::Parser;
use indicatif::ProgressBar;
use udeck::{Buf, Mailbox, Postbox, World};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Heat spreads over a square plate, whose rows are divided among the ranks.
#[derive(Parser)]
struct Options {
    /// Cells along each side of the plate
    #[arg(long, default_value_t = 1000)]
    size: usize,
    /// Steps in time
    #[arg(long, default_value_t = 2000)]
    steps: usize,
    /// The picture that rank 0 writes
    #[arg(long, default_value = "heat2d.png")]
    output: PathBuf,
}

/// Part of the difference to its neighbours that a cell takes over in one step. The method is stable up to 1/4.
const RATE: f64 = 0.2;
/// Waves of heat at the start: half periods down and across the plate, and the height.
const WAVES: [(f64, f64, f64); 3] = [(1.0, 1.0, 0.5), (4.0, 6.0, 0.3), (11.0, 5.0, 0.2)];
/// Upper bound of the sum of all rounding errors.
const TOLERANCE: f64 = 1e-10;

fn main() -> Result {
    let options = Options::parse();
    let world = udeck::init()?;
    if world.size() > options.size {
        return Err(format!("{} rows are too few for {} ranks", options.size, world.size()).into());
    }
    // The mailbox in which rank 0 collects the strips in the end.
    let plate = if world.rank() == 0 { Some(world.mailbox::<f64>("plate")?) } else { None };

    let mut strip = Strip::new(&world, options.size)?;
    world.barrier()?; // all are ready: only the steps are timed
    let (started, bar) = (Instant::now(), progress_bar(&world, options.steps));
    for _ in 0..options.steps {
        strip.step()?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    world.barrier()?;
    let seconds = started.elapsed().as_secs_f64();

    strip.post_to(&world.postbox("plate")?)?;
    if let Some(plate) = plate {
        let (size, steps, ranks) = (options.size, options.steps, world.size());
        println!("{steps} steps of {size} x {size} cells on {ranks} ranks: {seconds:.2} s");
        paint(&plate, ranks, &options)?;
    }
    Ok(world.finish()?)
}

/// Makes a progress bar on standard error of rank 0, if that is a terminal.
fn progress_bar(world: &World, steps: usize) -> ProgressBar {
    if world.rank() == 0 { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() }
}

/// The rows of one rank, and its connections to the ranks that have the rows above and below.
struct Strip {
    rows: Range<usize>,
    /// Cells of a row: the plate's size, and a cold cell at either end.
    width: usize,
    /// The cells, row after row, in memory that can be posted.
    cells: Buf<f64>,
    /// The cells after this step.
    next: Buf<f64>,
    /// A cold row, which stands for the missing neighbour at the plate's upper and lower end.
    rim: Vec<f64>,
    from_above: Option<Mailbox<f64>>,
    from_below: Option<Mailbox<f64>>,
    to_above: Option<Postbox<f64>>,
    to_below: Option<Postbox<f64>>,
}

impl Strip {
    fn new(world: &World, size: usize) -> udeck::Result<Self> {
        let (rank, ranks) = (world.rank(), world.size());
        let rows = rank * size / ranks..(rank + 1) * size / ranks;
        let width = size + 2;
        let mut cells = world.buf::<f64>(rows.len() * width)?; // zeroed
        for (row, cells) in rows.clone().zip(cells.chunks_mut(width)) {
            for column in 0..size {
                cells[column + 1] = exact_heat(size, row, column, 0);
            }
        }

        // Every rank makes its mailboxes first: a postbox waits for the other rank's mailbox. A name is known
        // to all ranks.
        let above = rank.checked_sub(1);
        let below = Some(rank + 1).filter(|&below| below < ranks);
        Ok(Strip {
            from_above: above.map(|_| world.mailboxes("from above")).transpose()?,
            from_below: below.map(|_| world.mailboxes("from below")).transpose()?,
            to_above: above.map(|rank| world.postbox_of("from below", rank)).transpose()?,
            to_below: below.map(|rank| world.postbox_of("from above", rank)).transpose()?,
            next: world.buf::<f64>(cells.len())?,
            rim: vec![0.0; width],
            rows,
            width,
            cells,
        })
    }

    fn step(&mut self) -> udeck::Result {
        let (rows, width) = (self.rows.len(), self.width);
        let at = |row: usize| row * width..(row + 1) * width;
        let (cells, next) = (&self.cells, &mut self.next);

        // The neighbours need the outer rows. A slice is copied when it is posted, and so the post waits for
        // nobody...
        if let Some(postbox) = &self.to_above {
            postbox.post(&cells[at(0)])?;
        }
        if let Some(postbox) = &self.to_below {
            postbox.post(&cells[at(rows - 1)])?;
        }
        // ... and while the rows travel, the inner rows are computed.
        for row in 1..rows.saturating_sub(1) {
            spread(&cells[at(row - 1)], &cells[at(row)], &cells[at(row + 1)], &mut next[at(row)]);
        }

        // A received row is a slice, and is used where it lies. It returns to its sender when it is dropped.
        let above = self.from_above.as_ref().map(Mailbox::retrieve).transpose()?;
        let below = self.from_below.as_ref().map(Mailbox::retrieve).transpose()?;
        for row in (0..rows).step_by((rows - 1).max(1)) {
            let is_last = row + 1 == rows;
            let above = if row > 0 { &cells[at(row - 1)] } else { above.as_deref().unwrap_or(&self.rim) };
            let below = if is_last { below.as_deref().unwrap_or(&self.rim) } else { &cells[at(row + 1)] };
            spread(above, &cells[at(row)], below, &mut next[at(row)]);
        }
        std::mem::swap(&mut self.cells, &mut self.next);
        Ok(())
    }

    /// Posts the cells, with the number of their first row as the tag. They move: nothing is copied.
    fn post_to(self, plate: &Postbox<f64>) -> udeck::Result {
        plate.post(self.cells.with_tag(self.rows.start as u32))?;
        Ok(())
    }
}

/// Computes one step of one row: each cell moves towards the mean of its four neighbours.
fn spread(above: &[f64], row: &[f64], below: &[f64], next: &mut [f64]) {
    let inner = 1..row.len() - 1;
    let (above, below, next) = (&above[inner.clone()], &below[inner.clone()], &mut next[inner]);
    for (((next, cell), above), below) in next.iter_mut().zip(row.windows(3)).zip(above).zip(below) {
        let [left, middle, right] = [cell[0], cell[1], cell[2]];
        *next = middle + RATE * (above + below + left + right - 4.0 * middle);
    }
}

/// Returns the method's exact result, without rounding errors: sines are its eigenvectors, and so each step
/// multiplies a wave by a constant.
fn exact_heat(size: usize, row: usize, column: usize, step: usize) -> f64 {
    let angle = |periods: f64, cell: f64| periods * PI * cell / (size + 1) as f64;
    let wave = |(down, across, height): (f64, f64, f64)| {
        let bend = angle(down, 0.5).sin().powi(2) + angle(across, 0.5).sin().powi(2);
        let decay = (1.0 - 4.0 * RATE * bend).powi(step as i32);
        height * decay * angle(down, (row + 1) as f64).sin() * angle(across, (column + 1) as f64).sin()
    };
    WAVES.into_iter().map(wave).sum()
}

/// Takes all strips, checks them, and writes the picture.
fn paint(plate: &Mailbox<f64>, ranks: usize, options: &Options) -> Result {
    let size = options.size;
    let (mut pixels, mut right) = (vec![0; size * size], 0);
    for strip in plate.iter().take(ranks) {
        let strip = strip?;
        for (row, cells) in (strip.tag() as usize..).zip(strip.chunks(size + 2)) {
            for column in 0..size {
                let heat = cells[column + 1];
                right += usize::from((heat - exact_heat(size, row, column, options.steps)).abs() < TOLERANCE);
                pixels[row * size + column] = (255.0 * (heat + 0.5) / 1.5) as u8;
            }
        }
    }
    println!("{right} of {} cells are right", size * size);
    assert_eq!(right, size * size, "the heat is not what it should be");

    let file = BufWriter::new(File::create(&options.output)?);
    let mut picture = png::Encoder::new(file, size as u32, size as u32);
    picture.set_color(png::ColorType::Indexed);
    picture.set_palette(palette());
    picture.write_header()?.write_image_data(&pixels)?;
    println!("the picture is {}", options.output.display());
    Ok(())
}

/// Makes 256 colours, from the coldest to the hottest.
fn palette() -> Vec<u8> {
    const STOPS: [[f64; 3]; 5] =
        [[0., 0., 30.], [60., 20., 130.], [200., 50., 80.], [250., 150., 40.], [255., 250., 200.]];
    let colour = |index: usize| {
        let (stop, share) = (index / 64, (index % 64) as f64 / 64.0);
        [0, 1, 2]
            .map(|channel| (STOPS[stop][channel] * (1.0 - share) + STOPS[stop + 1][channel] * share) as u8)
    };
    (0..256).flat_map(colour).collect()
}
