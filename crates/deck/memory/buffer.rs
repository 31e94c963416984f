//! Typed messages: elements of plain data, in place, in registered memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use udeck_via::Block;

use crate::error::PostError;
use crate::postable::{Postable, sealed};
use crate::send::poster::Poster;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;

/// A typed message: elements of plain data, 64-byte aligned, in memory that can be sent from where it lies.
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/buf.md"))]
///
/// # Use
///
/// [`crate::World::buf`] makes it. A `Buf` is a handle of 8 bytes, and posting moves it.
pub struct Buf<T: Pod> {
    block: Block,
    elements: PhantomData<T>,
}

impl<T: Pod> Buf<T> {
    /// Wraps `block`, which holds a whole number of elements, and is aligned for them.
    pub(crate) fn new(block: Block) -> Self {
        debug_assert!(block.len().is_multiple_of(size_of::<T>()) && align_of::<T>() <= 64);
        Buf { block, elements: PhantomData }
    }

    pub(crate) fn into_block(self) -> Block {
        self.block
    }

    /// The tag that travels with the message; 0 in a new message.
    pub fn tag(&self) -> u32 {
        self.block.notes()[0]
    }

    /// Returns the same message with this tag.
    #[inline]
    #[must_use]
    pub fn with_tag(mut self, tag: u32) -> Self {
        self.block.set_notes([tag, 0]);
        self
    }

    /// Shortens the message to its first `len` elements, for a length that is known only after writing. The
    /// message keeps its memory. A message that is not longer stays as it is.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.block.set_len(len * size_of::<T>());
        }
    }
}

impl<T: Pod> Deref for Buf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.block.bytes())
    }
}

impl<T: Pod> DerefMut for Buf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.block.bytes_mut())
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Buf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Pod> sealed::Sealed for Buf<T> {}

impl<T: Pod> Postable<T> for Buf<T> {
    type Unposted = Self;

    fn unposted(self) -> Self {
        self
    }

    #[inline]
    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        poster
            .post_block(self.into_block(), policy)
            .map_err(|(error, block)| PostError { error, message: block.map(Buf::new) })
    }
}

impl<T: Pod> sealed::Sealed for &Buf<T> {}

/// Posts a copy, with the tag. The program may write to the buffer again at once.
impl<T: Pod> Postable<T> for &Buf<T> {
    type Unposted = ();

    fn unposted(self) {}

    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        poster
            .post_copy(self.block.bytes(), self.tag(), policy)
            .map_err(|error| PostError { error, message: Some(self) })
    }
}
