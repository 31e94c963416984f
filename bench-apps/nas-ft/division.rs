//! An axis of the grid, cut into one part for each rank.

use std::ops::Range;

/// Contiguous parts in the order of ranks, as equal as whole numbers allow: no two lengths differ by more than
/// one, and all are the same where the ranks divide the axis.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    points: usize,
    ranks: usize,
}

impl Division {
    /// Divides an axis. No part is empty if `ranks` is in `1..=points`, which the caller ensures.
    pub fn new(points: usize, ranks: usize) -> Self {
        Self { points, ranks }
    }

    /// The indices along the axis that belong to `rank`.
    pub fn part(self, rank: usize) -> Range<usize> {
        self.start(rank)..self.start(rank + 1)
    }

    /// Number of indices that belong to `rank`.
    pub fn len(self, rank: usize) -> usize {
        self.part(rank).len()
    }

    /// First index of a part. Rounding down spreads the longer parts over the ranks, so that no host has all of
    /// them.
    fn start(self, rank: usize) -> usize {
        rank * self.points / self.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_belongs_to_exactly_one_rank() {
        for points in 1..=40 {
            for ranks in 1..=points {
                let division = Division::new(points, ranks);
                let dealt = (0..ranks).flat_map(|rank| division.part(rank));
                assert!(dealt.eq(0..points), "{points} among {ranks}");
            }
        }
    }

    #[test]
    fn parts_differ_by_one_at_most() {
        for points in 1..=40 {
            for ranks in 1..=points {
                let least = points / ranks;
                let division = Division::new(points, ranks);
                for rank in 0..ranks {
                    let allowed = least..=points.div_ceil(ranks);
                    assert!(allowed.contains(&division.len(rank)), "rank {rank}: {points} among {ranks}");
                }
            }
        }
    }

    #[test]
    fn longer_parts_are_spread() {
        let division = Division::new(32, 6);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|rank| division.len(rank)), [5, 5, 6, 5, 5, 6]);
    }
}
