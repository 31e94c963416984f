//! Memory that postboxes may fill: granted, and not a message yet.
//!
//! A mailbox's postboxes together may announce far more than there is memory. It grants up to a bound, so that a thousand
//! slow writers leave room for what the program does itself, and for its other mailboxes. A message larger than that is
//! granted alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The arenas that messages are received in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Outbox,
    Landing,
}

/// Both, by index.
pub(super) const MEMORIES: [Memory; 2] = [Memory::Outbox, Memory::Landing];

/// Bytes that one mailbox has granted, by [`Memory`].
#[derive(Debug, Default)]
pub(crate) struct MemoryQuota([AtomicUsize; 2]);

/// A grant, until it is dropped.
pub(crate) struct Grant {
    of: Arc<MemoryQuota>,
    memory: Memory,
    bytes: usize,
}

impl MemoryQuota {
    /// Bytes granted and not filled yet.
    pub fn bytes(&self, memory: Memory) -> usize {
        self.0[memory as usize].load(Ordering::Relaxed)
    }

    /// Leave to give `bytes` away, of at most `bound`; `None` while those that have been would be too many with them.
    pub fn grant(self: &Arc<Self>, memory: Memory, bytes: usize, bound: usize) -> Option<Grant> {
        let granted = self.bytes(memory);
        if granted > 0 && granted.saturating_add(bytes) > bound {
            return None;
        }
        self.0[memory as usize].fetch_add(bytes, Ordering::Relaxed);
        Some(Grant { of: self.clone(), memory, bytes })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.of.0[self.memory as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
