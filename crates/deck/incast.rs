//! Incast control: scheduling the messages of many ranks that post to one mailbox.
//!
//! Each connection has credits of its own, so a thousand connections may bring a thousand times as much as
//! one. With incast control a mailbox schedules its messages (`udeck_qos::pacing` has the states and the
//! reasons):
//!
//! | messages | behaviour |
//! |---|---|
//! | announced ones | reserve: the mailbox's answer contains a delay |
//! | others, with [`IncastControl::Smsrp`] | are sent at once within a window, which is whole again when all is read; beyond it they reserve |
//!
//! Messages wait in their channel's queue, so order, requests, deadlines and ends are the same as for any
//! message that finds no room. Over shared memory nothing travels before it is read, so incast control does
//! not apply.

use std::fmt;
use std::str::FromStr;

use udeck_qos::pacing::Terms;
use udeck_via::{Caps, NicAttributes};

use crate::error::Error;
use crate::wire::Malformed;

/// Whether mailboxes schedule the messages that are posted to them over a network (`DECK_INCAST`).
/// [`crate::Postbox::route`] says what is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum IncastControl {
    /// [`IncastControl::Srp`] in jobs of more than 17 ranks, for posters over UDP: long messages of that many
    /// ranks at once overflow the receiver's socket, and lost packets are sent again only to be lost again.
    /// Otherwise [`IncastControl::Off`].
    #[default]
    Auto,
    /// No scheduling: each connection has its credits.
    Off,
    /// Long messages reserve before they travel (after the *speculative reservation protocol*).
    Srp,
    /// Like [`IncastControl::Srp`]; in addition, a postbox that has used up its window reserves for its short
    /// messages (after the *small-message* speculative reservation protocol).
    Smsrp,
}

/// Length in bytes from which `auto` announces messages, if the connection can, and if it is not told never
/// to.
pub(crate) const LONG: usize = 128 << 10;
/// Largest grant for short messages of a slow mailbox, in bytes.
const MAX_GRANT_SLOW: u64 = 128 << 10;
/// Largest grant for short messages of a fast mailbox, in bytes.
const MAX_GRANT_FAST: u64 = 1 << 20;
/// Bytes that a fast mailbox may grant to all ranks together, or [`MAX_GRANT_SLOW`] to each if that is more.
const MAX_GRANT_TOTAL: u64 = 32 << 20;
/// Bytes that announced messages may have of either kind of memory before they arrive: the memory is theirs
/// from the answer on, and the answer may delay them. More of them at a time than a socket's buffer holds
/// would be lost over UDP, and sent again after a timeout, again and again.
pub(crate) const GRANTED: usize = 2 << 20;
/// Bytes that a mailbox has granted and not received before it delays grants. The windows of all ranks, with
/// a postbox each, add as much again, or more if the smallest window is more than a rank's share.
const THRESHOLD: u64 = 2 << 20;
/// Number of other ranks from which `auto` controls posters over UDP. A connection has at least two datagrams
/// of 64 KiB in flight, and all share a socket's buffer of 4 MiB.
const AUTO_FROM_RANKS: u64 = 17;
/// Range of a postbox's window, in bytes.
const WINDOWS: std::ops::RangeInclusive<u64> = 4 << 10..=64 << 10;

/// Rules of a mailbox for its posters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Rules {
    /// No rules.
    #[default]
    Off,
    /// Like [`Rules::Srp`] for posters over a network that loses packets on overload; no rules for others.
    SrpWhereLost,
    /// Posters obey the delays in answers.
    Srp,
    /// In addition, posters reserve beyond a window of `window` bytes.
    Smsrp { window: u32 },
}

impl Rules {
    /// Makes the rules of a mailbox in a job of `ranks` ranks.
    pub fn new(setting: IncastControl, ranks: usize) -> Self {
        match setting {
            IncastControl::Auto if others(ranks) >= AUTO_FROM_RANKS => Rules::SrpWhereLost,
            IncastControl::Auto | IncastControl::Off => Rules::Off,
            IncastControl::Srp => Rules::Srp,
            IncastControl::Smsrp => {
                let window = (THRESHOLD / others(ranks)).clamp(*WINDOWS.start(), *WINDOWS.end());
                Rules::Smsrp { window: window as u32 }
            }
        }
    }

    /// The mailbox's own part: the terms of its grants, in a job of `ranks` ranks.
    pub fn terms(rate: Option<u64>, ranks: usize) -> Terms {
        let crowded = (MAX_GRANT_TOTAL / others(ranks)).clamp(MAX_GRANT_SLOW, MAX_GRANT_FAST);
        Terms { threshold: THRESHOLD, usual: MAX_GRANT_SLOW, crowded, largest: MAX_GRANT_FAST, rate }
    }

    /// The rules that apply to a connection over such a NIC.
    pub fn over(self, nic: &NicAttributes) -> Rules {
        match self {
            // Over shared memory, nothing travels before it is read.
            _ if nic.caps.has(Caps::HAND_OFF) => Rules::Off,
            Rules::SrpWhereLost if nic.shares_receive_buffer => Rules::Srp,
            Rules::SrpWhereLost => Rules::Off,
            rules => rules,
        }
    }

