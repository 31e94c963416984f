//! The sender's view of its stream: which bytes were never sent, which are to be sent again, which have arrived. The bytes
//! themselves lie with the user.

use std::ops::Range;

use super::ranges::Ranges;

/// Most islands of arrived bytes above the first gap. Beyond it, nothing new is sent until the gap is closed.
pub const MAX_ISLANDS: usize = 2048;

#[derive(Debug, Default)]
pub struct Outgoing {
    /// All below has arrived.
    released: u64,
    /// Nothing from here on was ever sent.
    next: u64,
    /// The user has bytes up to here.
    end: u64,
    /// The peer takes bytes up to here.
    limit: u64,
    /// What arrived above `released`.
    arrived: Ranges,
    /// What was sent and is to be sent again.
    lost: Ranges,
}

impl Outgoing {
    pub fn released(&self) -> u64 {
        self.released
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// Separate parts that arrived, or are to be sent again. The latter are fewer than packets under way.
    pub fn islands(&self) -> usize {
        self.arrived.len().max(self.lost.len())
    }

    pub fn offer(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    pub fn allow(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// What to send next, at most `room` bytes: first what was lost.
    pub fn peek(&self, room: usize) -> Option<Range<u64>> {
        let open = self.arrived.len() < MAX_ISLANDS;
        let fresh = self.next..if open { self.end.min(self.limit) } else { 0 };
        let range = self.lost.first().cloned().unwrap_or(fresh);
        (!range.is_empty()).then(|| range.start..range.end.min(range.start + room as u64))
    }

    /// `range` is sent.
    pub fn sent(&mut self, range: &Range<u64>) {
        self.next = self.next.max(range.end);
        self.lost.remove(range.clone());
    }

    pub fn arrived(&mut self, range: Range<u64>) {
        self.lost.remove(range.clone());
        if range.start > self.released {
            self.arrived.insert(range);
            return;
        }
        self.released = self.released.max(range.end);
        while self.arrived.first().is_some_and(|island| island.start <= self.released) {
            let end = self.arrived.pop_first().map_or(0, |island| island.end);
            self.released = self.released.max(end);
        }
    }

    /// `range` has to be sent again, but for what arrived otherwise. How many bytes that is.
    pub fn lost(&mut self, range: Range<u64>) -> u64 {
        let mut start = range.start.max(self.released);
        let mut bytes = 0;
        let mut again = |part: Range<u64>| {
            bytes += part.end.saturating_sub(part.start);
            self.lost.insert(part);
        };
        for island in self.arrived.overlapping(start..range.end.max(start)) {
            again(start..island.start.max(start));
            start = island.end;
        }
        if start < range.end {
            again(start..range.end);
        }
        bytes
    }

    /// Of `range`, what has not arrived: its first part.
    pub fn missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut missing = range.start.max(self.released)..range.end;
        for island in self.arrived.overlapping(missing.start..missing.end.max(missing.start)) {
            if island.start > missing.start {
                missing.end = island.start;
                break;
            }
            missing.start = island.end;
        }
        (!missing.is_empty()).then_some(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(end: u64) -> Outgoing {
        let mut outgoing = Outgoing::default();
        outgoing.offer(end);
        outgoing.allow(u64::MAX);
        outgoing
    }

    fn send(outgoing: &mut Outgoing, room: usize) -> Option<Range<u64>> {
        let range = outgoing.peek(room)?;
        outgoing.sent(&range);
        Some(range)
    }

    #[test]
    fn the_peers_window_and_the_users_end_bound_what_is_sent() {
        let mut outgoing = Outgoing::default();
        outgoing.offer(100);
        assert_eq!(outgoing.peek(10), None);
        outgoing.allow(15);
        assert_eq!(
            [send(&mut outgoing, 10), send(&mut outgoing, 10), send(&mut outgoing, 10)],
            [Some(0..10), Some(10..15), None]
        );
        outgoing.allow(1000);
        assert_eq!(send(&mut outgoing, 200), Some(15..100));
        assert_eq!(send(&mut outgoing, 200), None);
    }

    #[test]
    fn what_was_lost_goes_first_and_what_arrived_does_not_go_again() {
        let mut outgoing = stream(100);
        while send(&mut outgoing, 10).is_some() {}
        outgoing.arrived(20..30);
        assert_eq!(outgoing.lost(10..40), 20);
        outgoing.offer(110);
        assert_eq!(send(&mut outgoing, 5), Some(10..15));
        outgoing.arrived(15..18);
        assert_eq!(send(&mut outgoing, 50), Some(18..20));
        assert_eq!(send(&mut outgoing, 50), Some(30..40));
        assert_eq!(send(&mut outgoing, 50), Some(100..110));
        assert_eq!(outgoing.missing(10..40), Some(10..15));
        assert_eq!(outgoing.missing(15..40), Some(18..20));
        assert_eq!(outgoing.missing(20..30), None);
        assert_eq!(outgoing.released(), 0);
        outgoing.arrived(0..15);
        assert_eq!(outgoing.released(), 18);
        outgoing.arrived(18..20);
        assert_eq!((outgoing.released(), outgoing.islands()), (30, 0));
        assert_eq!(outgoing.lost(0..20), 0, "arrived meanwhile");
        assert_eq!(outgoing.lost(0..33), 3);
    }

    #[test]
    fn too_many_islands_hold_up_what_is_new() {
        let mut outgoing = stream(1 << 20);
        while outgoing.next() < 3 * MAX_ISLANDS as u64 {
            send(&mut outgoing, 1);
        }
        (0..MAX_ISLANDS as u64).for_each(|island| outgoing.arrived(1 + 2 * island..2 + 2 * island));
        assert_eq!(outgoing.peek(1), None);
        outgoing.lost(0..1);
        assert_eq!(send(&mut outgoing, 1), Some(0..1));
        outgoing.arrived(0..1);
        assert!(outgoing.peek(1).is_some());
    }
}
