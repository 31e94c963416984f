//! What each side tells the other of its queue pair, beside the admission's own words; decoded as if the peer were hostile.
//!
//! ```text
//! byte 0     4     8    24    26    27     28      29   32
//!      +-----+-----+----+-----+-----+------+-------+----+
//!      | qpn | psn | GID| LID | MTU | kind | reads | 0  |
//!      +-----+-----+----+-----+-----+------+-------+----+
//! ```
//! Little-endian; MTU as `enum ibv_mtu`; kind: 1 on Ethernet; reads: how many of the peer's are served at a time.

use crate::ffi::Gid;

/// Bytes of it.
pub const LEN: usize = 32;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub qpn: u32,
    pub psn: u32,
    pub gid: Gid,
    pub lid: u16,
    pub mtu: u8,
    pub ethernet: bool,
    pub reads: u8,
}

impl Endpoint {
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&self.qpn.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.gid.raw);
        bytes[24..26].copy_from_slice(&self.lid.to_le_bytes());
        [bytes[26], bytes[27], bytes[28]] = [self.mtu, u8::from(self.ethernet), self.reads];
        bytes
    }

    /// `None`: no peer of ours says so.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = Gid::default();
        gid.raw.copy_from_slice(&bytes[8..24]);
        let [mtu, kind, reads] = [bytes[26], bytes[27], bytes[28]];
        let endpoint = Endpoint {
            qpn: word(0),
            psn: word(4),
            gid,
            lid: u16::from_le_bytes([bytes[24], bytes[25]]),
            mtu,
            ethernet: kind == 1,
            reads,
        };
        let sound = endpoint.encode() == *bytes
            && (1..=5).contains(&mtu)
            && endpoint.qpn < 1 << 24
            && endpoint.psn < 1 << 24;
        sound.then_some(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_endpoints_round_trip(qpn in 0..1u32 << 24, psn in 0..1u32 << 24, gid: [u8; 16], lid: u16, mtu in 1..=5u8, ethernet: bool, reads: u8) {
            let endpoint = Endpoint { qpn, psn, gid: Gid { raw: gid }, lid, mtu, ethernet, reads };
            prop_assert_eq!(Endpoint::decode(&endpoint.encode()), Some(endpoint));
            prop_assert_eq!(Endpoint::decode(&endpoint.encode()[1..]), None);
        }

        #[test]
        fn prop_there_is_one_way_to_say_each(bytes: [u8; LEN]) {
            let mut bytes = bytes;
            bytes[3] = 0;
            bytes[7] = 0;
            bytes[26] %= 7;
            bytes[27] %= 3;
            bytes[29..].fill(0);
            if let Some(endpoint) = Endpoint::decode(&bytes) {
                prop_assert_eq!(endpoint.encode(), bytes);
            }
        }
    }
}
