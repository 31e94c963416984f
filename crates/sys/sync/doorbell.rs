//! Doorbells: finding the ring that has a message, among thousands, and waking a sleeping owner.
//!
//! A doorbell belongs to one waiter (a completion queue) and is rung by its peers. Each ring that the waiter does
//! not poll has a bit; a two-level bitmap (64 × 64) finds the set ones in a few loads. Ringing costs the peer
//! two read-modify-writes, and a system call only if the waiter sleeps: that is why a waiter polls its busiest
//! rings and leaves only the others to the doorbell.
//!
//! # Memory ordering
//! * `SYNC POINT bits`: [`Doorbell::ring`] sets the leaf, then the summary (Release each); [`Doorbell::drain`] clears
//!   the summary, then the leaf (Acquire each). A leaf bit set after it was cleared has its summary bit set after
//!   that too, so a later drain finds it; and writes before the ring are visible to the thread that drains the bit.
//!   Loom carries read-modify-writes of different words out in program order, so it cannot see the summary's
//!   orderings weakened; on aarch64 a relaxed summary could become visible before its leaf. They stay by argument.
//! * `SYNC POINT park`: the waiter stores `parked`, fences SeqCst, looks at the summary (and at its rings, which
//!   it made cold before); the ringer sets the summary, fences SeqCst, loads `parked`. Either the waiter sees
//!   the bit or the ringer sees it parked.
//!
//! A ringer killed between its steps loses only its own message's bit, or the wake-up of a sleeper: sleeps are
//! therefore bounded ([`MAX_SLEEP`]) and the death of a peer is itself a wake-up.

use std::time::Duration;

use crate::os::fault;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, Shared, fence};

/// Leaves of a doorbell (loom's state space wants few).
#[cfg(not(loom))]
pub const LEAVES: usize = 64;
/// Leaves of a doorbell (loom's state space wants few).
#[cfg(loom)]
pub const LEAVES: usize = 2;
/// Number of rings that one doorbell can tell apart.
pub const BITS: u32 = LEAVES as u32 * 64;
/// Longest sleep before the sleeper polls again by itself.
pub const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Value of [`Doorbell::sleep_word`] while the doorbell's owner is parked.
pub const PARKED: u32 = 1;

/// A two-level bitmap of rings with news, and the word its owner sleeps on. Lies in memory shared with peers.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Doorbell {
    summary: AtomicU64,
    parked: AtomicU32,
    leaves: [AtomicU64; LEAVES],
}

// SAFETY: atomics only.
unsafe impl Shared for Doorbell {}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Doorbell>() == 640);

