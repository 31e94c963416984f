//! Addresses of queue pairs that the two sides exchange, beside the admission's own messages. They are decoded as if
//! the peer were hostile.
//!
//! ```text
//! byte 0     4     8    24    26    27     28      29  30        32
//!      +-----+-----+----+-----+-----+------+-------+---+---------+
//!      | qpn | psn | GID| LID | MTU | kind | reads |way| P_Key   |
//!      +-----+-----+----+-----+-----+------+-------+---+---------+
//! ```
//! Little-endian; MTU as `enum ibv_mtu`; kind: 0 on InfiniBand, 1 with RoCE, 2 with iWARP; reads: how many of the
//! peer's reads are served at a time; way: 1 to be connected through rdma_cm, and in the first bit whether an
//! unreliable queue pair follows ([`UnreliableQpAddress`]: 4 bytes its number, 4 bytes its first packet sequence
//! number); P_Key: the partition, and in the first bit full membership (InfiniBand Architecture 1, 10.9).

use crate::ffi::Gid;

/// Bytes of an encoded address.
pub const LEN: usize = 32;
/// Bit of byte 29: an [`UnreliableQpAddress`] follows.
const HAS_UNRELIABLE: u8 = 0x80;

/// Address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAddress {
    pub qpn: u32,
    pub psn: u32,
    pub gid: Gid,
    pub lid: u16,
    pub mtu: u8,
    pub ethernet: bool,
    /// The device speaks iWARP: on Ethernet, over TCP.
    pub iwarp: bool,
    pub reads: u8,
    /// The queue pair is connected through rdma_cm.
    pub cm: bool,
    pub pkey: u16,
    /// An [`UnreliableQpAddress`] follows.
    pub unreliable: bool,
}

/// Address of the unreliable queue pair beside the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreliableQpAddress {
    pub qpn: u32,
    pub psn: u32,
}

impl UnreliableQpAddress {
    /// Bytes of an encoded address.
    pub const LEN: usize = 8;

    pub fn encode(&self) -> [u8; UnreliableQpAddress::LEN] {
        let mut bytes = [0; UnreliableQpAddress::LEN];
        bytes[..4].copy_from_slice(&self.qpn.to_le_bytes());
        bytes[4..].copy_from_slice(&self.psn.to_le_bytes());
        bytes
    }

    /// Decodes an address. Returns `None` if no correct peer sends these bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = *bytes.first_chunk::<{ UnreliableQpAddress::LEN }>()?;
        let unreliable = UnreliableQpAddress {
            qpn: u32::from_le_bytes([a, b, c, d]),
            psn: u32::from_le_bytes([e, f, g, h]),
        };
        (unreliable.qpn < 1 << 24 && unreliable.psn < 1 << 24).then_some(unreliable)
    }
}

