//! Datagrams on a peer socket: encoding, and checked decoding of what another process sent.
//!
//! ```text
//! byte 0  kind
//! fields  little-endian, in the order of the enum
//! bytes   u16 length, then bytes; the last thing in a datagram
//! ```

use udeck_via::auth::Claim;
use udeck_via::transport::Hello;
use udeck_via::{Ptag, Rejection, Reliability};

/// Version of all formats that processes share: peer sockets, cells, control segments, boards.
pub const VERSION: u32 = 6;
/// Upper bound of a discriminator in bytes.
pub const MAX_DISCRIMINATOR: usize = 512;
/// Upper bound of private data in bytes.
pub const MAX_PRIVATE: usize = 1024;
/// Upper bound of a datagram in bytes.
pub const MAX_DATAGRAM: usize = 4096;

/// A doorbell on the sender's board, and a bit of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellBit {
    pub doorbell: u32,
    pub bit: u32,
}

/// The two doorbells of one side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbells {
    pub send: DoorbellBit,
    pub receive: DoorbellBit,
}

/// A datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// The connector's first datagram.
    Meet { version: u32, boot_id: [u8; 16], nonce: [u8; 32], claim: Claim },
    /// The acceptor's answer, which proves its identity.
    Prove { nonce: [u8; 32], mac: [u8; 32] },
    /// The connector's proof. It carries the connector's board, outbox and landing arena.
    Join { mac: [u8; 32] },
    /// The acceptor's welcome. It carries the acceptor's board, outbox and landing arena.
    Welcome,
    /// A connection request. It carries the control segment.
    Request { id: u32, doorbells: Doorbells, hello: Hello, discriminator: Vec<u8> },
    /// Acceptance of the request `id`.
    Accept { id: u32, doorbells: Doorbells, hello: Hello },
    /// Refusal of the request `id`.
    Refuse { id: u32, rejection: Rejection },
    /// The process ends in order.
    Goodbye,
    /// The sender ended a connection of this peer socket by an error. The connection's state says which.
    Broken,
}

/// Error: the bytes are no valid datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed datagram on a peer socket")]
pub struct MalformedDatagram;

impl Datagram {
    /// Number of descriptors that the datagram carries.
    pub fn descriptors(&self) -> usize {
        match self {
            Datagram::Join { .. } | Datagram::Welcome => 3,
            Datagram::Request { .. } => 1,
            _ => 0,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        match self {
            Datagram::Meet { version, boot_id, nonce, claim } => {
                out.push(1);
                out.extend(version.to_le_bytes());
                out.extend(boot_id);
                out.extend(nonce);
                out.extend(claim.encode());
            }
            Datagram::Prove { nonce, mac } => {
                out.push(2);
                out.extend(nonce);
                out.extend(mac);
            }
            Datagram::Join { mac } => {
                out.push(3);
                out.extend(mac);
            }
            Datagram::Welcome => out.push(4),
            Datagram::Request { id, doorbells, hello, discriminator } => {
                out.push(5);
                out.extend(id.to_le_bytes());
                put_doorbells(&mut out, doorbells);
                put_hello(&mut out, hello);
                put_bytes(&mut out, discriminator);
            }
            Datagram::Accept { id, doorbells, hello } => {
                out.push(6);
                out.extend(id.to_le_bytes());
                put_doorbells(&mut out, doorbells);
                put_hello(&mut out, hello);
            }
            Datagram::Refuse { id, rejection } => {
                out.push(7);
                out.extend(id.to_le_bytes());
                out.push(rejection.kind as u8);
                put_bytes(&mut out, rejection.sent_data());
            }
            Datagram::Goodbye => out.push(8),
            Datagram::Broken => out.push(9),
        }
        debug_assert!(out.len() <= MAX_DATAGRAM);
        out
    }

    /// # Errors
    /// [`MalformedDatagram`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedDatagram> {
        let mut r = Reader(bytes);
        let datagram = match r.u8()? {
            1 => Datagram::Meet {
                version: r.u32()?,
                boot_id: r.array()?,
                nonce: r.array()?,
                claim: Claim::decode(r.array()?),
            },
            2 => Datagram::Prove { nonce: r.array()?, mac: r.array()? },
            3 => Datagram::Join { mac: r.array()? },
            4 => Datagram::Welcome,
            5 => Datagram::Request {
                id: r.u32()?,
                doorbells: r.doorbells()?,
                hello: r.hello()?,
                discriminator: r.bytes(MAX_DISCRIMINATOR)?,
            },
            6 => Datagram::Accept { id: r.u32()?, doorbells: r.doorbells()?, hello: r.hello()? },
            7 => Datagram::Refuse {
                id: r.u32()?,
                rejection: Rejection::decode(r.u8()?, &r.bytes(Rejection::MAX_DATA)?)
                    .ok_or(MalformedDatagram)?,
            },
            8 => Datagram::Goodbye,
            9 => Datagram::Broken,
            _ => return Err(MalformedDatagram),
        };
        if r.0.is_empty() { Ok(datagram) } else { Err(MalformedDatagram) }
    }
}

fn put_doorbells(out: &mut Vec<u8>, doorbells: &Doorbells) {
    for number in
        [doorbells.send.doorbell, doorbells.send.bit, doorbells.receive.doorbell, doorbells.receive.bit]
    {
        out.extend(number.to_le_bytes());
    }
}

