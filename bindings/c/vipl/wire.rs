//! Wire format of the connection handshake: the connection request and its answer carry [`Greeting`]. `udeck-rdma` has the frames of a
//! connection.

use super::address::{HOST, MAX_DISCRIMINATOR};
use super::handle::Handle;
use super::types::{self, ViAttributes};

/// The greeting of one side when a connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub reliability: u16,
    pub max_transfer: u64,
    pub rdma_write: bool,
    pub rdma_read: bool,
    /// Host address and discriminator of the sender's end.
    pub host: Vec<u8>,
    pub discriminator: Vec<u8>,
}

const GREETING: &[u8; 8] = b"VIPL  2\n";

impl Greeting {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = GREETING.to_vec();
        bytes.extend_from_slice(&self.reliability.to_le_bytes());
        bytes.push(u8::from(self.rdma_write) | u8::from(self.rdma_read) << 1);
        bytes.extend_from_slice(&self.max_transfer.to_le_bytes());
        for part in [&self.host, &self.discriminator] {
            bytes.push(part.len() as u8); // `address.rs` bounds the lengths
            bytes.extend_from_slice(part);
        }
        bytes
    }

    /// `None`: the bytes are no greeting. An address with other lengths than this library's is none: it would not fit the program's memory.
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

    /// Returns the attributes of the peer's VI, for the program.
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

    /// A greeting as a peer may send it: any lengths, and any bytes behind them.
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
        fn any_bytes_are_read_within_their_bounds(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Greeting::decode(&bytes);
        }
    }
}
