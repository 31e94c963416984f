//! Owner's side of a completion queue: takes announced queues, takes completions, sleeps.

use std::sync::Arc;
use std::time::Duration;

use udeck_session::completion_queue::Sleep;
use udeck_sys::doorbell::MAX_SLEEP;
use udeck_via::Result;
use udeck_via::transport::{Armed, Notifier, Ready, Waiter};

use crate::completion_queue::{BesideChannel, CompletionQueue};
use crate::core::Core;

/// While queues are announced, completions are taken in one of this many polls: completions must be found in bounded
/// time, but announced queues were there before.
const BURST: u64 = 16;

/// Owner's side of a completion queue.
pub struct VerbsWaiter {
    core: Arc<Core>,
    cq: Arc<CompletionQueue>,
}

impl VerbsWaiter {
    /// # Errors
    /// [`udeck_via::Error::Full`] when the NIC has no completion queue left.
    pub fn open(core: &Arc<Core>) -> Result<Self> {
        let cq = core.completion_queues.open(|_| BesideChannel(core.clone()))?;
        Ok(VerbsWaiter { core: core.clone(), cq })
    }

    fn take(&self) -> Option<Ready> {
        self.cq.next()
    }

    /// Sets the sleep state, asks the device to report the next completion, and takes the earlier ones. Returns
    /// `false` if there is news.
    fn lie_down(&self, how: Sleep) -> bool {
        if !self.cq.lie_down(how) {
            return false;
        }
        self.core.completions.notify();
        self.core.completions.take_all();
        if self.cq.has_news() {
            self.cq.get_up();
            return false;
        }
        true
    }
}

impl Waiter for VerbsWaiter {
    /// Takes completions at every poll, unless it finds a queue that was announced before.
    fn poll(&mut self) -> Option<Ready> {
        let looks = self.cq.note_look();
        if self.cq.has_news()
            && !looks.is_multiple_of(BURST)
            && let Some(ready) = self.take()
        {
            return Some(ready);
        }
        self.core.completions.poll();
        self.take()
    }

    /// Polls once, because one poll sees everything.
    fn poll_all(&mut self) -> Option<Ready> {
        self.poll()
    }

    fn park(&mut self, limit: Duration) {
        if !self.lie_down(Sleep::Parked) {
            return;
        }
        let sleeping = self.core.sleeps_beside_channel();
        self.cq.park(limit.min(MAX_SLEEP));
        drop(sleeping);
        self.core.completions.channel.hush();
        // The helper is told of the next completion, if no thread has polled by then.
        self.core.completions.notify();
        self.core.completions.poll();
    }

    fn arm(&mut self) -> Armed {
        if !self.lie_down(Sleep::Armed) {
            return Armed::News;
        }
        self.core.attend();
        Armed::Yes
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.cq.clone()
    }
}

impl std::fmt::Debug for VerbsWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerbsWaiter({:?})", self.cq)
    }
}
