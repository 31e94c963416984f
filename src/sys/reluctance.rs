//! Leaving alone what is an optimisation and turns out slow.
//!
//! Made for huge pages. Collapsing a chunk of memory (`MADV_COLLAPSE`) takes less than a millisecond, but the kernel first
//! has every processor give back the pages that it keeps at hand (`lru_add_drain_all`): for one caller on the whole
//! machine at a time, and with the memory map of this process locked. Where more runs than there are processors, that
//! takes seconds, in which no thread of the process can map anything: connections are not answered, and deadlines pass.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What takes as long is slow.
const SLOW: Duration = Duration::from_millis(10);
/// A slow attempt is followed by a rest of so many times its duration: at most 1 % of the time goes into attempts.
const REST: u32 = 100;

/// Until when something is left alone.
pub struct Reluctance(Mutex<Option<Instant>>);

impl Reluctance {
    pub const fn new() -> Self {
        Reluctance(Mutex::new(None))
    }

    /// Does it, unless it was slow lately. `now`: the clock.
    pub fn attempt(&self, now: impl Fn() -> Instant, act: impl FnOnce()) {
        let start = now();
        if self.0.lock().is_some_and(|rest| start < rest) {
            return;
        }
        act();
        let end = now();
        let took = end.saturating_duration_since(start);
        if took >= SLOW {
            *self.0.lock() = Some(end + took * REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_was_slow_is_left_alone_a_hundred_times_as_long() {
        let (reluctance, clock, done) = (Reluctance::new(), Cell::new(Instant::now()), Cell::new(0));
        let attempt = |takes: Duration| {
            let before = done.get();
            reluctance.attempt(
                || clock.get(),
                || {
                    clock.set(clock.get() + takes);
                    done.set(before + 1);
                },
            );
            done.get() > before
        };
        assert!(attempt(SLOW / 2) && attempt(SLOW / 2), "quick ones may follow each other");
        assert!(attempt(SLOW));
        assert!(!attempt(SLOW));
        clock.set(clock.get() + SLOW * REST - Duration::from_nanos(1));
        assert!(!attempt(SLOW));
        clock.set(clock.get() + Duration::from_nanos(1));
        assert!(attempt(SLOW * 2) && !attempt(SLOW), "and again");
    }
}
