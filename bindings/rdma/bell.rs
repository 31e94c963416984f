//! The bell of a NIC: threads that wait for completions sleep on it, or on the completion queue below.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use udeck_via::CqHandle;

/// Wakes threads that sleep until something of a NIC's end points may have changed.
pub struct Bell {
    /// Number of rings; it changes only while a thread sleeps.
    rings: AtomicU64,
    sleepers: AtomicUsize,
    /// Sleepers that wait for completions of the program's. (The engine's thread waits only for news of the queue below.)
    listeners: AtomicUsize,
    /// The leader sleeps at the completion queue below, and rings when it wakes. A thread that only polls that queue rings for nobody.
    is_led: AtomicBool,
    lock: Mutex<()>,
    rung: Condvar,
    below: CqHandle,
}

impl Bell {
    /// A bell that also wakes a thread that sleeps on `below`.
    pub fn new(below: CqHandle) -> Bell {
        Bell {
            rings: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            listeners: AtomicUsize::new(0),
            is_led: AtomicBool::new(false),
            lock: Mutex::new(()),
            rung: Condvar::new(),
            below,
        }
    }

    /// Wakes the listeners: something of the program's may have changed.
    #[inline]
    pub fn ring(&self) {
        // The change lies under a lock that each poll takes. A sleeper counts itself before its last poll. If that poll came before the
        // change, the lock has brought the count here; otherwise the poll has found the change.
        if self.listeners.load(Ordering::Relaxed) > 0 {
            self.ring_all();
        }
    }

    /// Wakes every sleeper.
    #[cold]
    pub fn ring_all(&self) {
        {
            let _lock = self.lock.lock();
            self.rings.fetch_add(1, Ordering::Relaxed);
        }
        self.rung.notify_all();
        self.below.wake();
    }

    /// Number of rings so far: a sleeper compares it with an earlier one.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::Relaxed)
    }

    /// Counts the caller as a sleeper until the result is dropped. Its last poll comes after this call. One that does not listen is not
    /// woken by [`Bell::ring`].
    pub(crate) fn sleeper(&self, listens: bool) -> Sleeper<'_> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.listeners.fetch_add(usize::from(listens), Ordering::SeqCst);
        Sleeper { bell: self, listens }
    }

    pub(crate) fn sleepers(&self) -> usize {
        self.sleepers.load(Ordering::Relaxed)
    }

    /// Makes the caller the leader until the result is dropped.
    pub(crate) fn lead(&self) -> Leader<'_> {
        self.is_led.store(true, Ordering::Relaxed);
        Leader(&self.is_led)
    }

    pub(crate) fn is_led(&self) -> bool {
        self.is_led.load(Ordering::Relaxed)
    }

    /// Sleeps until the bell rings, at most for `limit`; not at all if `unless` holds.
    pub(crate) fn sleep(&self, limit: Duration, unless: impl FnOnce() -> bool) {
        let mut lock = self.lock.lock();
        if !unless() {
            self.rung.wait_for(&mut lock, limit);
        }
    }
}

pub(crate) struct Leader<'a>(&'a AtomicBool);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

pub(crate) struct Sleeper<'a> {
    bell: &'a Bell,
    listens: bool,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.bell.sleepers.fetch_sub(1, Ordering::Relaxed);
        self.bell.listeners.fetch_sub(usize::from(self.listens), Ordering::Relaxed);
    }
}
