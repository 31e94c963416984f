//! `rdma-write`: the sender writes the message into the receiver's memory. One copy, made by the sender.
//!
//! ```text
//! postbox                           mailbox
//!   AskWrite (length)     ->          a window of that length, or Refused
//!                         <-  Ready (the window's handle; incast control: the delay)
//!   RDMA write, with the tag as immediate data
//!                                     takes the message out of its window
//! ```

use std::time::Instant;

use udeck_via::{Deadline, Error as ViaError, MemHandle, RemoteBuffer, Window};

use super::message_block::MessageBlock;
use super::side::{RecvSide, SendSide};
use crate::parcel::{Parcel, Stored};
use crate::wire::{Kind, Malformed};
use crate::world_state::WorldState;

// ---- the poster's side ----

/// An `rdma-write` message in the queue.
pub(crate) struct WriteSend {
    pub block: MessageBlock,
    pub stage: WriteStage,
    /// Time from which the mailbox accepts the message, under incast control.
    pub from: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStage {
    /// Not announced yet.
    New,
    /// Announced.
    Asked,
    /// The mailbox has memory for it.
    Ready { handle: MemHandle },
}

impl WriteSend {
    pub fn new(block: MessageBlock) -> Self {
        WriteSend { block, stage: WriteStage::New, from: None }
    }

    pub fn announce(&mut self, side: &mut SendSide) -> Result<(), ViaError> {
        side.announce(&self.block, Kind::AskWrite, 0)?;
        self.stage = WriteStage::Asked;
        Ok(())
    }

    /// Notes that the mailbox has memory for the message.
    pub fn on_ready(&mut self, handle: u32) {
        self.stage = WriteStage::Ready { handle: MemHandle(handle) };
    }

    /// Writes the message. It comes back with the error that stops it; `None`: it waits for the mailbox.
    pub fn advance(self, side: &mut SendSide) -> Result<(), (Option<ViaError>, Self)> {
        let WriteStage::Ready { handle } = self.stage else { return Err((None, self)) };
        let (stage, from, to) =
            (self.stage, self.from, RemoteBuffer { handle, offset: 0, len: self.block.len() });
        let written = self.block.write(&mut side.vi, to);
        written.map_err(|(error, block)| (Some(error), WriteSend { block, stage, from }))
    }
}

// ---- the mailbox's side ----

/// A message that is arriving: the window that it is written to.
pub(crate) struct WriteReceive(Window);

/// Allocates memory for an announced message, and returns its handle. If there is none, first collects what
/// peers have given back by any NIC.
pub(crate) fn prepare(
    len: usize,
    side: &RecvSide,
    world: &WorldState,
) -> Result<(WriteReceive, u32), ViaError> {
    let window = window(len, side, world)?;
    let handle = window.remote().handle.0;
    Ok((WriteReceive(window), handle))
}

/// The shortage of memory that prevents a message of `len` bytes on that connection now, if any.
pub(crate) fn shortage(len: usize, side: &RecvSide, world: &WorldState) -> Option<ViaError> {
    window(len, side, world).err()
}

fn window(len: usize, side: &RecvSide, world: &WorldState) -> Result<Window, ViaError> {
    let ptag = side.vi.attributes().ptag;
    match side.vi.nic().window(len, ptag) {
        Err(ViaError::NoMemory { .. }) if !world.nics().others.is_empty() => {
            world.nics().reclaim();
            side.vi.nic().window(len, ptag)
        }
        other => other,
    }
}

impl WriteReceive {
    /// Whether the written message can have `len` bytes.
    pub fn is_of(&self, len: usize) -> bool {
        self.0.len() == len
    }

    /// Closes the window. `false`: a peer is inside. The message's writer has left, so nobody is inside if
    /// all keep to the protocol.
    pub fn close(&mut self) -> Result<bool, Malformed> {
        match self.0.close(Deadline::now()) {
            Ok(()) => Ok(true),
            Err(ViaError::Timeout { .. }) => Ok(false),
            Err(_) => Err(Malformed),
        }
    }

    /// Takes the message out of the window, which must be closed.
    pub fn into_parcel(self, tag: u32, side: &RecvSide) -> Result<Parcel, Malformed> {
        let settled = self.0.revoke(Deadline::now()).map_err(|_| Malformed)?;
        Ok(side.parcel(tag, Stored::Settled(settled)))
    }
}
