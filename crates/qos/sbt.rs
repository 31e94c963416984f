//! SBT, the simple bandwidth table, as algorithm 2 of the thesis has it: an entry for each level, with a weight in
//! packets.
//!
//! A search goes over the port's lanes, each with the level of its first packet. A lane whose level has weight left sends
//! until the weight or its packets end. If no lane that may send has weight left, the last one of the search sends without
//! being counted. Weights are restored only when a search finds as many lanes ready and without weight as the table has
//! entries. A level that is idle now and then delays the restoration, and the others share the link almost evenly until
//! then. Where levels have several lanes, more lanes than entries may be ready, and weights are not restored either.

use crate::table::LANES;

/// State of a port's scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sbt {
    /// Weights by level.
    weights: [u32; LANES],
    /// Weights that are left, by level.
    left: [u32; LANES],
    /// Lane at which the next search begins: the one that sent last.
    last: u8,
}

impl Sbt {
    /// Makes a scheduler from the weights by level. A level whose weight is 0 is not in the table and never sends.
    pub fn new(weights: [u32; LANES]) -> Self {
        Self { weights, left: weights, last: 0 }
    }

    /// Returns the lane that sends a packet now, among the port's `lanes`. `level_of` tells the level of a lane that may
    /// send one.
    pub fn next(&mut self, lanes: u8, level_of: impl Fn(u8) -> Option<u8>) -> Option<u8> {
        let (mut without_weight, mut ready) = (None, 0);
        for step in 0..lanes {
            let lane = (self.last + step) % lanes;
            let Some(level) = level_of(lane).map(usize::from).filter(|level| self.weights[*level] > 0) else {
                continue;
            };
            if self.left[level] > 0 {
                self.left[level] -= 1;
                self.last = lane;
                return Some(lane);
            }
            without_weight = Some(lane);
            ready += 1;
        }
        if ready == self.weights.iter().filter(|weight| **weight > 0).count() {
            self.left = self.weights;
        }
        self.last = without_weight?;
        without_weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pairs: &[(usize, u32)]) -> Sbt {
        let mut weights = [0; LANES];
        pairs.iter().for_each(|&(level, weight)| weights[level] = weight);
        Sbt::new(weights)
    }

    /// Returns the numbers of packets that the first `levels` levels send in `packets` packets.
    fn sent(table: &mut Sbt, levels: u8, packets: usize, is_ready: impl Fn(usize, u8) -> bool) -> Vec<usize> {
        let order: Vec<_> = (0..packets)
            .filter_map(|slot| table.next(5, |level| is_ready(slot, level).then_some(level)))
            .collect();
        (0..levels).map(|level| order.iter().filter(|sent| **sent == level).count()).collect()
    }

    /// Table 4.1: 55 and 45. The search that restores the weights sends a packet that is not counted.
    #[test]
    fn a_cycle_of_100_packets_has_one_more_that_is_not_counted() {
        let mut table = table(&[(0, 55), (1, 45)]);
        assert_eq!(sent(&mut table, 2, 100, |_, _| true), [55, 45]);
        assert_eq!(sent(&mut table, 2, 101, |_, _| true), [56, 45]);
    }

    #[test]
    fn the_only_ready_level_sends_without_weight_and_restores_nothing() {
        let mut table = table(&[(0, 2), (3, 1)]);
        let order = |table: &mut Sbt, ready: &[u8], packets: usize| {
            let level_of = |level| ready.contains(&level).then_some(level);
            (0..packets).filter_map(|_| table.next(5, level_of)).collect::<Vec<_>>()
        };
        assert_eq!(order(&mut table, &[3], 4), [3; 4]);
        // Level 0 has its two packets, then level 3 goes (the last one of the search from 0) and weights are restored.
        assert_eq!(order(&mut table, &[0, 3], 6), [0, 0, 3, 3, 0, 0]);
        assert_eq!(table.next(6, |level| (level == 5).then_some(level)), None);
    }

    /// Table 4.9's weights (10 for VI is a misprint for 30: the text says 30, and that the sum is 100), where two classes
    /// are ready in every fourth and in every third slot. The counts are those of a program written apart from this one,
    /// from the algorithm's lines.
    #[test]
    fn idle_classes_delay_the_restoration() {
        let ready = |slot: usize, level: u8| match level {
            1 => slot % 4 == 3,
            3 => slot % 3 == 2,
            _ => true,
        };
        let mut table = table(&[(0, 10), (1, 30), (2, 50), (3, 5), (4, 5)]);
        assert_eq!(sent(&mut table, 5, 4000, ready), [853, 664, 1486, 292, 705]);
    }

    /// Table 4.6's lanes: two each for VO, VI and CL, two for BE and BK together, all of them busy. Eight lanes are without
    /// weight, and the table has five entries. So nothing is restored after the first 100 packets, and lanes share evenly: the
    /// division of a round robin, as §4.4.2.3 says.
    #[test]
    fn eight_busy_lanes_of_five_levels_share_like_a_round_robin() {
        // VO, VI, CL, BE, BK are levels 0 to 4. The lanes 6 and 7 have packets of BE and BK in turn.
        let level_of = |slot: usize, lane: u8| match lane {
            6 | 7 => 3 + (slot / 8 % 2) as u8,
            lane => lane / 2,
        };
        let mut table = table(&[(0, 10), (1, 30), (2, 50), (3, 5), (4, 5)]);
        let mut sent = [0; 5];
        for slot in 0..8100 {
            let lane = table.next(8, |lane| Some(level_of(slot, lane))).expect("all are busy");
            sent[usize::from(level_of(slot, lane))] += u32::from(slot >= 100);
        }
        assert_eq!(sent, [2000, 2000, 2000, 1000, 1000]);
    }
}
