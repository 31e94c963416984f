//! The dice of a sequence, the same everywhere for a seed.

use udeck_faults::SplitMix64;

/// What chance decides about a sequence.
pub struct Dice(SplitMix64);

impl Dice {
    /// Dice of a seed, that fall otherwise than the fabric's of the same one.
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

    /// True in so many of a hundred throws.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// One of them, if there are any.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())])
    }

    /// One of them, each as often as its weight says.
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
