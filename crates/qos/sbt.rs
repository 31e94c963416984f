//! SBT, the simple-based table: an entry for each level, whose weight counts packets. A cycle ends when all levels
//! that have packets have sent their weights.

use crate::table::LANES;

/// Whether the packet that begins a cycle is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cycle {
    /// The packet is counted like others: a cycle has as many packets as the weights' sum.
    #[default]
    Exact,
    /// The packet is not counted, as in the literal algorithm: cycles are one packet longer (55 and 45 become 56 and
    /// 45 of 101).
    Literal,
}

/// State of a port's scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sbt {
    /// Weights by level.
    weights: [u32; LANES],
    left: [u32; LANES],
    at: usize,
    cycle: Cycle,
}

impl Sbt {
    /// Makes a scheduler from the weights by level. A level whose weight is 0 never sends.
    pub fn new(weights: [u32; LANES], cycle: Cycle) -> Self {
        Self { weights, left: [0; LANES], at: 0, cycle }
    }

    /// Returns the level that sends a packet now, among those that have one.
    pub fn next(&mut self, has_packet: impl Fn(u8) -> bool) -> Option<u8> {
        let found = (0..LANES)
            .map(|step| (self.at + step) % LANES)
            .find(|&level| self.left[level] > 0 && has_packet(level as u8));
        if let Some(level) = found {
            self.at = level;
            self.left[level] -= 1;
            return Some(level as u8);
        }
        let first = (0..LANES).find(|&level| self.weights[level] > 0 && has_packet(level as u8))?;
        self.left = self.weights;
        self.at = first;
        self.left[first] -= u32::from(self.cycle == Cycle::Exact);
        Some(first as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(pairs: &[(usize, u32)]) -> [u32; LANES] {
        let mut weights = [0; LANES];
        pairs.iter().for_each(|&(level, weight)| weights[level] = weight);
        weights
    }

    /// Returns the numbers of packets that the levels 0 and 1 have sent.
    fn sent(cycle: Cycle, packets: usize) -> [usize; 2] {
        let mut table = Sbt::new(weights(&[(0, 55), (1, 45)]), cycle);
        let levels: Vec<_> = (0..packets).map_while(|_| table.next(|_| true)).collect();
        [0, 1].map(|level| levels.iter().filter(|sent| **sent == level).count())
    }

    #[test]
    fn a_cycle_has_the_weights_packets() {
        assert_eq!(sent(Cycle::Exact, 100), [55, 45]);
        assert_eq!(sent(Cycle::Exact, 1000), [550, 450]);
    }

    #[test]
    fn to_the_letter_a_cycle_has_101() {
        assert_eq!(sent(Cycle::Literal, 101), [56, 45]);
        let [first, second] = sent(Cycle::Literal, 101 * 7).map(|packets| packets as f64 / 707.0);
        assert_eq!((format!("{first:.4}"), format!("{second:.4}")), ("0.5545".into(), "0.4455".into()));
    }

    #[test]
    fn who_has_nothing_is_passed_over_and_who_has_no_weight_never_sends() {
        let mut table = Sbt::new(weights(&[(0, 1), (3, 2)]), Cycle::Exact);
        let order: Vec<_> = (0..4).filter_map(|_| table.next(|level| level != 0)).collect();
        assert_eq!(order, [3, 3, 3, 3]);
        assert_eq!(table.next(|level| level == 5), None);
    }
}
