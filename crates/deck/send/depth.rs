//! The depth of a mailbox: how many messages of one postbox may wait until the receiver takes them
//! ([`crate::MailboxOptions::depth`]).
//!
//! A message waits from its post until the mailbox's owner has taken it: in this rank's queue, or unread in the
//! connection. A reader sends no notification for each message, so a poster that is held up polls: without
//! sleeping for as long as a wait spins, then at growing intervals.

use std::time::{Duration, Instant};

use udeck_boot::waits::Call;
use udeck_via::{Deadline, Error as ViaError};

use super::Channel;
use crate::error::Result;
use crate::long_wait::LongWait;
use crate::wait_policy::WaitPolicy;

/// First and longest poll interval of a wait for the mailbox's reading. A mailbox sends no notification for
/// each message that it reads, because that would slow down every retrieve.
pub(super) const READ_PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Bound of the messages that wait for the receiver.
pub(super) struct Depth {
    /// The bound; at least 1.
    most: usize,
    /// Number of further posts for which a place is certain. The messages are counted anew when it is 0.
    certain: usize,
}

impl Depth {
    /// Makes the bound of a postbox by its mailbox's record; `None` if there is none.
    pub fn new(most: Option<u32>) -> Option<Self> {
        most.map(|most| Depth { most: (most as usize).max(1), certain: 0 })
    }
}

impl Channel {
    /// Takes a place for one message among those that may wait for the receiver. Waits for it, if it must.
    /// Returns the policy of the post's further waits: they end at the same deadline.
    pub(super) fn take_place(&mut self, policy: WaitPolicy) -> Result<WaitPolicy> {
        if self.depth.is_none() || self.has_certain_place() || self.counts_place(policy)? {
            return Ok(policy);
        }
        let (start, until) = (Instant::now(), self.until(policy));
        let policy = until.map_or(policy, WaitPolicy::Until);
        let spun = self.retry_spinning(until, |channel| match channel.counts_place(policy) {
            Ok(false) => None,
            counted => Some(counted),
        });
        if let Some(counted) = spun {
            return counted.map(|_| policy);
        }
        let mut wait = LongWait::begin("the mailbox");
        let [mut pause, longest] = READ_PAUSES;
        loop {
            self.side.vi.request_send_notify();
            if self.counts_place(policy)? {
                return Ok(policy);
            }
            let full = ViaError::Full { what: "the mailbox", bound: "its depth".into() };
            let may_wait = self.may_wait(until, start, &full);
            if may_wait.is_err() {
                self.require_polling();
            }
            self.wait(may_wait?.min(Deadline::after(pause)), &mut wait, Call::Post)?;
            pause = longest.min(pause * 2);
        }
    }

    fn has_certain_place(&mut self) -> bool {
        let Some(depth) = &mut self.depth else { return true };
        let has = depth.certain > 0;
        depth.certain -= usize::from(has);
        has
    }

    /// Counts the messages that wait, and takes a place if there is one.
    fn counts_place(&mut self, policy: WaitPolicy) -> Result<bool> {
        self.check_open(policy)?;
        let unread = match self.side.vi.unread() {
            Ok(unread) => unread as usize,
            Err(error) => return Err(self.translate(error, policy)),
        };
        let waiting = self.queue.len() + self.announced_reads.len() + unread;
        if let Some(depth) = &mut self.depth {
            depth.certain = depth.most.saturating_sub(waiting);
        }
        Ok(self.has_certain_place())
    }
}
