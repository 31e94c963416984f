//! Robust lock: a lock in shared memory that survives its holder's death, and reports it.
//!
//! The word has the holder's number among those that share the memory (its *member* number), so a waiter knows for whom it
//! waits. The lock itself does not know that a member is dead: a waiter asks the kernel
//! ([`Liveness`](crate::os::liveness::Liveness)), and then takes the lock away from the dead member ([`RobustLock::steal`]). The
//! protected data may be half written, so the lock is *abandoned* from then on, until a holder has repaired them and says so.
//!
//! A robust mutex of the C library is not used: those of one thread are linked through pointers that lie in the mutexes
//! themselves, and any process that maps the memory could make this process write through them.
//!
//! A waiter sleeps on the word itself, with a bit in it by which the holder knows that it has to wake one. A waiter that is
//! killed after it was woken wakes no other, so no sleep is long.
//!
//! # Sync points
//! * `lock`: writes under the lock are seen under the next one. (For writes of a dead holder: its stores come before its
//!   death, and the kernel, which reports the death, orders the two.)

use crate::sync::atomic::{AtomicU32, Ordering, Shared};

/// Word of a free lock.
const FREE: u32 = 0;
/// In the word: a waiter may sleep on it. In the mark: the holder panicked.
const FLAG: u32 = 1 << 31;

/// A lock in shared memory. All zeros: free, and the data are whole.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RobustLock {
    /// The holder's number plus one, and [`FLAG`] if a waiter may sleep.
    word: AtomicU32,
    /// Number plus one of the member that abandoned the lock, and [`FLAG`] if it panicked. Written by the holder only.
    mark: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl Shared for RobustLock {}

/// The member that left the protected data half written, perhaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// Number of the member.
    pub member: u32,
    /// Whether a thread of the member panicked; otherwise the member is dead.
    pub panicked: bool,
}

