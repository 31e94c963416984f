//! Counters of what the library did: messages, copies, registrations.

use std::sync::atomic::{AtomicU64, Ordering};

use udeck_via::mem::CacheUse;

/// What this rank's library did so far. Payload bytes; headers are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Messages accepted by `post`.
    pub messages_posted: u64,
    /// Their bytes.
    pub bytes_posted: u64,
    /// Messages given out by `retrieve`.
    pub messages_retrieved: u64,
    /// Their bytes.
    pub bytes_retrieved: u64,
    /// Bytes that the library copied, on this rank, for posting and retrieving.
    pub bytes_copied: u64,
    /// Registrations of memory that the library did not allocate ([`crate::ExternalBuf`], and the program's own at the NIC).
    pub registrations: CacheUse,
}

/// The counts of one mailbox or postbox. One thread writes at a time, so adding is a load and a store, not a
/// read-modify-write; anybody may read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    messages_posted: AtomicU64,
    bytes_posted: AtomicU64,
    messages_retrieved: AtomicU64,
    bytes_retrieved: AtomicU64,
    bytes_copied: AtomicU64,
}

/// What has come by one connection. As of [`Counters`], one thread writes at a time.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Arrivals {
    /// Another message: its number, modulo 2³².
    #[inline]
    pub fn take(&self, bytes: usize) -> u32 {
        let number = self.messages.load(Ordering::Relaxed);
        self.messages.store(number + 1, Ordering::Relaxed);
        add(&self.bytes, bytes);
        number as u32
    }

    /// So many messages, of so many bytes together: the number of the first.
    #[inline]
    pub fn take_run(&self, messages: usize, bytes: usize) -> u32 {
        let number = self.messages.load(Ordering::Relaxed);
        self.messages.store(number + messages as u64, Ordering::Relaxed);
        add(&self.bytes, bytes);
        number as u32
    }
}

#[inline]
fn add(counter: &AtomicU64, more: usize) {
    counter.store(counter.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
}

impl Counters {
    #[inline]
    pub fn posted(&self, bytes: usize) {
        add(&self.messages_posted, 1);
        add(&self.bytes_posted, bytes);
    }

    /// So many, of so many bytes each.
    pub fn posted_run(&self, messages: usize, each: usize) {
        add(&self.messages_posted, messages);
        add(&self.bytes_posted, messages * each);
    }

    #[inline]
    pub fn retrieved(&self, bytes: usize) {
        add(&self.messages_retrieved, 1);
        add(&self.bytes_retrieved, bytes);
    }

    #[inline]
    pub fn copied(&self, bytes: usize) {
        add(&self.bytes_copied, bytes);
    }

    /// How many were posted so far.
    pub fn messages_posted(&self) -> u64 {
        self.messages_posted.load(Ordering::Relaxed)
    }

    pub fn add_to(&self, stats: &mut Stats) {
        stats.messages_posted += self.messages_posted.load(Ordering::Relaxed);
        stats.bytes_posted += self.bytes_posted.load(Ordering::Relaxed);
        stats.messages_retrieved += self.messages_retrieved.load(Ordering::Relaxed);
        stats.bytes_retrieved += self.bytes_retrieved.load(Ordering::Relaxed);
        stats.bytes_copied += self.bytes_copied.load(Ordering::Relaxed);
    }
}