fn put_hello(out: &mut Vec<u8>, hello: &Hello) {
    out.push(hello.reliability as u8);
    for ptag in [hello.writable_ptag, hello.readable_ptag] {
        out.extend(ptag.map_or(0, |ptag| ptag.0).to_le_bytes());
    }
    put_bytes(out, &hello.private_data);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u16).to_le_bytes());
    out.extend(bytes);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedDatagram> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(MalformedDatagram)?;
        self.0 = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, MalformedDatagram> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, MalformedDatagram> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn bytes(&mut self, limit: usize) -> Result<Vec<u8>, MalformedDatagram> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len > limit || len > self.0.len() {
            return Err(MalformedDatagram);
        }
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(head.to_vec())
    }
    fn doorbells(&mut self) -> Result<Doorbells, MalformedDatagram> {
        let mut bit = || Ok(DoorbellBit { doorbell: self.u32()?, bit: self.u32()? });
        Ok(Doorbells { send: bit()?, receive: bit()? })
    }
    fn hello(&mut self) -> Result<Hello, MalformedDatagram> {
        let reliability = match self.u8()? {
            0 => Reliability::Unreliable,
            1 => Reliability::Delivery,
            2 => Reliability::Reception,
            _ => return Err(MalformedDatagram),
        };
        let mut ptag = || self.u32().map(|ptag| (ptag != 0).then_some(Ptag(ptag)));
        let (writable_ptag, readable_ptag) = (ptag()?, ptag()?);
        Ok(Hello { reliability, writable_ptag, readable_ptag, private_data: self.bytes(MAX_PRIVATE)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use udeck_via::RejectKind;

    fn hello() -> impl Strategy<Value = Hello> {
        let reliability = prop_oneof![
            Just(Reliability::Unreliable),
            Just(Reliability::Delivery),
            Just(Reliability::Reception)
        ];
        let ptag = || any::<u32>().prop_map(|ptag| (ptag != 0).then_some(Ptag(ptag)));
        (reliability, ptag(), ptag(), prop::collection::vec(any::<u8>(), 0..MAX_PRIVATE)).prop_map(
            |(reliability, writable_ptag, readable_ptag, private_data)| Hello {
                reliability,
                writable_ptag,
                readable_ptag,
                private_data,
            },
        )
    }

    fn doorbells() -> impl Strategy<Value = Doorbells> {
        any::<[u32; 4]>().prop_map(|n| Doorbells {
            send: DoorbellBit { doorbell: n[0], bit: n[1] },
            receive: DoorbellBit { doorbell: n[2], bit: n[3] },
        })
    }

    fn datagram() -> impl Strategy<Value = Datagram> {
        prop_oneof![
            any::<(u32, [u8; 16], [u8; 32], [u8; 8])>().prop_map(|(version, boot_id, nonce, claim)| {
                Datagram::Meet { version, boot_id, nonce, claim: Claim::decode(claim) }
            }),
            any::<([u8; 32], [u8; 32])>().prop_map(|(nonce, mac)| Datagram::Prove { nonce, mac }),
            any::<[u8; 32]>().prop_map(|mac| Datagram::Join { mac }),
            Just(Datagram::Welcome),
            (any::<u32>(), doorbells(), hello(), prop::collection::vec(any::<u8>(), 0..MAX_DISCRIMINATOR))
                .prop_map(|(id, doorbells, hello, discriminator)| Datagram::Request {
                    id,
                    doorbells,
                    hello,
                    discriminator
                }),
            (any::<u32>(), doorbells(), hello()).prop_map(|(id, doorbells, hello)| Datagram::Accept {
                id,
                doorbells,
                hello
            }),
            (any::<u32>(), "\\PC{0,100}").prop_map(|(id, words)| Datagram::Refuse {
                id,
                rejection: Rejection::new(RejectKind::Refused, words),
            }),
            (any::<u32>(), prop::collection::vec(any::<u8>(), 0..=Rejection::MAX_DATA)).prop_map(
                |(id, data)| Datagram::Refuse {
                    id,
                    rejection: Rejection { kind: RejectKind::Program, data },
                }
            ),
            Just(Datagram::Goodbye),
            Just(Datagram::Broken),
        ]
    }

    proptest! {
        #[test]
        fn prop_datagrams_round_trip(datagram in datagram()) {
            let bytes = datagram.encode();
            prop_assert!(bytes.len() <= MAX_DATAGRAM);
            prop_assert_eq!(Datagram::decode(&bytes), Ok(datagram));
        }

        #[test]
        fn prop_any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..MAX_DATAGRAM)) {
            if let Ok(datagram) = Datagram::decode(&bytes) {
                prop_assert_eq!(datagram.encode(), bytes, "one encoding for each datagram");
            }
        }

        #[test]
        fn prop_a_cut_datagram_is_malformed(datagram in datagram(), cut: prop::sample::Index) {
            let bytes = datagram.encode();
            prop_assert_eq!(Datagram::decode(&bytes[..cut.index(bytes.len())]), Err(MalformedDatagram));
        }
    }
    #[test]
    fn a_refusal_of_an_unknown_kind_or_with_too_much_data_is_malformed() {
        for kind in 0..=u8::MAX {
            let most = RejectKind::decode(kind).map(RejectKind::max_data);
            for len in [0, 1, Rejection::MAX_DATA, Rejection::MAX_DATA + 1, u16::MAX.into()] {
                let mut bytes = vec![7, 0, 0, 0, 0, kind];
                put_bytes(&mut bytes, &vec![b'x'; len]);
                let is_valid = most.is_some_and(|most| len <= most);
                assert_eq!(Datagram::decode(&bytes).is_ok(), is_valid, "kind {kind}, {len} bytes");
            }
        }
        assert!(Datagram::decode(&[7, 0, 0, 0, 0, 3, 1, 0, 0xff]).is_err(), "these are no words");
    }
}
