//! Messages that arrived.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::error::Result;
use crate::message::Packed;
use crate::pack::{self, PackType};
use crate::parcel::Parcel;
use crate::payload::Payload;
use bytemuck::Pod;

/// A message that arrived: read-only, where it lies. Dropping it gives the buffer back to its sender.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/received.md"))]
///
/// # Use
///
/// `Received<T>` is a slice of `T`; `Received<Packed>` unpacks. It may be dropped on any thread.
pub struct Received<T: Payload> {
    parcel: Parcel,
    cursor: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T: Payload> Received<T> {
    /// The bytes are aligned, and a whole number of elements, when it is given out.
    #[inline]
    pub(crate) fn new(parcel: Parcel) -> Self {
        Received { parcel, cursor: 0, elements: PhantomData }
    }

    /// Gives back what it holds, and can hold the next message.
    #[inline]
    pub(crate) fn empty(&mut self) {
        let _ = self.parcel.place();
        self.cursor = 0;
    }

    #[inline]
    pub(crate) fn parcel_mut(&mut self) -> &mut Parcel {
        &mut self.parcel
    }

    /// The rank that posted it.
    pub fn source(&self) -> usize {
        self.parcel.rank as usize
    }

    /// Which of that rank's postboxes it came through; numbered in the order in which they were made.
    pub fn postbox(&self) -> u32 {
        self.parcel.postbox
    }

    /// Its tag.
    pub fn tag(&self) -> u32 {
        self.parcel.tag
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.parcel.bytes().len()
    }
}

impl<T: Pod> Deref for Received<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.parcel.bytes())
    }
}

impl Received<Packed> {
    /// The next item, where it lies.
    ///
    /// # Errors
    /// [`crate::PackError`]: of another type, none left, or damaged.
    #[doc(alias = "deck_msg_unpack")]
    pub fn unpack<T: PackType>(&mut self) -> Result<&[T]> {
        Ok(pack::next(self.parcel.bytes(), &mut self.cursor)?)
    }

    /// The next item, which is a single value.
    ///
    /// # Errors
    /// As [`Received::unpack`]; several values in the item are an error too.
    pub fn unpack_one<T: PackType>(&mut self) -> Result<T> {
        let before = self.cursor;
        match pack::next(self.parcel.bytes(), &mut self.cursor)? {
            &[value] => Ok(value),
            _ => {
                self.cursor = before;
                Err(pack::PackError::Malformed { offset: before }.into())
            }
        }
    }

    /// The next item, a string.
    ///
    /// # Errors
    /// As [`Received::unpack`].
    pub fn unpack_str(&mut self) -> Result<&str> {
        Ok(pack::next_str(self.parcel.bytes(), &mut self.cursor)?)
    }

    /// The next item, a nested message: `read` unpacks it by the [`Nested`] reader it gets.
    ///
    /// # Errors
    /// As [`Received::unpack`], and those of `read`.
    pub fn unpack_message<R>(&mut self, read: impl FnOnce(&mut Nested<'_>) -> Result<R>) -> Result<R> {
        let bytes = pack::next_message(self.parcel.bytes(), &mut self.cursor)?;
        read(&mut Nested { bytes, cursor: 0 })
    }

    /// Reads from the start again.
    #[doc(alias = "deck_msg_reset")]
    pub fn reset(&mut self) {
        self.cursor = 0;
    }
}

/// A message inside a message.
#[derive(Debug)]
pub struct Nested<'a> {
    bytes: &'a [u8],
    cursor: usize,
}

impl<'a> Nested<'a> {
    /// The next item, where it lies.
    ///
    /// # Errors
    /// As [`Received::unpack`].
    pub fn unpack<T: PackType>(&mut self) -> Result<&'a [T]> {
        Ok(pack::next(self.bytes, &mut self.cursor)?)
    }

    /// The next item, a string.
    ///
    /// # Errors
    /// As [`Received::unpack`].
    pub fn unpack_str(&mut self) -> Result<&'a str> {
        Ok(pack::next_str(self.bytes, &mut self.cursor)?)
    }

    /// The next item, a message inside this one.
    ///
    /// # Errors
    /// As [`Received::unpack`].
    pub fn unpack_message(&mut self) -> Result<Nested<'a>> {
        let bytes = pack::next_message(self.bytes, &mut self.cursor)?;
        Ok(Nested { bytes, cursor: 0 })
    }
}

impl<T: Payload> fmt::Debug for Received<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Received({} bytes of {} from rank {})", self.len_bytes(), T::kind(), self.source())
    }
}
