//! Naps of a helper thread beside an owner that looks by itself.
//!
//! A helper cannot ask the kernel for news of those sockets only at which nobody looks. It naps, and compares the owner's looks
//! before and after. A nap grows while the owner looks: with 16 ranks on two processors, naps of a millisecond are 16,000 wake-ups
//! a second. An owner that ceases to look in a nap is found at the end of the next: after twice [`LONGEST`] at the latest.
//!
//! [`LONGEST`] is measured: with naps of up to 32 ms, an all-reduce of 16 ranks over tcp on two processors took 1.6 times as long.
//! It is at these wake-ups, too, that the scheduler passes a processor from a rank that spins to the next.

use std::time::{Duration, Instant};

/// The first nap.
pub const SHORTEST: Duration = Duration::from_millis(1);
/// No nap is longer.
pub const LONGEST: Duration = Duration::from_millis(4);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Nap {
    until: Instant,
    next: Duration,
}

impl Nap {
    /// A nap that is over at once, before the shortest.
    #[must_use]
    pub fn over(now: Instant) -> Self {
        Nap { until: now, next: SHORTEST }
    }

    /// When it is over.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// The owner has looked: sleep on, and twice as long the next time.
    pub fn lengthen(&mut self, now: Instant) {
        self.until = now + self.next;
        self.next = (2 * self.next).min(LONGEST);
    }

    /// Something will be known soon: the shortest nap.
    pub fn shorten(&mut self, now: Instant) {
        *self = Nap { until: now + SHORTEST, next: SHORTEST };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nap_is_about_as_long_as_the_owner_has_looked() {
        let start = Instant::now();
        let (mut nap, mut now) = (Nap::over(start), start);
        for _ in 0..20 {
            nap.lengthen(now);
            let (looked, length) = (now - start, nap.until() - now);
            assert!(length <= LONGEST && length <= looked + SHORTEST, "{length:?} after {looked:?}");
            now = nap.until();
        }
        nap.lengthen(now);
        assert_eq!(nap.until() - now, LONGEST);
        nap.shorten(now);
        assert_eq!(nap.until() - now, SHORTEST);
    }
}
