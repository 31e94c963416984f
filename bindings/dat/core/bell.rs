//! Who waits for anything of an interface adapter sleeps on its bell, or on the completion queue below.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use udeck::via::CqHandle;

pub struct Bell {
    /// Changes with each ring while somebody sleeps.
    rings: AtomicU64,
    sleepers: AtomicUsize,
    /// Those of them that wait for something of the program's, and not only for news of the completion queue below.
    listeners: AtomicUsize,
    /// Somebody sleeps at the completion queue below, and rings when that is over. Who has it locked otherwise only looks, and rings for nobody.
    is_led: AtomicBool,
    lock: Mutex<()>,
    rung: Condvar,
    below: CqHandle,
}

impl Bell {
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

    /// Says that something may have changed for who listens.
    #[inline]
    pub fn ring(&self) {
        // What has changed lies under a lock that each look takes. Who sleeps counted himself before his last look: if that came
        // before the change, the lock has brought the count here; otherwise the look found the change.
        if self.listeners.load(Ordering::Relaxed) > 0 {
            self.ring_loudly();
        }
    }

    #[cold]
    pub fn ring_loudly(&self) {
        {
            let _lock = self.lock.lock();
            self.rings.fetch_add(1, Ordering::Relaxed);
        }
        self.rung.notify_all();
        self.below.wake();
    }

    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::Relaxed)
    }

    /// One more who is about to sleep, until it is dropped. His last look comes after this. If he does not listen, each event of the
    /// program's would wake him for nothing.
    pub fn sleeper(&self, listens: bool) -> Sleeper<'_> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.listeners.fetch_add(usize::from(listens), Ordering::SeqCst);
        Sleeper { bell: self, listens }
    }

    pub fn sleepers(&self) -> usize {
        self.sleepers.load(Ordering::Relaxed)
    }

    /// Somebody sleeps where news come, and rings when that is over: until what is returned is dropped.
    pub fn lead(&self) -> Leads<'_> {
        self.is_led.store(true, Ordering::Relaxed);
        Leads(&self.is_led)
    }

    pub fn is_led(&self) -> bool {
        self.is_led.load(Ordering::Relaxed)
    }

    /// Sleeps until it rings, at most so long, unless `not`.
    pub fn sleep(&self, limit: Duration, not: impl FnOnce() -> bool) {
        let mut lock = self.lock.lock();
        if !not() {
            self.rung.wait_for(&mut lock, limit);
        }
    }
}

pub struct Leads<'a>(&'a AtomicBool);

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

pub struct Sleeper<'a> {
    bell: &'a Bell,
    listens: bool,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.bell.sleepers.fetch_sub(1, Ordering::Relaxed);
        self.bell.listeners.fetch_sub(usize::from(self.listens), Ordering::Relaxed);
    }
}
