//! Rows, their places, and the contents of rows and BLOBs: every byte follows from place, version and value.

use serde::{Deserialize, Serialize};

/// Tables of the database, in each half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Table {
    Tuples,
    Accounts,
    Tellers,
    Branches,
    Blobs,
}

impl Table {
    /// Number of rows in each half. Both halves together have 50,000 tuples, and the 64 branches, 640 tellers and 64,000
    /// accounts of table 10.1 of the thesis in which HADB ran over uDAPL (docs/database.md).
    pub fn rows(self) -> u32 {
        match self {
            Table::Tuples => 25_000,
            Table::Accounts => 32_000,
            Table::Tellers => 320,
            Table::Branches => 32,
            Table::Blobs => MAX_CLIENTS * BLOBS_OF_A_CLIENT,
        }
    }
}

/// Largest number of clients.
pub const MAX_CLIENTS: u32 = 4;
/// Largest number of BLOBs of a client.
pub const BLOBS_OF_A_CLIENT: u32 = 100_000;

/// Place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    pub table: Table,
    /// Server that is its primary while both live.
    pub half: u8,
    pub index: u32,
}

/// A row: about a hundred bytes, as the tuples of the usual benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Number of changes.
    pub version: u64,
    /// Sum of all changes; for a BLOB the seed of its contents.
    pub value: i64,
    fill: [[u8; 8]; 8],
}

impl Row {
    pub fn new(key: Key, version: u64, value: i64) -> Row {
        let place = u64::from(key.half) << 40 | (key.table as u64) << 32 | u64::from(key.index);
        let mut seed = mix(place ^ mix(version ^ mix(value as u64)));
        let fill = std::array::from_fn(|_| {
            seed = mix(seed);
            seed.to_le_bytes()
        });
        Row { version, value, fill }
    }

    /// Whether every byte is that of a row at this place.
    pub fn is_sound(&self, key: Key) -> bool {
        *self == Row::new(key, self.version, self.value)
    }
}

/// Mixes the bits of a number: Splitmix's finalizer.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Contents of a BLOB.
pub mod contents {
    use super::mix;

    fn words(seed: u64) -> impl Iterator<Item = u64> {
        let start = mix(seed);
        (0..).map(move |at: u64| start.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub fn fill(seed: u64, bytes: &mut [u8]) {
        for (chunk, word) in bytes.chunks_mut(8).zip(words(seed)) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    pub fn is_sound(seed: u64, bytes: &[u8]) -> bool {
        bytes.chunks(8).zip(words(seed)).all(|(chunk, word)| *chunk == word.to_le_bytes()[..chunk.len()])
    }
}

/// Key that represents a half's history in errors and answers.
pub fn history_key(half: u8) -> Key {
    Key { table: Table::Branches, half, index: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { table: Table::Tuples, half: 1, index: 7 };

    #[test]
    fn a_row_with_a_changed_bit_or_at_another_place_is_not_sound() {
        let row = Row::new(KEY, 3, -5);
        assert!(row.is_sound(KEY));
        assert!(!row.is_sound(Key { index: 8, ..KEY }) && !row.is_sound(Key { half: 0, ..KEY }));
        let mut damaged = row;
        damaged.fill[7][7] ^= 1;
        assert!(!damaged.is_sound(KEY) && !Row { value: -6, ..row }.is_sound(KEY));
    }

    #[test]
    fn contents_follow_from_their_number_to_the_last_byte() {
        let mut bytes = [0; 27];
        contents::fill(5, &mut bytes);
        assert!(contents::is_sound(5, &bytes) && !contents::is_sound(6, &bytes));
        bytes[26] ^= 1;
        assert!(!contents::is_sound(5, &bytes));
    }
}
