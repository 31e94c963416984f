//! A VI's connection over two streams of frames, without sockets, clocks or threads.
//!
//! The program's side posts and takes; the stream side is what a driver moves. Memory that was posted is never copied: a
//! frame refers to it until the driver says that it is released.
//!
//! | file | what it is |
//! |---|---|
//! | `send_queue` | the program's posts: room for them, fences |
//! | `outgoing` | the queue of frames, in place |
//! | `pieces` | what drivers send from and receive into |
//! | `incoming` | the parser, and where payload goes |
//! | `expected` | where the next body goes, if it is like the last two |
//! | `peer_requests` | what arrived and is not for the program: RDMA, receipts, the end |
//! | `recv_queue` | what the program takes, and the credits that follow |
//! | `unreliable` | messages that travel outside of the stream, in datagrams |
//! | `unacked` | who has the memory of what was posted, and what follows when it is over |
//! | `close` | the end, in order or not |

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
use unacked::Reading;
use unreliable::Unreliable;
pub use unreliable::{Content, Datagram, Landing};

/// Which end asked for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Asked,
    /// The other one.
    Accepted,
}

/// What a connection is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Where messages are sent from, and received bodies lie.
    pub memory: &'a Memory,
    /// What peers may reach.
    pub windows: &'a Arc<Windows>,
    /// What this side said of itself.
    pub ours: &'a Hello,
    /// What the other side said of itself.
    pub theirs: &'a Hello,
    /// Which end this is.
    pub side: Side,
    /// The longest message, in bytes, that is received: [`udeck_via::NicAttributes::max_transfer`]. A peer that
    /// announces a longer one breaks the connection.
    pub max_transfer: usize,
}

/// How far a connection is; for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It stands, or one side has closed and the other has yet to, or somebody still waits for a receipt.
    Open,
    /// The peer broke the protocol: send what is queued as far as the stream takes it without waiting (words for the
    /// peer), then call [`Connection::lost`] and close the stream.
    Broken,
    /// Both sides have ended it and nothing is under way: close the stream and forget the link. `abruptly`: the peer
    /// has everything and waits for nothing, so the stream may be reset (SO_LINGER 0: no TIME_WAIT); otherwise an
    /// ordinary close, which the peer's reset ends.
    Over {
        /// Whether the stream may be reset.
        abruptly: bool,
    },
}

/// One VI's connection: what the program posts and takes, and two streams of frames.
pub struct Connection {
    memory: Memory,
    windows: Arc<Windows>,
    level: Reliability,
    side: Side,
    max_transfer: usize,
    /// The tags of our windows that the peer may write, and read.
    writable: Option<Ptag>,
    readable: Option<Ptag>,
    /// Whether it lets us write and read any.
    may_write: bool,
    may_read: bool,

    outgoing: Outgoing,
    /// Of an unreliable VI over datagrams.
    unreliable: Option<Box<Unreliable>>,
    /// Posts that wait: for reads to be over, or for the peer to take what was sent before.
    held_back: VecDeque<HeldBack>,
    /// Messages and writes among them.
    unsent: usize,
    /// What is posted next waits until the reads below this one are over.
    fence: Option<Position>,
    /// Of messages and writes that were posted.
    window: SendWindow,
    /// The bytes of each message that the peer has not taken.
    untaken: VecDeque<u64>,
    /// Of those that are not held back.
    untaken_bytes: u64,
    unacked: Unacked,
    reads: VecDeque<Reading>,
    next_read: Position,
    reads_over: Position,

    incoming: Incoming,
    recv_queue: RecvQueue<Infallible>,
    credits: ByteCredits,
    /// Receipts that our program has yet to give.
    owed: u32,

    close: Close,
    /// The end is in the stream, not behind a fence.
    end_sent: bool,
    /// Its program takes nothing any more.
    peer_deaf: bool,
    broken: bool,
    over: bool,
    peer_over: bool,

    fresh: bool,
    events: Events,
}

impl Connection {
    /// A connection on which nothing was sent yet.
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
            peer_deaf: false,
            broken: false,
            over: false,
            peer_over: false,
            fresh: false,
            events: Events::default(),
        }
    }

    // ---- the outgoing stream ----

    /// Bytes of the outgoing stream so far, sent or not.
    pub fn queued(&self) -> u64 {
        self.outgoing.end()
    }

    /// What lies before this offset is not there any more. (A frame is released as a whole: this may stay behind what
    /// [`Connection::released`] was told.)
    pub fn released_to(&self) -> u64 {
        self.outgoing.start()
    }

    /// Appends pieces that hold the stream from offset `from`, at most `limit` bytes and as many pieces as there is room
    /// for. Returns their bytes: 0 when `from` is at [`Connection::queued`], and after [`Connection::lost`].
    ///
    /// # Panics
    /// Outside of `released_to() ..= queued()`, unless it is lost.
    pub fn gather<'a>(&'a self, from: u64, limit: usize, pieces: &mut Pieces<'a>) -> usize {
        if self.close.dead { 0 } else { self.outgoing.gather(from, limit, pieces) }
    }

    /// What lies before `upto` will not be gathered again, and nobody reads it: memory is given back, and whoever waits
    /// is told. May be told again.
    ///
    /// # Panics
    /// Beyond [`Connection::queued`].
    pub fn released(&mut self, upto: u64) {
        if self.close.dead {
            return;
        }
        assert!(upto <= self.queued(), "{upto} was released of a stream of {} bytes", self.queued());
        while let Some(then) = self.outgoing.pop_released(upto) {
            self.after(then, TransferStatus::Arrived);
        }
        self.tell_credits();
        self.tell_given_up();
        self.try_over();
    }

    /// Whether something that was posted has not left and is not in the stream yet: it waits for reads to be over, or for
    /// the peer to take what came before. (The end of a closed connection waits behind it.)
    pub fn holds_back(&self) -> bool {
        !self.held_back.is_empty()
            || self.unreliable.as_ref().is_some_and(|unreliable| !unreliable.is_empty())
    }

    /// Whether all that was posted has been [released](Connection::released), or will never be.
    pub fn is_all_sent(&self) -> bool {
        self.close.dead || (self.outgoing.start() == self.outgoing.end() && !self.holds_back())
    }

    /// As if so many more messages had passed each way.
    #[cfg(test)]
    pub(crate) fn age(&mut self, messages: u64) {
        let (sent, taken) = (self.window.sent(), self.window.taken());
        self.window = SendWindow::at(sent.plus(messages), taken.plus(messages));
        self.credits.age(messages);
    }

    /// Frames that wait to be sent or released.
    #[cfg(test)]
    pub(crate) fn frames(&self) -> usize {
        self.outgoing.iter().count()
    }

    // ---- for links ----

    /// Whether frames were queued since this was asked last.
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// What there is to tell. Who drives a connection without a [`crate::Link`] asks after every call.
    pub fn take_events(&mut self) -> Events {
        self.events.take(!self.recv_queue.is_empty())
    }

    /// Whether there may be something for [`Connection::take_events`]: mostly there is not.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.events.is_any()
    }

    /// As [`Events::take_arrivals`].
    #[inline]
    pub(crate) fn takes_arrivals(&mut self) -> bool {
        self.events.take_arrivals()
    }

    /// There is somebody new to be told.
    pub(crate) fn tell_again(&mut self) {
        self.events.tell_again(self.close.end());
    }

    /// Whether something lies there for the program.
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
