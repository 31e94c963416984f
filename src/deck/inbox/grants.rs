//! Memory that postboxes may fill: granted, and not a message yet.
//!
//! A mailbox's postboxes together may announce far more than there is memory. It grants up to a bound, so that a thousand
//! slow writers leave room for what the program does itself, and for its other mailboxes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use udeck_via::Error as ViaError;
use udeck_via::mem::Fill;

use super::lane::Lane;
use crate::shared::Shared;

/// One mailbox may have granted this part of an arena: half. A message larger than that is granted alone.
const PART: usize = 2;

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
pub(crate) struct Grants([AtomicUsize; 2]);

/// A grant, until it is dropped.
pub(super) struct Granted {
    of: Arc<Grants>,
    memory: Memory,
    bytes: usize,
}

impl Grants {
    /// Bytes granted and not filled yet.
    pub fn bytes(&self, memory: Memory) -> usize {
        self.0[memory as usize].load(Ordering::Relaxed)
    }

    /// Leave to give `bytes` away; `None` while those that have been would be too many with them.
    pub(super) fn grant(self: &Arc<Self>, memory: Memory, bytes: usize, world: &Shared) -> Option<Granted> {
        let granted = self.bytes(memory);
        if granted > 0 && granted.saturating_add(bytes) > bound(world) {
            return None;
        }
        self.0[memory as usize].fetch_add(bytes, Ordering::Relaxed);
        Some(Granted { of: self.clone(), memory, bytes })
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.of.0[self.memory as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Most bytes of one arena that a mailbox grants at a time. (No message is longer than an arena.)
fn bound(world: &Shared) -> usize {
    world.nic().attributes().max_transfer / PART
}

/// Why a message of `len` bytes cannot be received on that lane now, if that is for want of memory.
pub(super) fn short_of(memory: Memory, len: usize, world: &Shared, lane: &Lane) -> Option<ViaError> {
    match memory {
        Memory::Outbox => world.allocate(len, Fill::Keep).err(),
        Memory::Landing => lane.window(len, world).err(),
    }
}
