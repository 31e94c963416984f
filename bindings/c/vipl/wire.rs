//! What the two ends of a connection say to each other: one message of the virtual interface below for each frame.
//!
//! ```text
//!   immediate data   the program's, or 0
//!   head             0 kind   1 flags (1: immediate data)   2..8 zero
//!   body             by kind:
//!     SEND           the program's bytes
//!     WRITE          0..8 address   8..12 memory handle   12..16 zero   16.. the bytes
//!     READ           0..8 address   8..12 memory handle   12..16 zero   16..24 how many bytes
//!     DATA           answers the oldest READ: 0..4 status (0: well)   4..8 zero   8.. the bytes
//!     TAKEN          0..4 so many more SENDs and WRITEs were taken (reliable reception only)
//!     BROKEN         0..4 status of the oldest SEND or WRITE that was not taken; the connection ends
//! ```
//!
//! The connection request and its answer carry [`Greeting`]. Numbers are little-endian. A frame of another kind or length breaks
//! the connection.

use super::address::{HOST, MAX_DISCRIMINATOR};
use super::handle::Handle;
use super::types::{self, ViAttributes};

pub(super) const SEND: u8 = 1;
pub(super) const WRITE: u8 = 2;
pub(super) const READ: u8 = 3;
pub(super) const DATA: u8 = 4;
pub(super) const TAKEN: u8 = 5;
pub(super) const BROKEN: u8 = 6;

/// Bytes of a head.
pub(super) const HEAD: usize = 8;
/// What stands before the data of a write, and of an answer to a read.
pub(super) const WRITE_HEAD: usize = 16;
pub(super) const DATA_HEAD: usize = 8;

const HAS_IMMEDIATE: u8 = 1;

#[inline]
pub(super) fn head(kind: u8, immediate: Option<u32>) -> [u8; HEAD] {
    [kind, if immediate.is_some() { HAS_IMMEDIATE } else { 0 }, 0, 0, 0, 0, 0, 0]
}

/// Kind and immediate data; `None`: that is no head.
#[inline]
pub(super) fn read_head(head: &[u8], word: Option<u32>) -> Option<(u8, Option<u32>)> {
    let head: &[u8; HEAD] = head.first_chunk()?;
    Some((head[0], if head[1] & HAS_IMMEDIATE != 0 { word } else { None }))
}

#[inline]
pub(super) fn has_immediate(head: &[u8; HEAD]) -> bool {
    head[1] & HAS_IMMEDIATE != 0
}

pub(super) fn write_head(address: u64, handle: u32) -> [u8; WRITE_HEAD] {
    let mut bytes = [0; WRITE_HEAD];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&handle.to_le_bytes());
    bytes
}

/// A place in the memory of who reads this: address and handle.
pub(super) fn read_place(bytes: &[u8]) -> Option<(u64, u32)> {
    Some((number(bytes, 0)?, number(bytes, 8)? as u32))
}

pub(super) fn read_request(address: u64, handle: u32, len: usize) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..WRITE_HEAD].copy_from_slice(&write_head(address, handle));
    bytes[16..].copy_from_slice(&(len as u64).to_le_bytes());
    bytes
}

pub(super) fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.first_chunk()?))
}

/// What each side says of itself when a connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub reliability: u16,
    pub max_transfer: u64,
    pub rdma_write: bool,
    pub rdma_read: bool,
    /// Host address and discriminator of its end.
    pub host: Vec<u8>,
    pub discriminator: Vec<u8>,
}

const GREETING: &[u8; 8] = b"VIPL  1\n";

