//! Table of the kill harness's pairs: which of two ends dies, when, and what the other must see.
//!
//! The sender posts [`MESSAGES`] messages and flushes. Promises of the protocols after a post has returned:
//!
//! | protocol | the sender dies after its post returned |
//! |---|---|
//! | eager, hand-off | the message is delivered: its bytes lie in the ring, or in memory that stays mapped |
//! | rdma-write, copy | delivered once its last byte was announced; before that, only the sender had it |
//! | rdma-read | delivered once it was read; reading needs a living connection, as on a network |
//! | handshake | delivered: the post returns when it was received |
//!
//! The delivered messages are the first of the posted ones: none is left out in between.

use udeck::Protocol;
use udeck::Protocol::{Copy, Eager, HandOff, Handshake, RdmaRead, RdmaWrite};

/// Number of messages that a sender posts.
pub const MESSAGES: usize = 3;

/// One row: the end that is killed and where, and what the survivor must find.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// The end that dies.
    pub dies: Side,
    /// Time of the death, in words.
    pub when: &'static str,
    /// Place of the death.
    pub at: Death,
    /// Number of words of each message.
    pub words: usize,
    /// When a surviving receiver polls its mailbox.
    pub polls: PollSchedule,
    /// Smallest and largest number of messages: those that arrive at the survivor, or those that the survivor's posts
    /// gave away without reporting what became of them.
    pub count: (usize, usize),
}

/// An end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that posts.
    Sender,
    /// The end that retrieves.
    Receiver,
}

/// Place of a process's death.
#[derive(Clone, Copy, Debug)]
pub enum Death {
    /// Before it does anything with its end.
    Idle,
    /// At this passage of a fault point.
    At(&'static str, u64),
    /// After its posts have returned.
    Posted,
    /// After its part is over: all is flushed, or retrieved and dropped.
    Over,
}

/// When a receiver polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollSchedule {
    /// All the time.
    Always,
    /// Until it has answered all announcements; then after the sender's death.
    Once,
    /// After the sender's death.
    Late,
}

/// Number of words that travel inside a descriptor.
const SHORT: usize = 5;
/// Number of words in two fragments of `copy`.
const LONG: usize = 9000;

const fn sender(
    protocol: Protocol,
    words: usize,
    when: &'static str,
    at: Death,
    polls: PollSchedule,
    count: (usize, usize),
) -> Row {
    Row { protocol, dies: Side::Sender, when, at, words, polls, count }
}

/// A row in which the receiver dies. `unknown`: number of messages that a post may keep without knowing their
/// fate.
const fn receiver(
    protocol: Protocol,
    words: usize,
    when: &'static str,
    at: Death,
    unknown: (usize, usize),
) -> Row {
    Row { protocol, dies: Side::Receiver, when, at, words, polls: PollSchedule::Always, count: unknown }
}

