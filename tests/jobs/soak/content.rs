//! Contents of messages: the bytes identify the message.
//!
//! ```text
//!   0..4   stream + 1 (12 bits), number (20 bits), little-endian: also the message's tag
//!   4..    a pattern that follows from the seed, the round, the stream and the number
//! ```
//!
//! A message shorter than four bytes has the beginning of this, and its tag.

use crate::soak::plan::{HEAD, Plan, Round, mixed};

const NUMBER_BITS: u32 = 20;

/// Tag of a message. It is never 0, the tag of a posted slice.
#[must_use]
pub fn tag(stream: usize, number: u32) -> u32 {
    (stream as u32 + 1) << NUMBER_BITS | number
}

/// The stream and the number in a tag.
#[must_use]
pub fn parts(tag: u32) -> Option<(usize, u32)> {
    let stream = (tag >> NUMBER_BITS).checked_sub(1)?;
    Some((stream as usize, tag & ((1 << NUMBER_BITS) - 1)))
}

/// Writes a message.
pub fn fill(bytes: &mut [u8], seed: u64, round: Round, stream: usize, number: u32) {
    let state = mixed(seed ^ round as u64, stream as u64 + 1, u64::from(number));
    let head = tag(stream, number).to_le_bytes();
    let cut = HEAD.min(bytes.len());
    bytes[..cut].copy_from_slice(&head[..cut]);
    let (words, rest) = bytes[cut..].as_chunks_mut::<8>();
    for (at, word) in words.iter_mut().enumerate() {
        *word = pattern(state, at).to_le_bytes();
    }
    let last = pattern(state, words.len()).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

fn pattern(state: u64, at: usize) -> u64 {
    state ^ (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Identifies a message of the plan, and checks every byte.
///
/// # Errors
/// The fault of the message, in words.
pub fn check(bytes: &[u8], told: u32, plan: &Plan, round: Round) -> Result<(usize, u32), String> {
    let inside = bytes.first_chunk::<HEAD>().map(|head| u32::from_le_bytes(*head));
    let tag = match (told, inside) {
        (0, Some(tag)) => tag,
        (0, None) => return Err(format!("{} bytes without a tag", bytes.len())),
        (told, Some(inside)) if told != inside => {
            return Err(format!(
                "tag {told:#x} on a message of {} bytes with {inside:#x} in it",
                bytes.len()
            ));
        }
        (told, _) => told,
    };
    let (stream, number) = parts(tag)
        .filter(|(stream, number)| plan.streams.len() > *stream && *number < plan.count(*stream, round))
        .ok_or_else(|| format!("tag {tag:#x} is no message's"))?;
    let len = plan.message(stream, number).len;
    if bytes.len() != len {
        return Err(format!(
            "message {number} of stream {stream} has {} bytes instead of {len}",
            bytes.len()
        ));
    }
    let mut expected = vec![0; len];
    fill(&mut expected, plan.seed, round, stream, number);
    match bytes.iter().zip(&expected).position(|(got, wanted)| got != wanted) {
        Some(at) => Err(format!(
            "byte {at} of {len} of message {number} of stream {stream} is {:#x} instead of {:#x}",
            bytes[at], expected[at]
        )),
        None => Ok((stream, number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_known_by_its_bytes_and_any_change_is_noticed() {
        let plan = Plan::new(3);
        let stream = 0;
        for number in 0..plan.count(stream, Round::Second) {
            let len = plan.message(stream, number).len;
            let mut bytes = vec![0; len];
            fill(&mut bytes, plan.seed, Round::Second, stream, number);
            let told = tag(stream, number);
            assert_eq!(check(&bytes, told, &plan, Round::Second), Ok((stream, number)));
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
                assert!(check(&bytes, told, &plan, Round::Second).is_err());
            }
            bytes.push(0);
            assert!(check(&bytes, told, &plan, Round::Second).is_err());
        }
        assert!(check(&[1, 2], 0, &plan, Round::Second).is_err());
        assert!(check(&[0; 8], 0, &plan, Round::Second).is_err());
    }
}
