//! What was dropped of unreliable messages.

use udeck_sys::atomic::{AtomicU64, Ordering};

/// What a NIC has dropped of unreliable messages so far. Whoever opens it may keep a clone of its
/// [`crate::Options::dropped`], and look at any time.
#[derive(Debug, Default)]
pub struct Dropped {
    messages: AtomicU64,
    datagrams: AtomicU64,
}

impl Dropped {
    /// Messages and RDMA writes that did not arrive, although a piece of them came or their sender told of them: the network
    /// lost some of it, or there was no place for it. (What arrived and found no descriptor is not among them.)
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Datagrams that came and were no use: twice, too late, not allowed, or no piece of anything.
    pub fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    /// Counts so many more.
    pub fn count(&self, messages: u64, datagrams: u64) {
        for (counter, more) in [(&self.messages, messages), (&self.datagrams, datagrams)] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}
