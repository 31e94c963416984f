//! SBT, the simple bandwidth table, as algorithm 2 of the thesis has it: an entry for each level, with a weight in
//! packets.
//!
//! A level with weight left sends until its weight or its packets end. If no level that may send has weight left, the
//! last one of the search sends without being counted. Weights are restored only when a search finds *every* level of
//! the table ready and without weight. So a level that is idle now and then delays the restoration, and the others
//! share the link almost evenly until then.

use crate::table::LANES;

/// State of a port's scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sbt {
    /// Weights by level.
    weights: [u32; LANES],
    /// Weights that are left, by level.
    left: [u32; LANES],
    /// Level at which the next search begins: the one that sent last.
    last: usize,
}

impl Sbt {
    /// Makes a scheduler from the weights by level. A level whose weight is 0 is not in the table and never sends.
    pub fn new(weights: [u32; LANES]) -> Self {
        Self { weights, left: weights, last: 0 }
    }

    /// Returns the level that sends a packet now, among those that may send one.
    pub fn next(&mut self, is_ready: impl Fn(u8) -> bool) -> Option<u8> {
        let (mut without_weight, mut ready) = (None, 0);
        for step in 0..LANES {
            let level = (self.last + step) % LANES;
            if self.weights[level] == 0 || !is_ready(level as u8) {
                continue;
            }
            if self.left[level] > 0 {
                self.left[level] -= 1;
                self.last = level;
                return Some(level as u8);
            }
            without_weight = Some(level);
            ready += 1;
        }
        if ready == self.weights.iter().filter(|weight| **weight > 0).count() {
            self.left = self.weights;
        }
        self.last = without_weight?;
        Some(self.last as u8)
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
        let order: Vec<_> =
            (0..packets).filter_map(|slot| table.next(|level| is_ready(slot, level))).collect();
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
            (0..packets).filter_map(|_| table.next(|level| ready.contains(&level))).collect::<Vec<_>>()
        };
        assert_eq!(order(&mut table, &[3], 4), [3; 4]);
        // Level 0 has its two packets, then level 3 goes (the last one of the search from 0) and weights are restored.
        assert_eq!(order(&mut table, &[0, 3], 6), [0, 0, 3, 3, 0, 0]);
        assert_eq!(table.next(|level| level == 5), None);
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
}