impl Greeting {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = GREETING.to_vec();
        bytes.extend_from_slice(&self.reliability.to_le_bytes());
        bytes.push(u8::from(self.rdma_write) | u8::from(self.rdma_read) << 1);
        bytes.extend_from_slice(&self.max_transfer.to_le_bytes());
        for part in [&self.host, &self.discriminator] {
            bytes.push(part.len() as u8); // of `address.rs`, which bounds them
            bytes.extend_from_slice(part);
        }
        bytes
    }

    /// `None`: that is no greeting. An address of other lengths than ours is none: it would not fit where the program wants it.
    pub fn decode(bytes: &[u8]) -> Option<Greeting> {
        let rest = bytes.strip_prefix(GREETING)?;
        let (reliability, rest) = rest.split_first_chunk::<2>()?;
        let (flags, rest) = rest.split_first()?;
        let (max_transfer, rest) = rest.split_first_chunk::<8>()?;
        let (host, rest) = part(rest)?;
        let (discriminator, rest) = part(rest)?;
        let fits = host.len() == HOST && discriminator.len() <= MAX_DISCRIMINATOR;
        (fits && rest.is_empty()).then(|| Greeting {
            reliability: u16::from_le_bytes(*reliability),
            max_transfer: u64::from_le_bytes(*max_transfer),
            rdma_write: flags & 1 != 0,
            rdma_read: flags & 2 != 0,
            host: host.to_vec(),
            discriminator: discriminator.to_vec(),
        })
    }

    /// As the program is told of its peer's VI.
    pub fn attributes(&self) -> ViAttributes {
        ViAttributes {
            reliability: self.reliability,
            max_transfer: self.max_transfer as types::Ulong,
            qos: std::ptr::null_mut(),
            ptag: Handle::NULL,
            rdma_write: self.rdma_write.into(),
            rdma_read: self.rdma_read.into(),
        }
    }
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_greeting_arrives_as_it_was_said_and_a_part_of_it_does_not() {
        let greeting = Greeting {
            reliability: 2,
            max_transfer: 1 << 20,
            rdma_write: true,
            rdma_read: false,
            host: vec![1; 16],
            discriminator: b"door".to_vec(),
        };
        let bytes = greeting.encode();
        assert_eq!(Greeting::decode(&bytes), Some(greeting));
        for len in 0..bytes.len() {
            assert_eq!(Greeting::decode(&bytes[..len]), None, "{len} bytes of it");
        }
        assert_eq!(Greeting::decode(&[&bytes[..], b"x"].concat()), None, "more than one");
    }

    /// As a peer may say it: any lengths, and what follows them.
    fn said() -> impl Strategy<Value = Vec<u8>> {
        let part = prop::collection::vec(any::<u8>(), 0..=255);
        let usual = prop_oneof![part.clone(), prop::collection::vec(any::<u8>(), HOST..=HOST)];
        (any::<[u8; 11]>(), usual, part, prop::collection::vec(any::<u8>(), 0..3)).prop_map(
            |(first, host, discriminator, rest)| {
                let parts = [&host, &discriminator].map(|part| [&[part.len() as u8], &part[..]].concat());
                [&GREETING[..], &first, &parts[0], &parts[1], &rest].concat()
            },
        )
    }

    proptest! {
        /// The program's `VIP_NET_ADDRESS` has room for addresses of the NIC's lengths, and for no longer ones.
        #[test]
        fn a_greeting_has_an_address_that_fits(bytes in said()) {
            if let Some(greeting) = Greeting::decode(&bytes) {
                prop_assert_eq!(greeting.host.len(), HOST);
                prop_assert!(greeting.discriminator.len() <= MAX_DISCRIMINATOR);
                let again = Greeting::decode(&greeting.encode());
                prop_assert_eq!(again, Some(greeting));
            }
        }

        #[test]
        fn any_bytes_are_read_within_their_bounds(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..300_usize) {
            let _ = Greeting::decode(&bytes);
            prop_assert_eq!(read_head(&bytes, Some(7)).is_some(), bytes.len() >= HEAD);
            prop_assert_eq!(read_place(&bytes).is_some(), bytes.len() >= WRITE_HEAD);
            prop_assert_eq!(number(&bytes, at).is_some(), bytes.len() >= at + 8);
            prop_assert_eq!(word(&bytes).is_some(), bytes.len() >= 4);
        }

        #[test]
        fn a_place_is_read_as_it_was_written(address: u64, handle: u32, len: usize) {
            let bytes = read_request(address, handle, len);
            prop_assert_eq!(read_place(&bytes), Some((address, handle)));
            prop_assert_eq!(number(&bytes, 16), Some(len as u64));
        }
    }
}
