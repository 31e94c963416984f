//! The fabric's dice: SplitMix64 (Steele, Lea, Flood, 2014). Small, and the same everywhere for a seed, which a
//! crate's default generator does not promise across its versions.

use std::ops::Range;
use std::time::Duration;

#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A time in `range`; its start where it is empty.
    pub fn time(&mut self, range: &Range<Duration>) -> Duration {
        let unit = self.unit();
        range.start + range.end.saturating_sub(range.start).mul_f64(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        // The reference implementation's first outputs for this seed.
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn times_lie_in_their_range() {
        let mut random = Random::new(1);
        let range = Duration::from_micros(3)..Duration::from_micros(5);
        assert!((0..1000).all(|_| range.contains(&random.time(&range))));
        let point = Duration::from_micros(3)..Duration::ZERO;
        assert_eq!(random.time(&point), Duration::from_micros(3));
    }
}
