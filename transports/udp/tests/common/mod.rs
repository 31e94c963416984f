//! Two ends of a stream, and a network between them, in virtual time. A seed decides everything.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod network;
mod pair;
mod relay;

pub use network::Path;
pub use pair::{Pair, byte};
pub use relay::{Relay, Wild};

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use udeck_faults::SplitMix64;

/// Names the only seed to run, in the environment.
const VARIABLE: &str = "DECK_UDP_SEED";

/// Runs `test` with each seed below `count`, or only with the one that `DECK_UDP_SEED` names. When it panics, prints the
/// seed and how to run it again.
pub fn seeds(count: u64, test: impl Fn(Random)) {
    let chosen = std::env::var(VARIABLE).ok().map(|seed| seed.parse().expect("a seed is a number"));
    for seed in chosen.map_or(0..count, |seed: u64| seed..seed + 1) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(Random::new(seed)))) {
            eprintln!("failed with seed {seed}; to see it again: {VARIABLE}={seed}");
            resume_unwind(panic);
        }
    }
}

/// What chance decides in virtual time.
#[derive(Debug)]
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(SplitMix64::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// In `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    pub fn chance(&mut self, chance: f64) -> bool {
        self.unit() < chance
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    pub fn time(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.unit())
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
