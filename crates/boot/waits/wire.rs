//! Layout of the waits in a rank's page (all numbers little-endian).
//!
//! ```text
//!  byte 0        8         12       16                64                              4096
//!       +--------+---------+--------+-----------------+---------+---------+---...---+
//!       | magic  | version | joined | zeros           | slot 0  | slot 1  |  slot 7 |
//!       +--------+---------+--------+-----------------+---------+---------+---...---+
//!
//!  slot, byte 0        4      5      6       7      8       16          144    344    500      504
//!       +--------+------+------+-------+------+-------+-----------+------+------+--------+
//!       | serial | call | open | ranks | name | since | ranks     | name | 0    | serial |
//!       |        |      |      | count | len  | (ns)  | (32 x u32)|      |      | again  |
//!       +--------+------+------+-------+------+-------+-----------+------+------+--------+
//! ```
//!
//! A slot whose serial is 0 is free. Its owner writes all of it by one call; a reader at the same moment finds
//! two different serials. The page is read as if the rank were hostile: a slot without a meaning is no wait,
//! and bytes of a name that are no text are replaced. `joined` is 0 until the rank has joined its job, and then
//! the number of its process.

use super::{Call, Wait};

const MAGIC: [u8; 8] = *b"DECKwait";
const VERSION: u32 = 1;

pub(super) const PAGE: usize = 4096;
pub(super) const HEADER: usize = 64;
/// Byte offset of the number of the process that has joined.
pub(super) const JOINED: usize = 12;
pub(super) const SLOTS: usize = 8;
pub(super) const SLOT: usize = 504;
pub(super) const MAX_RANKS: usize = 32;
const MAX_NAME: usize = 200;

const RANKS: usize = 16;
const NAME: usize = RANKS + 4 * MAX_RANKS;
const AGAIN: usize = SLOT - 4;
const _: () = assert!(HEADER + SLOTS * SLOT == PAGE && NAME + MAX_NAME <= AGAIN);
// The page is read by words.
const _: () = assert!(HEADER.is_multiple_of(8) && SLOT.is_multiple_of(8));

/// The serial of a free slot.
pub(super) const FREE: [u8; 4] = [0; 4];

const CALLS: [Call; 14] = [
    Call::Post,
    Call::Flush,
    Call::Retrieve,
    Call::Select,
    Call::Barrier,
    Call::Find,
    Call::Connect,
    Call::Memory,
    Call::Launcher,
    Call::Finish,
    Call::Collective,
    Call::Share,
    Call::Lock,
    Call::Acquire,
];

pub(super) fn header() -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out
}

/// Returns the process that has joined, as written by the rank.
pub(super) fn joined(header: &[u8; HEADER]) -> Option<u32> {
    let number = header[JOINED..JOINED + 4].try_into().map(u32::from_le_bytes).ok()?;
    (number != 0).then_some(number)
}

/// Checks that this is the page of a launcher with the same format.
pub(super) fn check_header(bytes: &[u8]) -> Result<(), String> {
    match (bytes.get(..8), bytes.get(8..12)) {
        (Some(magic), Some(version)) if magic == MAGIC && version == VERSION.to_le_bytes() => Ok(()),
        (Some(magic), _) if magic == MAGIC => Err("its launcher is of another release".into()),
        _ => Err("it is other memory".into()),
    }
}

pub(super) fn offset(slot: usize) -> u64 {
    (HEADER + slot * SLOT) as u64
}

