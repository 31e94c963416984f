//! Random choices among equal ports: SplitMix64, from a fixed start, so runs repeat.

pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self(0)
    }

    /// Returns one of the numbers 0 to `count` - 1.
    pub fn below(&mut self, count: u8) -> u8 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let high = (mixed ^ mixed >> 31) >> 32;
        ((high * u64::from(count)) >> 32) as u8
    }
}
