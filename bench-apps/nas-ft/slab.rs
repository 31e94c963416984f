//! How the grid is divided among the ranks, and how blocks move between the two divisions.
//!
//! NPB's one-dimensional layout. While x and y are transformed a rank holds *planes*, `[z][y][x]` with x
//! contiguous, for its share of z. While z is transformed it holds *pencils*, `[y][x][z]` with z contiguous,
//! for its share of y. Unlike NPB's, shares need not be equal ([`Division`]), nor then the blocks. Going from one to the other, every rank has a block for every other; the sender brings
//! the block into the order in which the receiver's memory has it, so that the receiver, who reads what
//! another core wrote, copies whole runs:
//!
//! ```text
//! block to pencils:  [y of the receiver][x][z of the sender]
//! block to planes:   [z of the receiver][y of the sender][x]
//! ```

use crate::classes::Grid;
use crate::division::Division;
use crate::transpose::transpose;
use num_complex::Complex64;
use std::ops::Range;

/// One rank's part of the grid.
#[derive(Clone, Debug)]
pub struct Slab {
    grid: Grid,
    rank: usize,
    ranks: usize,
    /// Who has which planes.
    z: Division,
    /// Who has which pencils.
    y: Division,
}

/// There is nothing to divide the grid among, or more ranks than planes or rows of pencils.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a grid of {0}x{1}x{2} cannot be divided among {ranks} ranks, of which each needs a y and a z of its own: \
     start at most {most}, or take a larger class",
    grid.nx, grid.ny, grid.nz
)]
pub struct BadRanks {
    grid: Grid,
    ranks: usize,
    most: usize,
}

impl Slab {
    /// The part of `rank`. Any number of ranks serves that is no greater than y and z; where it divides both,
    /// all parts are equal.
    pub fn new(grid: Grid, rank: usize, ranks: usize) -> Result<Self, BadRanks> {
        let most = grid.ny.min(grid.nz);
        if (1..=most).contains(&ranks) {
            let [z, y] = [grid.nz, grid.ny].map(|points| Division::new(points, ranks));
            Ok(Self { grid, rank, ranks, z, y })
        } else {
            Err(BadRanks { grid, ranks, most })
        }
    }

    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The z of this rank's planes.
    pub fn z(&self) -> Range<usize> {
        self.z.part(self.rank)
    }

    /// The y of this rank's pencils.
    pub fn y(&self) -> Range<usize> {
        self.y.part(self.rank)
    }

    /// Points of this rank's planes.
    pub fn points_in_planes(&self) -> usize {
        self.z().len() * self.plane()
    }

    /// Points of this rank's pencils: not as many as in its planes where the ranks do not divide both axes.
    pub fn points_in_pencils(&self) -> usize {
        self.y().len() * self.grid.nx * self.grid.nz
    }

    /// Points that `from` has for the pencils of `to`.
    pub fn block_to_pencils(&self, from: usize, to: usize) -> usize {
        self.z.len(from) * self.y.len(to) * self.grid.nx
    }

    /// Points that `from` has for the planes of `to`.
    pub fn block_to_planes(&self, from: usize, to: usize) -> usize {
        self.block_to_pencils(to, from)
    }

    /// Points that change ranks in one transpose, either way, summed over all ranks: N (P − 1) / P where the
    /// parts are equal.
    pub fn moved_points(&self) -> usize {
        let kept: usize = (0..self.ranks).map(|rank| self.block_to_pencils(rank, rank)).sum();
        self.grid.points() - kept
    }

    /// Fills the block that `peer` puts into its pencils.
    pub fn pack_for_pencils(&self, planes: &[Complex64], peer: usize, block: &mut [Complex64]) {
        self.turn_planes(planes, peer, block, self.z().len());
    }

    /// Puts `peer`'s block into the pencils.
    pub fn unpack_to_pencils(&self, block: &[Complex64], peer: usize, pencils: &mut [Complex64]) {
        let Range { start, end } = self.z.part(peer);
        for (pencil, piece) in pencils.chunks_exact_mut(self.grid.nz).zip(block.chunks_exact(end - start)) {
            pencil[start..end].copy_from_slice(piece);
        }
    }

    /// What this rank keeps: as if it had packed for itself and unpacked.
    pub fn keep_for_pencils(&self, planes: &[Complex64], pencils: &mut [Complex64]) {
        self.turn_planes(planes, self.rank, &mut pencils[self.z().start..], self.grid.nz);
    }

    /// Fills the block that `peer` puts into its planes.
    pub fn pack_for_planes(&self, pencils: &[Complex64], peer: usize, block: &mut [Complex64]) {
        self.turn_pencils(pencils, peer, block, self.strip(self.rank).len());
    }

    /// Puts `peer`'s block into the planes.
    pub fn unpack_to_planes(&self, block: &[Complex64], peer: usize, planes: &mut [Complex64]) {
        let Range { start, end } = self.strip(peer);
        for (plane, piece) in planes.chunks_exact_mut(self.plane()).zip(block.chunks_exact(end - start)) {
            plane[start..end].copy_from_slice(piece);
        }
    }

