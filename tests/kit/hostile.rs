//! Hostile frames, for every parser of a peer's bytes: noise, and right frames that were spoilt.
//!
//! `HOSTILE_FRAMES` sets the number of frames, `HOSTILE_SEED` replays one run.

use std::{
    env,
    hash::{BuildHasher, Hasher, RandomState},
};

/// A run with its random generator.
#[derive(Debug)]
pub struct Hostile {
    name: &'static str,
    state: u64,
    frames: u64,
    tried: u64,
    understood: u64,
}

impl Hostile {
    /// Starts a run on the parser of this name, by default with `unless_told` frames.
    pub fn new(name: &'static str, unless_told: u64) -> Self {
        let from = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let frames = from("HOSTILE_FRAMES").unwrap_or(unless_told);
        let seed = from("HOSTILE_SEED").unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 32);
        println!("{name}: HOSTILE_SEED={seed} HOSTILE_FRAMES={frames}");
        Hostile { name, state: seed, frames, tried: 0, understood: 0 }
    }

    /// Whether another frame is due.
    pub fn goes_on(&mut self) -> bool {
        self.tried += 1;
        self.tried <= self.frames
    }

    /// Records that the parser understood the frame.
    pub fn understood(&mut self) {
        self.understood += 1;
    }

    /// Prints the counts. Both understanding and refusing must have happened: frames that are all refused at their first
    /// byte would prove little.
    pub fn end(self) {
        let Hostile { name, frames, understood, .. } = self;
        println!("{name}: {frames} frames, of which {understood} were understood");
        assert!(frames < 1000 || (understood > 0 && understood < frames), "{name}: {understood} of {frames}");
    }

    /// Next number of SplitMix64.
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Next number below the bound, or 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound.max(1) as u64) as usize
    }

    /// Returns `true` once in `count` times, by chance.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Returns a spoilt copy of one of `right`; rarely an intact one, or noise.
    pub fn frame(&mut self, right: &[Vec<u8>]) -> Vec<u8> {
        if self.one_in(16) {
            return (0..self.below(200)).map(|_| self.word() as u8).collect();
        }
        let mut bytes = right[self.below(right.len())].clone();
        if !self.one_in(16) {
            for _ in 0..=self.below(4) {
                let other = &right[self.below(right.len())];
                self.spoil(&mut bytes, other);
            }
        }
        bytes
    }

    fn spoil(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() + 1);
        let rest = bytes.len() - at;
        match self.below(9) {
            0 | 1 if rest > 0 => bytes[at] = self.word() as u8,
            2 if rest > 0 => bytes[at] ^= 1 << self.below(8),
            3 => bytes.insert(at, self.word() as u8),
            4 if rest > 0 => drop(bytes.remove(at)),
            5 => bytes.truncate(at),
            // A number becomes a bound, in some width.
            6 if rest > 0 => {
                let bounds =
                    [0, u64::MAX, 1 << 63, 1 << 32, u64::from(u32::MAX), 1 << 31, 1 << 20, (1 << 20) + 1];
                let number = bounds[self.below(bounds.len())].to_le_bytes();
                let width = [1, 2, 4, 8][self.below(4)].min(rest);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            // The end comes from another frame.
            7 => {
                bytes.truncate(at);
                bytes.extend_from_slice(&other[self.below(other.len() + 1)..]);
            }
            // A part is repeated later.
            8 if bytes.len() < 4096 => {
                let again = bytes[at..at + self.below(rest + 1)].to_vec();
                bytes.extend(again);
            }
            _ => {}
        }
    }
}
