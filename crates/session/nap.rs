//! Naps of a helper thread beside a completion queue's owner that polls by itself.
//!
//! A helper cannot ask the kernel for news of only those sockets that no owner polls. It naps, and compares the owner's count
//! of polls before and after. A nap grows while the owner polls: with 16 ranks on two processors, naps of a millisecond are
//! 16,000 wake-ups a second. An owner that stops polling during a nap is found at the end of the next one: after twice
//! [`LONGEST`] at the latest.
//!
//! [`LONGEST`] is measured: with naps of up to 32 ms, an all-reduce of 16 ranks over tcp on two processors took 1.6 times as
//! long. These wake-ups also let the scheduler pass a processor from a rank that spins to the next.

use std::time::{Duration, Instant};

/// Length of the first nap.
pub const SHORTEST: Duration = Duration::from_millis(1);
/// Upper bound of a nap.
pub const LONGEST: Duration = Duration::from_millis(4);

/// A helper's current nap, and the length of the next.
#[derive(Clone, Copy, Debug)]
pub struct Nap {
    until: Instant,
    next: Duration,
}

impl Nap {
    /// A nap that is over at once; the next one is the shortest.
    #[must_use]
    pub fn over(now: Instant) -> Self {
        Nap { until: now, next: SHORTEST }
    }

    /// Time at which the nap is over.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Starts the next nap, and doubles the length of the one after it: the owner has polled.
    pub fn lengthen(&mut self, now: Instant) {
        self.until = now + self.next;
        self.next = (2 * self.next).min(LONGEST);
    }

    /// Starts the shortest nap: there will be news soon.
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
