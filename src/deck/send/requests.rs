//! Messages that wait in a channel's queue, and the handles that programs have on some of them ([`crate::PostRequest`]).
//!
//! A handle is a message's number. While a message of that number is in the queue, the poster's part is not over; once it
//! is not, it went well unless a failure is kept here. So success costs nothing to remember, and what is kept is bounded
//! by the handles that the program holds.

use std::collections::VecDeque;

use crate::error::Error;
use crate::protocol::outgoing::Outgoing;

/// Names a message that was still in the queue when its post returned. `None`: its poster's part is over.
pub(crate) type Ticket = Option<u64>;

/// A message that was announced, stands behind one that was, or was posted when there was no room.
pub(super) struct Waiting {
    pub message: Outgoing,
    /// Somebody has a handle, and is told what becomes of it.
    pub ticket: Ticket,
}

/// Oldest first.
pub(super) type Queue = VecDeque<Waiting>;

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

    pub fn take(&mut self, number: u64) -> Option<Error> {
        let at = self.failed.iter().position(|(failed, _)| *failed == number)?;
        Some(self.failed.swap_remove(at).1)
    }
}
