//! Collective calls for parts of different lengths: vectors, or slices of slices. A member needs to know the
//! lengths of the parts that it sends; those of the others travel with the data.

use bytemuck::Pod;

use super::Group;
use super::Signature;
use super::algorithm::{direct, ragged};
use super::blocking::reducing;
use super::kind::Kind;
use super::op::Operator;
use crate::error::Result;

/// Collective calls for parts of different lengths. They allocate their result; the forms whose names end in
/// `_into` write into memory that the program has, and need to know the lengths. Members may mix both forms.
/// Parts are given as a slice of anything that holds elements: `&[Vec<T>]`, `&[&[T]]`, `&[Box<[T]>]`.
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/group_ragged.md"))]
impl Group {
    /// Gathers like [`Group::gather`], with parts of different lengths. The result has each member's `mine`,
    /// in their order; elsewhere than at the root it is empty.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Gatherv")]
    pub fn gather_v<T: Pod>(&self, root: usize, mine: &[T]) -> Result<Vec<Vec<T>>> {
        let signature = self.rooted::<T>(Kind::GatherV, root);
        self.member.state.check_root(root, signature)?;
        self.run::<T, _>(signature, async |call| {
            ragged::gather(call, root, mine, |from, bytes| ragged::allocated(call, from, bytes)).await
        })
    }

    /// Gathers like [`Group::gather_v`] into memory of the program: `all` has a part for each member, as long
    /// as that member's `mine`. Elsewhere than at the root `all` is not used, and may be empty.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Gatherv")]
    pub fn gather_v_into<T: Pod, R: AsMut<[T]>>(&self, root: usize, mine: &[T], all: &mut [R]) -> Result {
        let signature = self.rooted::<T>(Kind::GatherV, root);
        self.member.state.check_root(root, signature)?;
        let mut rooms = slices_mut(if self.rank() == root { all } else { &mut [] });
        if self.rank() == root {
            self.check_rooms(signature, mine, &rooms)?;
        }
        self.run::<T, _>(signature, async |call| {
            let mut rooms = rooms.iter_mut();
            ragged::gather(call, root, mine, |from, bytes| {
                ragged::fitting(call, from, bytes, rooms.next().map_or(&mut [], |room| room))
            })
            .await
            .map(drop)
        })
    }

    /// Scatters like [`Group::scatter`], with parts of different lengths: `all` has a part for each member.
    /// Elsewhere than at the root `all` is not used, and may be empty. The result is this member's part.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Scatterv")]
    pub fn scatter_v<T: Pod, P: AsRef<[T]>>(&self, root: usize, all: &[P]) -> Result<Vec<T>> {
        let (signature, all) = self.scattered(root, all)?;
        self.run::<T, _>(signature, async |call| {
            ragged::scatter(call, root, &all, |bytes| ragged::allocated(call, root, bytes)).await
        })
    }

    /// Scatters like [`Group::scatter_v`] into memory of the program: `mine` is as long as this member's part.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Scatterv")]
    pub fn scatter_v_into<T: Pod, P: AsRef<[T]>>(&self, root: usize, all: &[P], mine: &mut [T]) -> Result {
        let (signature, all) = self.scattered(root, all)?;
        if self.rank() == root {
            self.check_own(signature, all[root].len(), mine.len())?;
        }
        self.run::<T, _>(signature, async |call| {
            ragged::scatter(call, root, &all, |bytes| ragged::fitting(call, root, bytes, mine))
                .await
                .map(drop)
        })
    }

    /// Gathers like [`Group::all_gather`], with parts of different lengths. The result has each member's
    /// `mine`, in their order.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allgatherv")]
    pub fn all_gather_v<T: Pod>(&self, mine: &[T]) -> Result<Vec<Vec<T>>> {
        self.run::<T, _>(self.plain::<T>(Kind::AllGatherV), async |call| {
            ragged::all_gather(call, mine, |from, bytes| ragged::allocated(call, from, bytes)).await
        })
    }

    /// Gathers like [`Group::all_gather_v`] into memory of the program: `all` has a part for each member, as
    /// long as that member's `mine`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allgatherv")]
    pub fn all_gather_v_into<T: Pod, R: AsMut<[T]>>(&self, mine: &[T], all: &mut [R]) -> Result {
        let signature = self.plain::<T>(Kind::AllGatherV);
        let mut rooms = slices_mut(all);
        self.check_rooms(signature, mine, &rooms)?;
        self.run::<T, _>(signature, async |call| {
            let mut rooms = rooms.iter_mut();
            ragged::all_gather(call, mine, |from, bytes| {
                ragged::fitting(call, from, bytes, rooms.next().map_or(&mut [], |room| room))
            })
            .await
            .map(drop)
        })
    }

