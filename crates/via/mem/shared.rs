//! Outbox memory that has several owners, none of whom writes it: a block, a part of one, or a message that was received there.
//!
//! What peers read has to be there for as long as they read it, and nobody may write it meanwhile. A [`Block`] that has one owner
//! is given away for that time. This is for all other memory of the outbox: whoever has a clone keeps the memory, and nobody gets a
//! mutable slice of it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::arena::{Arena, Block};
use super::lent::LentSlice;

/// Bytes of the outbox that several own and nobody writes. Cloned for the price of a count.
#[derive(Clone)]
pub struct SharedBytes(Arc<View>);

/// What clones have in common.
struct View {
    owner: SharedOwner,
    /// Where the bytes begin in what the owner has.
    start: usize,
    len: usize,
    notes: [u32; 2],
}

#[derive(Clone)]
enum SharedOwner {
    Block(Arc<Block>),
    /// A message that was received, and that lies in our own outbox.
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

    /// A message that was received, if it lies in this outbox: as over a network, where that is the memory that messages are received in.
    ///
    /// # Errors
    /// It comes back where it lies elsewhere, in its sender's memory for example.
    pub fn received(message: LentSlice, outbox: &Arena) -> Result<Self, LentSlice> {
        let len = message.len();
        if len == 0 || place_in(outbox, &message).is_none() {
            return Err(message);
        }
        Ok(SharedBytes::new(SharedOwner::Received(Arc::new(message)), 0, len, [0; 2]))
    }

    /// A part of them, with the same notes, which keeps all of the memory.
    ///
    /// # Panics
    /// Beyond their length, as slices do.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let View { owner, start, notes, .. } = &*self.0;
        let len = self.bytes()[range.clone()].len();
        SharedBytes::new(owner.clone(), start + range.start, len, *notes)
    }

    /// The same bytes with other [notes](SharedBytes::notes). Other clones keep theirs.
    #[must_use]
    pub fn with_notes(&self, notes: [u32; 2]) -> Self {
        let View { owner, start, len, .. } = &*self.0;
        SharedBytes::new(owner.clone(), *start, *len, notes)
    }

    /// Two words for the layer above, at first those of the block. They do not travel.
    #[inline]
    pub fn notes(&self) -> [u32; 2] {
        self.0.notes
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let all = match &self.0.owner {
            SharedOwner::Block(block) => block.bytes(),
            SharedOwner::Received(message) => message,
        };
        &all[self.0.start..self.0.start + self.0.len]
    }

    /// How many they are.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the outbox that are kept by them, also if others keep them too.
    pub fn kept(&self) -> usize {
        match &self.0.owner {
            SharedOwner::Block(block) => block.capacity(),
            SharedOwner::Received(message) => message.len(),
        }
    }

    /// The block that they are all of, with its own notes, if nobody else has it.
    ///
    /// # Errors
    /// They come back as they are.
    pub fn into_block(self) -> Result<Block, Self> {
        let View { owner, start, len, notes } = Arc::try_unwrap(self.0).map_err(SharedBytes)?;
        match owner {
            SharedOwner::Block(block) if start == 0 && len == block.len() => Arc::try_unwrap(block)
                .map_err(|block| SharedBytes::new(SharedOwner::Block(block), start, len, notes)),
            owner => Err(SharedBytes::new(owner, start, len, notes)),
        }
    }

    /// The received message that they are, if nobody else has it.
    pub fn into_received(self) -> Option<LentSlice> {
        match Arc::try_unwrap(self.0).ok()?.owner {
            SharedOwner::Received(message) => Arc::try_unwrap(message).ok(),
            SharedOwner::Block(_) => None,
        }
    }

    /// Whether they lie in this arena.
    pub fn lies_in(&self, arena: &Arena) -> bool {
        self.offset_in(arena).is_some()
    }

    /// Where they lie in this arena, if they do.
    pub(crate) fn offset_in(&self, arena: &Arena) -> Option<u64> {
        let start = self.0.start as u64;
        match &self.0.owner {
            SharedOwner::Block(block) => arena.owns(block).then(|| block.offset() + start),
            SharedOwner::Received(message) => Some(place_in(arena, message)? + start),
        }
    }
}

/// Where these bytes lie in the arena, if they do.
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