impl RobustLock {
    /// Takes the lock if it is free. `contended`: others may sleep on it, because the caller did.
    #[inline]
    #[must_use]
    pub fn try_lock(&self, me: u32, contended: bool) -> bool {
        let ours = (me + 1) | if contended { FLAG } else { 0 };
        // SYNC POINT lock: sees the writes under it.
        let taken = self.word.compare_exchange(FREE, ours, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Number of the holder, by the word, which any member may write: any number.
    pub fn holder(&self) -> Option<u32> {
        (self.word.load(Ordering::Relaxed) & !FLAG).checked_sub(1)
    }

    /// The value to sleep on; `None`: the lock is free, or has just changed.
    #[must_use]
    pub fn prepare_sleep(&self) -> Option<u32> {
        let seen = self.word.load(Ordering::Relaxed);
        if seen == FREE {
            return None;
        }
        let marked = self.word.compare_exchange(seen, seen | FLAG, Ordering::Relaxed, Ordering::Relaxed);
        marked.is_ok().then_some(seen | FLAG)
    }

    /// Takes the lock away from a dead member, if that member still holds it, and marks it as abandoned. Only one of several
    /// callers gets it.
    #[must_use]
    pub fn steal(&self, me: u32, dead: u32) -> bool {
        let seen = self.word.load(Ordering::Relaxed);
        if seen & !FLAG != dead + 1 {
            return false;
        }
        // The flag is set, because others may have waited for the dead member.
        let stolen = self.word.compare_exchange(seen, (me + 1) | FLAG, Ordering::Acquire, Ordering::Relaxed);
        if stolen.is_ok() {
            self.abandon(Abandoned { member: dead, panicked: false });
        }
        stolen.is_ok()
    }

    /// Frees the lock; for its holder. Returns whether a waiter is to be woken.
    #[inline]
    #[must_use]
    pub fn unlock(&self) -> bool {
        // SYNC POINT lock: publishes the writes under it.
        let before = self.word.swap(FREE, Ordering::Release);
        before & FLAG != 0
    }

    /// Marks the protected data as possibly half written; for the holder.
    pub fn abandon(&self, by: Abandoned) {
        self.mark.store((by.member + 1) | if by.panicked { FLAG } else { 0 }, Ordering::Relaxed);
    }

    /// The member that left the protected data half written, perhaps; for the holder.
    #[inline]
    pub fn abandoned(&self) -> Option<Abandoned> {
        let mark = self.mark.load(Ordering::Relaxed);
        let member = (mark & !FLAG).checked_sub(1)?;
        Some(Abandoned { member, panicked: mark & FLAG != 0 })
    }

    /// Marks the protected data as whole; for the holder.
    pub fn repair(&self) {
        self.mark.store(0, Ordering::Relaxed);
    }

    /// The word to sleep on, by futex.
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_member_holds_it_and_whoever_slept_is_to_be_woken() {
        let lock = RobustLock::default();
        assert!(lock.try_lock(3, false) && !lock.try_lock(4, false));
        assert_eq!(lock.holder(), Some(3));
        let slept_on = lock.prepare_sleep().unwrap();
        assert_eq!((slept_on & FLAG, lock.holder()), (FLAG, Some(3)));
        assert!(lock.unlock(), "somebody sleeps");
        assert_eq!((lock.prepare_sleep(), lock.holder()), (None, None));
        assert!(lock.try_lock(4, true) && lock.unlock(), "others may sleep still");
        assert!(lock.try_lock(0, false) && !lock.unlock());
    }

    #[test]
    fn it_is_taken_away_from_the_dead_only_and_is_abandoned_until_it_is_repaired() {
        let lock = RobustLock::default();
        assert!(lock.try_lock(1, false) && !lock.steal(0, 2));
        assert!(lock.steal(0, 1) && !lock.steal(2, 1), "one has it");
        assert_eq!(lock.abandoned(), Some(Abandoned { member: 1, panicked: false }));
        assert!(lock.unlock(), "who waited for the dead one is woken");
        assert!(lock.try_lock(2, false) && lock.abandoned().is_some(), "until somebody repairs it");
        lock.repair();
        assert_eq!(lock.abandoned(), None);
        lock.abandon(Abandoned { member: 2, panicked: true });
        assert_eq!(lock.abandoned(), Some(Abandoned { member: 2, panicked: true }));
    }

    #[test]
    fn any_words_are_some_state() {
        let lock = RobustLock::default();
        for word in [u32::MAX, FLAG, 1, 1 << 30] {
            lock.word.store(word, Ordering::Relaxed);
            lock.mark.store(word, Ordering::Relaxed);
            let _ =
                (lock.holder(), lock.abandoned(), lock.steal(0, 7), lock.try_lock(0, true), lock.unlock());
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Protected {
        lock: RobustLock,
        data: UnsafeCell<u32>,
    }
    // SAFETY: the model under test decides who may touch the data; loom reports it if it is wrong.
    unsafe impl Sync for Protected {}

    impl Protected {
        fn add(&self, me: u32) {
            while !self.lock.try_lock(me, false) {
                thread::yield_now();
            }
            // SAFETY: this thread holds the lock.
            self.data.with_mut(|data| unsafe { *data += 1 });
            let _ = self.lock.unlock();
        }
    }

    /// One member at a time has the lock, and each sees the writes of the one before. Fails if either half of SYNC POINT
    /// `lock` is weakened to Relaxed.
    #[test]
    fn loom_lock_excludes_and_publishes() {
        loom::model(|| {
            let shared = Arc::new(Protected { lock: RobustLock::default(), data: UnsafeCell::new(0) });
            let other = shared.clone();
            let other = thread::spawn(move || other.add(1));
            shared.add(0);
            other.join().unwrap();
            // SAFETY: no other thread is left.
            shared.data.with(|data| assert_eq!(unsafe { *data }, 2));
        });
    }

    /// Two members find the holder dead: one takes the lock; the other waits for that one, and is woken.
    #[test]
    fn loom_lock_of_the_dead_goes_to_one() {
        loom::model(|| {
            let shared = Arc::new(Protected { lock: RobustLock::default(), data: UnsafeCell::new(0) });
            assert!(shared.lock.try_lock(2, false)); // the member is dead
            let take = |shared: &Protected, me: u32| {
                while !shared.lock.steal(me, 2) && !shared.lock.try_lock(me, true) {
                    thread::yield_now();
                }
                assert_eq!(shared.lock.abandoned().map(|by| by.member), Some(2));
                // SAFETY: this thread holds the lock.
                shared.data.with_mut(|data| unsafe { *data += 1 });
                shared.lock.unlock()
            };
            let other = shared.clone();
            let other = thread::spawn(move || take(&other, 1));
            let wakes = take(&shared, 0);
            assert!(wakes && other.join().unwrap(), "each wakes whoever sleeps");
        });
    }

    /// A member that sleeps on the lock is woken by the one that unlocks it.
    #[test]
    fn loom_lock_wakes_who_sleeps() {
        loom::model(|| {
            let lock = Arc::new(RobustLock::default());
            assert!(lock.try_lock(0, false));
            let waiter = lock.clone();
            let waiter = thread::spawn(move || {
                let asleep_on = if waiter.try_lock(1, false) { None } else { waiter.prepare_sleep() };
                // The kernel compares before it puts the thread to sleep.
                asleep_on.is_some_and(|value| waiter.word.load(Ordering::SeqCst) == value)
            });
            let wakes = lock.unlock();
            let asleep = waiter.join().unwrap();
            assert!(!asleep || wakes, "it sleeps, and nobody wakes it");
        });
    }
}
