//! Cartesian grids: the members of a group at the points of a lattice, who is beside whom, and the exchange of
//! halos. A grid is arithmetic on numbers of members. Only the exchange and the parts of a grid communicate.

use std::fmt;

use bytemuck::Pod;

use super::Group;
use crate::error::{Error, Result};

/// The members of a group as points of a grid with `D` dimensions ([`Group::grid`]). Members are numbered in
/// row-major order: the last coordinate of the next member is one higher.
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/grid.md"))]
pub struct Grid<const D: usize> {
    group: Group,
    dims: [usize; D],
    periodic: [bool; D],
}

impl Group {
    /// Places the members at the points of a grid: `dims` has the number of points along each dimension.
    /// Dimensions that are 0 are chosen, as equal as possible, the largest first. `periodic` says along which
    /// dimensions the last point is beside the first one. Not a collective call: nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the grid has another number of points than the group has members.
    #[doc(alias = "MPI_Cart_create")]
    #[doc(alias = "MPI_Dims_create")]
    pub fn grid<const D: usize>(&self, dims: [usize; D], periodic: [bool; D]) -> Result<Grid<D>> {
        let Some(dims) = completed(self.size(), dims) else {
            let why = format!("its points have to be as many as the members: {}", self.size());
            return Err(Error::InvalidArgument { what: format!("making a grid of {dims:?}"), why });
        };
        Ok(Grid { group: self.within(self.limit), dims, periodic })
    }
}

impl<const D: usize> Grid<D> {
    /// The group of all members.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Number of points along each dimension.
    pub fn dims(&self) -> [usize; D] {
        self.dims
    }

    /// Along which dimensions the last point is beside the first one.
    pub fn periodic(&self) -> [bool; D] {
        self.periodic
    }

    /// This member's coordinates.
    pub fn coords(&self) -> [usize; D] {
        coords(self.group.rank(), self.dims)
    }

    /// The coordinates of a member; `None`: there is no member of that number.
    #[doc(alias = "MPI_Cart_coords")]
    pub fn coords_of(&self, member: usize) -> Option<[usize; D]> {
        (member < self.group.size()).then(|| coords(member, self.dims))
    }

    /// The member at a point. Along a periodic dimension any coordinate is inside; `None`: the point is outside.
    #[doc(alias = "MPI_Cart_rank")]
    pub fn member_at(&self, point: [isize; D]) -> Option<usize> {
        (0..D).try_fold(0, |member, dimension| {
            let points = self.dims[dimension] as isize;
            let coordinate = match self.periodic[dimension] {
                true => point[dimension].rem_euclid(points),
                false => Some(point[dimension]).filter(|at| (0..points).contains(at))?,
            };
            Some(member * self.dims[dimension] + coordinate as usize)
        })
    }

    /// The member that is `distance` points after this one along a dimension, or before it if `distance` is
    /// negative. `None`: that is outside.
    ///
    /// # Panics
    /// The grid has no such dimension.
    #[doc(alias = "MPI_Cart_shift")]
    pub fn neighbour(&self, dimension: usize, distance: isize) -> Option<usize> {
        let mut point = self.coords().map(|coordinate| coordinate as isize);
        point[dimension] = point[dimension].checked_add(distance)?;
        self.member_at(point)
    }

    /// The members before and after this one, along each dimension.
    pub fn neighbours(&self) -> [[Option<usize>; 2]; D] {
        std::array::from_fn(|dimension| [-1, 1].map(|distance| self.neighbour(dimension, distance)))
    }

    /// Exchanges halos along a dimension: `to` has the parts for the members before and after this one, `from` gets
    /// their parts for this one. Where there is no neighbour, `to` is not used and `from` stays as it is.
    /// Collective: [`Group::neighbours`].
    ///
    /// Halos with corners need one exchange after another, each dimension's with the halos of the former ones.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    ///
    /// # Panics
    /// The grid has no such dimension.
    #[doc(alias = "MPI_Neighbor_alltoall")]
    pub fn exchange<T: Pod>(&self, dimension: usize, to: [&[T]; 2], from: [&mut [T]; 2]) -> Result {
        let [before, after] = self.neighbours()[dimension];
        let sent: Vec<(usize, &[T])> = [before, after].into_iter().zip(to).filter_map(present).collect();
        // In the other order: if one member is on both sides, its first part is for its side before, which is
        // this member's side after.
        let [from_before, from_after] = from;
        let received = [(after, from_after), (before, from_before)];
        let mut received: Vec<(usize, &mut [T])> = received.into_iter().filter_map(present).collect();
        self.group.neighbours(&sent, &mut received)
    }

