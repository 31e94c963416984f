//! How the grid is divided among the ranks, and how blocks move between the two divisions.
//!
//! NPB's one-dimensional layout. While x and y are transformed a rank holds *planes*, `[z][y][x]` with x
//! contiguous, for its share of z. While z is transformed it holds *pencils*, `[y][x][z]` with z contiguous,
//! for its share of y. Going from one to the other, every rank has a block for every other; the sender brings
//! the block into the order in which the receiver's memory has it, so that the receiver, who reads what
//! another core wrote, copies whole runs:
//!
//! ```text
//! block to pencils:  [y of the receiver][x][z of the sender]
//! block to planes:   [z of the receiver][y of the sender][x]
//! ```

use crate::classes::Grid;
use num_complex::Complex64;
use std::ops::Range;

/// One rank's part of the grid.
#[derive(Clone, Debug)]
pub struct Slab {
    grid: Grid,
    rank: usize,
    ranks: usize,
}

/// The grid cannot be divided so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a grid of {0}x{1}x{2} cannot be divided among {ranks} ranks: start a power of two, at most {most}",
    grid.nx, grid.ny, grid.nz
)]
pub struct BadRanks {
    grid: Grid,
    ranks: usize,
    most: usize,
}

impl Slab {
    /// The part of `rank`. The number of ranks must be a power of two that divides both y and z.
    pub fn new(grid: Grid, rank: usize, ranks: usize) -> Result<Self, BadRanks> {
        let divides = grid.ny.is_multiple_of(ranks) && grid.nz.is_multiple_of(ranks);
        if ranks.is_power_of_two() && divides {
            Ok(Self { grid, rank, ranks })
        } else {
            Err(BadRanks { grid, ranks, most: grid.ny.min(grid.nz) })
        }
    }

    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Points that one rank holds, as planes or as pencils.
    pub fn points(&self) -> usize {
        self.grid.points() / self.ranks
    }

    /// The z of this rank's planes.
    pub fn z(&self) -> Range<usize> {
        self.rank * self.planes()..(self.rank + 1) * self.planes()
    }

    /// The y of this rank's pencils.
    pub fn y(&self) -> Range<usize> {
        self.rank * self.rows()..(self.rank + 1) * self.rows()
    }

    /// Points that one rank has for another.
    pub fn block_len(&self) -> usize {
        self.points() / self.ranks
    }

    /// Payload of one transpose, summed over all ranks, in bytes: 16 N (P − 1) / P.
    pub fn transpose_bytes(&self) -> u64 {
        let blocks = self.ranks * (self.ranks - 1);
        (blocks * self.block_len() * size_of::<Complex64>()) as u64
    }

    /// Fills the block that `peer` puts into its pencils.
    pub fn pack_for_pencils(&self, planes: &[Complex64], peer: usize, block: &mut [Complex64]) {
        self.turn_planes(planes, peer, block, self.planes());
    }

    /// Puts `peer`'s block into the pencils.
    pub fn unpack_to_pencils(&self, block: &[Complex64], peer: usize, pencils: &mut [Complex64]) {
        let run = self.planes();
        for (pencil, piece) in pencils.chunks_exact_mut(self.grid.nz).zip(block.chunks_exact(run)) {
            pencil[peer * run..][..run].copy_from_slice(piece);
        }
    }

    /// What this rank keeps: as if it had packed for itself and unpacked.
    pub fn keep_for_pencils(&self, planes: &[Complex64], pencils: &mut [Complex64]) {
        self.turn_planes(planes, self.rank, &mut pencils[self.rank * self.planes()..], self.grid.nz);
    }

    /// Fills the block that `peer` puts into its planes.
    pub fn pack_for_planes(&self, pencils: &[Complex64], peer: usize, block: &mut [Complex64]) {
        self.turn_pencils(pencils, peer, block, self.strip());
    }

    /// Puts `peer`'s block into the planes.
    pub fn unpack_to_planes(&self, block: &[Complex64], peer: usize, planes: &mut [Complex64]) {
        let strip = self.strip();
        for (plane, piece) in planes.chunks_exact_mut(self.plane()).zip(block.chunks_exact(strip)) {
            plane[peer * strip..][..strip].copy_from_slice(piece);
        }
    }

    /// What this rank keeps: as if it had packed for itself and unpacked.
    pub fn keep_for_planes(&self, pencils: &[Complex64], planes: &mut [Complex64]) {
        self.turn_pencils(pencils, self.rank, &mut planes[self.rank * self.strip()..], self.plane());
    }

    /// Points of one of the planes.
    pub fn plane(&self) -> usize {
        self.grid.nx * self.grid.ny
    }

    /// For each y of `peer`: from `[z][x]` of this rank's planes to `[x][z]`, a line of z every `stride`
    /// points.
    fn turn_planes(&self, planes: &[Complex64], peer: usize, into: &mut [Complex64], stride: usize) {
        let nx = self.grid.nx;
        for row in 0..self.rows() {
            let from = &planes[(peer * self.rows() + row) * nx..];
            transpose(from, self.plane(), &mut into[row * nx * stride..], stride, self.planes(), nx);
        }
    }

    /// For each y of this rank: from `[x][z of peer]` of its pencils to `[z][x]`, a z every `stride` points.
    fn turn_pencils(&self, pencils: &[Complex64], peer: usize, into: &mut [Complex64], stride: usize) {
        let Grid { nx, nz, .. } = self.grid;
        for row in 0..self.rows() {
            let from = &pencils[row * nx * nz + peer * self.planes()..];
            transpose(from, nz, &mut into[row * nx..], stride, nx, self.planes());
        }
    }

