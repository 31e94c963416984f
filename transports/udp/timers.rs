//! When which link wants to be called, for all links of a NIC. Whoever looks at the socket looks here, too.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use udeck_sys::atomic::{AtomicU64, Ordering};

/// See the module. A link is in it for the earliest time that it asked for; it asks again when it was called.
pub struct Timers {
    start: Instant,
    /// Nanoseconds from `start` to the earliest time.
    next: AtomicU64,
    heap: Mutex<BinaryHeap<Reverse<(Instant, u64)>>>,
}

impl Timers {
    pub fn new() -> Self {
        Timers { start: Instant::now(), next: AtomicU64::new(u64::MAX), heap: Mutex::default() }
    }

    /// The link of that number wants to be called. Whether nobody did so early.
    pub fn set(&self, at: Instant, number: u64) -> bool {
        let mut heap = self.heap.lock();
        let earliest = heap.peek().is_none_or(|Reverse((first, _))| at < *first);
        heap.push(Reverse((at, number)));
        self.publish(&heap);
        earliest
    }

    /// Whether somebody is to be called.
    pub fn is_due(&self, now: Instant) -> bool {
        self.nanos(now) >= self.next.load(Ordering::Relaxed)
    }

    /// How long until somebody is, at most `limit`.
    pub fn wait(&self, now: Instant, limit: Duration) -> Duration {
        let next = self.next.load(Ordering::Relaxed);
        Duration::from_nanos(next.saturating_sub(self.nanos(now))).min(limit)
    }

    /// Who is to be called, one at a time.
    pub fn pop(&self, now: Instant) -> Option<u64> {
        let mut heap = self.heap.lock();
        heap.peek().filter(|Reverse((at, _))| *at <= now)?;
        let number = heap.pop().map(|Reverse((_, number))| number);
        self.publish(&heap);
        number
    }

    fn publish(&self, heap: &BinaryHeap<Reverse<(Instant, u64)>>) {
        let next = heap.peek().map_or(u64::MAX, |Reverse((at, _))| self.nanos(*at));
        self.next.store(next, Ordering::Relaxed);
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_in_order_and_not_before() {
        let timers = Timers::new();
        let (now, ms) = (Instant::now(), Duration::from_millis(1));
        assert!(!timers.is_due(now) && timers.wait(now, ms) == ms);
        assert!(timers.set(now + 9 * ms, 1));
        assert!(timers.set(now + 3 * ms, 2));
        assert!(!timers.set(now + 5 * ms, 3));
        assert_eq!((timers.pop(now), timers.wait(now, 9 * ms)), (None, 3 * ms));
        let then = now + 6 * ms;
        assert!(timers.is_due(then));
        assert_eq!([timers.pop(then), timers.pop(then), timers.pop(then)], [Some(2), Some(3), None]);
        assert_eq!(timers.wait(then, 9 * ms), 3 * ms);
    }
}
