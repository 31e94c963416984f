//! Messages that wait in a channel's queue, and the requests that programs track ([`crate::PostRequest`]).
//!
//! A request is known by its message's number. While a message of that number is in the queue, the request is not complete. Once it
//! has left the queue, it has succeeded unless a failure is kept here. So success costs nothing to remember, and what is kept is
//! bounded by the requests that the program holds.

use std::collections::VecDeque;

use crate::error::Error;
use crate::protocol::outgoing::Outgoing;

/// Names a message that was still in the queue when its post returned. A post that returns no id is complete.
pub(crate) type RequestId = u64;

/// A message that was announced, stands behind one that was, or was posted when there was no room.
pub(super) struct QueuedMessage {
    pub message: Outgoing,
    /// The program holds a request for it, and is told its result.
    pub request: Option<RequestId>,
}

/// Oldest first.
pub(super) type Queue = VecDeque<QueuedMessage>;

/// The ids given out, and the failures that their holders were not told yet.
#[derive(Debug, Default)]
pub(super) struct RequestTable {
    last: RequestId,
    failed: Vec<(RequestId, Error)>,
}

impl RequestTable {
    pub fn next_id(&mut self) -> RequestId {
        self.last += 1;
        self.last
    }

    pub fn fail(&mut self, id: RequestId, why: Error) {
        self.failed.push((id, why));
    }

    pub fn take_failure(&mut self, id: RequestId) -> Option<Error> {
        let at = self.failed.iter().position(|(failed, _)| *failed == id)?;
        Some(self.failed.swap_remove(at).1)
    }
}