/// Encodes a wait. Long lists and names are cut. `serial` is not 0.
pub(super) fn encode(wait: &Wait, since: u64, serial: u32) -> [u8; SLOT] {
    let mut out = [0; SLOT];
    let ranks = &wait.ranks[..wait.ranks.len().min(MAX_RANKS)];
    let end = (0..=wait.name.len().min(MAX_NAME)).rev().find(|end| wait.name.is_char_boundary(*end));
    let name = &wait.name[..end.unwrap_or(0)];
    out[..4].copy_from_slice(&serial.to_le_bytes());
    out[4] = CALLS.iter().position(|call| *call == wait.call).unwrap_or(0) as u8;
    // Ranks that are cut off may end the wait, too.
    out[5] = u8::from(wait.open || ranks.len() < wait.ranks.len());
    out[6] = ranks.len() as u8;
    out[7] = name.len() as u8;
    out[8..RANKS].copy_from_slice(&since.to_le_bytes());
    for (place, rank) in out[RANKS..NAME].chunks_exact_mut(4).zip(ranks) {
        place.copy_from_slice(&rank.to_le_bytes());
    }
    out[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
    out[AGAIN..].copy_from_slice(&serial.to_le_bytes());
    out
}

/// Decodes a wait, and since when it has lasted. Returns `None` if there is none, or it is being written.
pub(super) fn decode(bytes: &[u8; SLOT]) -> Option<(Wait, u64)> {
    if bytes[..4] == FREE || bytes[..4] != bytes[AGAIN..] {
        return None;
    }
    let (count, len) = (usize::from(bytes[6]), usize::from(bytes[7]));
    if count > MAX_RANKS || len > MAX_NAME || bytes[5] > 1 {
        return None;
    }
    let ranks = bytes[RANKS..RANKS + 4 * count].chunks_exact(4);
    let wait = Wait {
        call: *CALLS.get(usize::from(bytes[4]))?,
        name: String::from_utf8_lossy(&bytes[NAME..NAME + len]).into_owned(),
        ranks: ranks.filter_map(|rank| rank.try_into().ok()).map(u32::from_le_bytes).collect(),
        open: bytes[5] == 1,
    };
    let since = bytes[8..RANKS].try_into().map(u64::from_le_bytes).ok()?;
    Some((wait, since))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_wait() -> impl Strategy<Value = Wait> {
        let ranks = proptest::collection::vec(any::<u32>(), 0..=MAX_RANKS);
        (0..CALLS.len(), "\\PC{0,50}", ranks, any::<bool>()).prop_map(|(call, name, ranks, open)| Wait {
            call: CALLS[call],
            name,
            ranks,
            open,
        })
    }

    proptest! {
        #[test]
        fn proptest_waits_come_back(wait in any_wait(), since: u64, serial in 1u32..) {
            prop_assert_eq!(decode(&encode(&wait, since, serial)), Some((wait, since)));
        }

        #[test]
        fn proptest_any_bytes_are_a_bounded_wait_or_none(mut bytes in proptest::collection::vec(any::<u8>(), SLOT)) {
            let serial = [bytes[0]; 4];
            bytes[..4].copy_from_slice(&serial);
            bytes[AGAIN..].copy_from_slice(&serial);
            if let Some((wait, _)) = decode(bytes.first_chunk().unwrap()) {
                // A byte that is no text becomes three.
                prop_assert!(wait.ranks.len() <= MAX_RANKS && wait.name.len() <= 3 * MAX_NAME);
            }
        }
    }

    #[test]
    fn what_is_too_long_is_cut_at_a_character_and_says_that_others_may_end_it() {
        let wait = Wait { call: Call::Select, name: "\u{e9}".repeat(150), ranks: vec![7; 40], open: false };
        let (wait, _) = decode(&encode(&wait, 1, 1)).unwrap();
        assert_eq!((wait.name.chars().count(), wait.ranks.len(), wait.open), (100, MAX_RANKS, true));
    }

    #[test]
    fn a_slot_that_is_free_or_being_written_is_no_wait() {
        let wait = Wait { call: Call::Post, name: "a".into(), ranks: vec![1], open: false };
        let whole = encode(&wait, 1, 1);
        assert!(decode(&whole).is_some());
        for at in [0, AGAIN] {
            let mut torn = whole;
            torn[at] ^= 2;
            assert_eq!(decode(&torn), None);
        }
        assert_eq!(decode(&[0; SLOT]), None);
    }

    #[test]
    fn other_memory_is_no_page() {
        assert_eq!(check_header(&header()), Ok(()));
        let mut other = header();
        other[8] ^= 1;
        assert!(check_header(&other).unwrap_err().contains("release"));
        assert!(check_header(&[0; HEADER]).is_err());
        assert!(check_header(&[]).is_err());
    }
}