    /// Divides the grid into parts along the dimensions that are not kept, and returns this member's part: rows, for
    /// example, if the last dimension is kept. A part has the dimensions of the grid; those that are not kept have one
    /// point, and are not periodic. Collective: [`Group::split`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Cart_sub")]
    pub fn sub_grid(&self, keep: [bool; D]) -> Result<Grid<D>> {
        let here = self.coords();
        let colour = (0..D)
            .filter(|dimension| !keep[*dimension])
            .fold(0, |colour, dimension| colour * self.dims[dimension] + here[dimension]);
        let dims = std::array::from_fn(|dimension| if keep[dimension] { self.dims[dimension] } else { 1 });
        let periodic = std::array::from_fn(|dimension| keep[dimension] && self.periodic[dimension]);
        match self.group.split(Some(colour), 0)? {
            Some(part) => part.grid(dims, periodic),
            // A split gives a part to every member with a colour.
            None => self.group.grid(self.dims, self.periodic),
        }
    }
}

impl<const D: usize> fmt::Debug for Grid<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grid({:?}, point {:?} of {:?})", self.group, self.coords(), self.dims)
    }
}

fn present<T>((member, part): (Option<usize>, T)) -> Option<(usize, T)> {
    member.map(|member| (member, part))
}

fn coords<const D: usize>(mut member: usize, dims: [usize; D]) -> [usize; D] {
    let mut point = [0; D];
    for dimension in (0..D).rev() {
        point[dimension] = member % dims[dimension];
        member /= dims[dimension];
    }
    point
}

/// Chooses the dimensions that are 0, so that the grid has `points` points. `None`: it cannot have as many.
fn completed<const D: usize>(points: usize, mut dims: [usize; D]) -> Option<[usize; D]> {
    let fixed = dims.iter().filter(|points| **points != 0);
    let fixed = fixed.copied().try_fold(1_usize, usize::checked_mul)?;
    if !points.is_multiple_of(fixed) {
        return None;
    }
    let free = dims.iter().filter(|points| **points == 0).count();
    let mut chosen = balanced(points / fixed, free, points)?.into_iter();
    dims.iter_mut().filter(|points| **points == 0).for_each(|points| *points = chosen.next().unwrap_or(1));
    Some(dims)
}

/// Factors of a number, as equal as possible, the largest first, none greater than `most`.
fn balanced(number: usize, factors: usize, most: usize) -> Option<Vec<usize>> {
    if factors == 0 {
        return (number == 1).then(Vec::new);
    }
    let divisors = (1..=most.min(number)).filter(|factor| number.is_multiple_of(*factor));
    divisors.into_iter().find_map(|largest| {
        let mut all = vec![largest];
        all.extend(balanced(number / largest, factors - 1, largest)?);
        Some(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_as_equal_as_possible() {
        assert_eq!(completed(12, [0, 0]), Some([4, 3]));
        assert_eq!(completed(36, [0, 0, 0]), Some([4, 3, 3]));
        assert_eq!(completed(7, [0, 0]), Some([7, 1]));
        assert_eq!(completed(24, [0, 2, 0]), Some([4, 2, 3]));
        assert_eq!(completed(4096, [0; 5]), Some([8, 8, 4, 4, 4]));
        assert_eq!(completed(1, [0; 3]), Some([1; 3]));
        assert_eq!((completed(6, [2, 3]), completed(1, [])), (Some([2, 3]), Some([])));
        assert_eq!((completed(6, [4, 0]), completed(6, [2, 2]), completed(2, [])), (None, None, None));
        assert_eq!(completed(6, [usize::MAX, 2, 0]), None);
    }

    #[test]
    fn coordinates_count_from_the_last_dimension() {
        let dims = [2, 3, 4];
        let all: Vec<[usize; 3]> = (0..24).map(|member| coords(member, dims)).collect();
        assert_eq!((all[0], all[1], all[4], all[23]), ([0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 2, 3]));
    }
}
