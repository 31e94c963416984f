//! NPB's FT: solves a diffusion equation in the spectrum of the grid, and checks points of every time step.
//!
//! ```text
//! u1 = random planes           u0 = FFT(u1)
//! each iteration:  u0 *= exp(-4 alpha pi^2 |k|^2),  u1 = u0,  u2 = inverse FFT(u1),  checksum of u2
//! ```
//!
//! The numerical core: it knows its part of the grid and that blocks can be swapped with other ranks
//! ([`Exchange`]), not how. Only the exchange blocks. Single-threaded, one solver per rank.

use crate::classes::Grid;
use crate::fft::{Direction, LocalFft};
use crate::profile::{Phase, Profile};
use crate::random::Randlc;
use crate::slab::Slab;
use num_complex::Complex64;
use std::f64::consts::PI;

/// What a rank needs of the others to turn planes into pencils and back.
pub trait Exchange {
    type Error;

    /// Swaps a block with every other rank; the one that goes from one rank to another has `len(from, to)`
    /// points. `pack(peer, block)` fills what goes to `peer`; `unpack(peer, block)` takes what came from it.
    /// Each is called once per peer, in any order.
    fn swap_blocks(
        &mut self,
        len: impl Fn(usize, usize) -> usize,
        pack: impl FnMut(usize, &mut [Complex64]),
        unpack: impl FnMut(usize, &[Complex64]),
    ) -> Result<(), Self::Error>;
}

/// One rank's share of the problem.
pub struct Solver {
    slab: Slab,
    fft: LocalFft,
    /// u0, the spectrum at the present time: pencils.
    spectrum: Vec<Complex64>,
    /// u1, what the transforms work on: planes at the start, pencils afterwards, as long as the longer of both.
    work: Vec<Complex64>,
    /// u2, the state at the present time: planes.
    state: Vec<Complex64>,
    /// What one time step multiplies each point of the spectrum by.
    decay: Vec<f64>,
    pub profile: Profile,
}

impl Solver {
    /// Takes the memory and touches it; plans the transforms.
    pub fn new(slab: Slab) -> Self {
        let (planes, pencils) = (slab.points_in_planes(), slab.points_in_pencils());
        let zeros = |points| vec![Complex64::ZERO; points];
        Self {
            fft: LocalFft::new(slab.grid()),
            slab,
            spectrum: zeros(pencils),
            work: zeros(planes.max(pencils)),
            state: zeros(planes),
            decay: vec![0.0; pencils],
            profile: Profile::default(),
        }
    }

    /// Sets the initial state and transforms it: time 0. One transpose.
    pub fn start<E: Exchange>(&mut self, alpha: f64, exchange: &mut E) -> Result<(), E::Error> {
        let planes = &mut self.work[..self.slab.points_in_planes()];
        self.profile.time(Phase::Setup, || {
            fill_decay(&self.slab, alpha, &mut self.decay);
            fill_initial(&self.slab, planes);
        });
        self.profile.time(Phase::Fft, || self.fft.planes(Direction::Forward, planes));
        self.profile
            .time(Phase::Transpose, || to_pencils(&self.slab, planes, &mut self.spectrum, exchange))?;
        self.profile.time(Phase::Fft, || self.fft.pencils(Direction::Forward, &mut self.spectrum));
        Ok(())
    }

    /// One time step, with one transpose. Returns this rank's part of the checksum; the parts of all ranks
    /// add up to NPB's.
    pub fn step<E: Exchange>(&mut self, exchange: &mut E) -> Result<Complex64, E::Error> {
        let pencils = &mut self.work[..self.slab.points_in_pencils()];
        self.profile.time(Phase::Evolve, || evolve(&mut self.spectrum, &self.decay, pencils));
        self.profile.time(Phase::Fft, || self.fft.pencils(Direction::Inverse, pencils));
        self.profile.time(Phase::Transpose, || to_planes(&self.slab, pencils, &mut self.state, exchange))?;
        self.profile.time(Phase::Fft, || self.fft.planes(Direction::Inverse, &mut self.state));
        Ok(checksum(&self.slab, &self.state))
    }
}

fn to_pencils<E: Exchange>(
    slab: &Slab,
    planes: &[Complex64],
    pencils: &mut [Complex64],
    exchange: &mut E,
) -> Result<(), E::Error> {
    slab.keep_for_pencils(planes, pencils);
    exchange.swap_blocks(
        |from, to| slab.block_to_pencils(from, to),
        |peer, block| slab.pack_for_pencils(planes, peer, block),
        |peer, block| slab.unpack_to_pencils(block, peer, pencils),
    )
}

