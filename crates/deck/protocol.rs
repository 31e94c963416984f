//! Protocols: the ways in which a message travels from a postbox to a mailbox.
//!
//! Each protocol is one file, the poster's side and the mailbox's side together:
//!
//! | file | contents |
//! |---|---|
//! | `eager`, `hand_off`, `copy`, `rdma_write`, `rdma_read`, `handshake` | a protocol |
//! | `auto` | plans a message: chooses its protocol, and what its sender does |
//! | `side` | the two sides of a connection, on which a protocol works |
//! | `message_block` | a message's memory on its way |
//! | `outgoing`, `incoming` | a message in an engine's queue, by any protocol |
//!
//! The engines (`send`, `recv`) decide when a step is taken and in which order. The step itself is written
//! here. A new protocol gets its file, a variant in [`Protocol`] and in `auto::Step`, a line in the functions
//! of `outgoing` and `incoming`, and one where its arrivals are dispatched (`recv/connection.rs`; answers: `send/queue.rs`).

pub(crate) mod auto;
pub(crate) mod copy;
pub(crate) mod eager;
pub(crate) mod hand_off;
pub(crate) mod handshake;
pub(crate) mod incoming;
pub(crate) mod message_block;
pub(crate) mod outgoing;
pub(crate) mod rdma_read;
pub(crate) mod rdma_write;
pub(crate) mod side;

use std::fmt;

use udeck_via::Caps;

/// Protocol by which a message travels. `DECK_PROTOCOL`, [`crate::Config::protocol`],
/// [`crate::Postbox::set_protocol`] and [`crate::Postbox::post_with`] choose it; the default is
/// [`Protocol::Auto`].
///
/// | protocol | copies | before the data | the post returns | needs |
/// |---|---|---|---|---|
/// | `eager` | 2; on a network 0, over UDP 1 | nothing | at once | nothing |
/// | `copy` | 2, by fragments | announcement, answer | at once | nothing |
/// | `rdma-write` | 1, by the sender | announcement, answer | at once | RDMA write |
/// | `rdma-read` | 1, by the receiver | announcement | at once | RDMA read |
/// | `handshake` | 1, by the receiving VI | REQST, ACK or NACK | when the message was received | reliable reception |
/// | `hand-off` | 0 | nothing | at once | hand-off |
///
/// "At once" holds if there is room for the message ([`crate::Postbox::post`]). Copies of payload are counted
/// on both sides together, for a message that does not travel inline. Messages of one postbox arrive in the
/// order of posting, whatever mix of protocols carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Chosen by the message's size and the connection's capabilities: [`crate::Thresholds`].
    #[default]
    Auto,
    /// Copied into the library's memory when posted, and out of it when retrieved. The message's own memory
    /// is free at once. Without hand-off (on a network) the message is sent from where it lies, and read
    /// where it arrives: it costs only the transfer.
    Eager,
    /// The baseline that zero-copy is compared with: announces, waits for the answer, then copies in and out
    /// by fragments.
    Copy,
    /// Announces, waits for the receiver's memory, and writes there directly: one copy, made by the sender.
    RdmaWrite,
    /// Announces where the message lies; the receiver reads it there when it retrieves: one copy, made by the
    /// receiver. The sender has nothing more to do.
    RdmaRead,
    /// The protocol of the DECK/VIA thesis, kept to compare: asks on the control VI, waits for a receive
    /// descriptor to be posted, sends on the data VI, and waits until the message was received. Hence a post
    /// waits for its retrieve; `try_post` never posts by it ([`crate::Error::WouldBlock`]).
    Handshake,
    /// The receiver gets the sender's buffer itself: no copy, whatever the size.
    HandOff,
}

/// Longest message that travels inside its descriptor, in bytes.
pub(crate) const MAX_INLINE: usize = udeck_via::transport::Inline::CAPACITY - crate::wire::HEAD_BYTES;

impl Protocol {
    pub(crate) const NAMES: [(Protocol, &'static str); 7] = [
        (Protocol::Auto, "auto"),
        (Protocol::Eager, "eager"),
        (Protocol::Copy, "copy"),
        (Protocol::RdmaWrite, "rdma-write"),
        (Protocol::RdmaRead, "rdma-read"),
        (Protocol::Handshake, "handshake"),
        (Protocol::HandOff, "hand-off"),
    ];

    /// All names, for errors about an unknown name.
    pub(crate) const EXPECTED: &str = "auto, eager, copy, rdma-write, rdma-read, handshake or hand-off";

    pub(crate) fn name(self) -> &'static str {
        Protocol::NAMES.iter().find(|(protocol, _)| *protocol == self).map_or("?", |(_, name)| name)
    }

    /// The capability that the protocol needs of a connection.
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

    /// The names of the protocols that connections with these capabilities can use.
    pub(crate) fn possible(caps: Caps) -> String {
        let names = Protocol::NAMES.iter().filter(|(protocol, _)| caps.has(protocol.needs()));
        names.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How a mailbox polls its connections for messages (`DECK_RECEIVE`). The DECK/VIA thesis compared the two
/// models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum ReceiveModel {
    /// `cq`: one completion queue for all VIs names the VI that has news.
    #[default]
    CompletionQueue,
    /// `wq`: every VI's own work queue is polled in turn; the completion queue is used only to sleep.
    WorkQueues,
}

impl ReceiveModel {
    pub(crate) const NAMES: [(ReceiveModel, &'static str); 2] =
        [(ReceiveModel::CompletionQueue, "cq"), (ReceiveModel::WorkQueues, "wq")];

    /// The values that `DECK_RECEIVE` may have.
    pub(crate) const EXPECTED: &str = "cq (one completion queue for all VIs) or wq (every VI's own queue)";
}

impl fmt::Display for ReceiveModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ReceiveModel::NAMES.iter().find(|(model, _)| model == self).map_or("?", |(_, name)| name);
        f.pad(name)
    }
}
