//! The choices of [`Protocol::Auto`], as data that users can change after their own measurements.

use std::fmt;

use udeck_via::Caps;

use super::{MAX_INLINE, Protocol};
use crate::incast::{LONG, Rules};

/// Message sizes in bytes from which [`Protocol::Auto`] takes a protocol (`DECK_AUTO`). The fields are
/// checked in their order. A message that none of them takes, or whose connection lacks the capability, goes
/// by `eager`.
///
/// The text has the three names, each with a size (`K`, `M`, `G`) or `never`. A name that is missing keeps its
/// default: `hand-off=41,rdma-write=4M,rdma-read=never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Thresholds {
    /// Size from which `hand-off` is taken. By default the smallest size that does not travel inline.
    pub hand_off: usize,
    /// Size from which `rdma-write` is taken, without hand-off: the receiver is asked before it has to find
    /// that much memory, and the announcement's round trip is short beside the transfer. (1 MiB over TCP on
    /// one machine: 189 µs by `eager`, 279 by `rdma-write`.)
    pub rdma_write: usize,
    /// Size from which `rdma-read` is taken, without hand-off and RDMA write.
    pub rdma_read: usize,
}

/// Action by which a sender moves a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sends the bytes inside their descriptor.
    Inline,
    /// Copies the bytes into memory of the library, and sends the copy.
    Bounce,
    /// Sends the message's own memory: by hand-off, or, where there is none, by a transport that copies it
    /// for the receiver anyway.
    Lend,
    /// Announces the message, and sends it by fragments.
    AnnounceCopy,
    /// Announces the message, and writes it into the receiver's memory.
    AnnounceWrite,
    /// Announces where the receiver can read the message.
    AnnounceRead,
    /// Asks for a receive descriptor, and waits until the message was received.
    Handshake,
}

/// How a message travels: the protocol that explanation, counters and traces name, and its sender's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Never [`Protocol::Auto`].
    pub protocol: Protocol,
    pub step: Step,
}

/// The protocol by which a message of some size will travel, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The protocol.
    pub protocol: Protocol,
    /// The reason, in words.
    pub why: String,
}

impl Thresholds {
    /// A size that no message reaches.
    pub const NEVER: usize = usize::MAX;

    /// The values that `DECK_AUTO` may have.
    pub(crate) const EXPECTED: &str = "NAME=BYTES,... of hand-off, rdma-write and rdma-read (e.g. hand-off=41,rdma-write=4M,rdma-read=never)";

    /// Protocols with their sizes, in the order in which they are checked.
    fn rows(&self) -> [(Protocol, usize); 3] {
        [
            (Protocol::HandOff, self.hand_off),
            (Protocol::RdmaWrite, self.rdma_write),
            (Protocol::RdmaRead, self.rdma_read),
        ]
    }

    /// Parses [`Thresholds`] from text; `None` if the text is not valid.
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

/// [`Thresholds`] applied to one connection: the only place that decides how a message travels.
///
/// Most messages are settled by its [`Dispatch`], with one comparison each. [`Selector::plan`] answers for
/// the others, and agrees with the [`Dispatch`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selector {
    /// Sizes from which `Auto` takes each protocol, in the order in which they are checked; `None`: never, or
    /// the connection lacks the capability.
    rows: [(Protocol, Option<usize>); 3],
    /// Size below which `Auto` sends a message inside its descriptor.
    inline_below: usize,
    /// Size from which `Auto` hands a message off: the first row.
    hand_off_from: usize,
    caps: Caps,
    /// Whether each message is counted before it goes, for incast control or for the mailbox's depth: then none
    /// takes a fast path.
    is_counted: bool,
}

/// Sizes of the messages that go at once by the protocol that is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatch {
    pub protocol: Protocol,
    short_below: usize,
    hand_off_from: usize,
}

impl Dispatch {
    /// Whether a message of `len` bytes travels inside its descriptor.
    #[inline]
    pub fn is_short(&self, len: usize) -> bool {
        len < self.short_below
    }

    /// Whether a message of `len` bytes is handed off by the protocol of that name.
    #[inline]
    pub fn is_handed_off(&self, len: usize) -> bool {
        len >= self.hand_off_from
    }
}

impl Selector {
    /// Makes the selector of a connection with these capabilities.
    pub fn new(auto: &Thresholds, caps: Caps) -> Self {
        let possible = |(protocol, from): (Protocol, usize)| {
            let is_taken = from != Thresholds::NEVER && caps.has(protocol.needs());
            (protocol, is_taken.then_some(from))
        };
        let rows = auto.rows().map(possible);
        let inline_below = rows.iter().filter_map(|(_, from)| *from).fold(MAX_INLINE + 1, usize::min);
        // `NEVER` saves a comparison: a message in memory is shorter.
        let hand_off_from = rows[0].1.unwrap_or(Thresholds::NEVER);
        Selector { rows, inline_below, hand_off_from, caps, is_counted: false }
    }

