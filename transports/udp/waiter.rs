//! Completion queues as their owner sees them: look at what was announced, read the socket, sleep.

use std::sync::Arc;
use std::time::Duration;

use udeck_session::completion_queue::Sleep;
use udeck_sys::doorbell::MAX_SLEEP;
use udeck_via::Result;
use udeck_via::transport::{Armed, Notifier, Ready, Waiter};

use crate::completion_queue::{BesideSocket, CompletionQueue};
use crate::core::Core;

/// While there are announced queues, the socket is read once in so many looks: what lies there has a right to be found.
const BURST: u32 = 16;

/// See the module.
pub struct QuicWaiter {
    core: Arc<Core>,
    cq: Arc<CompletionQueue>,
    looks: u32,
}

impl QuicWaiter {
    /// # Errors
    /// [`udeck_via::Error::Full`] when the NIC has no more.
    pub fn open(core: &Arc<Core>) -> Result<Self> {
        let cq = core.completion_queues.open(|_| BesideSocket(core.clone()))?;
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
        self.core.serve();
        self.cq.next()
    }

    fn park(&mut self, limit: Duration) {
        if self.cq.lie_down(Sleep::Parked) {
            self.cq.park(limit.min(MAX_SLEEP));
            self.core.serve();
        }
    }

    fn arm(&mut self) -> Armed {
        if !self.cq.lie_down(Sleep::Armed) {
            return Armed::News;
        }
        self.core.serve();
        if self.cq.has_news() {
            self.cq.get_up();
            return Armed::News;
        }
        // The helper may be napping: it has to watch from here on.
        self.core.rest.rouse();
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
