//! Incast control: what becomes of many ranks that post to one mailbox.
//!
//! Each connection has credits of its own, so a thousand of them may bring a thousand times as much as one. With incast control a mailbox
//! says when it takes what (`udeck_qos::pacing` has the states and the reasons):
//!
//! | messages | what they do |
//! |---|---|
//! | announced ones | reserve: the mailbox's answer has a delay |
//! | others, with [`IncastControl::Smsrp`] | go at once within a window, which is whole again when all is read; then they reserve |
//!
//! What waits does so in its channel's queue, so order, requests, deadlines and ends are those of any message that finds no room. Where
//! memory is shared nothing travels before it is read, and nothing of this applies.

use std::fmt;
use std::str::FromStr;

use udeck_qos::pacing::Terms;
use udeck_via::{Caps, NicAttributes};

use crate::error::Error;
use crate::wire::Malformed;

/// Whether mailboxes say when they take what is posted to them over a network (`DECK_INCAST`). What is in force,
/// [`crate::Postbox::route`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum IncastControl {
    /// [`IncastControl::Srp`] in jobs of more than 17 ranks, for those who post over UDP: long messages of so many at once overflow the
    /// receiver's socket, and what is lost comes again only to be lost again. [`IncastControl::Off`] otherwise.
    #[default]
    Auto,
    /// Each connection has its credits, and that is all.
    Off,
    /// Long messages reserve before they travel (after the *speculative reservation protocol*).
    Srp,
    /// Besides, a postbox that has used up its window reserves for its short ones (after the *small-message* one).
    Smsrp,
}

/// From here on `auto` announces messages, where the connection can do that and it is not told never to.
pub(crate) const LONG: usize = 128 << 10;
/// What one reservation of short messages gets at most, of a mailbox that is slow.
const USUAL: u64 = 128 << 10;
/// And of one that is quick.
const LARGEST: u64 = 1 << 20;
/// A quick mailbox may grant so much to all ranks together, or [`USUAL`] to each if that is more.
const TOGETHER: u64 = 32 << 20;
/// What announced messages may have of either kind of memory before they come: it is theirs from the answer on, and the answer may delay them.
/// More of them at a time than a socket's buffer holds would be lost over UDP, and sent again after a timeout, again and again.
pub(crate) const GRANTED: usize = 2 << 20;
/// What a mailbox has granted and not got, before it delays. The windows of all ranks, with a postbox each, are as much again, or more where the
/// least window is more than a rank's part.
const THRESHOLD: u64 = 2 << 20;
/// From so many other ranks on, `auto` controls those who post over UDP. A connection has two datagrams of 64 KiB under way at the least, and all
/// share a socket's buffer of 4 MiB.
const CROWD: u64 = 17;
/// A postbox's window.
const WINDOWS: std::ops::RangeInclusive<u64> = 4 << 10..=64 << 10;

/// What a mailbox asks of those who post to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Rules {
    /// Nothing.
    #[default]
    Off,
    /// As [`Rules::Srp`] of those who come over a network where too much at once is lost; nothing of others.
    SrpWhereLost,
    /// That they heed the delays of answers.
    Srp,
    /// Besides, that they reserve beyond a window of so many bytes.
    Smsrp { window: u32 },
}

impl Rules {
    /// Those of a mailbox in a job of so many ranks.
    pub fn new(setting: IncastControl, ranks: usize) -> Self {
        match setting {
            IncastControl::Auto if others(ranks) >= CROWD => Rules::SrpWhereLost,
            IncastControl::Auto | IncastControl::Off => Rules::Off,
            IncastControl::Srp => Rules::Srp,
            IncastControl::Smsrp => {
                let window = (THRESHOLD / others(ranks)).clamp(*WINDOWS.start(), *WINDOWS.end());
                Rules::Smsrp { window: window as u32 }
            }
        }
    }

    /// What the mailbox does itself, in a job of so many ranks.
    pub fn terms(rate: Option<u64>, ranks: usize) -> Terms {
        let crowded = (TOGETHER / others(ranks)).clamp(USUAL, LARGEST);
        Terms { threshold: THRESHOLD, usual: USUAL, crowded, largest: LARGEST, rate }
    }

    /// Those of them that concern a connection over such a NIC.
    pub fn over(self, nic: &NicAttributes) -> Rules {
        match self {
            // Nothing travels before it is read.
            _ if nic.caps.has(Caps::HAND_OFF) => Rules::Off,
            Rules::SrpWhereLost if nic.shares_receive_buffer => Rules::Srp,
            Rules::SrpWhereLost => Rules::Off,
            rules => rules,
        }
    }

    /// What a connection is under.
    pub fn setting(self) -> IncastControl {
        match self {
            Rules::Off => IncastControl::Off,
            Rules::Srp | Rules::SrpWhereLost => IncastControl::Srp,
            Rules::Smsrp { .. } => IncastControl::Smsrp,
        }
    }

    // ---- on the wire: u8 which, u32 window ----

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

    /// What `DECK_INCAST` may be.
    pub(crate) const EXPECTED: &str =
        "auto, off, srp (long messages reserve) or smsrp (and short ones of which much is unread)";
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
