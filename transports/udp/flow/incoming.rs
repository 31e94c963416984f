//! The receiver's view of its stream. What comes in order is handed on out of the datagram, copied by nobody; what comes
//! too early waits in a ring as large as the window that the sender was told.

use std::ops::Range;

use super::ranges::Ranges;

/// Most islands of bytes that wait. A packet that makes one more is not taken.
pub const MAX_ISLANDS: usize = 1024;

/// A packet that is not taken, as if it had not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// It lies beyond the window.
    Beyond,
    /// It makes too many islands.
    Scattered,
}

#[derive(Debug)]
pub struct Incoming {
    /// All below was handed on.
    delivered: u64,
    /// A power of two, in bytes.
    window: usize,
    /// Stream byte `n` lies at `n % window`. Made when something first comes too early.
    ring: Option<Box<[u8]>>,
    /// What lies in the ring.
    waiting: Ranges,
}

impl Incoming {
    pub fn new(window: usize) -> Self {
        Incoming { delivered: 0, window: window.next_power_of_two(), ring: None, waiting: Ranges::default() }
    }

    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Up to where the peer may send.
    pub fn limit(&self) -> u64 {
        self.delivered + self.window as u64
    }

    /// Bytes of memory that wait for what is missing, or could.
    pub fn memory(&self) -> usize {
        self.ring.as_ref().map_or(0, |ring| ring.len())
    }

    pub fn islands(&self) -> usize {
        self.waiting.len()
    }

    /// Gives memory back that nothing lies in.
    pub fn rest(&mut self) {
        if self.waiting.is_empty() {
            self.ring = None;
        }
    }

    /// Takes stream bytes, and hands on what is in order now. How many of the bytes were new.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn take(
        &mut self,
        offset: u64,
        bytes: &[u8],
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, NotTaken> {
        let range = offset..offset + bytes.len() as u64;
        if range.end <= self.delivered {
            return Ok(0);
        }
        if range.end > self.limit() {
            return Err(NotTaken::Beyond);
        }
        let fresh = range.start.max(self.delivered)..range.end;
        let known: u64 = self.waiting.overlapping(fresh.clone()).map(|other| overlap(other, &fresh)).sum();
        let new = fresh.end - fresh.start - known;
        if range.start > self.delivered {
            if self.waiting.len_with(&range) > MAX_ISLANDS {
                return Err(NotTaken::Scattered);
            }
            self.store(offset, bytes);
            self.waiting.insert(range);
            return Ok(new);
        }
        deliver(&bytes[(self.delivered - offset) as usize..]);
        self.delivered = range.end;
        self.waiting.remove(0..range.end);
        if self.waiting.first().is_some_and(|first| first.start == range.end) {
            self.deliver_waiting(deliver);
        }
        Ok(new)
    }

    fn deliver_waiting(&mut self, deliver: &mut dyn FnMut(&[u8])) {
        let (Some(range), Some(ring)) = (self.waiting.pop_first(), &self.ring) else { return };
        let (start, len) = (self.at(range.start), (range.end - range.start) as usize);
        let straight = len.min(self.window - start);
        deliver(&ring[start..start + straight]);
        if straight < len {
            deliver(&ring[..len - straight]);
        }
        self.delivered = range.end;
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        let start = self.at(offset);
        let ring = self.ring.get_or_insert_with(|| vec![0; self.window].into_boxed_slice());
        let (straight, round) = bytes.split_at(bytes.len().min(self.window - start));
        ring[start..start + straight.len()].copy_from_slice(straight);
        ring[..round.len()].copy_from_slice(round);
    }

    fn at(&self, offset: u64) -> usize {
        (offset % self.window as u64) as usize
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take(incoming: &mut Incoming, range: Range<u64>) -> (Result<u64, NotTaken>, Vec<u8>) {
        let bytes: Vec<_> = range.clone().map(|n| n as u8).collect();
        let mut out = Vec::new();
        let taken = incoming.take(range.start, &bytes, &mut |bytes| out.extend_from_slice(bytes));
        (taken, out)
    }

    #[test]
    fn what_comes_early_waits_and_what_comes_twice_is_dropped() {
        let mut incoming = Incoming::new(64);
        assert_eq!(take(&mut incoming, 0..4), (Ok(4), vec![0, 1, 2, 3]));
        assert_eq!(incoming.memory(), 0, "nothing waits: no memory");
        assert_eq!(take(&mut incoming, 8..12), (Ok(4), vec![]));
        assert_eq!(take(&mut incoming, 2..3), (Ok(0), vec![]));
        assert_eq!(take(&mut incoming, 9..14), (Ok(2), vec![]));
        assert_eq!(take(&mut incoming, 2..9), (Ok(4), (4..14).collect()));
        assert_eq!((incoming.delivered(), incoming.limit(), incoming.islands()), (14, 78, 0));
        assert_eq!(take(&mut incoming, 70..79), (Err(NotTaken::Beyond), vec![]));
        assert_eq!(take(&mut incoming, 60..78), (Ok(18), vec![]));
        assert_eq!(take(&mut incoming, 14..61), (Ok(46), (14..78).collect()), "round the ring's end");
        incoming.rest();
        assert_eq!(incoming.memory(), 0);
    }

    #[test]
    fn islands_have_a_bound() {
        let mut incoming = Incoming::new(1 << 14);
        for island in 0..MAX_ISLANDS as u64 {
            assert_eq!(take(&mut incoming, 1 + 2 * island..2 + 2 * island).0, Ok(1));
        }
        let beyond = 1 + 2 * MAX_ISLANDS as u64;
        assert_eq!(take(&mut incoming, beyond..beyond + 1).0, Err(NotTaken::Scattered));
        assert_eq!(take(&mut incoming, beyond - 1..beyond).0, Ok(1), "that one touches its neighbour");
        assert_eq!(take(&mut incoming, 0..1).1, [0, 1]);
    }

    proptest! {
        #[test]
        fn prop_any_order_gives_the_stream(parts in prop::collection::vec((0u64..300, 1u64..40), 1..200)) {
            let mut incoming = Incoming::new(128);
            let (mut got, mut new) = (Vec::new(), 0);
            for (start, len) in parts {
                let (taken, out) = take(&mut incoming, start..start + len);
                got.extend(out);
                new += taken.unwrap_or(0);
                let waiting: u64 = incoming.waiting.iter().map(|range| range.end - range.start).sum();
                prop_assert_eq!(new, incoming.delivered() + waiting);
            }
            prop_assert_eq!(&got, &(0..incoming.delivered()).map(|n| n as u8).collect::<Vec<_>>());
        }
    }
}
