//! A message's memory on its way: the channel's alone, or shared with others who only read it.

use std::ops::Deref;
use std::sync::Arc;

use udeck_via::{Block, Error as ViaError, RemoteBuffer, Vi};

use crate::error::Error;
use crate::wire::{self, Kind};

/// A message, with its tag in the block's notes.
pub(crate) enum MessageBlock {
    Own(Block),
    Shared(Arc<Block>),
}

/// A post that failed: why, and the message unless it was under way.
pub(crate) type Refused = (Error, Option<MessageBlock>);

impl Deref for MessageBlock {
    type Target = Block;
    #[inline]
    fn deref(&self) -> &Block {
        match self {
            MessageBlock::Own(block) => block,
            MessageBlock::Shared(block) => block,
        }
    }
}

impl MessageBlock {
    /// The block of a message that was not shared.
    pub fn into_own(self) -> Option<Block> {
        match self {
            MessageBlock::Own(block) => Some(block),
            MessageBlock::Shared(_) => None,
        }
    }

    pub fn tag(&self) -> u32 {
        self.notes()[0]
    }

    /// Lends the peer this very memory. The message comes back if it was not sent.
    pub fn lend(self, vi: &mut Vi, kind: Kind) -> Result<(), (ViaError, Self)> {
        let (tag, head) = (Some(self.tag()), wire::head(kind, 0));
        match self {
            MessageBlock::Own(block) => {
                vi.hand_off(tag, &head, block).map_err(|(error, block)| (error, MessageBlock::Own(block)))
            }
            MessageBlock::Shared(block) => {
                vi.hand_off_shared(tag, &head, &block).map_err(|error| (error, MessageBlock::Shared(block)))
            }
        }
    }

    /// Writes the message to memory of the peer's, which is told of it with the message's tag.
    pub fn write(self, vi: &mut Vi, to: RemoteBuffer) -> Result<(), (ViaError, Self)> {
        let tag = Some(self.tag());
        match self {
            MessageBlock::Own(block) => {
                vi.rdma_write(block, to, tag).map_err(|(error, block)| (error, MessageBlock::Own(block)))
            }
            MessageBlock::Shared(block) => {
                vi.rdma_write_shared(&block, to, tag).map_err(|error| (error, MessageBlock::Shared(block)))
            }
        }
    }
}