impl QpAddress {
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&self.qpn.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.gid.raw);
        bytes[24..26].copy_from_slice(&self.lid.to_le_bytes());
        let kind = if self.iwarp { 2 } else { u8::from(self.ethernet) };
        let way = u8::from(self.cm) | if self.unreliable { HAS_UNRELIABLE } else { 0 };
        [bytes[26], bytes[27], bytes[28], bytes[29]] = [self.mtu, kind, self.reads, way];
        bytes[30..].copy_from_slice(&self.pkey.to_le_bytes());
        bytes
    }

    /// Decodes an address. Returns `None` if no correct peer sends these bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = Gid::default();
        gid.raw.copy_from_slice(&bytes[8..24]);
        let [mtu, kind, reads, way] = [bytes[26], bytes[27], bytes[28], bytes[29]];
        let address = QpAddress {
            qpn: word(0),
            psn: word(4),
            gid,
            lid: u16::from_le_bytes([bytes[24], bytes[25]]),
            mtu,
            ethernet: kind >= 1,
            iwarp: kind == 2,
            reads,
            cm: way & !HAS_UNRELIABLE == 1,
            pkey: u16::from_le_bytes([bytes[30], bytes[31]]),
            unreliable: way & HAS_UNRELIABLE != 0,
        };
        let sound = address.encode() == *bytes
            && (1..=5).contains(&mtu)
            && address.qpn < 1 << 24
            && address.psn < 1 << 24;
        sound.then_some(address)
    }

    /// Why packets of `peer` would never arrive here; in words that are as true for the peer. (A smaller MTU is no reason: both
    /// take the smaller one.)
    pub fn mismatch(&self, peer: &QpAddress) -> Option<String> {
        const FULL: u16 = 1 << 15;
        let network = |one: &QpAddress| if one.ethernet { "Ethernet" } else { "InfiniBand" };
        let protocol = |one: &QpAddress| if one.iwarp { "iWARP" } else { "RoCE" };
        let way = |one: &QpAddress| if one.cm { "cm" } else { "bootstrap" };
        if self.ethernet != peer.ethernet {
            let (one, other) = (network(self), network(peer));
            return Some(format!(
                "one device is on {one}, the other on {other}: DECK_VERBS_DEVICE chooses another"
            ));
        }
        if self.iwarp != peer.iwarp {
            let (one, other) = (protocol(self), protocol(peer));
            return Some(format!(
                "one device speaks {one}, the other {other}: DECK_VERBS_DEVICE chooses another"
            ));
        }
        if self.cm != peer.cm {
            let (one, other) = (way(self), way(peer));
            return Some(format!(
                "one process connects by {one}, the other by {other}: DECK_VERBS_CONNECT has to say the same to both"
            ));
        }
        let (one, other) = (self.pkey, peer.pkey);
        let why = if (one ^ other) & !FULL != 0 {
            "are different partitions"
        } else if (one | other) & FULL == 0 {
            "are both limited members of their partition, which do not speak to each other"
        } else {
            return None;
        };
        Some(format!("the partition keys {one:#06x} and {other:#06x} {why}: DECK_VERBS_PKEY chooses another"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_cannot_meet_is_told_by_both() {
        let of = |ethernet, pkey| QpAddress {
            qpn: 1,
            psn: 2,
            gid: Gid::default(),
            lid: 0,
            mtu: 3,
            ethernet,
            iwarp: false,
            reads: 1,
            cm: false,
            pkey,
            unreliable: false,
        };
        let told = |one: QpAddress, other: QpAddress| {
            let (here, there) = (one.mismatch(&other), other.mismatch(&one));
            assert_eq!(here.is_some(), there.is_some());
            here.unwrap_or_default()
        };
        assert_eq!(told(of(true, 0xffff), of(true, 0xffff)), "");
        assert_eq!(told(of(false, 0x8001), of(false, 0x0001)), "", "a full and a limited member");
        assert!(
            told(of(true, 0xffff), of(false, 0xffff))
                .contains("one device is on Ethernet, the other on InfiniBand")
        );
        let unreliable = told(of(true, 0x8001), of(true, 0x8002));
        assert!(unreliable.contains("0x8001 and 0x8002 are different partitions"), "{unreliable}");
        let iwarp = QpAddress { iwarp: true, ..of(true, 0xffff) };
        assert!(told(iwarp, of(true, 0xffff)).contains("one device speaks iWARP, the other RoCE"));
        let cm = QpAddress { cm: true, ..of(true, 0xffff) };
        assert!(told(cm, of(true, 0xffff)).contains("by cm, the other by bootstrap: DECK_VERBS_CONNECT"));
        let limited = told(of(true, 0x0001), of(true, 0x0001));
        assert!(limited.contains("both limited members"), "{limited}");
    }

    proptest! {
        #[test]
        fn prop_endpoints_round_trip(qpn in 0..1u32 << 24, psn in 0..1u32 << 24, gid: [u8; 16], lid: u16, mtu in 1..=5u8, kind in 0..3u8, reads: u8, cm: bool, pkey: u16, unreliable: bool) {
            let (ethernet, iwarp) = (kind > 0, kind == 2);
            let address = QpAddress { qpn, psn, gid: Gid { raw: gid }, lid, mtu, ethernet, iwarp, reads, cm, pkey, unreliable };
            prop_assert_eq!(QpAddress::decode(&address.encode()), Some(address));
            prop_assert_eq!(QpAddress::decode(&address.encode()[1..]), None);
            let beside = UnreliableQpAddress { qpn, psn };
            prop_assert_eq!(UnreliableQpAddress::decode(&beside.encode()), Some(beside));
            prop_assert_eq!(UnreliableQpAddress::decode(&beside.encode()[1..]), None);
        }

        #[test]
        fn prop_there_is_one_way_to_say_each(bytes: [u8; LEN]) {
            let mut bytes = bytes;
            bytes[3] = 0;
            bytes[7] = 0;
            bytes[26] %= 7;
            bytes[27] %= 4;
            bytes[29] &= HAS_UNRELIABLE | 3;
            if let Some(address) = QpAddress::decode(&bytes) {
                prop_assert_eq!(address.encode(), bytes);
            }
        }
    }
}