    /// Makes the selector of a connection to a mailbox with incast rules, or with a depth. Under incast rules
    /// long messages are announced, which reserves for them.
    pub fn under(auto: &Thresholds, caps: Caps, incast: Rules, has_depth: bool) -> Self {
        if incast == Rules::Off {
            return Selector { is_counted: has_depth, ..Selector::new(auto, caps) };
        }
        let rdma_write =
            if auto.rdma_write == Thresholds::NEVER { auto.rdma_write } else { auto.rdma_write.min(LONG) };
        let is_counted = has_depth || matches!(incast, Rules::Smsrp { .. });
        Selector { is_counted, ..Selector::new(&Thresholds { rdma_write, ..*auto }, caps) }
    }

    /// The capabilities of the connection.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// The dispatch of most messages by the protocol that is set.
    pub fn dispatch(&self, protocol: Protocol) -> Dispatch {
        let (short_below, hand_off_from) = match protocol {
            _ if self.is_counted => (0, Thresholds::NEVER),
            Protocol::Auto => (self.inline_below, self.hand_off_from),
            Protocol::Eager => (MAX_INLINE + 1, Thresholds::NEVER),
            Protocol::HandOff => (0, 0),
            _ => (0, Thresholds::NEVER),
        };
        Dispatch { protocol, short_below, hand_off_from }
    }

    /// Plans a message of `len` bytes by the protocol that is set. Without hand-off the transport gives the
    /// receiver a copy of its own anyway: then `eager` needs no copy by the library, and sends the message
    /// from where it lies.
    pub fn plan(&self, set: Protocol, len: usize) -> Plan {
        let protocol = if set == Protocol::Auto { self.choose(len) } else { set };
        let step = match protocol {
            Protocol::Auto | Protocol::Eager if len <= MAX_INLINE => Step::Inline,
            Protocol::Auto | Protocol::Eager if self.caps.has(Caps::HAND_OFF) => Step::Bounce,
            Protocol::Auto | Protocol::Eager | Protocol::HandOff => Step::Lend,
            Protocol::Copy => Step::AnnounceCopy,
            Protocol::RdmaWrite => Step::AnnounceWrite,
            Protocol::RdmaRead => Step::AnnounceRead,
            Protocol::Handshake => Step::Handshake,
        };
        Plan { protocol, step }
    }

    /// The protocol that `Auto` chooses.
    fn choose(&self, len: usize) -> Protocol {
        let taken = self.rows.iter().find(|(_, from)| from.is_some_and(|from| len >= from));
        taken.map_or(Protocol::Eager, |(protocol, _)| *protocol)
    }

