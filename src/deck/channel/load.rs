//! A message's memory on its way: the channel's alone, or shared with others who only read it.

use std::ops::Deref;
use std::sync::Arc;

use udeck_via::{Block, Error as ViaError, RemoteBuffer};

use super::Channel;
use crate::error::Error;
use crate::protocol::Protocol;
use crate::wire::{self, Kind};

/// A message, with its tag in the block's notes.
pub(crate) enum Load {
    Own(Block),
    Shared(Arc<Block>),
}

impl Deref for Load {
    type Target = Block;
    fn deref(&self) -> &Block {
        match self {
            Load::Own(block) => block,
            Load::Shared(block) => block,
        }
    }
}

/// A post that failed: why, and the message unless it was under way.
pub(super) type Refused = (Error, Option<Load>);

impl Load {
    /// The block of a message that was not shared.
    pub fn into_own(self) -> Option<Block> {
        match self {
            Load::Own(block) => Some(block),
            Load::Shared(_) => None,
        }
    }
}

impl Channel {
    /// Sends a message that needs no announcement.
    pub(super) fn send_load(&mut self, load: Load, how: Protocol) -> Result<(), (ViaError, Load)> {
        match load {
            Load::Own(block) => self.send(block, how).map_err(|(error, block)| (error, Load::Own(block))),
            Load::Shared(block) => {
                self.send_shared(&block, how).map_err(|error| (error, Load::Shared(block)))
            }
        }
    }

    /// Writes the message to memory of the mailbox's.
    pub(super) fn write(
        &mut self,
        load: Load,
        to: RemoteBuffer,
        tag: Option<u32>,
    ) -> Result<(), (ViaError, Load)> {
        match load {
            Load::Own(block) => {
                self.vi.rdma_write(block, to, tag).map_err(|(error, block)| (error, Load::Own(block)))
            }
            Load::Shared(block) => {
                self.vi.rdma_write_shared(&block, to, tag).map_err(|error| (error, Load::Shared(block)))
            }
        }
    }

    /// Lends the mailbox the message's own memory.
    pub(super) fn lend(&mut self, load: Load, kind: Kind) -> Result<(), (ViaError, Load)> {
        let (tag, head) = (Some(load.notes()[0]), wire::head(kind, 0));
        match load {
            Load::Own(block) => {
                self.vi.hand_off(tag, &head, block).map_err(|(error, block)| (error, Load::Own(block)))
            }
            Load::Shared(block) => {
                self.vi.hand_off_shared(tag, &head, &block).map_err(|error| (error, Load::Shared(block)))
            }
        }
    }
}
