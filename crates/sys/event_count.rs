//! An event count: waiting until something in shared memory has changed, without a lock and without a lost wake-up.
//!
//! Who waits reads the count, looks at what it waits for, and sleeps as long as the count is the one that it read. Who changes
//! something does that, and then raises the count. The system call that wakes is only made where somebody sleeps: sleepers are
//! counted. One that is killed in its sleep stays counted, and costs the others a system call each time, nothing more.
//!
//! Source of the name: D. P. Reed, R. K. Kanodia, *Synchronization with eventcounts and sequencers*, CACM 1979.
//!
//! # Sync points
//! * `event`: who sees the raised count sees what was changed before.
//! * `asleep`: a waiter counts itself, fences SeqCst, and (in the kernel) compares the count; who raises it fences SeqCst, and looks
//!   for sleepers. At least one side sees the other's: the waiter does not sleep, or is woken. (On aarch64 too: both are full barriers.)

use crate::atomic::{AtomicU32, Ordering, Shared, fence};

/// See the module. All zeros: nothing has happened.
#[repr(C)]
#[derive(Debug, Default)]
pub struct EventCount {
    count: AtomicU32,
    sleepers: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl Shared for EventCount {}

impl EventCount {
    /// Before a look: what to sleep on if the look is in vain.
    #[inline]
    pub fn now(&self) -> u32 {
        // SYNC POINT event: sees what was changed.
        self.count.load(Ordering::Acquire)
    }

    /// Something has changed. Whether somebody is to be woken.
    #[inline]
    #[must_use]
    pub fn raise(&self) -> bool {
        // SYNC POINT event: publishes what was changed.
        self.count.fetch_add(1, Ordering::Release);
        // SYNC POINT asleep: count before sleepers.
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// A waiter is about to sleep; [`EventCount::end_sleep`] follows.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // SYNC POINT asleep: sleepers before count.
        fence(Ordering::SeqCst);
    }

    /// It is awake.
    pub fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// To sleep on, by futex.
    pub fn word(&self) -> &AtomicU32 {
        &self.count
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Who sleeps is woken. Fails if either fence of SYNC POINT `asleep` is removed.
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
            // The kernel compares before it lets sleep.
            let asleep = !found && events.count.load(Ordering::Relaxed) == seen;
            let wakes = changer.join().unwrap();
            assert!(!asleep || wakes, "it sleeps, and nobody wakes it");
        });
    }

    /// Who reads the raised count finds what was changed, so it does not sleep on that count in vain. Fails if either half of SYNC
    /// POINT `event` is weakened to Relaxed.
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
