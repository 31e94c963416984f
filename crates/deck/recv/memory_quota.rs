//! Quota of memory that a mailbox grants to its postboxes before their messages arrive.
//!
//! A mailbox's postboxes together may announce far more than there is memory. A mailbox grants up to a bound,
//! so that a thousand slow writers leave room for the program itself and for its other mailboxes. A message
//! larger than the bound is granted alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The arenas that messages are received in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Outbox,
    Landing,
}

/// Both arenas, by index.
pub(super) const MEMORIES: [Memory; 2] = [Memory::Outbox, Memory::Landing];

/// Bytes that one mailbox has granted, by [`Memory`].
#[derive(Debug, Default)]
pub(crate) struct MemoryQuota([AtomicUsize; 2]);

/// A grant of memory, in force until it is dropped.
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

    /// Grants `bytes` if all grants together stay within `bound`; `None` otherwise. The first grant may
    /// exceed the bound.
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
