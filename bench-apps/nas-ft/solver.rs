//! NPB's FT: solves a diffusion equation in the spectrum of the grid, and checks points of every time step.
//!
//! ```text
//! u1 = random points           u0 = FFT(u1)
//! iteration t:  u1 = u0 · exp(−4 alpha pi² |k|² t),  u2 = inverse FFT(u1),  checksum of u2
//! ```
//!
//! The spectrum stays as it was at the start, as in NPB 2, and the inverse transform of each iteration multiplies it
//! as it reads it. The factor is a product of three, one for each axis, from tables that are made anew for each
//! iteration.
//!
//! This is the numerical core: it knows its part of the grid, and that blocks can be exchanged with other ranks ([`Exchange`]),
//! but not how. Only the exchange blocks. Single-threaded, one solver per rank.

use crate::classes::Grid;
use crate::exchange::{Exchange, Links};
use crate::layout::Layout;
use crate::profile::{Phase, Profile};
use crate::random::Randlc;
use crate::transform::{Factors, Transform};
use num_complex::Complex64;
use std::f64::consts::PI;
use std::ops::Range;

/// One rank's share of the problem.
pub struct Solver {
    layout: Layout,
    transform: Transform,
    alpha: f64,
    /// The spectrum u0, at time 0.
    spectrum: Vec<Complex64>,
    /// The state: u1 at the start, u2 afterwards.
    state: Vec<Complex64>,
    /// Number of iterations so far.
    time: u32,
}

impl Solver {
    /// Allocates the memory, and plans the transforms.
    pub fn new(layout: Layout, alpha: f64) -> Self {
        let zeros = |points| vec![Complex64::ZERO; points];
        Self {
            transform: Transform::new(layout.clone()),
            alpha,
            spectrum: zeros(layout.spectrum_points()),
            state: zeros(layout.state_points()),
            time: 0,
            layout,
        }
    }

    /// Sets the initial state at time 0, and transforms it.
    pub fn start<E: Exchange>(&mut self, links: &mut Links<E>) -> Result<(), E::Error> {
        self.time = 0;
        let clock = self.transform.profile.start();
        fill_initial(&self.layout, &mut self.state);
        self.transform.profile.stop(Phase::Setup, clock, self.state.len());
        self.transform.forward(links, &self.state, &mut self.spectrum)
    }

    /// Makes one time step. Returns this rank's part of the checksum; the parts of all ranks add up to NPB's.
    pub fn step<E: Exchange>(&mut self, links: &mut Links<E>) -> Result<Complex64, E::Error> {
        self.time += 1;
        let clock = self.transform.profile.start();
        let factors = decay(&self.layout, self.alpha * f64::from(self.time));
        self.transform.profile.stop(Phase::Setup, clock, 0);
        self.transform.inverse(links, &self.spectrum, Some(&factors), &mut self.state)?;
        let clock = self.transform.profile.start();
        let sum = checksum(&self.layout, &self.state);
        self.transform.profile.stop(Phase::Checksum, clock, 0);
        Ok(sum)
    }

    pub fn profile(&mut self) -> &mut Profile {
        &mut self.transform.profile
    }
}

/// Fills in NPB's `compute_initial_conditions`: two random numbers per point, in the order of the whole grid.
pub fn fill_initial(layout: &Layout, state: &mut [Complex64]) {
    let Grid { nx, ny, .. } = layout.grid();
    let rows = layout.state_y();
    let stride = layout.state_stride();
    for (z, plane) in layout.z().zip(state.chunks_exact_mut(rows.len() * stride)) {
        let mut numbers = Randlc::at(2 * ((z * ny + rows.start) * nx) as u64);
        for point in plane.chunks_exact_mut(stride).flat_map(|row| &mut row[..nx]) {
            point.re = numbers.draw();
            point.im = numbers.draw();
        }
    }
}

/// NPB's exp(−4 alpha pi² |k|² t) for the wave vectors k of this rank's spectrum, as a factor for each axis.
fn decay(layout: &Layout, alpha_t: f64) -> Factors {
    let factors = |indices: Range<usize>, n: usize| {
        indices.map(|i| (-4.0 * alpha_t * PI * PI * wave_number_squared(i, n)).exp()).collect()
    };
    let Grid { nx, ny, nz } = layout.grid();
    Factors { x: factors(layout.x(), nx), y: factors(layout.spectrum_y(), ny), z: factors(0..nz, nz) }
}

/// Square of a wave number. The upper half of the indices stands for negative wave numbers.
fn wave_number_squared(index: usize, n: usize) -> f64 {
    index.min(n - index).pow(2) as f64
}

