//! Received messages.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Pod;
use udeck_via::mem::SharedBytes;

use crate::error::{PostError, Result};
use crate::memory::accounting::Memory;
use crate::message::Packed;
use crate::pack::{self, PackError, PackType};
use crate::parcel::{Parcel, Stored};
use crate::payload::Payload;
use crate::postable::{Postable, sealed};
use crate::send::poster::Poster;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;

/// A received message: read-only, where it lies. Dropping it gives the buffer back to its sender.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/received.md"))]
///
/// # Use
///
/// `Received<T>` is a slice of `T`; `Received<Packed>` unpacks. It may be dropped on any thread.
pub struct Received<T: Payload> {
    parcel: Parcel,
    /// Position of the next item to unpack. Atomic so that several threads may read a message; each store is
    /// a plain one.
    cursor: AtomicUsize,
    elements: PhantomData<fn() -> T>,
}

impl<T: Payload> Received<T> {
    /// Wraps `parcel`. When it is given out, its bytes are aligned, and a whole number of elements.
    #[inline]
    pub(crate) fn new(parcel: Parcel) -> Self {
        Received { parcel, cursor: AtomicUsize::new(0), elements: PhantomData }
    }

    /// Gives back the message, and can hold the next one.
    #[inline]
    pub(crate) fn empty(&mut self) {
        let _ = self.parcel.inline_mut();
        *self.cursor.get_mut() = 0;
    }

    /// The message without its type.
    pub(crate) fn into_parcel(self) -> Parcel {
        self.parcel
    }

    /// The message without its type, where it lies.
    pub(crate) fn parcel(&self) -> &Parcel {
        &self.parcel
    }

    #[inline]
    pub(crate) fn parcel_mut(&mut self) -> &mut Parcel {
        &mut self.parcel
    }

    /// The rank that posted this message.
    pub fn source(&self) -> usize {
        self.parcel.rank as usize
    }

    /// Number of the postbox that posted this message: the rank's postboxes are numbered in the order in
    /// which they were made.
    pub fn postbox(&self) -> u32 {
        self.parcel.postbox
    }

    /// The message's tag.
    pub fn tag(&self) -> u32 {
        self.parcel.tag
    }

    /// Returns the same message with this tag, for posting it on.
    #[must_use]
    pub fn with_tag(mut self, tag: u32) -> Self {
        self.parcel.tag = tag;
        self
    }

    /// The message's length in bytes.
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

/// Unpacks the items of a packed message. Items are slices of the message, so several may be held at once. A
/// message has one cursor: if two threads unpack at the same time, each item goes to one of them, or to both.
impl Received<Packed> {
    /// Returns the next item, where it lies.
    ///
    /// # Errors
    /// [`PackError`]: the item has another type, none is left, or the message is damaged. The cursor stays.
    #[doc(alias = "deck_msg_unpack")]
    pub fn unpack<T: PackType>(&self) -> Result<&[T]> {
        self.advance(|bytes, cursor| pack::next(bytes, cursor))
    }

    /// Returns the next item, which is a single value.
    ///
    /// # Errors
    /// The errors of [`Received::unpack`]; several values in the item are an error too.
    pub fn unpack_one<T: PackType>(&self) -> Result<T> {
        self.advance(|bytes, cursor| {
            let offset = *cursor;
            match pack::next(bytes, cursor)? {
                &[value] => Ok(value),
                _ => Err(PackError::Malformed { offset }),
            }
        })
    }

    /// Returns the next item, a string.
    ///
    /// # Errors
    /// The errors of [`Received::unpack`].
    pub fn unpack_str(&self) -> Result<&str> {
        self.advance(|bytes, cursor| pack::next_str(bytes, cursor))
    }

    /// Unpacks the next item, a nested message, by `read`, which gets a [`Nested`] reader. Items that `read`
    /// unpacks may be kept as long as the items of this message.
    ///
    /// # Errors
    /// The errors of [`Received::unpack`], and those of `read`.
    pub fn unpack_message<'a, R>(&'a self, read: impl FnOnce(&mut Nested<'a>) -> Result<R>) -> Result<R> {
        let bytes = self.advance(|bytes, cursor| pack::next_message(bytes, cursor))?;
        read(&mut Nested { bytes, cursor: 0 })
    }

