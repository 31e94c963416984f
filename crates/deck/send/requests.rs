//! The requests that programs track ([`crate::PostRequest`]), of messages that wait in a channel's queue.
//!
//! A request is known by its message's number. While a message of that number is in the queue, the request is not complete. Once it
//! has left the queue, it has succeeded unless a failure is kept here. So success costs nothing to remember, and what is kept is
//! bounded by the requests that the program holds.

use std::collections::BTreeMap;

use crate::error::Error;

/// Names a message that was still in the queue when its post returned. A post that returns no id is complete.
pub(crate) type RequestId = u64;

/// The failures that the holders of requests were not told yet.
#[derive(Debug, Default)]
pub(super) struct RequestTable {
    failed: BTreeMap<RequestId, Error>,
}

impl RequestTable {
    pub fn fail(&mut self, id: RequestId, why: Error) {
        self.failed.insert(id, why);
    }

    pub fn take_failure(&mut self, id: RequestId) -> Option<Error> {
        self.failed.remove(&id)
    }
}
