//! Timer queue of a NIC. Each link and each peer has at most one timer in it, for the earliest time that it asked
//! for. The thread that reads the socket also fires timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use udeck_sys::atomic::{AtomicU64, Ordering};
use udeck_sys::job_time;

/// Timer queue of a NIC.
pub struct Timers {
    start: Instant,
    /// Earliest time, in nanoseconds from `start`.
    next: AtomicU64,
    queue: Mutex<TimerQueue>,
}

/// A heap of timers. An entry that an earlier one has replaced stays until it reaches the top, or until such entries
/// are more than half.
#[derive(Default)]
struct TimerQueue {
    heap: BinaryHeap<Reverse<(Instant, Entry)>>,
    /// Time and id of each timer's valid entry.
    live: HashMap<u64, (Instant, u64)>,
    entries: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// Number of the entry, which no other entry has.
    id: u64,
    link: u64,
}

impl TimerQueue {
    fn is_live(live: &HashMap<u64, (Instant, u64)>, entry: &Entry) -> bool {
        live.get(&entry.link).is_some_and(|(_, id)| *id == entry.id)
    }

    fn set(&mut self, at: Instant, link: u64) {
        if self.live.get(&link).is_some_and(|(earlier, _)| *earlier <= at) {
            return;
        }
        self.entries += 1;
        let entry = Entry { id: self.entries, link };
        self.live.insert(link, (at, entry.id));
        self.heap.push(Reverse((at, entry)));
        self.sweep();
    }

    fn pop(&mut self, now: Instant) -> Option<u64> {
        self.first().filter(|at| *at <= now)?;
        let Reverse((_, Entry { link, .. })) = self.heap.pop()?;
        self.live.remove(&link);
        Some(link)
    }

    fn remove(&mut self, link: u64) {
        self.live.remove(&link);
        self.sweep();
    }

    /// Returns the earliest time.
    fn first(&mut self) -> Option<Instant> {
        while let Some(Reverse((at, entry))) = self.heap.peek() {
            if Self::is_live(&self.live, entry) {
                return Some(*at);
            }
            self.heap.pop();
        }
        None
    }

    fn sweep(&mut self) {
        let TimerQueue { heap, live, .. } = self;
        if heap.len() > 2 * live.len() {
            heap.retain(|Reverse((_, entry))| Self::is_live(live, entry));
        }
    }
}

impl Timers {
    pub fn new() -> Self {
        Timers { start: job_time(), next: AtomicU64::new(u64::MAX), queue: Mutex::default() }
    }

    /// Arms a timer, unless it is armed for an earlier time. Returns whether it is now the earliest of all.
    pub fn set(&self, at: Instant, link: u64) -> bool {
        let mut queue = self.queue.lock();
        let earliest = queue.first().is_none_or(|first| at < first);
        queue.set(at, link);
        self.publish(&mut queue);
        earliest
    }

    /// Disarms a timer.
    pub fn remove(&self, link: u64) {
        let mut queue = self.queue.lock();
        queue.remove(link);
        self.publish(&mut queue);
    }

    /// Whether a timer is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.nanos(now) >= self.next.load(Ordering::Relaxed)
    }

    /// Time until the next timer is due, at most `limit`.
    pub fn wait(&self, now: Instant, limit: Duration) -> Duration {
        let next = self.next.load(Ordering::Relaxed);
        Duration::from_nanos(next.saturating_sub(self.nanos(now))).min(limit)
    }

    /// Takes all timers that are due. A timer that is armed again meanwhile fires at the next call, so that one that
    /// is always due does not keep the caller here.
    pub fn pop_due(&self, now: Instant) -> Vec<u64> {
        let mut queue = self.queue.lock();
        let due = std::iter::from_fn(|| queue.pop(now)).collect();
        self.publish(&mut queue);
        due
    }

    /// Number of entries, replaced ones included.
    #[cfg(test)]
    pub fn entries(&self) -> usize {
        self.queue.lock().heap.len()
    }

    fn publish(&self, queue: &mut TimerQueue) {
        let next = queue.first().map_or(u64::MAX, |at| self.nanos(at));
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
        assert_eq!((timers.pop_due(now), timers.wait(now, 9 * ms)), (vec![], 3 * ms));
        let then = now + 6 * ms;
        assert!(timers.is_due(then));
        assert_eq!(timers.pop_due(then), [2, 3]);
        assert_eq!((timers.pop_due(then), timers.wait(then, 9 * ms)), (vec![], 3 * ms));
        timers.remove(1);
        assert!(!timers.is_due(then + 9 * ms));
    }

    #[test]
    fn only_the_earliest_time_of_a_link_counts() {
        let timers = Timers::new();
        let (now, ms) = (Instant::now(), Duration::from_millis(1));
        for at in [9, 5, 7] {
            timers.set(now + at * ms, 1);
        }
        timers.set(now + 6 * ms, 2);
        assert_eq!(timers.pop_due(now + 5 * ms), [1]);
        assert_eq!(timers.pop_due(now + 20 * ms), [2], "the others of 1 were replaced");
        timers.set(now + 9 * ms, 1);
        assert_eq!(timers.pop_due(now + 9 * ms), [1], "it asked again, for the same time as before");
    }

    #[test]
    fn there_are_at_most_twice_as_many_entries_as_links() {
        let timers = Timers::new();
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        for round in 0..1000 {
            let now = start + 10 * round * ms;
            for link in 0..4 {
                // A distant entry is replaced by a near one.
                timers.set(now + 2000 * ms, link);
                timers.set(now + ms, link);
                assert!(timers.entries() <= 8, "{} entries", timers.entries());
            }
            assert_eq!(timers.pop_due(now + 5 * ms).len(), 4);
        }
        (0..4).for_each(|link| timers.remove(link));
        assert_eq!(timers.entries(), 0);
    }
}
