//! `copy`: the message in fragments, as many at a time as the mailbox allows.

use udeck_via::{Budget, Error as ViaError, fault};

use super::Channel;
use super::queue::{Stage, Stays, Waiting};
use crate::wire::Kind;

/// Bytes of a fragment.
pub(crate) const FRAGMENT: usize = 64 << 10;

impl Channel {
    /// The mailbox has read a fragment: one more may come.
    pub(super) fn on_more(&mut self) {
        if let Some(Waiting { stage: Stage::Copying { fragments, .. }, .. }) = self.queue.front_mut() {
            // The mailbox may have allowed as many as there are numbers.
            *fragments = fragments.saturating_add(1);
        }
    }

    /// Sends as much as may be sent of a message of which `sent` bytes are on their way.
    #[allow(clippy::result_large_err, reason = "what stays goes back to its place by value")]
    pub(super) fn send_fragments(
        &mut self,
        mut front: Waiting,
        mut sent: usize,
        mut fragments: u32,
    ) -> Result<(), Stays> {
        let mut stopped: Option<ViaError> = None;
        // However many the mailbox allows: whoever moves the queue along comes again.
        let mut budget = Budget::once();
        while fragments > 0 && stopped.is_none() && budget.take() {
            let end = (sent + FRAGMENT).min(front.load.len());
            let copied = self.send_copy(&front.load, sent..end, Kind::Fragment);
            if copied.is_ok() {
                fault::point("copy.sent");
            }
            match copied {
                Ok(()) if end == front.load.len() => return Ok(()),
                Ok(()) => (sent, fragments) = (end, fragments - 1),
                Err(error) => stopped = Some(error),
            }
        }
        front.stage = Stage::Copying { sent, fragments };
        Err((stopped, front))
    }
}
