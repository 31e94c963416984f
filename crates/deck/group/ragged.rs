//! Collective calls for parts of different lengths, as slices of slices. A member knows only the lengths of
//! the parts that it sends and receives.

use bytemuck::Pod;

use super::Group;
use super::algorithm::{self, direct};
use super::blocking::reducing;
use super::kind::Kind;
use super::op::Operator;
use crate::error::Result;

impl Group {
    /// Gathers like [`Group::gather`], with parts of different lengths: `all` has a slice for each member, as
    /// long as that member's `mine`. Elsewhere than at the root `all` is not used, and may be empty.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Gatherv")]
    pub fn gather_v<T: Pod>(&self, root: usize, mine: &[T], all: &mut [&mut [T]]) -> Result {
        let signature = self.rooted::<T>(Kind::GatherV, root);
        self.member.state.check_root(root, signature)?;
        if self.rank() == root {
            self.check_parts(signature, all.len())?;
            self.check_own(signature, mine.len(), all[root].len())?;
        }
        self.run::<T, _>(signature, async |call| {
            direct::gather(call, call.layout().everybody(), root, mine, all).await
        })
    }

    /// Scatters like [`Group::scatter`], with parts of different lengths: `all` has a slice for each member,
    /// as long as that member's `mine`. Elsewhere than at the root `all` is not used, and may be empty.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Scatterv")]
    pub fn scatter_v<T: Pod>(&self, root: usize, all: &[&[T]], mine: &mut [T]) -> Result {
        let signature = self.rooted::<T>(Kind::ScatterV, root);
        self.member.state.check_root(root, signature)?;
        if self.rank() == root {
            self.check_parts(signature, all.len())?;
            self.check_own(signature, all[root].len(), mine.len())?;
        }
        self.run::<T, _>(signature, async |call| {
            direct::scatter(call, call.layout().everybody(), root, all, mine).await
        })
    }

    /// Gathers like [`Group::all_gather`], with parts of different lengths: `all` has a slice for each
    /// member, as long as that member's `mine`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allgatherv")]
    pub fn all_gather_v<T: Pod>(&self, mine: &[T], all: &mut [&mut [T]]) -> Result {
        let signature = self.plain::<T>(Kind::AllGatherV);
        self.check_parts(signature, all.len())?;
        self.check_own(signature, mine.len(), all[self.rank()].len())?;
        self.run::<T, _>(signature, async |call| algorithm::all_gather_v(call, mine, all).await)
    }

    /// Exchanges like [`Group::all_to_all`], with parts of different lengths: `from` and `to` have a slice
    /// for each member. The k-th slice of `to` is as long as member k's part for this member.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Alltoallv")]
    pub fn all_to_all_v<T: Pod>(&self, from: &[&[T]], to: &mut [&mut [T]]) -> Result {
        let signature = self.plain::<T>(Kind::AllToAllV);
        self.check_parts(signature, from.len())?;
        self.check_parts(signature, to.len())?;
        self.check_own(signature, from[self.rank()].len(), to[self.rank()].len())?;
        self.run::<T, _>(signature, async |call| algorithm::all_to_all_v(call, from, to).await)
    }

    /// Reduces like [`Group::reduce_scatter`], with parts of different lengths: `from` has a slice for each
    /// member, as long as that member's `mine`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Reduce_scatter")]
    pub fn reduce_scatter_v<T: Pod, O: Operator<T>>(&self, from: &[&[T]], mine: &mut [T], op: O) -> Result {
        let signature = reducing(Kind::ReduceScatterV, &op);
        self.check_parts(signature, from.len())?;
        self.check_own(signature, from[self.rank()].len(), mine.len())?;
        // Direct always: no member knows all lengths, so no algorithm may depend on them.
        self.run::<T, _>(signature, async |call| {
            direct::reduce_scatter(call, call.layout().everybody(), from, mine, &op).await
        })
    }

    pub(super) fn check_parts(&self, call: super::Signature, parts: usize) -> Result {
        if parts == self.size() {
            return Ok(());
        }
        Err(self.member.state.invalid(call, format!("{parts} parts for {} members", self.size())))
    }

    fn check_own(&self, call: super::Signature, given: usize, room: usize) -> Result {
        if given == room {
            return Ok(());
        }
        Err(self
            .member
            .state
            .invalid(call, format!("this member has {given} elements for itself, and room for {room}")))
    }
}
