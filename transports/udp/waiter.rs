//! The waiter of a completion queue: takes announced queues, reads the socket, sleeps.

use std::sync::Arc;
use std::time::Duration;

use udeck_session::completion_queue::Sleep;
use udeck_sys::doorbell::MAX_SLEEP;
use udeck_via::Result;
use udeck_via::transport::{Armed, Notifier, Ready, Waiter};

use crate::completion_queue::{CompletionQueue, SocketBackend};
use crate::core::Core;

/// While queues are announced, one poll in this many reads the socket all the same.
const BURST: u32 = 16;

/// The waiter of a completion queue.
pub struct QuicWaiter {
    core: Arc<Core>,
    cq: Arc<CompletionQueue>,
    looks: u32,
}

impl QuicWaiter {
    /// # Errors
    /// [`udeck_via::Error::Full`] when the NIC has no completion queue left.
    pub fn open(core: &Arc<Core>) -> Result<Self> {
        let cq = core.completion_queues.open(|_| SocketBackend(core.clone()))?;
        Ok(QuicWaiter { core: core.clone(), cq, looks: 0 })
    }
}

impl Waiter for QuicWaiter {
    fn poll(&mut self) -> Option<Ready> {
        self.cq.note_look();
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(BURST)
            && let Some(ready) = self.cq.next()
        {
            return Some(ready);
        }
        self.core.progress();
        self.cq.next()
    }

    fn park(&mut self, limit: Duration) {
        if self.cq.lie_down(Sleep::Parked) {
            self.cq.park(limit.min(MAX_SLEEP));
            self.core.progress();
        }
    }

    fn arm(&mut self) -> Armed {
        if !self.cq.lie_down(Sleep::Armed) {
            return Armed::News;
        }
        self.core.progress();
        if self.cq.has_news() {
            self.cq.get_up();
            return Armed::News;
        }
        // The helper may be pausing: from here on it has to watch the socket.
        self.core.socket_wait.wake_helper();
        Armed::Yes
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.cq.clone()
    }
}

impl std::fmt::Debug for QuicWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QuicWaiter({:?})", self.cq)
    }
}