    /// Exchanges like [`Group::all_to_all`], with parts of different lengths: `from` has a part for each
    /// member. The result has each member's part for this member, in their order.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Alltoallv")]
    pub fn all_to_all_v<T: Pod, P: AsRef<[T]>>(&self, from: &[P]) -> Result<Vec<Vec<T>>> {
        let (signature, from) = (self.plain::<T>(Kind::AllToAllV), slices(from));
        self.check_parts(signature, from.len())?;
        self.run::<T, _>(signature, async |call| {
            ragged::all_to_all(call, &from, |from, bytes| ragged::allocated(call, from, bytes)).await
        })
    }

    /// Exchanges like [`Group::all_to_all_v`] into memory of the program: the k-th part of `to` is as long as
    /// member k's part for this member.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Alltoallv")]
    pub fn all_to_all_v_into<T: Pod, P: AsRef<[T]>, R: AsMut<[T]>>(
        &self,
        from: &[P],
        to: &mut [R],
    ) -> Result {
        let (signature, from) = (self.plain::<T>(Kind::AllToAllV), slices(from));
        self.check_parts(signature, from.len())?;
        let mut rooms = slices_mut(to);
        self.check_rooms(signature, from[self.rank()], &rooms)?;
        self.run::<T, _>(signature, async |call| {
            let mut rooms = rooms.iter_mut();
            ragged::all_to_all(call, &from, |from, bytes| {
                ragged::fitting(call, from, bytes, rooms.next().map_or(&mut [], |room| room))
            })
            .await
            .map(drop)
        })
    }

    /// Reduces like [`Group::reduce_scatter`], with parts of different lengths: `from` has a part for each
    /// member, as long as that member's `mine`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Reduce_scatter")]
    pub fn reduce_scatter_v<T: Pod, P: AsRef<[T]>, O: Operator<T>>(
        &self,
        from: &[P],
        mine: &mut [T],
        op: O,
    ) -> Result {
        let (signature, from) = (reducing(Kind::ReduceScatterV, &op), slices(from));
        self.check_parts(signature, from.len())?;
        self.check_own(signature, from[self.rank()].len(), mine.len())?;
        // Direct always: no member knows all lengths, so no algorithm may depend on them.
        self.run::<T, _>(signature, async |call| {
            direct::reduce_scatter(call, call.layout().everybody(), &from, mine, &op).await
        })
    }

    /// The signature of a scattering, and the root's parts; elsewhere none.
    fn scattered<'a, T: Pod, P: AsRef<[T]>>(
        &self,
        root: usize,
        all: &'a [P],
    ) -> Result<(Signature, Vec<&'a [T]>)> {
        let signature = self.rooted::<T>(Kind::ScatterV, root);
        self.member.state.check_root(root, signature)?;
        if self.rank() != root {
            return Ok((signature, Vec::new()));
        }
        self.check_parts(signature, all.len())?;
        Ok((signature, slices(all)))
    }

    pub(super) fn check_parts(&self, call: Signature, parts: usize) -> Result {
        if parts == self.size() {
            return Ok(());
        }
        Err(self
            .member
            .state
            .invalid(call, format!("{parts} parts for {} members: give each member one", self.size())))
    }

    fn check_rooms<T>(&self, call: Signature, own: &[T], rooms: &[&mut [T]]) -> Result {
        self.check_parts(call, rooms.len())?;
        self.check_own(call, own.len(), rooms[self.rank()].len())
    }

    fn check_own(&self, call: Signature, given: usize, room: usize) -> Result {
        if given == room {
            return Ok(());
        }
        Err(self.member.state.invalid(
            call,
            format!(
                "this member has {given} elements for itself, and room for {room}: both have to be equal"
            ),
        ))
    }
}

fn slices<T, P: AsRef<[T]>>(parts: &[P]) -> Vec<&[T]> {
    parts.iter().map(AsRef::as_ref).collect()
}

fn slices_mut<T, R: AsMut<[T]>>(rooms: &mut [R]) -> Vec<&mut [T]> {
    rooms.iter_mut().map(AsMut::as_mut).collect()
}
