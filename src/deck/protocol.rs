//! How a message travels.

use std::fmt;
use std::str::FromStr;

use udeck_via::Caps;

use crate::auto::Thresholds;
use crate::error::Error;

/// How a message travels. `DECK_PROTOCOL`, [`crate::Config::protocol`], [`crate::Postbox::set_protocol`] and
/// [`crate::Postbox::post_by`] choose; the default is [`Protocol::Auto`].
///
/// | protocol | copies | before the data | the post returns | needs |
/// |---|---|---|---|---|
/// | `eager` | 2; on a network 0 | nothing | at once | nothing |
/// | `copy` | 2, by fragments | announcement, answer | at once | nothing |
/// | `rdma-write` | 1, by the sender | announcement, answer | at once | RDMA write |
/// | `rdma-read` | 1, by the receiver | announcement | at once | RDMA read |
/// | `handshake` | 1, by the receiving VI | REQST, ACK or NACK | when it was received | reliable reception |
/// | `hand-off` | 0 | nothing | at once | hand-off |
///
/// "At once": when there is room for it, as [`crate::Postbox::post`] has it. Copies of payload are counted on both sides
/// together, for a message that does not travel inline. Messages of one postbox arrive in the order of posting, whatever
/// mix of protocols carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// By size and by what the connection can do: [`Thresholds`].
    #[default]
    Auto,
    /// Copied into the library's memory when posted, and out of it when retrieved. The message itself is free at once. Where
    /// there is no hand-off (on a network) it is sent from where it lies, and read where it arrives: what it costs is the
    /// transfer.
    Eager,
    /// The baseline that zero-copy is compared with: announce, wait for the answer, then copy in and out by fragments.
    Copy,
    /// Announce, wait for the receiver's memory, write there directly: one copy, made by the sender.
    RdmaWrite,
    /// Announce where it lies; the receiver reads it there when it retrieves: one copy, made by the receiver. The sender
    /// has nothing more to do.
    RdmaRead,
    /// The protocol of the DECK/VIA thesis, kept to compare: ask on the control VI, wait for a receive descriptor to be
    /// posted, send on the data VI, and wait until it was received. So a post waits for its retrieve; `try_post` never
    /// posts by it ([`Error::WouldBlock`]).
    Handshake,
    /// The receiver gets the sender's very buffer: no copy, whatever the size.
    HandOff,
}

/// Messages up to this size travel inside their descriptor.
pub(crate) const MAX_INLINE: usize = udeck_via::transport::Inline::CAPACITY - crate::wire::HEAD_BYTES;

impl Protocol {
    const NAMES: [(Protocol, &'static str); 7] = [
        (Protocol::Auto, "auto"),
        (Protocol::Eager, "eager"),
        (Protocol::Copy, "copy"),
        (Protocol::RdmaWrite, "rdma-write"),
        (Protocol::RdmaRead, "rdma-read"),
        (Protocol::Handshake, "handshake"),
        (Protocol::HandOff, "hand-off"),
    ];

    /// All names, for messages about one that is none of them.
    pub(crate) const EXPECTED: &str = "auto, eager, copy, rdma-write, rdma-read, handshake or hand-off";

    /// What it means for a message of `len` bytes.
    #[inline]
    pub(crate) fn resolve(self, len: usize, caps: Caps, auto: &Thresholds) -> Protocol {
        match self {
            Protocol::Auto => auto.choose(len, caps),
            forced => forced,
        }
    }

    /// The ability that it needs of a connection.
    #[inline]
    pub(crate) fn needs(self) -> Caps {
        match self {
            Protocol::RdmaWrite => Caps::RDMA_WRITE,
            Protocol::RdmaRead => Caps::RDMA_READ,
            Protocol::Handshake => Caps::RELIABLE_RECEPTION,
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
            expected: Protocol::EXPECTED.into(),
        })
    }
}

/// How a mailbox looks for messages among its connections (`DECK_RECEIVE`). The DECK/VIA thesis compared the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum ReceiveModel {
    /// `cq`: one completion queue for all VIs names the one that has news.
    #[default]
    CompletionQueue,
    /// `wq`: every VI's own work queue is asked in turn; only to sleep, the completion queue is waited on.
    WorkQueues,
}

impl ReceiveModel {
    const NAMES: [(ReceiveModel, &'static str); 2] =
        [(ReceiveModel::CompletionQueue, "cq"), (ReceiveModel::WorkQueues, "wq")];

    /// What `DECK_RECEIVE` may be.
    pub(crate) const EXPECTED: &str = "cq (one completion queue for all VIs) or wq (every VI's own queue)";
}

impl fmt::Display for ReceiveModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ReceiveModel::NAMES.iter().find(|(model, _)| model == self).map_or("?", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for ReceiveModel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = ReceiveModel::NAMES.iter().find(|(_, name)| *name == text).map(|(model, _)| *model);
        found.ok_or_else(|| Error::Config {
            variable: "receive model",
            value: text.to_owned(),
            expected: ReceiveModel::EXPECTED.into(),
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
            assert!(Protocol::EXPECTED.contains(name), "{name}");
        }
        let error = "handoff".parse::<Protocol>().unwrap_err().to_string();
        assert!(error.contains("hand-off") && error.contains("\"handoff\""), "{error}");
        for (model, name) in ReceiveModel::NAMES {
            assert_eq!((name.parse::<ReceiveModel>().unwrap(), model.to_string()), (model, name.to_owned()));
        }
        assert!("CQ".parse::<ReceiveModel>().is_err());
    }

    #[test]
    fn a_forced_protocol_is_what_it_is() {
        let auto = Thresholds::default();
        assert_eq!(Protocol::Copy.resolve(0, Caps::HAND_OFF, &auto), Protocol::Copy);
        assert_eq!(Protocol::Auto.resolve(1 << 20, Caps::HAND_OFF, &auto), Protocol::HandOff);
    }
}
