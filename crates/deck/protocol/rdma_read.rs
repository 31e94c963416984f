//! `rdma-read`: the announcement says where the message lies, and the mailbox reads it there when its owner retrieves. One
//! copy, made by the receiver.
//!
//! ```text
//! postbox                           mailbox
//!   AskRead (handle, length)  ->      a block of its own, or Refused; RDMA read
//!                             <-  Fin (it was read)
//! ```
//!
//! The announcement takes the message's place in the ring, so order is kept without the queue, and the sender
//! has nothing more to do. The message's memory waits in [`AnnouncedReads`] until the mailbox says that it
//! has read it, or the connection ends. At the mailbox the ring is not read until the message has arrived.

use std::collections::VecDeque;

use udeck_via::mem::{Ownership, Readable, SharedBytes};
use udeck_via::{Block, Error as ViaError, ReadDone, Reading, RemoteBuffer, fault};

use super::message_block::MessageBlock;
use super::side::{RecvSide, RendezvousStatus, SendSide, block_for};
use crate::parcel::Stored;
use crate::wire::{Kind, Malformed};
use crate::world_state::WorldState;

// ---- the poster's side ----

/// Bound of messages that wait to be read. Each takes an entry of the NIC's windows; further messages wait in
/// the queue.
const MAX_ANNOUNCED: usize = 16;

/// Announced messages, in the order in which they will be read.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedReads(VecDeque<AnnouncedBlock>);

/// A message that the mailbox reads; dropped when it has been read.
#[derive(Debug)]
enum AnnouncedBlock {
    Own(Readable),
    Shared(Readable<SharedBytes>),
}

impl AnnouncedBlock {
    fn len(&self) -> usize {
        match self {
            AnnouncedBlock::Own(readable) => readable.len(),
            AnnouncedBlock::Shared(readable) => readable.len(),
        }
    }
}

impl AnnouncedReads {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Length of all messages together, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(AnnouncedBlock::len).sum()
    }

    /// Announces a message that the mailbox may read from now on. The message comes back if the announcement
    /// was not sent.
    pub fn announce(
        &mut self,
        block: MessageBlock,
        side: &mut SendSide,
    ) -> Result<(), (ViaError, MessageBlock)> {
        if self.len() >= MAX_ANNOUNCED {
            let full = ViaError::Full { what: "the list of messages to be read", bound: "".into() };
            return Err((full, block));
        }
        let tag = block.tag();
        let source = match block {
            MessageBlock::Own(block) => expose(block, tag, side)
                .map(AnnouncedBlock::Own)
                .map_err(|(e, block)| (e, MessageBlock::Own(block))),
            MessageBlock::Shared(bytes) => expose(bytes, tag, side)
                .map(AnnouncedBlock::Shared)
                .map_err(|(e, bytes)| (e, MessageBlock::Shared(bytes))),
        }?;
        fault::point("read.announced");
        self.0.push_back(source);
        Ok(())
    }

    /// Drops the oldest message, which was read or refused. `false`: no message was announced.
    pub fn finish(&mut self) -> bool {
        self.0.pop_front().is_some()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Exposes the block for the mailbox to read, and announces it.
fn expose<B: Ownership>(block: B, tag: u32, side: &mut SendSide) -> Result<Readable<B>, (ViaError, B)> {
    let readable = side.vi.nic().readable(block, side.ptag())?;
    let head = crate::wire::head(Kind::AskRead, readable.remote().handle.0);
    let len = (readable.len() as u64).to_le_bytes();
    match side.vi.send_inline(Some(tag), &head, &len) {
        Ok(()) => Ok(readable),
        Err(error) => Err((error, readable.recall())),
    }
}

// ---- the mailbox's side ----

/// Reads an announced message, or begins to: [`RendezvousStatus::InProgress`].
pub(crate) fn read(
    from: RemoteBuffer,
    tag: u32,
    side: &mut RecvSide,
    world: &WorldState,
) -> Result<RendezvousStatus, Malformed> {
    let block = match block_for(from.len, world) {
        Ok(Some(block)) => block,
        Ok(None) => return Ok(RendezvousStatus::Deferred),
        Err(error) => return side.refuse(Kind::AskRead, 0, &error),
    };
    match side.vi.rdma_read(block, from) {
        Ok(Reading::Done(block)) => Ok(was_read(block, tag, side)),
        Ok(Reading::UnderWay(_)) => {
            // The caller polls once more after this request, so a read that ended in between is not missed.
            side.vi.request_send_notify();
            Ok(RendezvousStatus::InProgress)
        }
        Err((error, _)) => was_not_read(error, side),
    }
}

/// Polls the message that is being read.
pub(crate) fn finish(tag: u32, side: &mut RecvSide) -> Result<RendezvousStatus, Malformed> {
    let mut done = side.vi.read_done();
    if done.is_none() {
        side.vi.request_send_notify();
        // Polls once more: a read that ended before the request sends no notification.
        done = side.vi.read_done();
    }
    match done {
        None => Ok(RendezvousStatus::InProgress),
        Some(ReadDone { block: Ok(block), .. }) => Ok(was_read(block, tag, side)),
        Some(ReadDone { block: Err(error), .. }) => was_not_read(error, side),
    }
}

fn was_read(block: Block, tag: u32, side: &mut RecvSide) -> RendezvousStatus {
    fault::point("read.fetched");
    // A sender that cannot be told has gone meanwhile. The message has arrived all the same.
    let _ = side.answer(None, Kind::Fin, 0, &[]);
    RendezvousStatus::Received(side.parcel(tag, Stored::Owned(block)))
}

fn was_not_read(error: ViaError, side: &mut RecvSide) -> Result<RendezvousStatus, Malformed> {
    match error {
        ViaError::Full { .. } => Ok(RendezvousStatus::Deferred),
        ViaError::RdmaProtection { .. } => Err(Malformed),
        ViaError::Unsupported { .. } => side.refuse(Kind::AskRead, 0, &error),
        // The sender has left, and its message with it. Later messages are lost, too: none may overtake this
        // one.
        error => Ok(RendezvousStatus::ConnectionEnded(error)),
    }
}
