//! DTable: a cyclic table of levels with weights, and a deficit for each level, so that packets of any size get
//! their shares.
//!
//! A turn begins with the entry's weight plus the level's deficit. A packet that is larger than the remaining
//! credits ends the turn, and the rest becomes the deficit. All sizes are in credits of 64 bytes.

mod plan;

pub use plan::{BadShare, Class, Factors, Plan, PlannedClass, plan, plan_with};

use crate::table::LANES;

/// An entry of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Service level, 0 to 15.
    pub level: u8,
    /// Credits with which a turn begins. An entry of 0 is skipped.
    pub weight: u32,
}

/// First packet of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Head {
    /// The level has no packet.
    Empty,
    /// The packet may not go: the next hop has no room.
    Stalled,
    /// The packet may go; its size in credits.
    Ready(u16),
}

/// Whether a stalled level keeps its deficit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenStalled {
    /// The level loses it, as in the published scheduler.
    #[default]
    Lose,
    /// The level keeps it: the shares are right even where credits are scarce.
    Keep,
}

/// State of a port's scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DTable {
    slots: Vec<Slot>,
    when_stalled: WhenStalled,
    at: usize,
    /// Remaining credits of this turn.
    accumulated: u64,
    deficits: [u64; LANES],
}

impl DTable {
    /// Makes a scheduler that starts at the first slot.
    ///
    /// # Panics
    /// If a slot's level is 16 or more.
    pub fn new(slots: Vec<Slot>, when_stalled: WhenStalled) -> Self {
        assert!(slots.iter().all(|slot| usize::from(slot.level) < LANES), "levels are 0 to 15");
        let at = slots.len().saturating_sub(1);
        Self { slots, when_stalled, at, accumulated: 0, deficits: [0; LANES] }
    }

    /// Chooses among the levels' first packets. Returns the level, and the packet's credits.
    pub fn next(&mut self, head: impl Fn(u8) -> Head) -> Option<(u8, u16)> {
        loop {
            let level = self.slots.get(self.at)?.level;
            let deficit = &mut self.deficits[usize::from(level)];
            match head(level) {
                Head::Ready(size) if u64::from(size) <= self.accumulated => {
                    self.accumulated -= u64::from(size);
                    return Some((level, size));
                }
                Head::Ready(_) => *deficit = self.accumulated,
                Head::Stalled if self.when_stalled == WhenStalled::Keep => *deficit += self.accumulated,
                Head::Stalled | Head::Empty => *deficit = 0,
            }
            self.accumulated = 0;
            // Each round adds at least one credit, so the loop ends after as many rounds as the smallest packet has
            // credits.
            self.at = self.next_ready(&head)?;
            let Slot { level, weight } = self.slots[self.at];
            self.accumulated = std::mem::take(&mut self.deficits[usize::from(level)]) + u64::from(weight);
        }
    }

