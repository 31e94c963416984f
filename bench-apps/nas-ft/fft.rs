//! The transforms along one axis that need no other rank, by rustfft; plans and scratch are made once.
//!
//! As in NPB, neither direction is scaled.

use crate::classes::Grid;
use crate::transpose::{TILE, transpose};
use num_complex::Complex64;
use rustfft::{Fft, FftPlanner};
use std::sync::Arc;

pub use rustfft::FftDirection as Direction;

/// Transforms planes along x and y, and pencils along z.
pub struct LocalFft {
    grid: Grid,
    forward: Axes,
    inverse: Axes,
    /// A few columns of a plane, gathered so that each is contiguous.
    columns: Vec<Complex64>,
    scratch: Vec<Complex64>,
}

/// The plans of one direction.
struct Axes {
    x: Arc<dyn Fft<f64>>,
    y: Arc<dyn Fft<f64>>,
    z: Arc<dyn Fft<f64>>,
}

impl LocalFft {
    pub fn new(grid: Grid) -> Self {
        let mut planner = FftPlanner::new();
        let forward = Axes::plan(&mut planner, grid, Direction::Forward);
        let inverse = Axes::plan(&mut planner, grid, Direction::Inverse);
        let scratch = forward.scratch_len().max(inverse.scratch_len());
        Self {
            grid,
            forward,
            inverse,
            columns: vec![Complex64::ZERO; TILE * grid.ny],
            scratch: vec![Complex64::ZERO; scratch],
        }
    }

    /// Transforms `[z][y][x]` along x and y, plane by plane: a plane stays in the cache for both.
    pub fn planes(&mut self, direction: Direction, planes: &mut [Complex64]) {
        for plane in planes.chunks_exact_mut(self.grid.nx * self.grid.ny) {
            match direction {
                Direction::Forward => {
                    self.forward.x.process_with_scratch(plane, &mut self.scratch);
                    self.columns(direction, plane);
                }
                Direction::Inverse => {
                    self.columns(direction, plane);
                    self.inverse.x.process_with_scratch(plane, &mut self.scratch);
                }
            }
        }
    }

    /// Transforms `[y][x][z]` along z.
    pub fn pencils(&mut self, direction: Direction, pencils: &mut [Complex64]) {
        let z = match direction {
            Direction::Forward => &self.forward.z,
            Direction::Inverse => &self.inverse.z,
        };
        z.process_with_scratch(pencils, &mut self.scratch);
    }

    /// Transforms a plane along y.
    fn columns(&mut self, direction: Direction, plane: &mut [Complex64]) {
        let Grid { nx, ny, .. } = self.grid;
        let y = match direction {
            Direction::Forward => &self.forward.y,
            Direction::Inverse => &self.inverse.y,
        };
        for left in (0..nx).step_by(TILE) {
            let width = TILE.min(nx - left);
            let columns = &mut self.columns[..width * ny];
            transpose(&plane[left..], nx, columns, ny, ny, width);
            y.process_with_scratch(columns, &mut self.scratch);
            transpose(columns, ny, &mut plane[left..], nx, width, ny);
        }
    }
}

impl Axes {
    fn plan(planner: &mut FftPlanner<f64>, grid: Grid, direction: Direction) -> Self {
        let mut plan = |len| planner.plan_fft(len, direction);
        Self { x: plan(grid.nx), y: plan(grid.ny), z: plan(grid.nz) }
    }

    fn scratch_len(&self) -> usize {
        [&self.x, &self.y, &self.z].map(|fft| fft.get_inplace_scratch_len()).into_iter().fold(0, usize::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    const GRID: Grid = Grid { nx: 12, ny: 8, nz: 4 };

    /// One wave: e^(2 pi i (a x / nx + b y / ny)).
    fn wave(a: usize, b: usize) -> Vec<Complex64> {
        let phase = move |x: usize, y: usize| {
            TAU * (a as f64 * x as f64 / GRID.nx as f64 + b as f64 * y as f64 / GRID.ny as f64)
        };
        (0..GRID.ny).flat_map(|y| (0..GRID.nx).map(move |x| Complex64::cis(phase(x, y)))).collect()
    }

    fn assert_close(found: &[Complex64], expected: &[Complex64]) {
        assert_eq!(found.len(), expected.len());
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            assert!((f - e).norm() < 1e-10, "at {i}: {f} instead of {e}");
        }
    }

    #[test]
    fn a_wave_in_a_plane_becomes_one_point_and_a_wave_again() {
        let mut fft = LocalFft::new(GRID);
        let plane = GRID.nx * GRID.ny;
        for (a, b) in [(0, 0), (1, 0), (0, 1), (5, 3), (11, 7)] {
            // Two planes, so that going from one to the next is tested too.
            let wave = wave(a, b).repeat(2);
            let mut data = wave.clone();
            fft.planes(Direction::Forward, &mut data);
            let mut spectrum = vec![Complex64::ZERO; 2 * plane];
            spectrum[b * GRID.nx + a] = Complex64::from(plane as f64);
            spectrum[plane + b * GRID.nx + a] = Complex64::from(plane as f64);
            assert_close(&data, &spectrum);

            fft.planes(Direction::Inverse, &mut data);
            let scaled: Vec<_> = wave.iter().map(|point| point * plane as f64).collect();
            assert_close(&data, &scaled);
        }
    }

    #[test]
    fn each_pencil_is_transformed_by_itself() {
        let mut fft = LocalFft::new(GRID);
        let [zero, one, four] = [0.0, 1.0, 4.0].map(Complex64::from);
        let mut data = vec![one, one, one, one, one, zero, zero, zero];
        fft.pencils(Direction::Forward, &mut data);
        assert_close(&data, &[four, zero, zero, zero, one, one, one, one]);
        fft.pencils(Direction::Inverse, &mut data);
        assert_close(&data, &[four, four, four, four, four, zero, zero, zero]);
    }
}