    /// Planes of one rank.
    fn planes(&self) -> usize {
        self.grid.nz / self.ranks
    }

    /// Values of y that one rank's pencils have.
    fn rows(&self) -> usize {
        self.grid.ny / self.ranks
    }

    /// Points of a plane that belong to one rank's pencils.
    fn strip(&self) -> usize {
        self.rows() * self.grid.nx
    }
}

/// Edge of the tiles in which matrices are transposed: 8 points are two cache lines, and 8 lines that lie a
/// power of two apart, as they do in every class, still fit the ways of a first-level cache's set.
pub const TILE: usize = 8;

/// `into[column][row] = from[row][column]`, rows of either matrix starting every so many points (its stride).
pub fn transpose(
    from: &[Complex64],
    from_stride: usize,
    into: &mut [Complex64],
    into_stride: usize,
    rows: usize,
    columns: usize,
) {
    for top in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - top);
        for left in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - left);
            // By way of a tile on the stack, every line of both matrices is touched once and whole.
            let mut tile = [[Complex64::ZERO; TILE]; TILE];
            for (row, line) in tile.iter_mut().enumerate().take(height) {
                line[..width].copy_from_slice(&from[(top + row) * from_stride + left..][..width]);
            }
            for column in 0..width {
                let line = &mut into[(left + column) * into_stride + top..][..height];
                for (point, tile_row) in line.iter_mut().zip(&tile) {
                    *point = tile_row[column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three different edges, so that no two axes can be confused unnoticed.
    const GRID: Grid = Grid { nx: 12, ny: 8, nz: 16 };

    /// A value that names its point.
    fn point(x: usize, y: usize, z: usize) -> Complex64 {
        Complex64::new((x + 100 * y) as f64, z as f64)
    }

    fn planes_of(slab: &Slab) -> Vec<Complex64> {
        let Grid { nx, ny, .. } = GRID;
        slab.z().flat_map(|z| (0..ny).flat_map(move |y| (0..nx).map(move |x| point(x, y, z)))).collect()
    }

    fn pencils_of(slab: &Slab) -> Vec<Complex64> {
        let Grid { nx, nz, .. } = GRID;
        slab.y().flat_map(|y| (0..nx).flat_map(move |x| (0..nz).map(move |z| point(x, y, z)))).collect()
    }

    fn slabs(ranks: usize) -> Vec<Slab> {
        (0..ranks).map(|rank| Slab::new(GRID, rank, ranks).unwrap()).collect()
    }

    #[test]
    fn planes_become_pencils_and_planes_again() {
        for ranks in [1, 2, 4, 8] {
            let slabs = slabs(ranks);
            let mut block = vec![Complex64::ZERO; slabs[0].block_len()];
            for (me, slab) in slabs.iter().enumerate() {
                let unset = vec![Complex64::new(f64::NAN, f64::NAN); slab.points()];
                let (mut planes, mut pencils) = (unset.clone(), unset);
                slab.keep_for_pencils(&planes_of(slab), &mut pencils);
                slab.keep_for_planes(&pencils_of(slab), &mut planes);
                for (peer, other) in slabs.iter().enumerate().filter(|(peer, _)| *peer != me) {
                    other.pack_for_pencils(&planes_of(other), me, &mut block);
                    slab.unpack_to_pencils(&block, peer, &mut pencils);
                    other.pack_for_planes(&pencils_of(other), me, &mut block);
                    slab.unpack_to_planes(&block, peer, &mut planes);
                }
                assert_eq!(pencils, pencils_of(slab), "rank {me} of {ranks}");
                assert_eq!(planes, planes_of(slab), "rank {me} of {ranks}");
            }
        }
    }

    #[test]
    fn transposing_serves_edges_that_are_no_multiple_of_the_tile() {
        for (rows, columns) in [(1, 1), (8, 8), (3, 17), (17, 3), (9, 24)] {
            let (from_stride, into_stride) = (columns + 2, rows + 3);
            let from: Vec<_> = (0..rows * from_stride).map(|i| Complex64::from(i as f64)).collect();
            let outside = Complex64::from(-1.0);
            let mut into = vec![outside; columns * into_stride];
            transpose(&from, from_stride, &mut into, into_stride, rows, columns);
            for (i, value) in into.into_iter().enumerate() {
                let (column, row) = (i / into_stride, i % into_stride);
                let expected = if row < rows { from[row * from_stride + column] } else { outside };
                assert_eq!(value, expected, "{rows} x {columns}, at {column}, {row}");
            }
        }
    }

    #[test]
    fn payload_is_what_the_blocks_of_all_ranks_hold() {
        assert_eq!(slabs(1)[0].transpose_bytes(), 0);
        let total = GRID.points() as u64 * 16;
        assert_eq!(slabs(2)[0].transpose_bytes(), total / 2);
        assert_eq!(slabs(4)[1].transpose_bytes(), total * 3 / 4);
    }

    #[test]
    fn numbers_of_ranks_that_do_not_divide_the_grid_are_refused() {
        for ranks in [0, 3, 6, 16] {
            let error = Slab::new(GRID, 0, ranks).unwrap_err().to_string();
            assert!(error.contains("12x8x16") && error.contains("at most 8"), "{error}");
        }
    }
}
