//! The division of the grid among the ranks.
//!
//! The ranks form an array of `across` times `along`. The state is divided in y by `across` and in z by `along`, with
//! whole lines in x. Two transposes make whole lines in y, then in z:
//!
//! ```text
//! state      [z of along][y of across][x]
//!     transpose of x and y, among the ranks that differ in `across` only
//! between    [z of along][y][x of across]
//!     transpose of y and z, among the ranks that differ in `along` only
//! spectrum   [y of along][z][x of across]
//! ```
//!
//! With `across` = 1 the parts are NPB's slabs: planes that are whole in x and y, and one transpose. Otherwise they are
//! pencils. Parts need not be equal ([`Division`]).

use crate::classes::Grid;
use crate::division::Division;
use std::ops::Range;

/// Choice of layouts for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LayoutKind {
    /// Slabs if every rank gets planes, otherwise pencils
    Auto,
    /// Slabs of whole planes: one transpose; up to as many ranks as the smaller of y and z
    Slab,
    /// Lines: two transposes, each among fewer ranks; allows more ranks
    Pencil,
}

/// The division, and the place of one rank in it.
#[derive(Clone, Debug)]
pub struct Layout {
    grid: Grid,
    pub across: Group,
    pub along: Group,
    x: Division,
    /// Division of y in the state.
    y_across: Division,
    /// Division of y in the spectrum.
    y_along: Division,
    z: Division,
}

/// Ranks that transpose with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Ranks in the world, in order.
    pub ranks: Vec<usize>,
    /// Index of this rank among them.
    pub me: usize,
}

/// The grid cannot be divided among this number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRanks {
    #[error(
        "a grid of {0}x{1}x{2} cannot be divided in slabs among {ranks} ranks, of which each needs a y and a z of its own: \
         start at most {most}, or take --layout pencil or a larger class",
        grid.nx, grid.ny, grid.nz
    )]
    Slabs { grid: Grid, ranks: usize, most: usize },
    #[error(
        "a grid of {0}x{1}x{2} cannot be divided in pencils among {ranks} ranks: they need an array of A x B = {ranks} with \
         A at most {across} and B at most {along}",
        grid.nx, grid.ny, grid.nz
    )]
    Pencils { grid: Grid, ranks: usize, across: usize, along: usize },
}

impl Layout {
    /// Layout of the part of `rank`.
    pub fn new(grid: Grid, rank: usize, ranks: usize, kind: LayoutKind) -> Result<Self, BadRanks> {
        let (across, along) = processor_array(grid, ranks, kind)?;
        let (a, b) = (rank % across, rank / across);
        Ok(Self {
            grid,
            across: Group { ranks: (0..across).map(|a| b * across + a).collect(), me: a },
            along: Group { ranks: (0..along).map(|b| b * across + a).collect(), me: b },
            x: Division::new(grid.nx, across),
            y_across: Division::new(grid.ny, across),
            y_along: Division::new(grid.ny, along),
            z: Division::new(grid.nz, along),
        })
    }

    pub fn grid(&self) -> Grid {
        self.grid
    }

    pub fn is_slab(&self) -> bool {
        self.across.ranks.len() == 1
    }

    /// Indices in x of which a member of `across` has whole lines in y and z.
    pub fn x_of(&self, member: usize) -> Range<usize> {
        self.x.part(member)
    }

    pub fn x(&self) -> Range<usize> {
        self.x_of(self.across.me)
    }

    /// Indices in y of the state of a member of `across`.
    pub fn state_y_of(&self, member: usize) -> Range<usize> {
        self.y_across.part(member)
    }

    pub fn state_y(&self) -> Range<usize> {
        self.state_y_of(self.across.me)
    }

    /// Indices in y of the spectrum of a member of `along`.
    pub fn spectrum_y_of(&self, member: usize) -> Range<usize> {
        self.y_along.part(member)
    }

    pub fn spectrum_y(&self) -> Range<usize> {
        self.spectrum_y_of(self.along.me)
    }

    /// Indices in z of the state of a member of `along`.
    pub fn z_of(&self, member: usize) -> Range<usize> {
        self.z.part(member)
    }

    pub fn z(&self) -> Range<usize> {
        self.z_of(self.along.me)
    }

    /// Distance in points between rows of the state.
    pub fn state_stride(&self) -> usize {
        padded(self.grid.nx)
    }

    /// Distance in points between rows of the spectrum.
    pub fn spectrum_stride(&self) -> usize {
        padded(self.x().len())
    }

    /// Points of this rank's state, with the padding between its rows.
    pub fn state_points(&self) -> usize {
        self.z().len() * self.state_y().len() * self.state_stride()
    }

    /// Points of this rank's spectrum, with the padding between its rows.
    pub fn spectrum_points(&self) -> usize {
        self.spectrum_y().len() * self.grid.nz * self.spectrum_stride()
    }

