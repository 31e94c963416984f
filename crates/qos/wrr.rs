//! Weighted round robin by packets: each level sends as many packets in a cycle as its weight says. A cycle ends when
//! no level that may send has weight left, so idle levels delay nobody.

use crate::table::LANES;

/// State of a port's scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wrr {
    /// Weights by level.
    weights: [u32; LANES],
    /// Weights that are left in this cycle, by level.
    left: [u32; LANES],
    /// Level that sent last.
    last: usize,
}

impl Wrr {
    /// Makes a scheduler from the weights by level. A level whose weight is 0 never sends.
    pub fn new(weights: [u32; LANES]) -> Self {
        Self { weights, left: [0; LANES], last: 0 }
    }

    /// Returns the level that sends a packet now, among those that may send one.
    pub fn next(&mut self, is_ready: impl Fn(u8) -> bool) -> Option<u8> {
        let turn = (0..LANES).map(|step| (self.last + step) % LANES);
        let found = turn.into_iter().find(|&level| self.left[level] > 0 && is_ready(level as u8));
        let level = match found {
            Some(level) => level,
            None => {
                let first = (0..LANES).find(|&level| self.weights[level] > 0 && is_ready(level as u8))?;
                self.left = self.weights;
                first
            }
        };
        self.last = level;
        self.left[level] -= 1;
        Some(level as u8)
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

    #[test]
    fn a_cycle_has_the_weights_packets() {
        for packets in [100, 1000] {
            let mut table = Wrr::new(weights(&[(0, 55), (1, 45)]));
            let levels: Vec<_> = (0..packets).map_while(|_| table.next(|_| true)).collect();
            let of = |level| levels.iter().filter(|sent| **sent == level).count();
            assert_eq!([of(0), of(1)], [packets * 55 / 100, packets * 45 / 100]);
        }
    }

    #[test]
    fn an_idle_level_is_passed_over_and_one_without_weight_never_sends() {
        let mut table = Wrr::new(weights(&[(0, 1), (3, 2)]));
        let order: Vec<_> = (0..4).filter_map(|_| table.next(|level| level != 0)).collect();
        assert_eq!(order, [3, 3, 3, 3]);
        assert_eq!(table.next(|level| level == 5), None);
    }
}
