//! Messages whose poster holds a handle ([`crate::Posting`]): when they are over, and what became of them.
//!
//! A handle is a message's number. While a message of that number is in the queue, the poster's part is not over; once it
//! is not, it went well unless a failure is kept here. So success costs nothing to remember, and what is kept is bounded
//! by the handles that the program holds.

use std::time::Instant;

use udeck_via::mem::Fill;
use udeck_via::{Deadline, Error as ViaError};

use super::Channel;
use super::queue::Waiting;
use crate::error::{Error, Result};

/// Names a message that was still in the queue when its post returned. `None`: its poster's part is over.
pub(crate) type Ticket = Option<u64>;

/// The numbers given out, and the failures that their holders were not told yet.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    last: u64,
    failed: Vec<(u64, Error)>,
}

impl Tickets {
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn fail(&mut self, number: u64, why: Error) {
        self.failed.push((number, why));
    }

    fn take(&mut self, number: u64) -> Option<Error> {
        let at = self.failed.iter().position(|(failed, _)| *failed == number)?;
        Some(self.failed.swap_remove(at).1)
    }
}

impl Channel {
    /// Whether the poster's part of a message is over, well or not.
    pub fn is_over(&self, number: u64) -> bool {
        !self.queue.iter().any(|waiting| waiting.ticket == Some(number))
    }

    /// What became of a message that is over. Tells a failure once.
    pub fn outcome(&mut self, number: u64) -> Result {
        self.tickets.take(number).map_or(Ok(()), Err)
    }

    /// Waits until the poster's part of a message is over.
    ///
    /// # Errors
    /// [`Error::Deadline`]: it is not.
    pub fn wait_over(&mut self, number: u64, deadline: Deadline) -> Result {
        let start = Instant::now();
        loop {
            // Ask to be told of room, look once more, then wait.
            self.vi.want_room();
            self.progress();
            if self.is_over(number) {
                return Ok(());
            }
            self.is_awaited()?;
            if deadline.passed() {
                return Err(self.too_late("delivering a message", start, &self.obstacle()));
            }
            self.wait(deadline);
        }
    }

    /// What the head of the queue waits for: memory for a copy, if there is none; else the mailbox.
    fn obstacle(&self) -> ViaError {
        let copy = self.queue.front().map_or(0, Waiting::next_copy);
        let memory = (copy > 0).then(|| self.world.allocate(copy, Fill::Keep).err()).flatten();
        memory.unwrap_or(ViaError::Full { what: "the mailbox", bound: "".into() })
    }

    /// What the end of the connection means to the holder of a handle.
    pub(super) fn loss(&self, error: &ViaError) -> Error {
        match error {
            ViaError::Closed => self.translate(ViaError::Closed),
            ViaError::Lost(how) => self.translate(ViaError::Lost(how.clone())),
            ViaError::InvalidState { what, state } => {
                self.translate(ViaError::InvalidState { what, state: *state })
            }
            other => Error::Undelivered {
                count: 1,
                name: self.mailbox.clone(),
                owner: self.owner as usize,
                why: other.to_string(),
            },
        }
    }

    /// Nobody holds the handle any more: a failure is told like those of other messages.
    pub fn forget(&mut self, number: u64) {
        if let Some(waiting) = self.queue.iter_mut().find(|waiting| waiting.ticket == Some(number)) {
            waiting.ticket = None;
        } else if let Some(error) = self.tickets.take(number) {
            let why = error.to_string();
            self.world.note_undelivered(self.number, 1, &self.mailbox, self.owner, &why);
        }
    }
}