fn to_planes<E: Exchange>(
    slab: &Slab,
    pencils: &[Complex64],
    planes: &mut [Complex64],
    exchange: &mut E,
) -> Result<(), E::Error> {
    slab.keep_for_planes(pencils, planes);
    exchange.swap_blocks(
        |from, to| slab.block_to_planes(from, to),
        |peer, block| slab.pack_for_planes(pencils, peer, block),
        |peer, block| slab.unpack_to_planes(block, peer, planes),
    )
}

/// NPB's `compute_initial_conditions`: two random numbers per point, in the order of the whole grid.
fn fill_initial(slab: &Slab, planes: &mut [Complex64]) {
    let first = slab.z().start * slab.plane();
    let mut numbers = Randlc::at(2 * first as u64);
    for point in planes {
        point.re = numbers.draw();
        point.im = numbers.draw();
    }
}

/// NPB's `compute_indexmap`: exp(−4 alpha pi² |k|²) for the pencils' wave vectors k.
///
/// |k|² is a whole number and takes few values: the exponentials come from a table (as in NPB 2.3), bit for bit
/// those that NPB 3.3 computes at each point.
fn fill_decay(slab: &Slab, alpha: f64, decay: &mut [f64]) {
    let Grid { nx, ny, nz } = slab.grid();
    let exponent = -4.0 * alpha * PI * PI;
    let greatest = [nx, ny, nz].map(|n| (n / 2).pow(2)).iter().sum();
    let table: Vec<f64> = (0..=greatest).map(|k2| (exponent * k2 as f64).exp()).collect();
    let squares_x: Vec<usize> = (0..nx).map(|x| wave_number_squared(x, nx)).collect();
    let squares_z: Vec<usize> = (0..nz).map(|z| wave_number_squared(z, nz)).collect();

    let columns = slab.y().flat_map(|y| {
        let y2 = wave_number_squared(y, ny);
        squares_x.iter().map(move |x2| x2 + y2)
    });
    for (pencil, x2_y2) in decay.chunks_exact_mut(nz).zip(columns) {
        for (factor, z2) in pencil.iter_mut().zip(&squares_z) {
            *factor = table[x2_y2 + z2];
        }
    }
}

/// The upper half of the indices stands for negative wave numbers.
fn wave_number_squared(index: usize, n: usize) -> usize {
    index.min(n - index).pow(2)
}

fn evolve(spectrum: &mut [Complex64], decay: &[f64], work: &mut [Complex64]) {
    for ((point, factor), copy) in spectrum.iter_mut().zip(decay).zip(work) {
        *point *= factor;
        *copy = *point;
    }
}