    /// Number of points that change ranks in one transform, in either direction, summed over all ranks.
    pub fn moved_points(&self) -> usize {
        let kept = |first: Division, second: Division, members: &Group| -> usize {
            (0..members.ranks.len()).map(|member| first.len(member) * second.len(member)).sum()
        };
        let Grid { nx, nz, .. } = self.grid;
        let kept_across = kept(self.x, self.y_across, &self.across) * nz;
        let kept_along = kept(self.z, self.y_along, &self.along) * nx;
        2 * self.grid.points() - kept_across - kept_along
    }
}

/// Length of a row with its padding: a cache line, if the columns of whole rows would otherwise all fall into a few sets of
/// the caches.
pub fn padded(points: usize) -> usize {
    if points.is_multiple_of(32) { points + 4 } else { points }
}

/// Numbers of ranks in the directions `across` and `along`.
fn processor_array(grid: Grid, ranks: usize, kind: LayoutKind) -> Result<(usize, usize), BadRanks> {
    let (most_across, most_along) = (grid.nx.min(grid.ny), grid.ny.min(grid.nz));
    let slab = (1..=most_along).contains(&ranks).then_some((1, ranks));
    // The array is as square as the number of ranks and the grid allow.
    let pairs = (1..=most_across.min(ranks)).filter(|across| ranks.is_multiple_of(*across));
    let pencil = pairs
        .map(|across| (across, ranks / across))
        .filter(|(_, along)| *along <= most_along)
        .min_by_key(|(across, along)| across.abs_diff(*along));
    let no_pencils = BadRanks::Pencils { grid, ranks, across: most_across, along: most_along };
    match kind {
        LayoutKind::Slab => slab.ok_or(BadRanks::Slabs { grid, ranks, most: most_along }),
        LayoutKind::Pencil => pencil.ok_or(no_pencils),
        LayoutKind::Auto => slab.or(pencil).ok_or(no_pencils),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grid with three different edges, so that an exchange of two axes is noticed.
    const GRID: Grid = Grid { nx: 12, ny: 8, nz: 16 };

    fn layouts(ranks: usize, kind: LayoutKind) -> Vec<Layout> {
        (0..ranks).map(|rank| Layout::new(GRID, rank, ranks, kind).unwrap()).collect()
    }

    #[test]
    fn every_point_belongs_to_one_ranks_state_and_to_one_ranks_spectrum() {
        for (ranks, kind) in
            (1..=8).map(|n| (n, LayoutKind::Slab)).chain([4, 6, 9, 12, 64].map(|n| (n, LayoutKind::Pencil)))
        {
            let (mut in_states, mut in_spectra) = (vec![0; GRID.points()], vec![0; GRID.points()]);
            for layout in layouts(ranks, kind) {
                let count = |owners: &mut [usize], x: Range<usize>, y: Range<usize>, z: Range<usize>| {
                    for (z, y) in z.flat_map(|z| y.clone().map(move |y| (z, y))) {
                        x.clone().for_each(|x| owners[(z * GRID.ny + y) * GRID.nx + x] += 1);
                    }
                };
                count(&mut in_states, 0..GRID.nx, layout.state_y(), layout.z());
                count(&mut in_spectra, layout.x(), layout.spectrum_y(), 0..GRID.nz);
            }
            assert!(in_states.iter().chain(&in_spectra).all(|count| *count == 1), "{ranks} ranks, {kind:?}");
        }
    }

    #[test]
    fn arrays_are_slabs_unless_told_and_pencils_are_square() {
        let array = |ranks, kind| processor_array(GRID, ranks, kind).unwrap();
        assert_eq!(array(8, LayoutKind::Auto), (1, 8));
        assert_eq!([4, 6, 5].map(|ranks| array(ranks, LayoutKind::Pencil)), [(2, 2), (2, 3), (1, 5)]);
        assert_eq!(array(16, LayoutKind::Auto), (4, 4), "more ranks than rows");
        assert_eq!(array(64, LayoutKind::Pencil), (8, 8));
    }

    /// In a transpose of y and z, a rank keeps what it has in both divisions: half of the points with two ranks,
    /// and so on.
    #[test]
    fn points_that_move_are_those_that_change_ranks() {
        let halves = GRID.points() / 2;
        assert_eq!(
            [1, 2, 4].map(|ranks| layouts(ranks, LayoutKind::Slab)[0].moved_points()),
            [0, halves, halves * 3 / 2]
        );
        assert_eq!(layouts(4, LayoutKind::Pencil)[0].moved_points(), 2 * halves);
    }

    #[test]
    fn numbers_of_ranks_that_cannot_be_are_refused_with_what_can() {
        for ranks in [0, 9, 16] {
            let error = Layout::new(GRID, 0, ranks, LayoutKind::Slab).unwrap_err().to_string();
            assert!(error.contains("12x8x16") && error.contains("at most 8"), "{error}");
        }
        let error = Layout::new(GRID, 0, 13, LayoutKind::Auto).unwrap_err().to_string();
        assert!(error.contains("A x B = 13"), "{error}");
        assert!(Layout::new(GRID, 0, 0, LayoutKind::Auto).is_err());
    }
}