    /// What this rank keeps: as if it had packed for itself and unpacked.
    pub fn keep_for_planes(&self, pencils: &[Complex64], planes: &mut [Complex64]) {
        self.turn_pencils(pencils, self.rank, &mut planes[self.strip(self.rank).start..], self.plane());
    }

    /// Points of one of the planes.
    pub fn plane(&self) -> usize {
        self.grid.nx * self.grid.ny
    }

    /// For each y of `peer`: from `[z][x]` of this rank's planes to `[x][z]`, a line of z every `stride`
    /// points.
    fn turn_planes(&self, planes: &[Complex64], peer: usize, into: &mut [Complex64], stride: usize) {
        let (nx, depth) = (self.grid.nx, self.z().len());
        for (row, y) in self.y.part(peer).enumerate() {
            transpose(&planes[y * nx..], self.plane(), &mut into[row * nx * stride..], stride, depth, nx);
        }
    }

    /// For each y of this rank: from `[x][z of peer]` of its pencils to `[z][x]`, a z every `stride` points.
    fn turn_pencils(&self, pencils: &[Complex64], peer: usize, into: &mut [Complex64], stride: usize) {
        let Grid { nx, nz, .. } = self.grid;
        let Range { start, end } = self.z.part(peer);
        for row in 0..self.y().len() {
            let from = &pencils[row * nx * nz + start..];
            transpose(from, nz, &mut into[row * nx..], stride, nx, end - start);
        }
    }

    /// Where in a plane the points lie that belong to the pencils of `rank`.
    fn strip(&self, rank: usize) -> Range<usize> {
        let Range { start, end } = self.y.part(rank);
        start * self.grid.nx..end * self.grid.nx
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeInclusive;

    /// Three different edges, so that no two axes can be confused unnoticed.
    const GRID: Grid = Grid { nx: 12, ny: 8, nz: 16 };

    /// All that the grid allows: those that divide it, and those that do not.
    const RANKS: RangeInclusive<usize> = 1..=8;

    /// A value that names its point.
    fn point(x: usize, y: usize, z: usize) -> Complex64 {
        Complex64::new((x + 100 * y) as f64, z as f64)
    }

    /// The place in a list of all points of the one that a value names.
    fn index(value: Complex64) -> usize {
        let (x_y, z) = (value.re as usize, value.im as usize);
        (z * GRID.ny + x_y / 100) * GRID.nx + x_y % 100
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
    fn every_point_belongs_to_one_ranks_planes_and_to_one_ranks_pencils() {
        for ranks in RANKS {
            let mut owners = vec![(0, 0); GRID.points()];
            for slab in slabs(ranks) {
                let (planes, pencils) = (planes_of(&slab), pencils_of(&slab));
                assert_eq!(planes.len(), slab.points_in_planes(), "{ranks} ranks");
                assert_eq!(pencils.len(), slab.points_in_pencils(), "{ranks} ranks");
                planes.into_iter().for_each(|point| owners[index(point)].0 += 1);
                pencils.into_iter().for_each(|point| owners[index(point)].1 += 1);
            }
            assert!(owners.into_iter().all(|count| count == (1, 1)), "{ranks} ranks");
        }
    }

    #[test]
    fn planes_become_pencils_and_planes_again() {
        let unset = |points| vec![Complex64::new(f64::NAN, f64::NAN); points];
        for ranks in RANKS {
            let slabs = slabs(ranks);
            for (me, slab) in slabs.iter().enumerate() {
                let (mut planes, mut pencils) =
                    (unset(slab.points_in_planes()), unset(slab.points_in_pencils()));
                slab.keep_for_pencils(&planes_of(slab), &mut pencils);
                slab.keep_for_planes(&pencils_of(slab), &mut planes);
                for (peer, other) in slabs.iter().enumerate().filter(|(peer, _)| *peer != me) {
                    let mut block = unset(slab.block_to_pencils(peer, me));
                    other.pack_for_pencils(&planes_of(other), me, &mut block);
                    slab.unpack_to_pencils(&block, peer, &mut pencils);
                    let mut block = unset(slab.block_to_planes(peer, me));
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
    fn points_that_move_are_what_the_blocks_between_ranks_hold() {
        let halves = GRID.points() / 2;
        assert_eq!([1, 2, 4].map(|ranks| slabs(ranks)[0].moved_points()), [0, halves, halves * 3 / 2]);
        for ranks in RANKS {
            let slab = &slabs(ranks)[0];
            let pairs = || (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
            let pairs = || pairs().filter(|(from, to)| from != to);
            let to_pencils: usize = pairs().map(|(from, to)| slab.block_to_pencils(from, to)).sum();
            let to_planes: usize = pairs().map(|(from, to)| slab.block_to_planes(from, to)).sum();
            assert_eq!((to_pencils, to_planes), (slab.moved_points(), slab.moved_points()), "{ranks} ranks");
        }
    }

    #[test]
    fn no_ranks_and_more_ranks_than_rows_are_refused() {
        for ranks in [0, 9, 16] {
            let error = Slab::new(GRID, 0, ranks).unwrap_err().to_string();
            assert!(error.contains("12x8x16") && error.contains("at most 8"), "{error}");
        }
    }
}