impl Default for Doorbell {
    fn default() -> Self {
        Doorbell {
            summary: AtomicU64::new(0),
            parked: AtomicU32::new(0),
            leaves: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Doorbell {
    /// Announces news on ring `bit` and wakes the owner if it sleeps. Out-of-range bits (a peer chose them)
    /// are masked.
    #[cold]
    pub fn ring(&self, bit: u32) {
        self.set(bit, fault::point);
        self.wake();
    }

    /// Rings as [`Doorbell::ring`] does, by the owner's own process: when this process dies here, no other waits for the wake-up.
    pub fn ring_own(&self, bit: u32) {
        self.set(bit, |_| {});
        self.wake();
    }

    #[inline]
    fn set(&self, bit: u32, point: impl Fn(&'static str)) {
        let (leaf, within) = ((bit / 64) as usize % LEAVES, bit % 64);
        // SYNC POINT bits: after the news itself.
        self.leaves[leaf].fetch_or(1 << within, Ordering::Release);
        point("doorbell.leaf");
        // Set after the leaf (see the module's text: the models cannot see this one weakened).
        self.summary.fetch_or(1 << leaf, Ordering::Release);
        point("doorbell.summary");
    }

    /// Wakes the owner if it sleeps.
    pub fn wake(&self) {
        // SYNC POINT park, ringer's half.
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) != 0 && self.parked.swap(0, Ordering::AcqRel) != 0 {
            fault::point("doorbell.unparked");
            self.wake_sleepers();
        }
    }

    /// Whether any bit is set. One load of a line that is quiet while nobody rings.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    /// Takes all set bits and gives them to `news`, lowest first.
    pub fn drain(&self, mut news: impl FnMut(u32)) {
        // Cleared before the leaves (see the module's text).
        let mut summary = self.summary.swap(0, Ordering::Acquire);
        while summary != 0 {
            let leaf = summary.trailing_zeros() as usize;
            summary &= summary - 1;
            // A hostile peer may set summary bits that have no leaf under loom's small doorbells; masked.
            // SYNC POINT bits: leaf before the news itself.
            let mut bits = self.leaves[leaf % LEAVES].swap(0, Ordering::Acquire);
            while bits != 0 {
                let within = bits.trailing_zeros();
                bits &= bits - 1;
                news(leaf as u32 * 64 + within);
            }
        }
    }

    /// Declares the owner asleep. `false`: there is news, do not sleep ([`Doorbell::unpark`] was done). The caller
    /// has made its rings cold before, and looks at them once more between this and [`Doorbell::sleep`].
    #[must_use]
    pub fn park(&self) -> bool {
        self.parked.store(PARKED, Ordering::Relaxed);
        // SYNC POINT park, owner's half.
        fence(Ordering::SeqCst);
        if self.has_news() {
            self.unpark();
            return false;
        }
        true
    }

    /// The word that is [`PARKED`] while the owner is parked: a thread that sleeps on it is woken as the owner would be.
    #[cfg(not(loom))]
    pub fn sleep_word(&self) -> &AtomicU32 {
        &self.parked
    }

    /// Takes [`Doorbell::park`] back.
    pub fn unpark(&self) {
        self.parked.store(0, Ordering::Relaxed);
    }

    /// Sleeps after [`Doorbell::park`] until rung, at most `limit` and at most [`MAX_SLEEP`]. May return early.
    #[cfg(not(loom))]
    pub fn sleep(&self, limit: Duration) {
        crate::os::futex::sleep(&self.parked, PARKED, limit.min(MAX_SLEEP));
        self.unpark();
    }

    #[cfg(not(loom))]
    fn wake_sleepers(&self) {
        crate::os::futex::wake(&self.parked);
    }

    /// Loom has no futex: the model looks at `parked` itself.
    #[cfg(loom)]
    fn wake_sleepers(&self) {}

    #[cfg(loom)]
    fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    proptest! {
        /// Rung bits are drained, once, in any order.
        #[test]
        fn prop_bell_is_a_set(bits in prop::collection::vec(0..BITS, 0..200)) {
            let doorbell = Doorbell::default();
            let mut expected = BTreeSet::new();
            for chunk in bits.chunks(7) {
                chunk.iter().for_each(|&bit| { doorbell.ring(bit); expected.insert(bit); });
                prop_assert_eq!(doorbell.has_news(), !expected.is_empty());
                let mut got = Vec::new();
                doorbell.drain(|bit| got.push(bit));
                prop_assert_eq!(got, expected.iter().copied().collect::<Vec<_>>());
                expected.clear();
                prop_assert!(!doorbell.has_news());
            }
        }
    }

    #[test]
    fn ringing_wakes_a_sleeper() {
        let doorbell = Arc::new(Doorbell::default());
        let ringer = {
            let doorbell = doorbell.clone();
            std::thread::spawn(move || doorbell.ring(4095))
        };
        let mut got = Vec::new();
        while got.is_empty() {
            if doorbell.park() {
                doorbell.sleep(Duration::from_secs(10));
            }
            doorbell.drain(|bit| got.push(bit));
        }
        ringer.join().unwrap();
        assert_eq!(got, [4095]);
    }

    #[test]
    fn a_foreign_bit_stays_in_range() {
        let doorbell = Doorbell::default();
        doorbell.ring(u32::MAX);
        let mut got = Vec::new();
        doorbell.drain(|bit| got.push(bit));
        assert!(got.iter().all(|&bit| bit < BITS) && got.len() == 1);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// No wake-up is lost between the last poll and the sleep: when both sides are done, the owner is not
    /// asleep on undrained news. Fails if either fence of SYNC POINT `park` is removed.
    #[test]
    fn loom_bell_loses_no_wakeup() {
        loom::model(|| {
            let doorbell = Arc::new(Doorbell::default());
            let ringer = {
                let doorbell = doorbell.clone();
                thread::spawn(move || doorbell.ring(1))
            };
            let asleep = doorbell.park();
            ringer.join().unwrap();
            // If the owner is asleep and its word was not cleared, it sleeps on with news pending.
            assert!(!(asleep && doorbell.is_parked()), "the sleeper was not woken");
            let mut got = 0;
            doorbell.drain(|_| got += 1);
            assert_eq!(got, 1);
        });
    }

    /// Two ringers and a draining owner: no bit is lost, and with a bit comes what its ringer wrote before. Fails if
    /// `ring` sets the summary before the leaf, or if any SYNC POINT `bits` is weakened to Relaxed.
    #[test]
    fn loom_bell_loses_no_bit() {
        use loom::cell::UnsafeCell;
        struct News([UnsafeCell<u32>; 2]);
        // SAFETY: the model under test decides who may touch which; loom reports it if it is wrong.
        unsafe impl Sync for News {}
        loom::model(|| {
            let doorbell = Arc::new(Doorbell::default());
            let news = Arc::new(News([UnsafeCell::new(0), UnsafeCell::new(0)]));
            let ringers: Vec<_> = [0u32, 1]
                .map(|bit| {
                    let (doorbell, news) = (doorbell.clone(), news.clone());
                    thread::spawn(move || {
                        // SAFETY: the news is not announced yet, so the owner stays away.
                        news.0[bit as usize].with_mut(|news| unsafe { *news = bit + 1 });
                        doorbell.ring(bit);
                    })
                })
                .into();
            let mut got = 0u64;
            let mut look = |bit: u32| {
                got |= 1 << bit;
                // SAFETY: the news was announced, so its ringer is done with it.
                news.0[bit as usize].with(|news| assert_eq!(unsafe { *news }, bit + 1));
            };
            doorbell.drain(&mut look);
            for ringer in ringers {
                ringer.join().unwrap();
            }
            doorbell.drain(&mut look);
            assert_eq!(got, 0b11);
        });
    }
}