    /// The protocol that a message of `len` bytes takes if this one is set, and why.
    pub fn explain(&self, set: Protocol, len: usize) -> Choice {
        let Plan { protocol, .. } = self.plan(set, len);
        if set != Protocol::Auto {
            return Choice { protocol, why: "it is set for all messages of this postbox".into() };
        }
        let mut passed = Vec::new();
        for (row, from) in self.rows {
            match from {
                None if !self.caps.has(row.needs()) => passed.push(format!("the connection has no {row}")),
                None => passed.push(format!("{row} is never chosen")),
                Some(from) if row != protocol => passed.push(format!("{row} begins at {from} bytes")),
                Some(from) => {
                    passed.push(format!("{row} takes {from} bytes and more"));
                    break;
                }
            }
        }
        if protocol == Protocol::Eager && len <= MAX_INLINE {
            passed.push(format!("up to {MAX_INLINE} bytes travel inline"));
        }
        Choice { protocol, why: passed.join("; ") }
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

/// Parses a number of bytes with an optional suffix `K`, `M` or `G`.
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

    fn choose(auto: Thresholds, len: usize, caps: Caps) -> Protocol {
        Selector::new(&auto, caps).choose(len)
    }

    #[test]
    fn auto_follows_the_abilities() {
        let (auto, all) = (Thresholds::default(), Caps::HAND_OFF | Caps::RDMA_WRITE);
        assert_eq!(choose(auto, MAX_INLINE, all), Protocol::Eager);
        assert_eq!(choose(auto, MAX_INLINE + 1, all), Protocol::HandOff);
        assert_eq!(choose(auto, 1 << 20, Caps::RDMA_WRITE), Protocol::Eager);
        assert_eq!(choose(auto, 4 << 20, Caps::RDMA_WRITE), Protocol::RdmaWrite);
        assert_eq!(choose(auto, 1 << 20, Caps::RDMA_READ), Protocol::Eager, "never, unless asked to");
        assert_eq!(choose(auto, 1 << 20, Caps::default()), Protocol::Eager);
    }

    #[test]
    fn a_forced_protocol_is_what_it_is() {
        let selector = Selector::new(&Thresholds::default(), Caps::HAND_OFF);
        assert_eq!(selector.plan(Protocol::Copy, 0).protocol, Protocol::Copy);
        assert_eq!(selector.plan(Protocol::Auto, 1 << 20).protocol, Protocol::HandOff);
    }

    #[test]
    fn eager_stays_eager_where_its_message_is_lent() {
        let plan = |caps, len| Selector::new(&Thresholds::default(), caps).plan(Protocol::Eager, len);
        let eager = |step| Plan { protocol: Protocol::Eager, step };
        assert_eq!(plan(Caps::default(), MAX_INLINE), eager(Step::Inline));
        assert_eq!(plan(Caps::HAND_OFF, MAX_INLINE + 1), eager(Step::Bounce));
        assert_eq!(plan(Caps::default(), MAX_INLINE + 1), eager(Step::Lend));
    }

    #[test]
    fn thresholds_are_read() {
        let read = Thresholds::parse("rdma-read=1M,hand-off=never").unwrap();
        let expected =
            Thresholds { hand_off: Thresholds::NEVER, rdma_read: 1 << 20, ..Thresholds::default() };
        assert_eq!(read, expected);
        assert_eq!(choose(read, 1 << 20, Caps::HAND_OFF | Caps::RDMA_READ), Protocol::RdmaRead);
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
        let explain = |len, caps| Selector::new(&Thresholds::default(), caps).explain(Protocol::Auto, len);
        let small = explain(8, Caps::HAND_OFF);
        assert!(
            small.why.contains("hand-off begins at 41 bytes") && small.why.contains("inline"),
            "{}",
            small.why
        );
        let without = explain(4 << 20, Caps::RDMA_WRITE);
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

        /// Checks that all answers of a selector agree. `which` selects the capabilities of the connection.
        #[test]
        fn prop_all_answers_agree(len in 0usize..200, hand_off: usize, near in 0usize..200, rdma_write in 0usize..200, rdma_read in 0usize..200, which in 0u8..8) {
            let lens = [len, usize::MAX - 1, usize::MAX];
            for (hand_off, len) in [hand_off, near, usize::MAX - 1, Thresholds::NEVER].into_iter().flat_map(|from| lens.map(|len| (from, len))) {
                let thresholds = Thresholds { hand_off, rdma_write, rdma_read };
                let all = [Caps::HAND_OFF, Caps::RDMA_WRITE, Caps::RDMA_READ];
                let caps = (0..3).filter(|bit| which & (1 << bit) != 0).fold(Caps::default(), |caps, bit| caps | all[bit]);
                let selector = Selector::new(&thresholds, caps);
                let first = thresholds.rows().into_iter().find(|(protocol, from)| len >= *from && *from != Thresholds::NEVER && caps.has(protocol.needs()));
                let chosen = selector.choose(len);
                prop_assert_eq!(chosen, first.map_or(Protocol::Eager, |(protocol, _)| protocol));
                for (set, _) in Protocol::NAMES {
                    let (plan, dispatch) = (selector.plan(set, len), selector.dispatch(set));
                    prop_assert_eq!(plan.protocol, if set == Protocol::Auto { chosen } else { set });
                    prop_assert_eq!(selector.explain(set, len).protocol, plan.protocol);
                    // Skips a length that no message in memory has.
                    if len != usize::MAX {
                        prop_assert_eq!(dispatch.is_handed_off(len), plan.protocol == Protocol::HandOff);
                    }
                    if dispatch.is_short(len) {
                        prop_assert_eq!(plan, Plan { protocol: Protocol::Eager, step: Step::Inline });
                    }
                }
            }
        }

        #[test]
        fn prop_the_explanation_is_of_what_is_chosen(len: usize, hand_off: usize, rdma_write: usize, rdma_read: usize, which in 0u8..8) {
            let thresholds = Thresholds { hand_off, rdma_write, rdma_read };
            let all = [Caps::HAND_OFF, Caps::RDMA_WRITE, Caps::RDMA_READ];
            let caps = (0..3).filter(|bit| which & (1 << bit) != 0).fold(Caps::default(), |caps, bit| caps | all[bit]);
            let selector = Selector::new(&thresholds, caps);
            for len in [len, usize::MAX] {
                let Choice { protocol, why } = selector.explain(Protocol::Auto, len);
                prop_assert_eq!(protocol, selector.choose(len));
                prop_assert_eq!(why.contains(" takes "), protocol != Protocol::Eager, "{}: {}", protocol, why);
            }
        }
    }
}
