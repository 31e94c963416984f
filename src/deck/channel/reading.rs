//! `rdma-read`: the announcement says where the message lies, and the mailbox reads it there.
//!
//! The announcement takes its place in the ring, so that order is kept without the queue, and the sender has nothing
//! more to do. What is left is the message's memory: it waits here until the mailbox says that it has read it (`Fin`),
//! or the connection ends.

use std::collections::VecDeque;
use std::sync::Arc;

use udeck_via::mem::{Ownership, Readable};
use udeck_via::{Block, Error as ViaError, fault};

use super::Channel;
use super::load::Load;
use crate::wire::{self, Kind};

/// Messages that may wait for being read. Each takes an entry of the NIC's windows; beyond, messages wait in the queue.
const MAX_READS: usize = 16;

/// Announced messages, in the order in which they will be read.
#[derive(Debug, Default)]
pub(super) struct Reads(VecDeque<Shown>);

/// A message that the mailbox reads; in the end it is dropped.
#[derive(Debug)]
pub(super) enum Shown {
    Own(Readable),
    Shared(Readable<Arc<Block>>),
}

impl Shown {
    fn len(&self) -> usize {
        match self {
            Shown::Own(readable) => readable.len(),
            Shown::Shared(readable) => readable.len(),
        }
    }
}

impl Reads {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Of all of them together.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Shown::len).sum()
    }

    /// The oldest was read; `None`: the mailbox says so of a message that was not announced.
    pub fn finished(&mut self) -> Option<Shown> {
        self.0.pop_front()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Channel {
    /// Announces a message that the mailbox may read from now on.
    pub(super) fn announce_readable(&mut self, load: Load) -> Result<(), (ViaError, Load)> {
        if self.reads.len() >= MAX_READS {
            let full = ViaError::Full { what: "the list of messages to be read", bound: "".into() };
            return Err((full, load));
        }
        let shown = match load {
            Load::Own(block) => self.show(block).map(Shown::Own).map_err(|(e, block)| (e, Load::Own(block))),
            Load::Shared(block) => {
                self.show(block).map(Shown::Shared).map_err(|(e, block)| (e, Load::Shared(block)))
            }
        }?;
        fault::point("read.announced");
        self.reads.0.push_back(shown);
        Ok(())
    }

    /// Lets the mailbox read the block, and tells it so.
    fn show<B: Ownership>(&mut self, block: B) -> Result<Readable<B>, (ViaError, B)> {
        let tag = Some(block.borrow().notes()[0]);
        let readable = self.vi.nic().readable(block, self.ptag())?;
        let head = wire::head(Kind::AskRead, readable.remote().handle.0);
        let len = (readable.len() as u64).to_le_bytes();
        match self.vi.send_inline(tag, &head, &len) {
            Ok(()) => Ok(readable),
            // Nobody has heard of it.
            Err(error) => Err((error, readable.recall())),
        }
    }
}
