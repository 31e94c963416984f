//! How [`Protocol::Auto`] chooses, as data: who measures on his own machine can change it.

use std::fmt;

use udeck_via::Caps;

use crate::protocol::{MAX_INLINE, Protocol};

/// The sizes, in bytes, from which [`Protocol::Auto`] takes a protocol (`DECK_AUTO`). Asked in this order; a message
/// that none of them takes, or whose connection lacks the ability, goes as `eager`.
///
/// As text: the three names with a size each, `K`, `M` and `G` understood, or `never`; what is not named keeps its
/// default: `hand-off=41,rdma-write=4M,rdma-read=never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Thresholds {
    /// From here on by `hand-off`. By default from the first byte on that does not travel inline.
    pub hand_off: usize,
    /// Without hand-off, from here on by `rdma-write`: the receiver is asked before it has to find memory for so much, and the
    /// announcement's round trip is little beside the transfer. (1 MiB over TCP on one machine: 189 µs by `eager`, 279 by
    /// `rdma-write`.)
    pub rdma_write: usize,
    /// Without either, from here on by `rdma-read`.
    pub rdma_read: usize,
}

/// What a message of some size will travel by, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The protocol.
    pub protocol: Protocol,
    /// Why, in words.
    pub why: String,
}

impl Thresholds {
    /// A size that no message reaches.
    pub const NEVER: usize = usize::MAX;

    /// What `DECK_AUTO` may be.
    pub(crate) const EXPECTED: &str = "NAME=BYTES,... of hand-off, rdma-write and rdma-read (e.g. hand-off=41,rdma-write=4M,rdma-read=never)";

    /// What a message of `len` bytes travels by.
    #[inline]
    pub(crate) fn choose(&self, len: usize, caps: Caps) -> Protocol {
        self.rows()
            .into_iter()
            .find(|(protocol, from)| len >= *from && caps.has(protocol.needs()))
            .map_or(Protocol::Eager, |(protocol, _)| protocol)
    }

    /// Messages of fewer bytes travel as `eager`, and inside their descriptor.
    pub(crate) fn first_beyond_inline(&self, caps: Caps) -> usize {
        let chosen = self.rows().into_iter().filter(|(protocol, _)| caps.has(protocol.needs()));
        chosen.map(|(_, from)| from).fold(MAX_INLINE + 1, usize::min)
    }

    /// In the order in which they are asked.
    #[inline]
    fn rows(&self) -> [(Protocol, usize); 3] {
        [
            (Protocol::HandOff, self.hand_off),
            (Protocol::RdmaWrite, self.rdma_write),
            (Protocol::RdmaRead, self.rdma_read),
        ]
    }

    /// Why [`Thresholds::choose`] chooses as it does.
    pub(crate) fn explain(&self, len: usize, caps: Caps) -> Choice {
        let mut passed = Vec::new();
        for (protocol, from) in self.rows() {
            match (from, caps.has(protocol.needs())) {
                (_, false) => passed.push(format!("the connection has no {protocol}")),
                (Thresholds::NEVER, _) => passed.push(format!("{protocol} is never chosen")),
                _ if len < from => passed.push(format!("{protocol} begins at {from} bytes")),
                _ => {
                    passed.push(format!("{protocol} takes {from} bytes and more"));
                    return Choice { protocol, why: passed.join("; ") };
                }
            }
        }
        if len <= MAX_INLINE {
            passed.push(format!("up to {MAX_INLINE} bytes travel inline"));
        }
        Choice { protocol: Protocol::Eager, why: passed.join("; ") }
    }

    /// Reads [`Thresholds`] as text; `None` where it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut thresholds = Thresholds::default();
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=')?;
            let from = if value == "never" { Thresholds::NEVER } else { bytes(value)? };
            match name {
                "hand-off" => thresholds.hand_off = from,
                "rdma-write" => thresholds.rdma_write = from,
                "rdma-read" => thresholds.rdma_read = from,
                _ => return None,
            }
        }
        Some(thresholds)
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds { hand_off: MAX_INLINE + 1, rdma_write: 4 << 20, rdma_read: Thresholds::NEVER }
    }
}

impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (protocol, from)) in self.rows().into_iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match from {
                Thresholds::NEVER => write!(f, "{comma}{protocol}=never")?,
                from => write!(f, "{comma}{protocol}={from}")?,
            }
        }
        Ok(())
    }
}

/// A number of bytes, as people write it.
pub(crate) fn bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn auto_follows_the_abilities() {
        let (auto, all) = (Thresholds::default(), Caps::HAND_OFF | Caps::RDMA_WRITE);
        assert_eq!(auto.choose(MAX_INLINE, all), Protocol::Eager);
        assert_eq!(auto.choose(MAX_INLINE + 1, all), Protocol::HandOff);
        assert_eq!(auto.choose(1 << 20, Caps::RDMA_WRITE), Protocol::Eager);
        assert_eq!(auto.choose(4 << 20, Caps::RDMA_WRITE), Protocol::RdmaWrite);
        assert_eq!(auto.choose(1 << 20, Caps::RDMA_READ), Protocol::Eager, "never, unless asked to");
        assert_eq!(auto.choose(1 << 20, Caps::default()), Protocol::Eager);
    }

    #[test]
    fn thresholds_are_read() {
        let read = Thresholds::parse("rdma-read=1M,hand-off=never").unwrap();
        let expected =
            Thresholds { hand_off: Thresholds::NEVER, rdma_read: 1 << 20, ..Thresholds::default() };
        assert_eq!(read, expected);
        assert_eq!(read.choose(1 << 20, Caps::HAND_OFF | Caps::RDMA_READ), Protocol::RdmaRead);
        for bad in [
            "",
            "hand-off",
            "hand-off=",
            "eager=1",
            "hand-off=1,",
            "rdma-read=-1",
            "hand-off=99999999999999999999",
        ] {
            assert_eq!(Thresholds::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_explanation_names_what_decided() {
        let auto = Thresholds::default();
        let small = auto.explain(8, Caps::HAND_OFF);
        assert!(
            small.why.contains("hand-off begins at 41 bytes") && small.why.contains("inline"),
            "{}",
            small.why
        );
        let without = auto.explain(4 << 20, Caps::RDMA_WRITE);
        assert!(
            without.why.contains("has no hand-off") && without.why.contains("takes 4194304"),
            "{}",
            without.why
        );
    }

    proptest! {
        #[test]
        fn prop_thresholds_round_trip(hand_off: usize, rdma_write: usize, rdma_read: usize) {
            let thresholds = Thresholds { hand_off, rdma_write, rdma_read };
            prop_assert_eq!(Thresholds::parse(&thresholds.to_string()), Some(thresholds));
        }

        #[test]
        fn prop_the_explanation_is_of_what_is_chosen(len: usize, hand_off: usize, rdma_write: usize, rdma_read: usize, which in 0u8..8) {
            let thresholds = Thresholds { hand_off, rdma_write, rdma_read };
            let all = [Caps::HAND_OFF, Caps::RDMA_WRITE, Caps::RDMA_READ];
            let caps = (0..3).filter(|bit| which & (1 << bit) != 0).fold(Caps::default(), |caps, bit| caps | all[bit]);
            prop_assert_eq!(thresholds.explain(len, caps).protocol, thresholds.choose(len, caps));
        }
    }
}
