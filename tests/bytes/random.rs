//! Random numbers of the hostile side: the same for the same seed. (The interleaving with its victims may
//! differ.)

use udeck_faults::SplitMix64;

#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(SplitMix64::new(seed))
    }

    /// An independent generator for another user.
    pub fn fork(&mut self) -> Self {
        Random::new(self.word())
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// An arbitrary number.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.word() as u8).collect()
    }

    /// A number that is small, near a power of two, near the largest one, or arbitrary.
    pub fn value(&mut self) -> u64 {
        let near = self.below(70) as u64;
        match self.below(6) {
            0 | 1 => near,
            2 => u64::MAX - near,
            3 => (1 << self.below(64) as u32) - near.min(1),
            4 => (1 << self.below(31) as u32) + near,
            _ => self.word(),
        }
    }

    /// A length of a message: mostly short.
    pub fn len(&mut self) -> usize {
        let bound = self.pick(&[1, 41, 41, 300, 5000, 100_000, 600_000]);
        self.below(bound)
    }

    /// Spoils bytes that could have been right. The first bytes are preferred, because headers lie there.
    pub fn spoil(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let front = bytes.len().min(64);
            match self.below(8) {
                0 | 1 if front > 0 => bytes[self.below(front)] ^= 1 << self.below(8),
                2 if front > 0 => bytes[self.below(front)] = self.word() as u8,
                3 if front >= 4 => {
                    put(bytes, self.below(front / 4) * 4, &(self.value() as u32).to_le_bytes())
                }
                4 if front >= 8 => put(bytes, self.below(front / 8) * 8, &self.value().to_le_bytes()),
                5 => bytes.truncate(self.below(bytes.len() + 1)),
                6 => {
                    let more = self.below(100);
                    bytes.extend(self.bytes(more));
                }
                7 if !bytes.is_empty() => {
                    let at = self.below(bytes.len());
                    bytes[at] ^= 1 + self.below(255) as u8;
                }
                _ => {}
            }
        }
    }
}

fn put(bytes: &mut [u8], at: usize, word: &[u8]) {
    bytes[at..at + word.len()].copy_from_slice(word);
}
