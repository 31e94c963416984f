//! The exchange of blocks with other ranks, as the transforms need it.

use num_complex::Complex64;
use std::ops::{Deref, DerefMut};

/// Blocks from every member of a group to every other, itself included.
///
/// A transpose is some rounds of [`Exchange::send`], one for each piece that is ready, and one [`Exchange::receive`].
pub trait Exchange {
    type Error;
    /// A block to fill.
    type Outgoing: DerefMut<Target = [Complex64]>;
    /// A block to read.
    type Arrived: Deref<Target = [Complex64]>;

    fn members(&self) -> usize;

    /// Number of pieces into which a member's data should be cut: 1 if nothing travels before `receive`.
    fn pieces(&self) -> usize;

    fn outgoing(&mut self, points: usize) -> Result<Self::Outgoing, Self::Error>;

    /// Gives away a block for each member, in their order. The blocks travel during the caller's computation.
    fn send(&mut self, blocks: Vec<Self::Outgoing>) -> Result<(), Self::Error>;

    /// Takes the blocks that every member has sent in the rounds of this transpose: `points[member]` are their lengths.
    fn receive(&mut self, points: &[Vec<usize>]) -> Result<Vec<Vec<Self::Arrived>>, Self::Error>;
}

/// The exchanges of the two transposes.
pub struct Links<E> {
    /// Exchange for the transpose of x and y.
    pub across: E,
    /// Exchange for the transpose of y and z.
    pub along: E,
}
