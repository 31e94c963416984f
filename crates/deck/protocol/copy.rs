//! `copy`: the message in fragments, as many at a time as the mailbox allows. The baseline that zero-copy is compared with.
//!
//! ```text
//! postbox                           mailbox
//!   AskCopy (length)      ->          memory for the message, or Refused
//!                         <-  Ready (fragments that may come)
//!   Fragment, ...         ->          copied to its place
//!                         <-  More    (one was read, another may come)
//! ```

use std::time::Instant;

use udeck_via::mem::Fill;
use udeck_via::{Block, Error as ViaError, LentSlice, PollBudget, fault};

use super::message_block::MessageBlock;
use super::side::{RecvSide, SendSide};
use crate::parcel::{Parcel, Stored};
use crate::stats::Counters;
use crate::wire::{Kind, Malformed};
use crate::world_state::WorldState;

/// Length of a fragment in bytes.
pub(crate) const FRAGMENT: usize = 64 << 10;

// ---- the poster's side ----

/// A `copy` message in the queue.
pub(crate) struct CopySend {
    pub block: MessageBlock,
    pub stage: CopyStage,
    /// Time from which the mailbox accepts the message, under incast control.
    pub from: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyStage {
    /// Not announced yet.
    New,
    /// Announced.
    Asked,
    /// Being sent: `sent` bytes are on their way, and `fragments` more fragments may be sent.
    Copying { sent: usize, fragments: u32 },
}

impl CopySend {
    pub fn new(block: MessageBlock) -> Self {
        CopySend { block, stage: CopyStage::New, from: None }
    }

    pub fn announce(&mut self, side: &mut SendSide) -> Result<(), ViaError> {
        side.announce(&self.block, Kind::AskCopy, 0)?;
        self.stage = CopyStage::Asked;
        Ok(())
    }

    /// Notes that the mailbox has memory for the message, and that `fragments` fragments may come.
    pub fn on_ready(&mut self, fragments: u32) {
        self.stage = CopyStage::Copying { sent: 0, fragments };
    }

    /// Notes that the mailbox has read a fragment: one more may come.
    pub fn on_more(&mut self) {
        if let CopyStage::Copying { fragments, .. } = &mut self.stage {
            // Saturates: the mailbox may have allowed the greatest number already.
            *fragments = fragments.saturating_add(1);
        }
    }

    /// Bytes that are copied before anything more can be sent. 0 if none are, or if the mailbox has to act
    /// first.
    pub fn next_copy(&self) -> usize {
        match self.stage {
            CopyStage::Copying { sent, fragments: 1.. } => FRAGMENT.min(self.block.len() - sent),
            _ => 0,
        }
    }

    /// Sends as much as may be sent. What is left comes back with the error that stops it; `None`: it waits
    /// for the mailbox.
    #[allow(clippy::result_large_err, reason = "what stays goes back to its place by value")]
    pub fn advance(mut self, side: &mut SendSide) -> Result<(), (Option<ViaError>, Self)> {
        let CopyStage::Copying { mut sent, mut fragments } = self.stage else { return Err((None, self)) };
        let mut stopped: Option<ViaError> = None;
        // The budget bounds this call however many fragments the mailbox allows: the next call goes on.
        let mut budget = PollBudget::once();
        while fragments > 0 && stopped.is_none() && budget.take() {
            let end = (sent + FRAGMENT).min(self.block.len());
            let copied = side.send_bounced(&self.block, sent..end, Kind::Fragment);
            if copied.is_ok() {
                fault::point("copy.sent");
            }
            match copied {
                Ok(()) if end == self.block.len() => return Ok(()),
                Ok(()) => (sent, fragments) = (end, fragments - 1),
                Err(error) => stopped = Some(error),
            }
        }
        self.stage = CopyStage::Copying { sent, fragments };
        Err((stopped, self))
    }
}

// ---- the mailbox's side ----

/// A message that is arriving: its memory, and the number of bytes filled.
pub(crate) struct CopyReceive {
    block: Block,
    filled: usize,
    tag: u32,
}

/// Allocates memory for an announced message. Also returns how many fragments may come at first.
pub(crate) fn prepare(len: usize, tag: u32, world: &WorldState) -> Result<(CopyReceive, u32), ViaError> {
    let block = world.allocate(len, Fill::Keep)?;
    Ok((CopyReceive { block, filled: 0, tag }, world.config().copy_window.max(1)))
}

impl CopyReceive {
    /// Copies a fragment to its place. `window`: fragments that the sender may send unasked. Returns whether
    /// the message is complete.
    pub fn take_fragment(
        &mut self,
        lent: LentSlice,
        window: u32,
        side: &mut RecvSide,
        counters: &Counters,
    ) -> Result<bool, Malformed> {
        let CopyReceive { block, filled, .. } = self;
        let room = block.bytes_mut().get_mut(*filled..*filled + lent.len()).ok_or(Malformed)?;
        room.copy_from_slice(&lent);
        counters.copied(lent.len());
        *filled += lent.len();
        fault::point("copy.taken");
        if *filled == block.len() {
            return Ok(true);
        }
        // The fragments that the sender may send unasked need no `More`, and with a window of one the sender
        // may have gone already.
        let unasked = window.saturating_sub(1) as usize * lent.len();
        let ask = block.len() - *filled > unasked;
        drop(lent); // returned before its sender is asked for more
        if ask {
            side.answer(None, Kind::More, 0, &[])?;
        }
        Ok(false)
    }

    /// Turns the message, which is complete, into a parcel.
    pub fn into_parcel(self, side: &RecvSide) -> Parcel {
        side.parcel(self.tag, Stored::Owned(self.block))
    }
}