    /// Moves the cursor back to the first item.
    #[doc(alias = "deck_msg_reset")]
    pub fn reset(&self) {
        self.cursor.store(0, Ordering::Relaxed);
    }

    /// Takes an item at the cursor. The cursor stays if that fails.
    fn advance<'a, R>(
        &'a self,
        take: impl FnOnce(&'a [u8], &mut usize) -> Result<R, PackError>,
    ) -> Result<R> {
        let mut cursor = self.cursor.load(Ordering::Relaxed);
        let item = take(self.parcel.bytes(), &mut cursor)?;
        self.cursor.store(cursor, Ordering::Relaxed);
        Ok(item)
    }
}

impl<T: Payload> sealed::Sealed for Received<T> {}

/// Posts the message on, with its tag. A message that lies in message memory of this rank is moved like a
/// message that this rank made. Over a network, every message lies there except one that came by
/// `rdma-write`; over shared memory, a message that came by `rdma-read`, `copy`, `handshake` or `eager`.
/// Otherwise a copy is posted (a handed-off message lies in its sender's memory), which
/// [`crate::Stats::bytes_copied`] counts.
impl<T: Payload> Postable<T> for Received<T> {
    type Unposted = Self;

    fn unposted(self) -> Self {
        self
    }

    fn post_to(mut self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        let tag = self.parcel.tag;
        let stored = std::mem::replace(&mut self.parcel.stored, Parcel::NONE.stored);
        let (posted, back) = match stored {
            Stored::Owned(mut block) => {
                block.set_notes([tag, 0]);
                match poster.post_block(block, policy) {
                    Ok(request) => (Ok(request), None),
                    Err((error, block)) => (Err(error), block.map(Stored::Owned)),
                }
            }
            Stored::Lent(lent) => match SharedBytes::received(lent, poster.world().arena(Memory::Outbox)) {
                Ok(bytes) => {
                    // One clone travels. If the post succeeds, nothing is kept here.
                    let posted = poster.post_shared(&bytes.with_notes([tag, 0]), policy);
                    let back = if posted.is_ok() { None } else { bytes.into_received() };
                    (posted, back.map(Stored::Lent))
                }
                Err(lent) => (poster.post_copy(&lent, tag, policy), Some(Stored::Lent(lent))),
            },
            Stored::Shared(bytes) => {
                (poster.post_shared(&bytes.with_notes([tag, 0]), policy), Some(Stored::Shared(bytes)))
            }
            other @ (Stored::Inline(_) | Stored::Settled(_)) => {
                self.parcel.stored = other;
                let posted = poster.post_copy(self.parcel.bytes(), tag, policy);
                (posted, Some(std::mem::replace(&mut self.parcel.stored, Parcel::NONE.stored)))
            }
        };
        posted.map_err(|error| {
            let message = back.map(|stored| {
                self.parcel.stored = stored;
                self
            });
            PostError { error, message }
        })
    }
}

/// A message inside a message.
#[derive(Debug)]
pub struct Nested<'a> {
    bytes: &'a [u8],
    cursor: usize,
}

impl<'a> Nested<'a> {
    /// Returns the next item, where it lies.
    ///
    /// # Errors
    /// The errors of [`Received::unpack`].
    pub fn unpack<T: PackType>(&mut self) -> Result<&'a [T]> {
        Ok(pack::next(self.bytes, &mut self.cursor)?)
    }

    /// Returns the next item, a string.
    ///
    /// # Errors
    /// The errors of [`Received::unpack`].
    pub fn unpack_str(&mut self) -> Result<&'a str> {
        Ok(pack::next_str(self.bytes, &mut self.cursor)?)
    }

    /// Returns a reader of the next item, a message inside this one.
    ///
    /// # Errors
    /// The errors of [`Received::unpack`].
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
