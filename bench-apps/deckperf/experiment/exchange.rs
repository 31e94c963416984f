//! One batch of messages whose every byte is checked.

use udeck::Protocol;

use crate::{
    experiment::{
        plan::{Batch, PROTOCOLS},
        rank_pair::RankPair,
    },
    failure::Result,
};

/// Counts of checked and of wrong messages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Messages that were retrieved and compared.
    pub messages: u64,
    /// Bytes in these messages.
    pub bytes: u64,
    /// Messages with wrong data, tag, length or source.
    pub mismatches: u64,
}

impl Tally {
    /// Adds the other rank's counts.
    pub fn add(&mut self, other: &Tally) {
        self.messages = self.messages.saturating_add(other.messages);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.mismatches = self.mismatches.saturating_add(other.mismatches);
    }
}

/// Exchanges one batch, at either rank: first all messages of rank 0, then all of rank 1. So several are under way at
/// once, and neither rank waits for credit from a peer that is itself posting.
pub fn exchange(pair: &RankPair<'_>, batch: &Batch) -> Result<Tally> {
    if pair.leads() {
        post_all(pair, batch)?;
        retrieve_all(pair, batch)
    } else {
        let tally = retrieve_all(pair, batch)?;
        post_all(pair, batch)?;
        Ok(tally)
    }
}

fn post_all(pair: &RankPair<'_>, batch: &Batch) -> Result {
    let outlet = pair.outlet(batch.protocol)?;
    for number in 0..batch.iterations {
        // The buffer is reused on purpose: if the library forgets to carry bytes, they are those of another message.
        let mut message = pair.world().buf_reused::<u8>(batch.size)?;
        write(&mut message, seed(pair.world().rank(), batch, number));
        outlet.post(message.with_tag(number as u32))?;
    }
    Ok(())
}

fn retrieve_all(pair: &RankPair<'_>, batch: &Batch) -> Result<Tally> {
    let mut tally = Tally::default();
    let sender = 1 - pair.world().rank();
    for number in 0..batch.iterations {
        let message = pair.inbox().retrieve()?;
        pair.check_length(batch.protocol, batch.size, message.len())?;
        let fault = if message.source() != sender {
            Some(format!("comes from rank {}", message.source()))
        } else if message.tag() != number as u32 {
            Some(format!("carries tag {}", message.tag()))
        } else {
            first_difference(&message, seed(sender, batch, number))
        };
        tally.add(&Tally {
            messages: 1,
            bytes: message.len() as u64,
            mismatches: u64::from(fault.is_some()),
        });
        if let Some(fault) = fault {
            let (protocol, size) = (batch.protocol, batch.size);
            eprintln!("{protocol}, {size} bytes: message {number} from rank {sender} {fault}");
        }
    }
    Ok(tally)
}

/// Seed of one message: differs between any two messages of a run, so that one message cannot pass for another.
fn seed(sender: usize, batch: &Batch, number: u64) -> u64 {
    let protocol =
        PROTOCOLS.iter().position(|&known: &Protocol| known == batch.protocol).unwrap_or(PROTOCOLS.len());
    mix((sender as u64) << 62 | (protocol as u64) << 56 | (batch.size as u64) << 24 | number)
}

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// 2014).
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `data` with the bytes of `seed`.
pub fn write(data: &mut [u8], seed: u64) {
    for (index, word) in data.chunks_mut(8).enumerate() {
        word.copy_from_slice(&mix(seed ^ index as u64).to_ne_bytes()[..word.len()]);
    }
}

/// Describes the first byte that differs from what [`write()`] writes.
pub fn first_difference(data: &[u8], seed: u64) -> Option<String> {
    data.chunks(8).enumerate().find_map(|(index, word)| {
        let expected = mix(seed ^ index as u64).to_ne_bytes();
        let at = word.iter().zip(&expected).position(|(got, wanted)| got != wanted)?;
        Some(format!("has {:#04x} at byte {}, not {:#04x}", word[at], index * 8 + at, expected[at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::Payload;

    fn batch(protocol: Protocol, size: usize) -> Batch {
        Batch { protocol, payload: Payload::WrittenRead, size, warm_up: 0, iterations: 2 }
    }

    #[test]
    fn any_single_wrong_byte_is_found_and_named() {
        for len in [1, 7, 8, 9, 61] {
            let mut data = vec![0; len];
            write(&mut data, 42);
            assert_eq!(first_difference(&data, 42), None);
            for at in 0..len {
                data[at] ^= 0x80;
                let fault = first_difference(&data, 42).expect("a byte is wrong");
                assert!(fault.contains(&format!("at byte {at},")), "{fault}");
                data[at] ^= 0x80;
            }
        }
        assert_eq!(first_difference(&[], 42), None);
    }

    #[test]
    fn no_message_passes_for_another() {
        let original = seed(0, &batch(Protocol::Copy, 64), 1);
        for other in [
            seed(1, &batch(Protocol::Copy, 64), 1),
            seed(0, &batch(Protocol::Eager, 64), 1),
            seed(0, &batch(Protocol::Copy, 65), 1),
            seed(0, &batch(Protocol::Copy, 64), 0),
        ] {
            let mut data = [0; 64];
            write(&mut data, other);
            assert!(first_difference(&data, original).is_some());
        }
    }
}
