//! How a message travels.

use std::fmt;
use std::str::FromStr;

use udeck_via::Caps;

use crate::error::Error;

/// How a message travels. The table with copies and control messages is in the README; `DECK_PROTOCOL`,
/// [`crate::Postbox::set_protocol`] and the default, [`Protocol::Auto`], choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// By size and by what the connection can do.
    #[default]
    Auto,
    /// Copied into the library's memory when posted, and out of it when retrieved. The message itself is free at once.
    Eager,
    /// The baseline that zero-copy is compared with: announce, wait for the answer, then copy in and out by fragments.
    Copy,
    /// Announce, wait for the receiver's memory, write there directly: one copy, made by the sender.
    RdmaWrite,
    /// The receiver gets the sender's very buffer: no copy, whatever the size.
    HandOff,
}

/// Messages up to this size travel inside their descriptor.
pub(crate) const MAX_INLINE: usize = udeck_via::transport::Inline::CAPACITY - crate::wire::HEAD_BYTES;

/// Without hand-off, `Auto` sends messages from this size on by RDMA: there the announcement's round trip costs less
/// than the second copy.
const RDMA_FROM: usize = 32 << 10;

impl Protocol {
    const NAMES: [(Protocol, &'static str); 5] = [
        (Protocol::Auto, "auto"),
        (Protocol::Eager, "eager"),
        (Protocol::Copy, "copy"),
        (Protocol::RdmaWrite, "rdma-write"),
        (Protocol::HandOff, "hand-off"),
    ];

    /// What `Auto` means for a message of `len` bytes.
    #[inline]
    pub(crate) fn resolve(self, len: usize, caps: Caps) -> Protocol {
        match self {
            Protocol::Auto if len <= MAX_INLINE => Protocol::Eager,
            Protocol::Auto if caps.has(Caps::HAND_OFF) => Protocol::HandOff,
            Protocol::Auto if caps.has(Caps::RDMA_WRITE) && len >= RDMA_FROM => Protocol::RdmaWrite,
            Protocol::Auto => Protocol::Eager,
            forced => forced,
        }
    }

    /// The ability that it needs of a connection.
    pub(crate) fn needs(self) -> Caps {
        match self {
            Protocol::RdmaWrite => Caps::RDMA_WRITE,
            Protocol::HandOff => Caps::HAND_OFF,
            Protocol::Auto | Protocol::Eager | Protocol::Copy => Caps::default(),
        }
    }

    /// The names of the protocols that connections with these abilities can use.
    pub(crate) fn possible(caps: Caps) -> String {
        let names = Protocol::NAMES.iter().filter(|(protocol, _)| caps.has(protocol.needs()));
        names.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            Protocol::NAMES.iter().find(|(protocol, _)| protocol == self).map_or("?", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Protocol::NAMES.iter().find(|(_, name)| *name == text).map(|(protocol, _)| *protocol);
        found.ok_or_else(|| Error::Config {
            variable: "protocol",
            value: text.to_owned(),
            expected: "auto, eager, copy, rdma-write or hand-off",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for (protocol, name) in Protocol::NAMES {
            assert_eq!(name.parse::<Protocol>().unwrap(), protocol);
            assert_eq!(protocol.to_string(), name);
        }
        let error = "handoff".parse::<Protocol>().unwrap_err().to_string();
        assert!(error.contains("hand-off") && error.contains("\"handoff\""), "{error}");
    }

    #[test]
    fn auto_follows_the_abilities() {
        let all = Caps::HAND_OFF | Caps::RDMA_WRITE;
        assert_eq!(Protocol::Auto.resolve(MAX_INLINE, all), Protocol::Eager);
        assert_eq!(Protocol::Auto.resolve(MAX_INLINE + 1, all), Protocol::HandOff);
        assert_eq!(Protocol::Auto.resolve(1 << 20, Caps::RDMA_WRITE), Protocol::RdmaWrite);
        assert_eq!(Protocol::Auto.resolve(1 << 20, Caps::default()), Protocol::Eager);
        assert_eq!(Protocol::Copy.resolve(0, all), Protocol::Copy);
    }
}
