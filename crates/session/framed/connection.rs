//! Connection of a VI over two streams of frames, without sockets, clocks or threads.
//!
//! The program's side posts and takes; the driver moves the stream side. Memory that was posted is never copied: a frame
//! refers to it until the driver says that it is released.
//!
//! | file | what it is |
//! |---|---|
//! | `send_queue` | the program's posts: room for them, fences |
//! | `outgoing` | the queue of frames, in place |
//! | `pieces` | memory that drivers send from and receive into |
//! | `incoming` | the parser, and the places of payload |
//! | `expected` | the place of the next body, if it is like the last two |
//! | `peer_requests` | arrivals that are not for the program: RDMA, receipts, the end |
//! | `recv_queue` | messages that the program takes, and the credits that follow |
//! | `unreliable` | messages that travel outside of the stream, in datagrams |
//! | `unacked` | holders of posted memory, and what follows when a post is over |
//! | `close` | the end of a connection, in order or not |

mod close;
mod expected;
mod incoming;
mod outgoing;
mod peer_requests;
mod pieces;
mod recv_queue;
mod send_queue;
mod unacked;
mod unreliable;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use udeck_sys::position::Position;
use udeck_via::transport::{Hello, TransferStatus};
use udeck_via::{Ptag, Reliability};

use crate::close::Close;
use crate::framed::windows::Windows;
use crate::memory::Memory;
use crate::{Events, RecvQueue, SendWindow, Unacked};
use incoming::Incoming;
use outgoing::Outgoing;
pub use pieces::{Direct, Piece, PieceMut, Pieces};
use recv_queue::ByteCredits;
use send_queue::HeldBack;
use unacked::PendingRead;
use unreliable::Unreliable;
pub use unreliable::{Content, Datagram, Landing};

/// The end of the connection that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This end asked.
    Asked,
    /// The other end asked, and this one accepted.
    Accepted,
}

/// Parts and parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Memory that messages are sent from, and that received bodies lie in.
    pub memory: &'a Memory,
    /// Windows that peers may reach.
    pub windows: &'a Arc<Windows>,
    /// This side's hello.
    pub ours: &'a Hello,
    /// The other side's hello.
    pub theirs: &'a Hello,
    /// The end of the connection that this side is.
    pub side: Side,
    /// Longest message that is received, in bytes: [`udeck_via::NicAttributes::max_transfer`]. A peer that announces a longer
    /// one breaks the connection.
    pub max_transfer: usize,
}

/// State of a connection, for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The connection stands; or one side has closed and the other has not yet; or one side still waits for a receipt.
    Open,
    /// The peer broke the protocol. Send what is queued as far as the stream takes it without waiting (words for the peer),
    /// then call [`Connection::lost`] and close the stream.
    Broken,
    /// Both sides have ended the connection and nothing is in flight: close the stream and forget the link. `abruptly`: the
    /// peer has everything and waits for nothing, so the stream may be reset (SO_LINGER 0: no TIME_WAIT). Otherwise close it
    /// as usual; the peer's reset ends that.
    Over {
        /// Whether the stream may be reset.
        abruptly: bool,
    },
}

/// One VI's connection: the program's posts and arrivals, and two streams of frames.
pub struct Connection {
    memory: Memory,
    windows: Arc<Windows>,
    level: Reliability,
    side: Side,
    max_transfer: usize,
    /// Tags of our windows that the peer may write (`writable`) and read (`readable`).
    writable: Option<Ptag>,
    readable: Option<Ptag>,
    /// Whether the peer lets us write and read any of its windows.
    may_write: bool,
    may_read: bool,

    outgoing: Outgoing,
    /// State of an unreliable VI over datagrams.
    unreliable: Option<Box<Unreliable>>,
    /// Posts that wait: for reads to be over, or for the peer to take earlier messages.
    held_back: VecDeque<HeldBack>,
    /// Number of messages and writes in `held_back`.
    unsent: usize,
    /// The next post waits until the reads below this number are over.
    fence: Option<Position>,
    /// Window of posted messages and writes.
    window: SendWindow,
    /// Bytes of each message that the peer has not taken.
    untaken: VecDeque<u64>,
    /// Sum of `untaken` without the messages that are held back.
    untaken_bytes: u64,
    unacked: Unacked,
    reads: VecDeque<PendingRead>,
    next_read: Position,
    reads_over: Position,

    incoming: Incoming,
    recv_queue: RecvQueue<Infallible>,
    credits: ByteCredits,
    /// Receipts that our program has yet to give.
    owed: u32,

    close: Close,
    /// The end frame is in the stream, and not behind a fence.
    end_sent: bool,
    /// The peer's program takes nothing any more.
    peer_recv_closed: bool,
    broken: bool,
    over: bool,
    peer_over: bool,

    fresh: bool,
    events: Events,
}

