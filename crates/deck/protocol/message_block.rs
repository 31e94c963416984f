//! The memory of a message on its way: owned by the channel alone, or shared with others who only read it.

use udeck_via::mem::{Arena, SharedBytes};
use udeck_via::{Block, Error as ViaError, RemoteBuffer, Vi};

use crate::error::Error;
use crate::wire::{self, Kind};

/// A message, with its tag in the notes.
pub(crate) enum MessageBlock {
    Own(Block),
    /// Memory with other owners, of the message or of more around it.
    Shared(SharedBytes),
}

/// A failed post: the error, and the message unless it was in flight.
pub(crate) type PostFailure = (Error, Option<MessageBlock>);

impl MessageBlock {
    /// The block of a message that was not shared.
    pub fn into_own(self) -> Option<Block> {
        match self {
            MessageBlock::Own(block) => Some(block),
            MessageBlock::Shared(_) => None,
        }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            MessageBlock::Own(block) => block.bytes(),
            MessageBlock::Shared(bytes) => bytes.bytes(),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            MessageBlock::Own(block) => block.len(),
            MessageBlock::Shared(bytes) => bytes.len(),
        }
    }

    #[inline]
    pub fn tag(&self) -> u32 {
        match self {
            MessageBlock::Own(block) => block.notes()[0],
            MessageBlock::Shared(bytes) => bytes.notes()[0],
        }
    }

    /// Bytes of message memory that the message keeps in use, also if others keep them, too.
    pub fn kept(&self) -> usize {
        match self {
            MessageBlock::Own(block) => block.capacity(),
            MessageBlock::Shared(bytes) => bytes.kept(),
        }
    }

    /// Whether the message lies in this arena.
    pub fn lies_in(&self, arena: &Arena) -> bool {
        match self {
            MessageBlock::Own(block) => arena.owns(block),
            MessageBlock::Shared(bytes) => bytes.lies_in(arena),
        }
    }

    /// Lends this very memory to the peer. The message comes back if it was not sent.
    pub fn lend(self, vi: &mut Vi, kind: Kind) -> Result<(), (ViaError, Self)> {
        let (tag, head) = (Some(self.tag()), wire::head(kind, 0));
        match self {
            MessageBlock::Own(block) => {
                vi.hand_off(tag, &head, block).map_err(|(error, block)| (error, MessageBlock::Own(block)))
            }
            MessageBlock::Shared(bytes) => {
                vi.hand_off_shared(tag, &head, &bytes).map_err(|error| (error, MessageBlock::Shared(bytes)))
            }
        }
    }

    /// Writes the message to the peer's memory; the peer learns of it with the message's tag.
    pub fn write(self, vi: &mut Vi, to: RemoteBuffer) -> Result<(), (ViaError, Self)> {
        let tag = Some(self.tag());
        match self {
            MessageBlock::Own(block) => {
                vi.rdma_write(block, to, tag).map_err(|(error, block)| (error, MessageBlock::Own(block)))
            }
            MessageBlock::Shared(bytes) => {
                vi.rdma_write_shared(&bytes, to, tag).map_err(|error| (error, MessageBlock::Shared(bytes)))
            }
        }
    }
}
