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

/// Bytes of a fragment.
pub(crate) const FRAGMENT: usize = 64 << 10;

// ---- the poster's side ----

/// A message in the queue.
pub(crate) struct CopySend {
    pub block: MessageBlock,
    pub stage: CopyStage,
    /// When the mailbox wants it, under incast control.
    pub from: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyStage {
    /// Nothing was said of it yet.
    Unsaid,
    /// Announced.
    Asked,
    /// So many bytes are on their way, and so many more fragments may be.
    Copying { sent: usize, fragments: u32 },
}

impl CopySend {
    pub fn new(block: MessageBlock) -> Self {
        CopySend { block, stage: CopyStage::Unsaid, from: None }
    }

    pub fn announce(&mut self, side: &mut SendSide) -> Result<(), ViaError> {
        side.announce(&self.block, Kind::AskCopy, 0)?;
        self.stage = CopyStage::Asked;
        Ok(())
    }

    /// The mailbox has memory for the message, and so many fragments may come.
    pub fn on_ready(&mut self, fragments: u32) {
        self.stage = CopyStage::Copying { sent: 0, fragments };
    }

    /// The mailbox has read a fragment: one more may come.
    pub fn on_more(&mut self) {
        if let CopyStage::Copying { fragments, .. } = &mut self.stage {
            // The mailbox may have allowed as many as there are numbers.
            *fragments = fragments.saturating_add(1);
        }
    }

    /// Bytes that are copied before anything more can be sent; 0: none, or the mailbox has to act first.
    pub fn next_copy(&self) -> usize {
        match self.stage {
            CopyStage::Copying { sent, fragments: 1.. } => FRAGMENT.min(self.block.len() - sent),
            _ => 0,
        }
    }

    /// Sends as much as may be sent. What is left comes back, and why it stays; `None`: it waits for the mailbox.
    #[allow(clippy::result_large_err, reason = "what stays goes back to its place by value")]
    pub fn advance(mut self, side: &mut SendSide) -> Result<(), (Option<ViaError>, Self)> {
        let CopyStage::Copying { mut sent, mut fragments } = self.stage else { return Err((None, self)) };
        let mut stopped: Option<ViaError> = None;
        // However many the mailbox allows: whoever moves the queue along comes again.
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

/// A message that is coming: its memory, and how much of it is filled.
pub(crate) struct CopyReceive {
    block: Block,
    filled: usize,
    tag: u32,
}

/// Memory for a message that was announced, and the fragments that may come at first.
pub(crate) fn prepare(len: usize, tag: u32, world: &WorldState) -> Result<(CopyReceive, u32), ViaError> {
    let block = world.allocate(len, Fill::Keep)?;
    Ok((CopyReceive { block, filled: 0, tag }, world.config().copy_window.max(1)))
}

impl CopyReceive {
    /// Copies a fragment to its place. `window`: how many the sender may send unasked. Whether the message is complete.
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
        // What the sender may send unasked needs no word; without one it may be gone already.
        let unasked = window.saturating_sub(1) as usize * lent.len();
        let ask = block.len() - *filled > unasked;
        drop(lent); // goes home before its sender is asked for more
        if ask {
            side.answer(None, Kind::More, 0, &[])?;
        }
        Ok(false)
    }

    /// The message, which is complete.
    pub fn into_parcel(self, side: &RecvSide) -> Parcel {
        side.parcel(self.tag, Stored::Owned(self.block))
    }
}
