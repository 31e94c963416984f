//! Calls that wait for all ranks: the fence, and agreements of those that have not ended.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use udeck_sys::Deadline;

use super::{Client, call_name::CallName};
use crate::{
    BootError,
    wire::{Agreement, Call, Reply, Vote},
};

impl Client {
    /// Blocks until every rank of the job has called this, at most until `deadline`.
    ///
    /// # Errors
    /// [`BootError::Deadline`] with the ranks that did not come; [`BootError::PeerLost`] as soon as one cannot come any
    /// more.
    pub fn fence(&self, deadline: Instant) -> Result<(), BootError> {
        self.call(CallName::Fence, Call::Fence { wait: Deadline::from(deadline).remaining() }, deadline)
            .map(drop)
    }

    /// Votes in an agreement of all ranks that have not ended, and blocks until all of them have voted, at most
    /// until `deadline`. All get the same agreement. Ranks that end meanwhile are waited for no longer, and
    /// are not in it. `interrupt` is as for [`lookup_of`](Client::lookup_of). A rank whose call failed calls
    /// again with the same question, to take part in the same agreement, or to get it if it was made meanwhile.
    ///
    /// # Errors
    /// [`BootError::Deadline`] with the ranks that did not come; [`BootError::Refused`] if ranks had different
    /// questions, or another thread of this rank votes; [`BootError::Interrupted`]; [`BootError::LauncherGone`].
    pub fn agree(
        &self,
        vote: Vote,
        deadline: Instant,
        interrupt: Option<&dyn Fn() -> bool>,
    ) -> Result<Agreement, BootError> {
        let asked = CallName::Agree(vote.question);
        let round = self.shared.agreements.load(Ordering::Relaxed);
        let call = Call::Agree { round, vote, wait: Deadline::from(deadline).remaining() };
        match self.reply(&asked, call, deadline, interrupt)? {
            Reply::Agreed(agreement) => {
                // Another thread's agreement may be newer.
                self.shared.agreements.fetch_max(agreement.round + 1, Ordering::Relaxed);
                Ok(Arc::unwrap_or_clone(agreement))
            }
            _ => Err(asked.refused("it answered without an agreement")),
        }
    }
}
