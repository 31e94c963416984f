//! Dice of a sequence: random decisions that are the same everywhere for a seed.

use udeck_faults::SplitMix64;

/// Random decisions of a sequence.
pub struct Dice(SplitMix64);

impl Dice {
    /// Dice from a seed, with other results than the fabric's dice from the same seed.
    pub fn new(seed: u64) -> Self {
        Dice(SplitMix64::new(seed ^ 0x6f70_6572_6174_696f))
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True with a probability of `chance` in a hundred.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// One of the items, if there are any.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())])
    }

    /// One of the items, with probabilities by weight.
    pub fn weighted<T: Copy>(&mut self, from: &[(usize, T)]) -> T {
        let mut left = self.below(from.iter().map(|(weight, _)| weight).sum());
        for &(weight, what) in from {
            if left < weight {
                return what;
            }
            left -= weight;
        }
        unreachable!("less than the sum of the weights was thrown")
    }
}
