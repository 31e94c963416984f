//! The bound of the messages that wait for receives, of all end points of a NIC.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::MAX_TRANSFER;

/// Bytes from which on no further message is held: two of the longest messages.
pub const MAX_HELD_BYTES: usize = 2 * MAX_TRANSFER;

/// Counter of the bytes of a NIC's messages that wait.
#[derive(Clone, Debug, Default)]
pub struct HeldBytes(Arc<AtomicUsize>);

impl HeldBytes {
    /// Whether no further message is held.
    pub fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= MAX_HELD_BYTES
    }

    /// Counts `len` bytes until the result is dropped. `None`: it is full. The end of a connection, of no bytes, always
    /// has room, and so has a message that was taken behind another one of its end point (`is_behind`): there was room
    /// when it was taken.
    pub fn add(&self, len: usize, is_behind: bool) -> Option<Account> {
        let more = |held| (len == 0 || is_behind || held < MAX_HELD_BYTES).then_some(held + len);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Account { all: self.clone(), len })
    }
}

/// Bytes of a message that waits, counted until this is dropped.
pub struct Account {
    all: HeldBytes,
    len: usize,
}

impl Drop for Account {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.len, Ordering::Relaxed);
    }
}