impl Connection {
    /// Makes a connection on which nothing was sent yet.
    pub fn new(settings: Settings<'_>) -> Self {
        let Settings { memory, windows, ours, theirs, side, max_transfer } = settings;
        Connection {
            memory: memory.clone(),
            windows: windows.clone(),
            level: ours.reliability,
            side,
            max_transfer,
            writable: ours.writable_ptag,
            readable: ours.readable_ptag,
            may_write: theirs.writable_ptag.is_some(),
            may_read: theirs.readable_ptag.is_some(),
            outgoing: Outgoing::default(),
            unreliable: None,
            held_back: VecDeque::new(),
            unsent: 0,
            fence: None,
            window: SendWindow::default(),
            untaken: VecDeque::new(),
            untaken_bytes: 0,
            unacked: Unacked::default(),
            reads: VecDeque::new(),
            next_read: Position::START,
            reads_over: Position::START,
            incoming: Incoming::default(),
            recv_queue: RecvQueue::default(),
            credits: ByteCredits::default(),
            owed: 0,
            close: Close::default(),
            end_sent: false,
            peer_recv_closed: false,
            broken: false,
            over: false,
            peer_over: false,
            fresh: false,
            events: Events::default(),
        }
    }

    // ---- the outgoing stream ----

    /// Length of the outgoing stream so far in bytes, sent or not.
    pub fn queued(&self) -> u64 {
        self.outgoing.end()
    }

    /// Lowest offset of a byte that is still kept. (A frame is released as a whole, so this may be lower than the offset
    /// that [`Connection::released`] was called with.)
    pub fn released_to(&self) -> u64 {
        self.outgoing.start()
    }

    /// Appends pieces that hold the stream from offset `from`, at most `limit` bytes and as many pieces as there is room for.
    /// Returns the number of bytes: 0 when `from` is at [`Connection::queued`], and after [`Connection::lost`].
    ///
    /// # Panics
    /// When `from` is outside of `released_to() ..= queued()`, unless the connection is lost.
    pub fn gather<'a>(&'a self, from: u64, limit: usize, pieces: &mut Pieces<'a>) -> usize {
        if self.close.dead { 0 } else { self.outgoing.gather(from, limit, pieces) }
    }

    /// Releases the stream before offset `upto`: the driver will not gather it again, and no system call reads it. Memory is
    /// given back, and waiting posters are told. May be repeated.
    ///
    /// # Panics
    /// When `upto` is beyond [`Connection::queued`].
    pub fn released(&mut self, upto: u64) {
        if self.close.dead {
            return;
        }
        assert!(upto <= self.queued(), "{upto} was released of a stream of {} bytes", self.queued());
        while let Some(on_release) = self.outgoing.pop_released(upto) {
            self.after(on_release, TransferStatus::Arrived);
        }
        self.send_credits();
        self.report_given_up();
        self.try_over();
    }

    /// Whether a post has not left and is not in the stream yet: it waits for reads to be over, or for the peer to take
    /// earlier messages. (The end of a closed connection waits behind it.)
    pub fn holds_back(&self) -> bool {
        !self.held_back.is_empty()
            || self.unreliable.as_ref().is_some_and(|unreliable| !unreliable.is_empty())
    }

    /// Whether all posts have been [released](Connection::released), or will never be.
    pub fn is_all_sent(&self) -> bool {
        self.close.dead || (self.outgoing.start() == self.outgoing.end() && !self.holds_back())
    }

    /// Acts as if `messages` more had passed each way.
    #[cfg(test)]
    pub(crate) fn advance_for_test(&mut self, messages: u64) {
        let (sent, taken) = (self.window.sent(), self.window.taken());
        self.window = SendWindow::at(sent.plus(messages), taken.plus(messages));
        self.credits.advance_for_test(messages);
    }

    /// Frames that wait to be sent or released.
    #[cfg(test)]
    pub(crate) fn frames(&self) -> usize {
        self.outgoing.iter().count()
    }

    // ---- for links ----

    /// Whether frames were queued since the last call.
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// Takes the news of the connection. A driver without a [`crate::Link`] asks after every call.
    pub fn take_events(&mut self) -> Events {
        self.events.take(!self.recv_queue.is_empty())
    }

    /// Whether there may be something for [`Connection::take_events`]: mostly there is not.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.events.is_any()
    }

    /// The same as [`Events::take_arrivals`].
    #[inline]
    pub(crate) fn takes_arrivals(&mut self) -> bool {
        self.events.take_arrivals()
    }

    /// Notes all news again for a new receiver of news.
    pub(crate) fn renotify(&mut self) {
        self.events.renotify(self.close.end());
    }

    /// Whether something is there for the program to take.
    pub(crate) fn has_arrivals(&self) -> bool {
        !self.recv_queue.is_empty()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("side", &self.side)
            .field("level", &self.level)
            .field("phase", &self.phase())
            .field("queued", &self.queued())
            .field("released", &self.released_to())
            .field("held_back", &self.held_back.len())
            .field("untaken", &self.untaken.len())
            .field("unacked", &self.unacked.len())
            .field("reads", &self.reads.len())
            .field("recv_queue", &self.recv_queue.len())
            .field("owed", &self.owed)
            .field("close", &self.close)
            .finish_non_exhaustive()
    }
}
