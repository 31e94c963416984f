//! Dice, and the generator of all random numbers that must be repeatable from a seed.

use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The generator SplitMix64 (Steele, Lea, Flood, 2014). It gives the same numbers everywhere for a seed, which a crate's
/// default generator does not promise across its versions. Not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64(rand_xoshiro::SplitMix64);

impl SplitMix64 {
    /// Starts from a seed; every seed is suitable.
    pub fn new(seed: u64) -> Self {
        SplitMix64(rand_xoshiro::SplitMix64::from_seed(seed.to_le_bytes()))
    }

    /// Next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Selects operations of a connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum When {
    /// None.
    #[default]
    Never,
    /// Each operation with this probability, 0 to 1.
    Chance(f64),
    /// The operations with these numbers, counted from 0.
    Numbers(Vec<u64>),
}

/// Random decisions about a sequence of operations.
#[derive(Debug)]
pub struct Dice {
    random: SplitMix64,
    thrown: u64,
}

impl Dice {
    /// An independent random stream for each `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let random = SplitMix64::new(SplitMix64::new(seed).next_u64() ^ stream);
        Dice { random, thrown: 0 }
    }

    /// Decides about the next operation. Each setting takes one number from the stream, whatever it is, so that
    /// one setting does not change the effect of another.
    pub fn throw<const N: usize>(&mut self, settings: [&When; N]) -> [bool; N] {
        let number = self.thrown;
        self.thrown += 1;
        settings.map(|when| {
            let unit = self.random.unit();
            match when {
                When::Never => false,
                When::Chance(chance) => unit < *chance,
                When::Numbers(numbers) => numbers.contains(&number),
            }
        })
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.random.next_u64() % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(when: &When, stream: u64, count: usize) -> Vec<bool> {
        let mut dice = Dice::new(5, stream);
        (0..count).map(|_| dice.throw([when])[0]).collect()
    }

    #[test]
    fn the_generator_is_splitmix64() {
        let mut random = SplitMix64::new(1_234_567);
        // The expected numbers are the reference implementation's first outputs for this seed.
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_are_hit_and_no_others() {
        assert_eq!(hits(&When::Numbers(vec![1, 3]), 0, 5), [false, true, false, true, false]);
        assert_eq!(hits(&When::Never, 0, 5), [false; 5]);
    }

    #[test]
    fn a_chance_is_met_about_as_often_as_it_says_and_at_its_ends_exactly() {
        let hit = hits(&When::Chance(0.25), 0, 10_000).iter().filter(|hit| **hit).count();
        assert!((2000..3000).contains(&hit), "{hit} of 10000");
        assert_eq!(hits(&When::Chance(1.0), 0, 100), [true; 100]);
        assert_eq!(hits(&When::Chance(0.0), 0, 100), [false; 100]);
    }

    #[test]
    fn streams_repeat_themselves_and_differ_from_each_other() {
        let half = When::Chance(0.5);
        assert_eq!(hits(&half, 1, 100), hits(&half, 1, 100));
        assert_ne!(hits(&half, 1, 100), hits(&half, 2, 100));
    }

    #[test]
    fn one_setting_does_not_shift_what_another_hits() {
        let (half, never) = (When::Chance(0.5), When::Never);
        let second = |first: &When| {
            let mut dice = Dice::new(5, 0);
            (0..100).map(|_| dice.throw([first, &half])[1]).collect::<Vec<_>>()
        };
        assert_eq!(second(&half), second(&never));
    }
}
