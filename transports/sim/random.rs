//! The fabric's dice: the same everywhere for a seed.

use rand_xoshiro::rand_core::{Rng, SeedableRng};

#[derive(Debug)]
pub struct SplitMix64(rand_xoshiro::SplitMix64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        SplitMix64(rand_xoshiro::SplitMix64::from_seed(seed.to_le_bytes()))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}
