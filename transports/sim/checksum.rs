//! Checksum of a frame: CRC-32 as in Ethernet (IEEE 802.3), which finds every single flipped bit.

/// The generator polynomial, bit-reversed.
const POLYNOMIAL: u32 = 0xedb8_8320;
const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut word, mut bit) = (byte as u32, 0);
        while bit < 8 {
            word = if word & 1 == 1 { word >> 1 ^ POLYNOMIAL } else { word >> 1 };
            bit += 1;
        }
        table[byte] = word;
        byte += 1;
    }
    table
}

/// Running checksum.
pub struct Crc32(u32);

impl Crc32 {
    pub fn new() -> Self {
        Crc32(!0)
    }

    pub fn add(&mut self, bytes: &[u8]) {
        let step = |word: u32, byte: &u8| word >> 8 ^ TABLE[usize::from(word as u8 ^ byte)];
        self.0 = bytes.iter().fold(self.0, step);
    }

    pub fn sum(&self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc_32() {
        let mut whole = Crc32::new();
        whole.add(b"123456789");
        assert_eq!(whole.sum(), 0xcbf4_3926, "the check value of its definition");
        let mut pieces = Crc32::new();
        [&b"1234"[..], b"", b"56789"].iter().for_each(|piece| pieces.add(piece));
        assert_eq!(pieces.sum(), whole.sum());
    }
}
