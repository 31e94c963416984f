//! Requests that programs track ([`crate::PostRequest`]), for messages that wait in a channel's queue.
//!
//! A request is identified by its message's id. While the message is in the queue, the request is not
//! complete. Once it has left the queue, the request has succeeded unless its failure is kept here. Thus
//! success needs no memory, and the number of failures kept is bounded by the requests that the program
//! holds.

use std::collections::BTreeMap;

use crate::error::Error;

/// Id of a message that was still in the queue when its post returned. A post that returns no id is complete.
pub(crate) type RequestId = u64;

/// Failures that have not been reported to the holders of the requests.
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
