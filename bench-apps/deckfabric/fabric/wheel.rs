//! Timing wheel: buckets of events, one for each of the next cycles, and a map for events that are further away.
//!
//! Events of a cycle come out in the order in which they went in, so runs repeat.

use std::collections::BTreeMap;

/// Number of cycles that the wheel holds; a power of two.
const SLOTS: u64 = 4096;

pub struct Wheel<Event> {
    buckets: Box<[Vec<Event>; SLOTS as usize]>,
    /// Memory of former buckets, so that few buckets have memory at a time.
    spare: Vec<Vec<Event>>,
    /// Bitmap of the buckets that have events.
    filled: [u64; SLOTS as usize / 64],
    now: u64,
    far: BTreeMap<u64, Vec<Event>>,
    /// First time in `far`.
    next_far: u64,
}

impl<Event> Wheel<Event> {
    pub fn new() -> Self {
        let buckets = Box::new([const { Vec::new() }; SLOTS as usize]);
        Self {
            buckets,
            spare: Vec::new(),
            filled: [0; SLOTS as usize / 64],
            now: 0,
            far: BTreeMap::new(),
            next_far: u64::MAX,
        }
    }

    /// Cycle that was taken last.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Whether there are no more events.
    pub fn is_empty(&self) -> bool {
        self.next_far == u64::MAX && self.filled.iter().all(|word| *word == 0)
    }

    /// Schedules an event at the cycle `at`, which is after [`Self::now`].
    pub fn schedule(&mut self, at: u64, event: Event) {
        debug_assert!(at > self.now, "{at} is not behind {}", self.now);
        if at - self.now < SLOTS {
            let slot = (at % SLOTS) as usize;
            if self.buckets[slot].is_empty() {
                self.begin(slot);
            }
            self.buckets[slot].push(event);
        } else {
            self.far.entry(at).or_insert_with(|| self.spare.pop().unwrap_or_default()).push(event);
            self.next_far = self.next_far.min(at);
        }
    }

    /// Begins an empty bucket.
    #[cold]
    fn begin(&mut self, slot: usize) {
        self.filled[slot / 64] |= 1 << (slot % 64);
        if let Some(spare) = self.spare.pop() {
            self.buckets[slot] = spare;
        }
    }

    /// Keeps the memory of a bucket for later ones.
    fn keep(&mut self, mut bucket: Vec<Event>) {
        bucket.clear();
        if bucket.capacity() > 0 {
            self.spare.push(bucket);
        }
    }

    /// Goes on to the next cycle that has events and is not after `until`, and puts them into `events`. Without one,
    /// `now` becomes `until`.
    pub fn next(&mut self, until: u64, events: &mut Vec<Event>) -> Option<u64> {
        let former = std::mem::take(events);
        self.keep(former);
        let near = self.next_near();
        let at = near.min(self.next_far);
        if at > until {
            self.go_to(until);
            return None;
        }
        self.go_to(at);
        let slot = (at % SLOTS) as usize;
        self.filled[slot / 64] &= !(1 << (slot % 64));
        *events = std::mem::take(&mut self.buckets[slot]);
        Some(at)
    }

    fn go_to(&mut self, at: u64) {
        self.now = at;
        while self.next_far < at.saturating_add(SLOTS) {
            let Some((at, mut events)) = self.far.pop_first() else { break };
            let slot = (at % SLOTS) as usize;
            // These events were scheduled before those that are in the bucket already.
            events.append(&mut self.buckets[slot]);
            let later = std::mem::replace(&mut self.buckets[slot], events);
            self.keep(later);
            self.filled[slot / 64] |= 1 << (slot % 64);
            self.next_far = self.far.first_key_value().map_or(u64::MAX, |(at, _)| *at);
        }
    }

    fn next_near(&self) -> u64 {
        let first = self.now + 1;
        let start = (first % SLOTS) as usize;
        let words = self.filled.len();
        for step in 0..=words {
            let word = (start / 64 + step) % words;
            let mask = match step {
                0 => u64::MAX << (start % 64),
                step if step == words => !(u64::MAX << (start % 64)),
                _ => u64::MAX,
            };
            let bits = self.filled[word] & mask;
            if bits != 0 {
                let slot = (word * 64) as u64 + u64::from(bits.trailing_zeros());
                return first + (slot + SLOTS - start as u64) % SLOTS;
            }
        }
        u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    proptest! {
        /// The wheel gives the same order as a sorted list.
        #[test]
        fn proptest_events_come_in_the_order_of_their_times(steps in vec((1u64..20_000, 0u8..4), 1..300)) {
            let mut wheel = Wheel::new();
            let (mut expected, mut events, mut number) = (Vec::new(), Vec::new(), 0u32);
            for (after, takes) in steps {
                let at = wheel.now() + after;
                wheel.schedule(at, number);
                expected.push((at, number));
                number += 1;
                for _ in 0..takes {
                    expected.sort();
                    let at = wheel.next(u64::MAX - SLOTS, &mut events);
                    let Some(at) = at else {
                        prop_assert!(expected.is_empty());
                        wheel = Wheel::new();
                        break;
                    };
                    let first: Vec<_> = expected.iter().take_while(|(time, _)| *time == at).map(|(_, event)| *event).collect();
                    prop_assert_eq!(&first, &events);
                    expected.drain(..first.len());
                }
            }
        }
    }

    #[test]
    fn nothing_behind_the_end_is_taken() {
        let (mut wheel, mut events) = (Wheel::new(), Vec::new());
        wheel.schedule(5, 'a');
        wheel.schedule(9000, 'b');
        assert_eq!((wheel.next(4, &mut events), wheel.now()), (None, 4));
        assert_eq!((wheel.next(5, &mut events), events.clone()), (Some(5), vec!['a']));
        assert_eq!((wheel.next(8999, &mut events), wheel.now()), (None, 8999));
        assert_eq!((wheel.next(9000, &mut events), events.clone()), (Some(9000), vec!['b']));
    }
}