    /// The incast control that a connection is under.
    pub fn setting(self) -> IncastControl {
        match self {
            Rules::Off => IncastControl::Off,
            Rules::Srp | Rules::SrpWhereLost => IncastControl::Srp,
            Rules::Smsrp { .. } => IncastControl::Smsrp,
        }
    }

    // ---- on the wire: u8 kind, u32 window ----

    pub fn encode(self) -> [u8; 5] {
        let (which, window) = match self {
            Rules::Off => (0, 0),
            Rules::Srp => (1, 0),
            Rules::Smsrp { window } => (2, window),
            Rules::SrpWhereLost => (3, 0),
        };
        let [a, b, c, d] = u32::to_le_bytes(window);
        [which, a, b, c, d]
    }

    pub fn decode([which, window @ ..]: [u8; 5]) -> Result<Self, Malformed> {
        match (which, u32::from_le_bytes(window)) {
            (0, 0) => Ok(Rules::Off),
            (1, 0) => Ok(Rules::Srp),
            (2, window @ 1..) => Ok(Rules::Smsrp { window }),
            (3, 0) => Ok(Rules::SrpWhereLost),
            _ => Err(Malformed),
        }
    }
}

fn others(ranks: usize) -> u64 {
    ranks.saturating_sub(1).max(1) as u64
}

impl IncastControl {
    const NAMES: [(IncastControl, &'static str); 4] = [
        (IncastControl::Auto, "auto"),
        (IncastControl::Off, "off"),
        (IncastControl::Srp, "srp"),
        (IncastControl::Smsrp, "smsrp"),
    ];

    /// The values that `DECK_INCAST` may have.
    pub(crate) const EXPECTED: &str =
        "auto, off, srp (long messages reserve) or smsrp (and short ones, once many bytes are unread)";
}

impl fmt::Display for IncastControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            IncastControl::NAMES.iter().find(|(control, _)| control == self).map_or("?", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for IncastControl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = IncastControl::NAMES.iter().find(|(_, name)| *name == text).map(|(control, _)| *control);
        found.ok_or_else(|| Error::Config {
            variable: "incast control",
            value: text.to_owned(),
            expected: IncastControl::EXPECTED.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_smaller_in_larger_jobs_down_to_the_least() {
        let window = |ranks| match Rules::new(IncastControl::Smsrp, ranks) {
            Rules::Smsrp { window } => window,
            other => panic!("{other:?}"),
        };
        assert_eq!([1, 2, 33, 65, 513, 5000].map(window), [65536, 65536, 65536, 32768, 4096, 4096]);
        let auto = |ranks| Rules::new(IncastControl::Auto, ranks);
        assert_eq!(
            [1, 2, 17, 18, 65].map(|ranks| auto(ranks) == Rules::SrpWhereLost),
            [false, false, false, true, true]
        );
    }

    #[test]
    fn auto_concerns_networks_that_lose_what_is_too_much() {
        let over = |rules: Rules, caps: Caps, shares| {
            let mut nic = NicAttributes::new("nic0");
            (nic.caps, nic.shares_receive_buffer) = (caps, shares);
            rules.over(&nic)
        };
        let (none, smsrp) = (Caps::RDMA_WRITE, Rules::Smsrp { window: 5 });
        assert_eq!(
            [false, true].map(|shares| over(Rules::SrpWhereLost, none, shares)),
            [Rules::Off, Rules::Srp]
        );
        assert_eq!([false, true].map(|shares| over(smsrp, none, shares)), [smsrp; 2]);
        assert_eq!(
            [Rules::SrpWhereLost, smsrp].map(|rules| over(rules, Caps::HAND_OFF, true)),
            [Rules::Off; 2]
        );
    }

    #[test]
    fn all_ranks_have_so_much_together_and_each_the_usual_at_least() {
        let crowded = |ranks| Rules::terms(None, ranks).crowded;
        assert_eq!([2, 33, 65, 1025].map(crowded), [1 << 20, 1 << 20, 512 << 10, 128 << 10]);
    }

    #[test]
    fn rules_round_trip_and_others_are_none() {
        for rules in [
            Rules::Off,
            Rules::SrpWhereLost,
            Rules::Srp,
            Rules::Smsrp { window: 1 },
            Rules::Smsrp { window: u32::MAX },
        ] {
            assert_eq!(Rules::decode(rules.encode()), Ok(rules));
        }
        for bytes in [[0, 1, 0, 0, 0], [1, 0, 0, 0, 1], [2, 0, 0, 0, 0], [3, 1, 0, 0, 0], [4, 0, 0, 0, 0]] {
            assert_eq!(Rules::decode(bytes), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn names_round_trip() {
        for (control, name) in IncastControl::NAMES {
            assert_eq!(
                (name.parse::<IncastControl>().unwrap(), control.to_string()),
                (control, name.to_owned())
            );
            assert!(IncastControl::EXPECTED.contains(name));
        }
        assert!("on".parse::<IncastControl>().is_err());
    }
}