/// This rank's part of NPB's `checksum`: of the points (j mod nx, 3j mod ny, 5j mod nz), j = 1 … 1024, those
/// in its state.
fn checksum(layout: &Layout, state: &[Complex64]) -> Complex64 {
    let Grid { nx, ny, nz } = layout.grid();
    let (rows, planes) = (layout.state_y(), layout.z());
    let local = |j: usize| {
        let (x, y, z) = (j % nx, 3 * j % ny, 5 * j % nz);
        let own = rows.contains(&y) && planes.contains(&z);
        own.then(|| state[((z - planes.start) * rows.len() + y - rows.start) * layout.state_stride() + x])
    };
    (1..=1024).filter_map(local).sum::<Complex64>() / layout.grid().points() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::Class;
    use crate::layout::LayoutKind;
    use std::convert::Infallible;
    use std::sync::mpsc;
    use std::thread;

    const ALPHA: f64 = 1e-6;

    /// Exchange through channels between ranks that are threads: tests the core without a messaging library.
    struct Channels {
        to: Vec<mpsc::Sender<Vec<Complex64>>>,
        from: Vec<mpsc::Receiver<Vec<Complex64>>>,
        pieces: usize,
    }

    impl Exchange for Channels {
        type Error = Infallible;
        type Outgoing = Vec<Complex64>;
        type Arrived = Vec<Complex64>;

        fn members(&self) -> usize {
            self.to.len()
        }

        fn pieces(&self) -> usize {
            self.pieces
        }

        fn outgoing(&mut self, points: usize) -> Result<Vec<Complex64>, Infallible> {
            Ok(vec![Complex64::new(f64::NAN, f64::NAN); points])
        }

        fn send(&mut self, blocks: Vec<Vec<Complex64>>) -> Result<(), Infallible> {
            self.to
                .iter()
                .zip(blocks)
                .for_each(|(to, block)| to.send(block).expect("the peer's thread runs"));
            Ok(())
        }

        fn receive(&mut self, points: &[Vec<usize>]) -> Result<Vec<Vec<Vec<Complex64>>>, Infallible> {
            let piece = |from: &mpsc::Receiver<Vec<Complex64>>, points: usize| {
                let block = from.recv().expect("the peer's thread runs");
                assert_eq!(block.len(), points);
                block
            };
            let member =
                |(from, points): (_, &Vec<usize>)| points.iter().map(|points| piece(from, *points)).collect();
            Ok(self.from.iter().zip(points).map(member).collect())
        }
    }

    /// Makes the links of all ranks.
    fn links(layouts: &[Layout], pieces: usize) -> Vec<Links<Channels>> {
        let mut ends: Vec<_> =
            layouts.iter().map(|_| [0, 1].map(|_| Channels { to: vec![], from: vec![], pieces })).collect();
        for (rank, layout) in layouts.iter().enumerate() {
            for (axis, group) in [&layout.across, &layout.along].into_iter().enumerate() {
                for &peer in &group.ranks {
                    let (sender, receiver) = mpsc::channel();
                    // Ranks are visited in order, so that a peer's receivers are in the order of its group,
                    // too.
                    ends[rank][axis].to.push(sender);
                    ends[peer][axis].from.push(receiver);
                }
            }
        }
        ends.into_iter().map(|[across, along]| Links { across, along }).collect()
    }

    /// Outcome of a run on several ranks.
    struct Outcome {
        /// Checksum per iteration.
        sums: Vec<Complex64>,
        /// The final state of the whole grid.
        state: Vec<Complex64>,
    }

    struct Run {
        grid: Grid,
        iterations: usize,
        ranks: usize,
        kind: LayoutKind,
        pieces: usize,
        alpha: f64,
    }

    fn solve(run: &Run) -> Outcome {
        let &Run { grid, iterations, ranks, kind, pieces, alpha } = run;
        let layouts: Vec<_> = (0..ranks).map(|rank| Layout::new(grid, rank, ranks, kind).unwrap()).collect();
        let rank = move |layout: Layout, mut links: Links<Channels>| {
            let mut solver = Solver::new(layout, alpha);
            let Ok(()) = solver.start(&mut links);
            let step = |_| solver.step(&mut links).unwrap_or_else(|never| match never {});
            let parts: Vec<_> = (0..iterations).map(step).collect();
            (parts, solver.state)
        };
        let ends = links(&layouts, pieces);
        let threads: Vec<_> = layouts
            .iter()
            .cloned()
            .zip(ends)
            .map(|(layout, links)| thread::spawn(move || rank(layout, links)))
            .collect();
        let mut outcome =
            Outcome { sums: vec![Complex64::ZERO; iterations], state: vec![Complex64::ZERO; grid.points()] };
        for (thread, layout) in threads.into_iter().zip(&layouts) {
            let (parts, state) = thread.join().expect("the rank's thread did not panic");
            outcome.sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            let rows = layout.z().flat_map(|z| layout.state_y().map(move |y| z * grid.ny + y));
            for (row, line) in rows.zip(state.chunks_exact(layout.state_stride())) {
                outcome.state[row * grid.nx..][..grid.nx].copy_from_slice(&line[..grid.nx]);
            }
        }
        outcome
    }

    fn has_npbs_checksums(class: Class, kind: LayoutKind, ranks: impl IntoIterator<Item = usize>) {
        for ranks in ranks {
            let run = Run {
                grid: class.grid(),
                iterations: class.iterations(),
                ranks,
                kind,
                pieces: 2,
                alpha: ALPHA,
            };
            let sums = solve(&run).sums;
            assert!(class.verify(&sums), "class {class:?} on {ranks}, {kind:?}: {sums:?}");
        }
    }

    #[test]
    fn class_s_has_npbs_checksums_on_any_number_of_ranks() {
        has_npbs_checksums(Class::S, LayoutKind::Slab, (1..=9).chain([17]));
    }

    #[test]
    fn class_s_has_npbs_checksums_in_pencils() {
        has_npbs_checksums(Class::S, LayoutKind::Pencil, [1, 2, 3, 4, 6, 8, 9, 12, 15]);
    }

    /// With class W a rank's planes and its pencils differ in number of points.
    #[test]
    fn class_w_has_npbs_checksums_on_six_ranks() {
        has_npbs_checksums(Class::W, LayoutKind::Slab, [6]);
    }

    const SMALL: Run = Run {
        grid: Grid { nx: 12, ny: 9, nz: 15 },
        iterations: 3,
        ranks: 1,
        kind: LayoutKind::Slab,
        pieces: 1,
        alpha: ALPHA,
    };

    #[test]
    fn another_alpha_has_other_checksums() {
        let class = Class::S;
        let run = Run { grid: class.grid(), iterations: class.iterations(), alpha: 1.001 * ALPHA, ..SMALL };
        let sums = solve(&run).sums;
        assert!(!class.verify(&sums), "{sums:?}");
    }

    #[test]
    fn neither_ranks_nor_layout_nor_pieces_change_the_state() {
        let alone = solve(&SMALL);
        assert!(alone.state.iter().all(|point| point.is_finite()));
        let slabs =
            (1..=9).flat_map(|ranks| [1, 2].map(|pieces| (ranks, LayoutKind::Slab, pieces.min(9 / ranks))));
        let pencils = [(4, 1), (4, 3), (6, 2), (9, 2), (12, 1), (20, 1), (81, 1)];
        for (ranks, kind, pieces) in slabs.chain(pencils.map(|(n, pieces)| (n, LayoutKind::Pencil, pieces))) {
            let together = solve(&Run { ranks, kind, pieces, ..SMALL });
            let differences =
                together.state.iter().zip(&alone.state).map(|(point, expected)| (point - expected).norm());
            let (greatest, size) = (differences.fold(0.0, f64::max), SMALL.grid.points() as f64);
            assert!(greatest < 1e-13 * size, "{ranks} ranks, {kind:?}, {pieces} pieces: off by {greatest}");
        }
    }

    /// Computes the grid by the definition of the Fourier transform, and of the equation's solution.
    #[test]
    fn a_step_is_what_the_definition_says_for_odd_edges() {
        let grid = Grid { nx: 5, ny: 3, nz: 7 };
        let layout = Layout::new(grid, 0, 1, LayoutKind::Slab).unwrap();
        let mut initial = vec![Complex64::ZERO; grid.points()];
        fill_initial(&layout, &mut initial);
        let places = || {
            (0..grid.nz).flat_map(|z| (0..grid.ny).flat_map(move |y| (0..grid.nx).map(move |x| [x, y, z])))
        };
        let edges = [grid.nx, grid.ny, grid.nz];
        let fourier = |points: &[Complex64], sign: f64| -> Vec<Complex64> {
            let phase = |a: [usize; 3], b: [usize; 3]| -> f64 {
                (0..3).map(|i| (a[i] * b[i]) as f64 / edges[i] as f64).sum()
            };
            let sum = |k| {
                let term = |(point, place): (&Complex64, _)| {
                    point * Complex64::cis(sign * 2.0 * PI * phase(k, place))
                };
                points.iter().zip(places()).map(term).sum()
            };
            places().map(sum).collect()
        };
        let mut spectrum = fourier(&initial, -1.0);
        for (point, k) in spectrum.iter_mut().zip(places()) {
            let squares: f64 = k.iter().zip(edges).map(|(k, n)| wave_number_squared(*k, n)).sum();
            *point *= (-4.0 * 1e-2 * PI * PI * squares).exp();
        }
        let expected = fourier(&spectrum, 1.0);
        let found = solve(&Run { grid, iterations: 1, alpha: 1e-2, ranks: 3, ..SMALL }).state;
        for (place, (found, expected)) in places().zip(found.iter().zip(&expected)) {
            assert!((found - expected).norm() < 1e-10, "at {place:?}: {found} instead of {expected}");
        }
    }
}
