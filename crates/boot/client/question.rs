//! Questions about exits: their answers come as events, and nobody has to wait for them.

use std::{fmt, sync::Arc, time::Instant};

use udeck_sys::{Deadline, process};

use super::{Calls, Shared};

/// A question to the launcher whose answer is not waited for ([`Client::ask`](super::Client::ask)).
pub struct Question {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
}

impl Question {
    /// Tells whether all events of before the question have come, or nothing will come any more.
    pub fn is_answered(&self) -> bool {
        self.is_answered_in(&self.shared.calls.lock())
    }

    /// Waits until the question [is answered](Question::is_answered), at most until `deadline`.
    pub fn wait(&self, deadline: Instant) {
        let deadline = Deadline::from(deadline);
        let mut calls = self.shared.calls.lock();
        while !self.is_answered_in(&calls) && !deadline.passed() {
            self.shared.answered.wait_until(&mut calls, deadline.instant());
        }
    }

    fn is_answered_in(&self, calls: &Calls) -> bool {
        calls.gone.is_some() || calls.open.get(&self.id).is_none_or(Option::is_some)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        self.shared.calls.lock().open.remove(&self.id);
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("is_answered", &self.is_answered()).finish_non_exhaustive()
    }
}
