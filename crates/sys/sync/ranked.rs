//! Mutexes with a place in an order, which debug builds check.
//!
//! Two threads that take two locks in opposite orders wait for each other, once in a million runs. So each lock of a subsystem
//! has a [`Rank`], and a thread takes locks in ascending rank only. A debug build panics at the first lock that is taken out of
//! order, in whatever run, whether another thread is there or not. A release build checks nothing.

use std::fmt;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

/// A lock's place in the order. Locks of equal rank are never held together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// A thread that holds a lock takes only locks of higher numbers.
    pub number: u16,
    /// Name of the lock, for the panic.
    pub name: &'static str,
}

/// A mutex with a rank.
pub struct RankedMutex<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

/// A held lock; unlocks when dropped.
pub struct RankedGuard<'m, T> {
    guard: MutexGuard<'m, T>,
    /// Dropped after the guard: until then the lock is held.
    _held: held::Held,
}

impl<T> RankedMutex<T> {
    /// Makes an unlocked mutex.
    pub const fn new(rank: Rank, value: T) -> Self {
        RankedMutex { rank, mutex: Mutex::new(value) }
    }

    /// Locks, waiting for the holder.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of an equal or higher rank.
    #[inline]
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let held = held::Held::new(self.rank);
        RankedGuard { guard: self.mutex.lock(), _held: held }
    }

    /// Locks unless the mutex is held. This does not wait, so it may be done in any order; locks that are taken while it is
    /// held may not.
    #[inline]
    pub fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let guard = self.mutex.try_lock()?;
        Some(RankedGuard { guard, _held: held::Held::unchecked(self.rank) })
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mutex.fmt(f)
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        /// Ranks of the locks that this thread holds, in the order in which it took them.
        static RANKS: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// Mark that this thread holds a lock of that rank, or waits for it.
    pub struct Held(Rank);

    impl Held {
        pub fn new(rank: Rank) -> Self {
            let higher =
                RANKS.with_borrow(|held| held.iter().copied().find(|other| other.number >= rank.number));
            if let Some(higher) = higher {
                let (name, other) = (rank.name, higher.name);
                panic!("locks out of order: {name} ({}) behind {other} ({})", rank.number, higher.number);
            }
            Held::unchecked(rank)
        }

        pub fn unchecked(rank: Rank) -> Self {
            RANKS.with_borrow_mut(|held| held.push(rank));
            Held(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            RANKS.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    use super::Rank;

    pub struct Held;

    impl Held {
        #[inline]
        pub fn new(_: Rank) -> Self {
            Held
        }

        #[inline]
        pub fn unchecked(_: Rank) -> Self {
            Held
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Rank = Rank { number: 1, name: "low" };
    const HIGH: Rank = Rank { number: 2, name: "high" };

    #[test]
    fn locks_are_taken_in_ascending_order() {
        let (low, high) = (RankedMutex::new(LOW, 1), RankedMutex::new(HIGH, 2));
        for _ in 0..2 {
            let first = low.lock();
            let mut second = high.lock();
            *second += *first;
            // The locks are given back in any order.
            drop(first);
            drop(second);
        }
        assert_eq!(*high.lock(), 4);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "locks out of order: low (1) behind high (2)")]
    fn a_lock_out_of_order_is_found_without_another_thread() {
        let (low, high) = (RankedMutex::new(LOW, ()), RankedMutex::new(HIGH, ()));
        let _high = high.lock();
        let _low = low.lock();
    }
}