    fn next_ready(&self, head: &impl Fn(u8) -> Head) -> Option<usize> {
        (1..=self.slots.len()).map(|step| (self.at + step) % self.slots.len()).find(|&at| {
            let Slot { level, weight } = self.slots[at];
            weight > 0 && matches!(head(level), Head::Ready(_))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn slots(pairs: &[(u8, u32)]) -> Vec<Slot> {
        pairs.iter().map(|&(level, weight)| Slot { level, weight }).collect()
    }

    /// Returns the levels of the next packets.
    fn order(table: &mut DTable, packets: usize, head: impl Fn(u8) -> Head) -> Vec<u8> {
        (0..packets).map_while(|_| table.next(&head)).map(|(level, _)| level).collect()
    }

    #[test]
    fn what_a_packet_is_too_large_for_is_saved() {
        // Packets have 3 credits, turns 4: the deficits are 1, 2, 3, and the fourth turn has two packets.
        let mut table = DTable::new(slots(&[(0, 4), (1, 3)]), WhenStalled::Lose);
        let expected = [0, 1, 0, 1, 0, 0, 1, 0, 1];
        assert_eq!(order(&mut table, 9, |_| Head::Ready(3)), expected);
    }

    #[test]
    fn an_empty_level_saves_nothing() {
        let mut table = DTable::new(slots(&[(0, 5), (1, 3)]), WhenStalled::Lose);
        assert_eq!(order(&mut table, 2, |_| Head::Ready(3)), [0, 1]);
        assert_eq!(table.deficits[0], 2);
        let only_1 = |level| if level == 1 { Head::Ready(3) } else { Head::Empty };
        // The level is not examined while another one's turn lasts. In its own turn it is empty, and loses the rest.
        let mut table = DTable::new(slots(&[(0, 5), (1, 3)]), WhenStalled::Lose);
        assert_eq!(order(&mut table, 1, |_| Head::Ready(3)), [0]);
        assert_eq!((order(&mut table, 1, only_1), table.deficits[0]), (vec![1], 0));
    }

    #[test]
    fn a_stalled_level_loses_or_keeps_what_it_has_saved() {
        for (when_stalled, saved) in [(WhenStalled::Lose, 0), (WhenStalled::Keep, 2)] {
            let mut table = DTable::new(slots(&[(0, 5), (1, 3)]), when_stalled);
            assert_eq!(order(&mut table, 1, |_| Head::Ready(3)), [0]);
            let stalled = |level| if level == 1 { Head::Ready(3) } else { Head::Stalled };
            assert_eq!((order(&mut table, 1, stalled), table.deficits[0]), (vec![1], saved));
        }
    }

    #[test]
    fn without_entries_or_packets_or_weights_nothing_goes() {
        assert_eq!(DTable::new(Vec::new(), WhenStalled::Lose).next(|_| Head::Ready(1)), None);
        assert_eq!(DTable::new(slots(&[(0, 1)]), WhenStalled::Lose).next(|_| Head::Empty), None);
        assert_eq!(DTable::new(slots(&[(0, 0)]), WhenStalled::Lose).next(|_| Head::Ready(1)), None);
    }

    #[test]
    fn a_packet_larger_than_the_weight_goes_after_some_rounds() {
        let mut table = DTable::new(slots(&[(0, 1), (1, 1)]), WhenStalled::Lose);
        let head = |level| Head::Ready(if level == 0 { u16::MAX } else { 1 });
        let sent = order(&mut table, usize::from(u16::MAX) + 1, head);
        assert_eq!(sent.iter().filter(|level| **level == 0).count(), 1);
    }

    proptest! {
        /// Packets of any sizes: after any number of them, each level has had its turns' credits, up to a turn and a packet.
        #[test]
        fn proptest_levels_that_always_have_packets_get_their_shares(
            weights in vec(1u32..40, 1..16),
            sizes in vec(1u16..40, 64),
            packets in 1usize..3000,
        ) {
            let slots: Vec<_> = (0..).zip(&weights).map(|(level, &weight)| Slot { level, weight }).collect();
            let mut table = DTable::new(slots, WhenStalled::Lose);
            let mut sent = [0u64; LANES];
            let mut count = [0usize; LANES];
            for _ in 0..packets {
                let (level, size) = table.next(|level| {
                    let level = usize::from(level);
                    Head::Ready(sizes[(level * 7 + count[level]) % sizes.len()])
                }).expect("all have packets");
                sent[usize::from(level)] += u64::from(size);
                count[usize::from(level)] += 1;
            }
            let rounds: Vec<_> =
                weights.iter().zip(sent).map(|(&weight, sent)| sent as f64 / f64::from(weight)).collect();
            for (one, weight) in rounds.iter().zip(&weights) {
                for (other, other_weight) in rounds.iter().zip(&weights) {
                    // A level is at most a turn ahead of another, and has at most a packet's credits saved.
                    let slack = 1.0 + 40.0 / f64::from(*weight) + 40.0 / f64::from(*other_weight);
                    prop_assert!((one - other).abs() <= slack, "{rounds:?} of {weights:?}");
                }
            }
        }
    }
}