/// This rank's part of NPB's `checksum`: of the points (j mod nx, 3j mod ny, 5j mod nz), j = 1 … 1024, those
/// in its planes.
fn checksum(slab: &Slab, planes: &[Complex64]) -> Complex64 {
    let Grid { nx, ny, nz } = slab.grid();
    let own = slab.z();
    let local = |j: usize| {
        let (x, y, z) = (j % nx, 3 * j % ny, 5 * j % nz);
        own.contains(&z).then(|| planes[(z - own.start) * slab.plane() + y * nx + x])
    };
    (1..=1024).filter_map(local).sum::<Complex64>() / slab.grid().points() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::Class;
    use std::convert::Infallible;
    use std::sync::mpsc;
    use std::thread;

    const ALPHA: f64 = 1e-6;

    /// Ranks are threads, blocks go through channels: the core without a messaging library.
    struct Channels {
        to: Vec<mpsc::Sender<Vec<Complex64>>>,
        from: Vec<mpsc::Receiver<Vec<Complex64>>>,
        rank: usize,
    }

    impl Exchange for Channels {
        type Error = Infallible;

        fn swap_blocks(
            &mut self,
            len: impl Fn(usize, usize) -> usize,
            mut pack: impl FnMut(usize, &mut [Complex64]),
            mut unpack: impl FnMut(usize, &[Complex64]),
        ) -> Result<(), Infallible> {
            let others = || (0..self.to.len()).filter(|peer| *peer != self.rank);
            for peer in others() {
                let mut block = vec![Complex64::ZERO; len(self.rank, peer)];
                pack(peer, &mut block);
                self.to[peer].send(block).expect("the peer's thread runs");
            }
            for peer in others() {
                let block = self.from[peer].recv().expect("the peer's thread runs");
                assert_eq!(block.len(), len(peer, self.rank));
                unpack(peer, &block);
            }
            Ok(())
        }
    }

    fn channels(ranks: usize) -> Vec<Channels> {
        let mut ends: Vec<_> = (0..ranks).map(|rank| Channels { to: vec![], from: vec![], rank }).collect();
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            let (sender, receiver) = mpsc::channel();
            ends[from].to.push(sender);
            ends[to].from.push(receiver);
        }
        ends
    }

    /// What a run on several ranks came to.
    struct Outcome {
        /// Checksum per iteration.
        sums: Vec<Complex64>,
        /// The final state of the whole grid.
        state: Vec<Complex64>,
    }

    fn solve(grid: Grid, iterations: usize, ranks: usize, alpha: f64) -> Outcome {
        let rank = move |mut channels: Channels| {
            let mut solver = Solver::new(Slab::new(grid, channels.rank, ranks).unwrap());
            let Ok(()) = solver.start(alpha, &mut channels);
            let step = |_| solver.step(&mut channels).unwrap_or_else(|never| match never {});
            let parts: Vec<_> = (0..iterations).map(step).collect();
            (parts, solver.state)
        };
        let threads: Vec<_> =
            channels(ranks).into_iter().map(|end| thread::spawn(move || rank(end))).collect();
        let mut outcome = Outcome { sums: vec![Complex64::ZERO; iterations], state: vec![] };
        for thread in threads {
            let (parts, planes) = thread.join().expect("the rank's thread did not panic");
            outcome.sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            outcome.state.extend(planes);
        }
        outcome
    }

    fn has_npbs_checksums(class: Class, ranks: &[usize]) {
        for &ranks in ranks {
            let sums = solve(class.grid(), class.iterations(), ranks, ALPHA).sums;
            assert!(class.verify(&sums), "class {class:?} on {ranks}: {sums:?}");
        }
    }

    #[test]
    fn class_s_has_npbs_checksums_on_any_number_of_ranks() {
        has_npbs_checksums(Class::S, &[1, 2, 3, 4, 5, 6, 7]);
    }

    /// Here a rank's planes and its pencils differ in number of points.
    #[test]
    fn class_w_has_npbs_checksums_on_six_ranks_as_on_one_and_four() {
        has_npbs_checksums(Class::W, &[1, 4, 6]);
    }

    #[test]
    fn another_alpha_has_other_checksums() {
        let sums = solve(Class::S.grid(), Class::S.iterations(), 1, 1.001 * ALPHA).sums;
        assert!(!Class::S.verify(&sums), "{sums:?}");
    }

    /// Transforms are local whatever the division, so the state is the same to the bit.
    #[test]
    fn the_number_of_ranks_does_not_change_the_state() {
        let grid = Grid { nx: 12, ny: 8, nz: 16 };
        let alone = solve(grid, 3, 1, ALPHA);
        assert_eq!(alone.state.len(), grid.points());
        for ranks in 2..=8 {
            let together = solve(grid, 3, ranks, ALPHA);
            assert!(together.state == alone.state, "{ranks} ranks");
            for (sum, expected) in together.sums.iter().zip(&alone.sums) {
                assert!(((sum - expected) / expected).norm() < 1e-14, "{ranks} ranks: {sum}, not {expected}");
            }
        }
    }

    #[test]
    fn the_decay_is_that_of_each_wave_vector() {
        let grid = Grid { nx: 4, ny: 8, nz: 16 };
        let wave_number = |i: usize, n: usize| ((i + n / 2) % n) as f64 - (n / 2) as f64;
        for rank in 0..3 {
            let slab = Slab::new(grid, rank, 3).unwrap();
            let mut decay = vec![f64::NAN; slab.points_in_pencils()];
            fill_decay(&slab, ALPHA, &mut decay);
            let mut found = decay.into_iter();
            for y in slab.y() {
                for (x, z) in (0..grid.nx).flat_map(|x| (0..grid.nz).map(move |z| (x, z))) {
                    let k = [wave_number(x, grid.nx), wave_number(y, grid.ny), wave_number(z, grid.nz)];
                    let k2: f64 = k.iter().map(|k| k * k).sum();
                    assert_eq!(found.next(), Some((-4.0 * ALPHA * PI * PI * k2).exp()), "{x} {y} {z}");
                }
            }
            assert_eq!(found.next(), None);
        }
    }
}
