//! A VI's connection over two streams of frames, without sockets, clocks or threads.
//!
//! The program's side posts and takes; the stream side is what a driver moves. Memory that was posted is never copied: a
//! frame refers to it until the driver says that it is released.
//!
//! | file | what it is |
//! |---|---|
//! | `posting` | the program's posts: room for them, fences |
//! | `outgoing` | the queue of frames, in place |
//! | `pieces` | what drivers send from and receive into |
//! | `incoming` | the parser, and where payload goes |
//! | `served` | what arrived and is not for the program: RDMA, receipts, the end |
//! | `taking` | what the program takes, and the credits that follow |
//! | `apart` | messages that travel outside of the stream, in datagrams |
//! | `loans` | sends of which somebody waits for the end |
//! | `ending` | the end, in order or not |

mod apart;
mod ending;
mod incoming;
mod loans;
mod outgoing;
mod pieces;
mod posting;
mod served;
mod taking;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use udeck_sys::position::Position;
use udeck_via::transport::{Fate, Hello, Owner};
use udeck_via::{Ptag, Reliability};

use crate::memory::Memory;
use crate::windows::Windows;
use apart::Apart;
pub use apart::{Content, Landing, Leaving};
use incoming::Incoming;
pub(crate) use incoming::is_posted_for;
use loans::{Loan, Reading};
use outgoing::Outgoing;
pub use pieces::{Direct, Piece, PieceMut, Pieces};
use posting::HeldBack;
use taking::{Credits, Item};
pub(crate) use taking::{Taken, What};

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

/// What has happened that a program waits for.
#[derive(Debug, Default)]
pub struct News {
    /// There is room again, or something that was posted is over.
    pub send: bool,
    /// Something arrived, or the connection ended.
    pub receive: bool,
    /// The connection ended by an error.
    pub lost: Option<String>,
    /// What was kept for callers that are gone. Dropped without the lock: it may be anything.
    buried: Vec<Owner>,
}

impl News {
    /// Whether nobody need be told anything, and nothing is to be dropped.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.send && !self.receive && self.lost.is_none() && self.buried.is_empty()
    }
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
    apart: Option<Box<Apart>>,
    /// Posts that wait: for reads to be over, or for the peer to take what was sent before.
    held_back: VecDeque<HeldBack>,
    /// Messages and writes among them.
    unsent: usize,
    fence: Option<Position>,
    /// Messages and writes that were posted, and the bytes of each message that the peer has not taken.
    sent: Position,
    untaken: VecDeque<u64>,
    /// Of those that are not held back.
    untaken_bytes: u64,
    peer_taken: Position,
    /// A question is out: what has it taken, and: tell when it takes something.
    asked: bool,
    hungry: bool,
    loans: VecDeque<Loan>,
    reads: VecDeque<Reading>,
    next_read: Position,
    reads_over: Position,
    ended: VecDeque<(u64, Fate)>,
    wants_room: bool,

    incoming: Incoming,
    inbox: VecDeque<Item>,
    credits: Credits,
    /// Receipts that our program has yet to give.
    owed: u32,

    /// The program has closed it; and the end is in the stream, not behind a fence.
    closed: bool,
    said_end: bool,
    gone: bool,
    /// How the peer ended it: `Some` of words when by an error.
    peer_end: Option<Option<String>>,
    /// Its program takes nothing any more.
    peer_deaf: bool,
    lost: Option<String>,
    broken: bool,
    dead: bool,
    over: bool,
    peer_over: bool,

    fresh: bool,
    news: News,
    /// The end, as different from an arrival, is told whatever lies in the inbox.
    news_of_end: bool,
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
            apart: None,
            held_back: VecDeque::new(),
            unsent: 0,
            fence: None,
            sent: Position::START,
            untaken: VecDeque::new(),
            untaken_bytes: 0,
            peer_taken: Position::START,
            asked: false,
            hungry: false,
            loans: VecDeque::new(),
            reads: VecDeque::new(),
            next_read: Position::START,
            reads_over: Position::START,
            ended: VecDeque::new(),
            wants_room: false,
            incoming: Incoming::default(),
            inbox: VecDeque::new(),
            credits: Credits::default(),
            owed: 0,
            closed: false,
            said_end: false,
            gone: false,
            peer_end: None,
            peer_deaf: false,
            lost: None,
            broken: false,
            dead: false,
            over: false,
            peer_over: false,
            fresh: false,
            news: News::default(),
            news_of_end: false,
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
        if self.dead { 0 } else { self.outgoing.gather(from, limit, pieces) }
    }

    /// What lies before `upto` will not be gathered again, and nobody reads it: memory is given back, and whoever waits
    /// is told. May be told again.
    ///
    /// # Panics
    /// Beyond [`Connection::queued`].
    pub fn released(&mut self, upto: u64) {
        if self.dead {
            return;
        }
        assert!(upto <= self.queued(), "{upto} was released of a stream of {} bytes", self.queued());
        while let Some(then) = self.outgoing.pop_released(upto) {
            self.after(then, Fate::Arrived);
        }
        self.tell_credits();
        self.tell_given_up();
        self.try_over();
    }

    /// Whether something that was posted has not left and is not in the stream yet: it waits for reads to be over, or for
    /// the peer to take what came before. (The end of a closed connection waits behind it.)
    pub fn holds_back(&self) -> bool {
        !self.held_back.is_empty() || self.apart.as_ref().is_some_and(|apart| !apart.is_empty())
    }

    /// Whether all that was posted has been [released](Connection::released), or will never be.
    pub fn has_left(&self) -> bool {
        self.dead || (self.outgoing.start() == self.outgoing.end() && !self.holds_back())
    }

    /// Frames that wait to be sent or released.
    /// As if so many more messages had passed each way.
    #[cfg(test)]
    pub(crate) fn age(&mut self, messages: u64) {
        (self.sent, self.peer_taken) = (self.sent.plus(messages), self.peer_taken.plus(messages));
        self.credits.age(messages);
    }

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
    pub fn take_news(&mut self) -> News {
        let arrived = std::mem::take(&mut self.news.receive) && !self.inbox.is_empty();
        let mut news = std::mem::take(&mut self.news);
        news.receive = arrived || std::mem::take(&mut self.news_of_end);
        news
    }

    /// Whether there may be something for [`Connection::take_news`]: mostly there is not.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news_of_end || !self.news.is_empty()
    }

    /// There is somebody new to be told.
    pub(crate) fn tell_again(&mut self) {
        (self.news.send, self.news_of_end) = (true, true);
        if let Some(udeck_via::transport::Refused::Lost(why)) = self.end() {
            self.news.lost = Some(why);
        }
    }

    /// Whether something lies there for the program.
    pub(crate) fn has_arrivals(&self) -> bool {
        !self.inbox.is_empty()
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
            .field("loans", &self.loans.len())
            .field("reads", &self.reads.len())
            .field("inbox", &self.inbox.len())
            .field("owed", &self.owed)
            .field("closed", &self.closed)
            .field("peer_end", &self.peer_end)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}
