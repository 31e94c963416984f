//! Collective calls for one value of each member, which return their result.

use bytemuck::Pod;

use super::Group;
use super::kind::Kind;
use super::op::{Max, Min, Operator, Sum};
use crate::error::Result;

/// Collective calls for one value of each member. They return their result; the calls on slices, of which these
/// are short forms, write it in place. A member may make the call on a slice of one element instead.
///
/// A value is a number, an array of numbers, or a type of the program's own that derives [`Pod`]. The operators of
/// [`super::op`] combine numbers, and the program's own types that implement `Add` and the like; a closure combines
/// anything.
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/group_values.md"))]
impl Group {
    /// Adds up a value of each member. All members get the sum: [`Group::all_reduce_value`] with [`Sum`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allreduce")]
    pub fn sum<T: Pod>(&self, value: T) -> Result<T>
    where
        Sum: Operator<T>,
    {
        self.all_reduce_value(value, Sum)
    }

    /// Finds the least of a value of each member. All members get it: [`Group::all_reduce_value`] with
    /// [`Min`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allreduce")]
    pub fn min<T: Pod>(&self, value: T) -> Result<T>
    where
        Min: Operator<T>,
    {
        self.all_reduce_value(value, Min)
    }

    /// Finds the greatest of a value of each member. All members get it: [`Group::all_reduce_value`] with
    /// [`Max`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allreduce")]
    pub fn max<T: Pod>(&self, value: T) -> Result<T>
    where
        Max: Operator<T>,
    {
        self.all_reduce_value(value, Max)
    }

    /// Combines a value of each member. All members get the result: [`Group::all_reduce`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allreduce")]
    pub fn all_reduce_value<T: Pod, O: Operator<T>>(&self, value: T, op: O) -> Result<T> {
        let mut data = [value];
        self.all_reduce(&mut data, op)?;
        Ok(data[0])
    }

    /// Combines a value of each member. The root gets the result, the others `None`: [`Group::reduce`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Reduce")]
    pub fn reduce_value<T: Pod, O: Operator<T>>(&self, root: usize, value: T, op: O) -> Result<Option<T>> {
        let mut data = [value];
        self.reduce(root, &mut data, op)?;
        Ok((self.rank() == root).then_some(data[0]))
    }

    /// Gives the root's value to all members: [`Group::broadcast`]. `value` is the root's; elsewhere it is
    /// `None`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Bcast")]
    pub fn broadcast_value<T: Pod>(&self, root: usize, value: Option<T>) -> Result<T> {
        let signature = self.rooted::<T>(Kind::Broadcast, root);
        self.member.state.check_root(root, signature)?;
        self.check_given(signature, root, "a value", value.is_some())?;
        let mut data = [value.unwrap_or_else(T::zeroed)];
        self.broadcast(root, &mut data)?;
        Ok(data[0])
    }

    /// Collects a value of each member at the root, in the members' order; elsewhere the result is empty:
    /// [`Group::gather`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Gather")]
    pub fn gather_value<T: Pod>(&self, root: usize, value: T) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); if self.rank() == root { self.size() } else { 0 }];
        self.gather(root, &[value], &mut all)?;
        Ok(all)
    }

    /// Collects a value of each member at all members, in the members' order: [`Group::all_gather`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allgather")]
    pub fn all_gather_value<T: Pod>(&self, value: T) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); self.size()];
        self.all_gather(&[value], &mut all)?;
        Ok(all)
    }

    /// Combines the values of members 0 to k, at each member k: [`Group::scan`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Scan")]
    pub fn scan_value<T: Pod, O: Operator<T>>(&self, value: T, op: O) -> Result<T> {
        let mut data = [value];
        self.scan(&mut data, op)?;
        Ok(data[0])
    }

    /// Combines the values of members 0 to k − 1, at each member k; `None` at member 0: [`Group::exscan`].
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Exscan")]
    pub fn exscan_value<T: Pod, O: Operator<T>>(&self, value: T, op: O) -> Result<Option<T>> {
        let mut data = [value];
        self.exscan(&mut data, op)?;
        Ok((self.rank() > 0).then_some(data[0]))
    }
}
