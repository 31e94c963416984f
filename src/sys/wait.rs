//! How a waiting thread spends its time: spin, then yield, then sleep.

use std::time::{Duration, Instant};

/// What the waiter should do before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Look again at once.
    Again,
    /// Nothing came for a while: sleep until woken (the caller knows on what).
    Sleep,
}

/// Decides between spinning, yielding and sleeping for one wait.
///
/// The spin budget is of the order of one wake-up across cores: spinning longer than a sleep would have cost
/// buys nothing. With more ranks than processors the peer cannot run while we spin, so yielding comes first.
#[derive(Debug)]
pub struct Spinner {
    looks: u32,
    spin_for: Duration,
    yields_left: u32,
    since: Option<Instant>,
}

/// About twice the measured cost of a wake-up by futex across cores (22 µs).
const SPIN: Duration = Duration::from_micros(50);
/// A yield among runnable ranks costs about a context switch; past this many the machine is waiting, not busy.
const YIELDS: u32 = 200;
/// The clock is read once per this many looks.
const LOOKS_PER_CLOCK: u32 = 64;

impl Spinner {
    /// `oversubscribed`: more ranks run on this host than processors may run them.
    pub fn new(oversubscribed: bool) -> Self {
        let spin_for = if oversubscribed { Duration::ZERO } else { SPIN };
        Spinner { looks: 0, spin_for, yields_left: YIELDS, since: None }
    }

    /// Called after each fruitless look. Returns [`Pause::Sleep`] when the budget is spent, every time from
    /// then on.
    #[inline]
    pub fn pause(&mut self) -> Pause {
        self.looks = self.looks.wrapping_add(1);
        if !self.spin_for.is_zero() && !self.looks.is_multiple_of(LOOKS_PER_CLOCK) {
            // No `pause` instruction: it takes 140 cycles on recent processors, longer than a cache line takes to come.
            return Pause::Again;
        }
        self.pause_slowly()
    }

    #[cold]
    fn pause_slowly(&mut self) -> Pause {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < self.spin_for {
            return Pause::Again;
        }
        self.spin_for = Duration::ZERO;
        if self.yields_left > 0 {
            self.yields_left -= 1;
            std::thread::yield_now();
            return Pause::Again;
        }
        Pause::Sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_in_sleep_and_stays_there() {
        for oversubscribed in [false, true] {
            let mut spinner = Spinner::new(oversubscribed);
            let mut looks = 0u64;
            while spinner.pause() == Pause::Again {
                looks += 1;
            }
            assert!(looks >= u64::from(YIELDS), "yields come before sleep");
            assert_eq!(spinner.pause(), Pause::Sleep);
        }
    }
}
