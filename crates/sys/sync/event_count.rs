//! Event counts: waiting until something in shared memory has changed, without a lock and without a lost wake-up.
//!
//! A waiter reads the count, checks its condition, and sleeps as long as the count has the value that it read. A changer
//! makes its change first, and then raises the count. The system call that wakes is made only if there are sleepers: they are
//! counted. A process that is killed in its sleep stays counted, and costs the others a system call each time, nothing more.
//!
//! Source of the name: D. P. Reed, R. K. Kanodia, *Synchronization with eventcounts and sequencers*, CACM 1979.
//!
//! # Sync points
//! * `event`: a thread that sees the raised count sees the changes before it.
//! * `asleep`: a waiter counts itself, fences SeqCst, and (in the kernel) compares the count; the changer raises it, fences
//!   SeqCst, and looks for sleepers. At least one side sees the other's: the waiter does not sleep, or is woken. (On aarch64,
//!   too: both are full barriers.)

use crate::sync::atomic::{AtomicU32, Ordering, Shared, fence};

/// A count of changes in shared memory, and of the threads that sleep until the next. All zeros: nothing has happened.
#[repr(C)]
#[derive(Debug, Default)]
pub struct EventCount {
    count: AtomicU32,
    sleepers: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl Shared for EventCount {}

impl EventCount {
    /// Reads the count before a check: the value to sleep on if the check is in vain.
    #[inline]
    pub fn now(&self) -> u32 {
        // SYNC POINT event: sees the changes.
        self.count.load(Ordering::Acquire)
    }

    /// Raises the count after a change. Returns whether there may be a sleeper to be woken.
    #[inline]
    #[must_use]
    pub fn raise(&self) -> bool {
        // SYNC POINT event: publishes the changes.
        self.count.fetch_add(1, Ordering::Release);
        // SYNC POINT asleep: count before sleepers.
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Counts a waiter that is about to sleep; [`EventCount::end_sleep`] follows.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // SYNC POINT asleep: sleepers before count.
        fence(Ordering::SeqCst);
    }

    /// Counts off a waiter that is awake.
    pub fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// The word to sleep on, by futex.
    pub fn word(&self) -> &AtomicU32 {
        &self.count
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A sleeper is woken. Fails if either fence of SYNC POINT `asleep` is removed.
    #[test]
    fn loom_event_count_loses_no_wake_up() {
        loom::model(|| {
            let (events, changed) = (Arc::new(EventCount::default()), Arc::new(AtomicU32::new(0)));
            let changer = {
                let (events, changed) = (events.clone(), changed.clone());
                thread::spawn(move || {
                    changed.store(1, Ordering::Relaxed);
                    events.raise()
                })
            };
            let seen = events.now();
            let found = changed.load(Ordering::Relaxed) == 1;
            events.begin_sleep();
            // The kernel compares before it puts the thread to sleep.
            let asleep = !found && events.count.load(Ordering::Relaxed) == seen;
            let wakes = changer.join().unwrap();
            assert!(!asleep || wakes, "it sleeps, and nobody wakes it");
        });
    }

    /// A thread that reads the raised count finds the changes, so it does not sleep on that count in vain. Fails if either
    /// half of SYNC POINT `event` is weakened to Relaxed.
    #[test]
    fn loom_event_count_brings_what_was_changed() {
        loom::model(|| {
            let (events, changed) = (Arc::new(EventCount::default()), Arc::new(AtomicU32::new(0)));
            let changer = {
                let (events, changed) = (events.clone(), changed.clone());
                thread::spawn(move || {
                    changed.store(1, Ordering::Relaxed);
                    let _ = events.raise();
                })
            };
            if events.now() == 1 {
                assert_eq!(changed.load(Ordering::Relaxed), 1);
            }
            changer.join().unwrap();
        });
    }
}