/// All rows.
pub const ROWS: &[Row] = {
    use Death::{At, Idle, Over, Posted};
    use PollSchedule::{Always, Late, Once};
    &[
        // -------- the sender dies: number of delivered messages --------
        sender(Eager, SHORT, "before it posts", Idle, Late, (0, 0)),
        sender(Eager, SHORT, "in the middle of a cell", At("post.written", 2), Late, (1, 1)),
        sender(Eager, SHORT, "after the second cell", At("post.published", 2), Late, (2, 2)),
        sender(Eager, SHORT, "after its posts", Posted, Late, (3, 3)),
        sender(Eager, SHORT, "after all", Over, Always, (3, 3)),
        sender(Eager, LONG, "in the middle of a cell", At("post.written", 2), Late, (1, 1)),
        sender(Eager, LONG, "after the second cell", At("post.published", 2), Late, (2, 2)),
        sender(Eager, LONG, "after its posts", Posted, Late, (3, 3)),
        sender(Eager, LONG, "after all", Over, Always, (3, 3)),
        sender(HandOff, LONG, "before it posts", Idle, Late, (0, 0)),
        sender(HandOff, LONG, "in the middle of a cell", At("post.written", 2), Late, (1, 1)),
        sender(HandOff, LONG, "after the second cell", At("post.published", 2), Late, (2, 2)),
        sender(HandOff, LONG, "after its posts", Posted, Late, (3, 3)),
        sender(HandOff, LONG, "after all", Over, Always, (3, 3)),
        sender(RdmaWrite, LONG, "before it posts", Idle, Late, (0, 0)),
        sender(RdmaWrite, LONG, "after its announcement", At("announce.said", 1), Always, (0, 0)),
        sender(RdmaWrite, LONG, "after its posts, unanswered", Posted, Late, (0, 0)),
        sender(RdmaWrite, LONG, "inside the gate", At("rdma.entered", 1), Always, (0, 0)),
        sender(RdmaWrite, LONG, "inside the gate, the data written", At("rdma.copied", 2), Always, (1, 1)),
        sender(RdmaWrite, LONG, "inside the gate, one unread", At("rdma.entered", 2), Once, (1, 1)),
        sender(RdmaWrite, LONG, "after the data, before its word", At("rdma.left", 2), Once, (1, 1)),
        sender(RdmaWrite, LONG, "after all", Over, Always, (3, 3)),
        sender(Copy, LONG, "before it posts", Idle, Late, (0, 0)),
        sender(Copy, LONG, "after its announcement", At("announce.said", 1), Always, (0, 0)),
        sender(Copy, LONG, "after its posts, unanswered", Posted, Late, (0, 0)),
        sender(Copy, LONG, "after a fragment", At("copy.sent", 1), Always, (0, 0)),
        sender(Copy, LONG, "after a last fragment", At("copy.sent", 2), Once, (1, 1)),
        sender(Copy, LONG, "between fragments, one unread", At("copy.sent", 3), Once, (1, 1)),
        sender(Copy, LONG, "after all", Over, Always, (3, 3)),
        sender(RdmaRead, LONG, "before it posts", Idle, Late, (0, 0)),
        sender(RdmaRead, LONG, "after its announcement", At("read.announced", 1), Always, (0, 1)),
        sender(RdmaRead, LONG, "after its announcement, unread", At("read.announced", 2), Late, (0, 3)),
        sender(RdmaRead, LONG, "after its posts", Posted, Late, (0, 3)),
        sender(RdmaRead, LONG, "after it was read", Over, Always, (3, 3)),
        sender(Handshake, LONG, "before it posts", Idle, Late, (0, 0)),
        sender(Handshake, LONG, "after REQST", At("handshake.asked", 1), Always, (0, 0)),
        sender(Handshake, LONG, "after REQST, unseen", At("handshake.asked", 1), Late, (0, 0)),
        sender(Handshake, LONG, "after the data", At("handshake.sent", 1), Always, (0, 1)),
        sender(Handshake, LONG, "after the next REQST", At("handshake.asked", 2), Always, (1, 1)),
        sender(Handshake, LONG, "after all", Over, Always, (3, 3)),
        // -------- the receiver dies: number of messages whose fate the post may not know --------
        receiver(Eager, SHORT, "before it polls", At("accept.accepted", 1), (0, 0)),
        receiver(Eager, SHORT, "with a message half taken", At("retrieve.taken", 1), (0, 0)),
        receiver(Eager, SHORT, "after all", Over, (0, 0)),
        receiver(Eager, LONG, "before it polls", At("accept.accepted", 1), (0, 0)),
        receiver(Eager, LONG, "before its receipt", At("release.claimed", 1), (0, 0)),
        receiver(Eager, LONG, "after all", Over, (0, 0)),
        receiver(HandOff, LONG, "before it polls", At("accept.accepted", 1), (0, 0)),
        receiver(HandOff, LONG, "while it reads", At("retrieve.taken", 2), (0, 0)),
        receiver(HandOff, LONG, "in the middle of its receipt", At("release.claimed", 1), (0, 0)),
        receiver(HandOff, LONG, "after its receipt", At("release.published", 1), (0, 0)),
        receiver(HandOff, LONG, "after all", Over, (0, 0)),
        receiver(RdmaWrite, LONG, "before it polls", At("accept.accepted", 1), (0, 0)),
        receiver(RdmaWrite, LONG, "before Ready", At("announce.taken", 1), (0, 0)),
        receiver(RdmaWrite, LONG, "after Ready", At("announce.answered", 1), (0, 0)),
        receiver(RdmaWrite, LONG, "after the third Ready", At("announce.answered", 3), (0, 0)),
        receiver(RdmaWrite, LONG, "after all", Over, (0, 0)),
        receiver(Copy, LONG, "before it polls", At("accept.accepted", 1), (0, 0)),
        receiver(Copy, LONG, "before Ready", At("announce.taken", 1), (0, 0)),
        receiver(Copy, LONG, "after Ready", At("announce.answered", 1), (0, 0)),
        receiver(Copy, LONG, "after a fragment", At("copy.taken", 1), (0, 0)),
        receiver(Copy, LONG, "after a last fragment", At("copy.taken", 4), (0, 0)),
        receiver(Copy, LONG, "after all", Over, (0, 0)),
        receiver(RdmaRead, LONG, "before it polls", At("accept.accepted", 1), (0, 0)),
        receiver(RdmaRead, LONG, "before it reads", At("announce.taken", 1), (0, 0)),
        receiver(RdmaRead, LONG, "inside the gate", At("rdma.copied", 1), (0, 0)),
        receiver(RdmaRead, LONG, "before FIN", At("read.fetched", 2), (0, 0)),
        receiver(RdmaRead, LONG, "after all", Over, (0, 0)),
        receiver(Handshake, LONG, "before it polls", At("accept.accepted", 1), (0, 0)),
        receiver(Handshake, LONG, "as it gets the data VI", At("accept.accepted", 2), (0, 0)),
        receiver(Handshake, LONG, "before ACK", At("announce.taken", 1), (0, 0)),
        receiver(Handshake, LONG, "after ACK", At("handshake.granted", 1), (0, 1)),
        receiver(Handshake, LONG, "after the data", At("handshake.received", 1), (0, 1)),
        receiver(Handshake, LONG, "before the third ACK", At("announce.taken", 3), (0, 0)),
        receiver(Handshake, LONG, "after all", Over, (0, 0)),
    ]
};

/// The rows of one protocol and side, by number.
pub fn of(protocol: Protocol, dies: Side) -> impl Iterator<Item = (usize, &'static Row)> {
    ROWS.iter().enumerate().filter(move |(_, row)| row.protocol == protocol && row.dies == dies)
}

/// Writes message `number` of rank `from`.
pub fn fill(message: &mut [u64], from: usize, number: usize) {
    message.iter_mut().enumerate().for_each(|(at, place)| *place = word(from, number, at));
}

/// Whether these are the words of [`fill`].
#[must_use]
pub fn is_filled(message: &[u64], from: usize, number: usize) -> bool {
    message.iter().enumerate().all(|(at, found)| *found == word(from, number, at))
}

fn word(from: usize, number: usize, at: usize) -> u64 {
    ((from << 40 ^ number << 32 ^ at) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
