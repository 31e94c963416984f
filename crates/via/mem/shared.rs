//! Shared bytes: outbox memory with several owners and no writer. It is a block, a part of one, or a message that was
//! received there.
//!
//! Memory that peers read has to stay in place for as long as they read it, and may have no writer meanwhile. A [`Block`]
//! that has one owner is given away for that time. Shared bytes are for all other memory of the outbox: each clone keeps the
//! memory, and nobody gets a mutable slice of it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::arena::{Arena, Block};
use super::lent::LentSlice;

/// Bytes of the outbox that have several owners and no writer. A clone costs one reference count.
#[derive(Clone)]
pub struct SharedBytes(Arc<View>);

/// State that clones have in common.
struct View {
    owner: SharedOwner,
    /// Index of the first byte in the owner's memory.
    start: usize,
    len: usize,
    notes: [u32; 2],
}

#[derive(Clone)]
enum SharedOwner {
    Block(Arc<Block>),
    /// A received message that lies in our own outbox.
    Received(Arc<LentSlice>),
}

impl From<Block> for SharedBytes {
    fn from(block: Block) -> Self {
        Arc::new(block).into()
    }
}

impl From<Arc<Block>> for SharedBytes {
    fn from(block: Arc<Block>) -> Self {
        let (len, notes) = (block.len(), block.notes());
        SharedBytes::new(SharedOwner::Block(block), 0, len, notes)
    }
}

impl SharedBytes {
    fn new(owner: SharedOwner, start: usize, len: usize, notes: [u32; 2]) -> Self {
        SharedBytes(Arc::new(View { owner, start, len, notes }))
    }

    /// Shares a received message that lies in this outbox. Over a network, messages are received in that memory.
    ///
    /// # Errors
    /// The message itself, when it lies elsewhere, in its sender's memory for example.
    pub fn received(message: LentSlice, outbox: &Arena) -> Result<Self, LentSlice> {
        let len = message.len();
        if len == 0 || place_in(outbox, &message).is_none() {
            return Err(message);
        }
        Ok(SharedBytes::new(SharedOwner::Received(Arc::new(message)), 0, len, [0; 2]))
    }

    /// A part of the bytes, with the same notes. It keeps all of the memory.
    ///
    /// # Panics
    /// When `range` ends beyond the length, as for slices.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let View { owner, start, notes, .. } = &*self.0;
        let len = self.bytes()[range.clone()].len();
        SharedBytes::new(owner.clone(), start + range.start, len, *notes)
    }

    /// The same bytes with other [notes](SharedBytes::notes). Other clones keep their own.
    #[must_use]
    pub fn with_notes(&self, notes: [u32; 2]) -> Self {
        let View { owner, start, len, .. } = &*self.0;
        SharedBytes::new(owner.clone(), *start, *len, notes)
    }

    /// Two words for the layer above; initially those of the block. They do not travel.
    #[inline]
    pub fn notes(&self) -> [u32; 2] {
        self.0.notes
    }

    /// The shared bytes.
    pub fn bytes(&self) -> &[u8] {
        let all = match &self.0.owner {
            SharedOwner::Block(block) => block.bytes(),
            SharedOwner::Received(message) => message,
        };
        &all[self.0.start..self.0.start + self.0.len]
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the outbox that this keeps, also if other owners keep them, too.
    pub fn kept(&self) -> usize {
        match &self.0.owner {
            SharedOwner::Block(block) => block.capacity(),
            SharedOwner::Received(message) => message.len(),
        }
    }

    /// Returns the block, with its own notes, if these are all of its bytes and it has no other owner.
    ///
    /// # Errors
    /// The bytes themselves, otherwise.
    pub fn into_block(self) -> Result<Block, Self> {
        let View { owner, start, len, notes } = Arc::try_unwrap(self.0).map_err(SharedBytes)?;
        match owner {
            SharedOwner::Block(block) if start == 0 && len == block.len() => Arc::try_unwrap(block)
                .map_err(|block| SharedBytes::new(SharedOwner::Block(block), start, len, notes)),
            owner => Err(SharedBytes::new(owner, start, len, notes)),
        }
    }

    /// Returns the received message, if the bytes are of one and it has no other owner.
    pub fn into_received(self) -> Option<LentSlice> {
        match Arc::try_unwrap(self.0).ok()?.owner {
            SharedOwner::Received(message) => Arc::try_unwrap(message).ok(),
            SharedOwner::Block(_) => None,
        }
    }

    /// Whether the bytes lie in this arena.
    pub fn lies_in(&self, arena: &Arena) -> bool {
        self.offset_in(arena).is_some()
    }

    /// The bytes' offset in this arena, if they lie there.
    pub(crate) fn offset_in(&self, arena: &Arena) -> Option<u64> {
        let start = self.0.start as u64;
        match &self.0.owner {
            SharedOwner::Block(block) => arena.owns(block).then(|| block.offset() + start),
            SharedOwner::Received(message) => Some(place_in(arena, message)? + start),
        }
    }
}

/// The offset of these bytes in the arena, if they lie there.
fn place_in(arena: &Arena, bytes: &[u8]) -> Option<u64> {
    arena.offset_of(NonNull::from(bytes).cast(), bytes.len())
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match &self.0.owner {
            SharedOwner::Block(_) => "block",
            SharedOwner::Received(_) => "received message",
        };
        write!(f, "SharedBytes({} from {} of a {what})", self.0.len, self.0.start)
    }
}
