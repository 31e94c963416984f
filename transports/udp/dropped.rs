//! Counters of dropped unreliable messages.

use udeck_sys::atomic::{AtomicU64, Ordering};

/// Unreliable messages and datagrams that a NIC has dropped so far. Whoever opens the NIC may keep a clone of its
/// [`crate::Options::dropped`], and read it at any time.
#[derive(Debug, Default)]
pub struct Dropped {
    messages: AtomicU64,
    datagrams: AtomicU64,
}

impl Dropped {
    /// Number of messages and RDMA writes that did not arrive, although a fragment of them came or their sender
    /// reported them: the network lost a part, or there was no place for them. (Messages that arrived and found no
    /// descriptor do not count.)
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Number of datagrams that came and were of no use: duplicate, too late, not allowed, or no valid fragment.
    pub fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    /// Adds to both counters.
    pub fn count(&self, messages: u64, datagrams: u64) {
        for (counter, more) in [(&self.messages, messages), (&self.datagrams, datagrams)] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}
