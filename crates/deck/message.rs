//! Packed messages: DECK's own kind, with items of mixed types.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use udeck_via::Block;

use crate::error::{PostError, Result};
use crate::pack::{self, PackError, PackType};
use crate::postable::{Postable, sealed};
use crate::send::poster::Poster;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;

/// A packed message: items of DECK's types one after another, and a cursor for reading them again.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/message.md"))]
///
/// # Use
///
/// [`crate::World::message`] makes it. A message describes itself: unpacking an item as another type than
/// packed is an error.
pub struct Message {
    block: Block,
    /// Bytes packed.
    used: usize,
    /// Position of the next item to unpack, as in a received message.
    cursor: AtomicUsize,
    tag: u32,
}

impl Message {
    pub(crate) fn new(block: Block) -> Self {
        Message { block, used: 0, cursor: AtomicUsize::new(0), tag: 0 }
    }

    /// Restores the message from before [`Message::into_block`].
    pub(crate) fn from_block(mut block: Block, capacity: usize) -> Self {
        let (used, tag) = (block.len(), block.notes()[0]);
        block.set_len(capacity);
        Message { block, used, cursor: AtomicUsize::new(0), tag }
    }

    pub(crate) fn into_block(mut self) -> Block {
        self.block.set_len(self.used);
        self.block.set_notes([self.tag, 0]);
        self.block
    }

    /// Capacity in bytes (each item takes 8 more than its data, rounded up to 8).
    #[doc(alias = "deck_msg_create")]
    pub fn capacity(&self) -> usize {
        self.block.len()
    }

    /// Bytes packed so far.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing is packed.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Appends `items`.
    ///
    /// # Errors
    /// [`PackError::Full`] says how much room is missing.
    #[doc(alias = "deck_msg_pack")]
    pub fn pack<T: PackType>(&mut self, items: &[T]) -> Result<&mut Self> {
        self.packed(|bytes, used| pack::append(bytes, used, items))
    }

    /// Appends a string.
    ///
    /// # Errors
    /// [`PackError::Full`].
    pub fn pack_str(&mut self, text: &str) -> Result<&mut Self> {
        self.packed(|bytes, used| pack::append_str(bytes, used, text))
    }

    /// Appends another message, whole.
    ///
    /// # Errors
    /// [`PackError::Full`].
    pub fn pack_message(&mut self, message: &Message) -> Result<&mut Self> {
        self.packed(|bytes, used| pack::append_message(bytes, used, message.packed_bytes()))
    }

    fn packed(
        &mut self,
        append: impl FnOnce(&mut [u8], usize) -> Result<usize, PackError>,
    ) -> Result<&mut Self> {
        self.used = append(self.block.bytes_mut(), self.used)?;
        Ok(self)
    }

    fn packed_bytes(&self) -> &[u8] {
        &self.block.bytes()[..self.used]
    }

    /// Returns the next item, where it lies.
    ///
    /// # Errors
    /// [`PackError::WrongType`], [`PackError::End`].
    #[doc(alias = "deck_msg_unpack")]
    pub fn unpack<T: PackType>(&self) -> Result<&[T]> {
        self.advance(|bytes, cursor| pack::next(bytes, cursor))
    }

    /// Returns the next item, a string.
    ///
    /// # Errors
    /// The errors of [`Message::unpack`].
    pub fn unpack_str(&self) -> Result<&str> {
        self.advance(|bytes, cursor| pack::next_str(bytes, cursor))
    }

    fn advance<'a, R>(
        &'a self,
        take: impl FnOnce(&'a [u8], &mut usize) -> Result<R, PackError>,
    ) -> Result<R> {
        let mut cursor = self.cursor.load(Ordering::Relaxed);
        let item = take(self.packed_bytes(), &mut cursor)?;
        self.cursor.store(cursor, Ordering::Relaxed);
        Ok(item)
    }

    /// Removes everything packed.
    #[doc(alias = "deck_msg_clear")]
    pub fn clear(&mut self) {
        self.used = 0;
        self.reset();
    }

    /// Moves the cursor back to the first item.
    #[doc(alias = "deck_msg_reset")]
    pub fn reset(&self) {
        self.cursor.store(0, Ordering::Relaxed);
    }

    /// The tag that travels with the message; 0 in a new message.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// Returns the same message with this tag.
    #[must_use]
    pub fn with_tag(self, tag: u32) -> Self {
        Message { tag, ..self }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} of {} bytes packed)", self.used, self.capacity())
    }
}

/// Marks mailboxes of packed messages: `world.mailbox::<Packed>("reports")` takes [`Message`]s.
#[derive(Debug)]
pub struct Packed;

impl sealed::Sealed for Message {}

impl Postable<Packed> for Message {
    type Unposted = Self;

    fn unposted(self) -> Self {
        self
    }

    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        let capacity = self.capacity();
        poster.post_block(self.into_block(), policy).map_err(|(error, block)| PostError {
            error,
            message: block.map(|block| Message::from_block(block, capacity)),
        })
    }
}
