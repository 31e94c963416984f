//! A VI's connection over one queue pair, without a device, sockets, clocks or threads.
//!
//! The program's side posts and takes. The device's side is a [`Work`], to which [`Connection::pump`] gives work requests as
//! long as it has room, and what completes is told by [`Connection::sent`], [`Connection::failed`], [`Connection::on_receive`] and
//! [`Connection::written`]. Memory that was posted is never copied: a request refers to it until it has completed.
//!
//! Two queues wait for the device: what the program posts, in order, and what the engine itself has to say or to read,
//! which does not wait for that. Nothing waits for the peer's program: so what waits at all goes on as long as both engines
//! run.
//!
//! | file | what it is |
//! |---|---|
//! | `send_queue` | the program's posts: room for them |
//! | `send_engine` | from both queues to the device, and what completes |
//! | `recv_engine` | what comes: messages, notes, questions |
//! | `rendezvous_read` | offered messages, which are read from their sender's memory |
//! | `recv_queue` | what the program takes, and the credits that follow |
//! | `close` | who has the memory of what was posted, and what follows when it is over; the end, in order or not |
//! | `unreliable` | messages that travel on the unreliable queue pair, on a queue pair that may lose them |

mod close;
mod recv_engine;
mod recv_queue;
mod rendezvous_read;
mod send_engine;
mod send_queue;
#[cfg(test)]
mod tests;
mod unreliable;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ptr::NonNull;

use udeck_session::{Close, Credits, Events, Memory, RecvQueue, SendWindow, Unacked};
use udeck_via::transport::Hello;
use udeck_via::{Reliability, RemoteBuffer};

use crate::hca::objects::Mr;
use crate::memory::Segment;
use crate::wire::{Far, Note, Part};
use close::Offered;
use recv_queue::Offer;
use rendezvous_read::RendezvousRead;
use send_engine::Flying;
use send_queue::Post;
use unreliable::Unreliable;

/// Messages that may be sent and not taken by the peer's program, each way; also reads that may be under way.
pub const MESSAGES: u32 = 64;
/// Control frames that may be sent and not acknowledged by the peer's engine; and with those that only tell credits.
const CONTROL: u32 = 8;
/// Receive buffers: no frame finds none. One is for the end, which is sent in any case; others wait to be posted again
/// ([`CHAIN`]).
pub const RECEIVES: u32 = MESSAGES + CONTROL + CREDITS + 1 + (CHAIN - 1);
/// Receive buffers are posted so many at a time.
pub const CHAIN: u32 = 8;
/// Frames of credits on top: one is sent when four control frames are unacknowledged, and the peer sends no more than
/// [`CONTROL`] of those, and its own credits, without an acknowledgement.
const CREDITS: u32 = 8;
/// Bytes of messages that lie here untaken, beyond which no further offer is read.
const WAITING: usize = 256 << 10;
/// Windows of the peer whose places are remembered.
const PLACES: usize = 1024;

/// The device's side of a connection.
pub trait Work {
    /// Whether it takes one more request.
    fn has_room(&self) -> bool;
    /// How many bytes of `segments` from `from` on one request takes.
    ///
    /// # Errors
    /// As [`Work::send`]: the device cannot use that memory.
    fn fitting(&mut self, segments: &[Segment], from: usize) -> Result<usize, String>;
    /// How many bytes one read brings there.
    ///
    /// # Errors
    /// As [`Work::fitting`].
    fn fitting_read(&mut self, segments: &[Segment], from: usize) -> Result<usize, String> {
        self.fitting(segments, from)
    }
    /// Sends `lead`, which is copied, and then `body`, in one frame.
    ///
    /// # Errors
    /// Why the connection is lost.
    fn send(&mut self, lead: &[u8], body: &[Segment], how: How) -> Result<(), String>;
    /// Writes [`Work::fitting`] bytes.
    ///
    /// # Errors
    /// As [`Work::send`].
    fn write(&mut self, from: Span<'_>, to: Far, immediate: Option<u32>, how: How) -> Result<(), String>;
    /// Reads [`Work::fitting_read`] bytes.
    ///
    /// # Errors
    /// As [`Work::send`].
    fn read(&mut self, to: Span<'_>, from: Far, how: How) -> Result<(), String>;
    /// Where peers read this; one for each piece of memory that has a key of its own.
    ///
    /// # Errors
    /// As [`Work::send`].
    fn offer(&mut self, segments: &[Segment], parts: &mut Vec<Part>) -> Result<(), String>;
    /// Makes memory known to the device, to be read into, until the region is dropped.
    ///
    /// # Errors
    /// As [`Work::send`].
    fn register(&mut self, memory: NonNull<[u8]>) -> Result<Mr, String>;
    /// Where the peer finds the window of this handle; `None`: it may not.
    fn find(&mut self, handle: u32, write: bool) -> Option<Far>;
    /// The queue pair beside it, on which messages travel on the unreliable queue pair.
    fn unreliable(&mut self) -> Option<&mut dyn Work> {
        None
    }
}

/// Bytes of several segments.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub segments: &'a [Segment],
    pub from: usize,
    pub len: usize,
}

/// How a request is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Not before all reads before it are over.
    pub fence: bool,
    /// Its completion is told.
    pub signalled: bool,
    /// Its number; requests complete in order.
    pub token: u32,
}

/// How far a connection is; for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It stands, or one side has closed and the other has yet to, or somebody still waits for a receipt.
    Open,
    /// This side has nothing more to send or to wait for: the peer is to be told.
    Done,
    /// So has the peer, or it is lost: the queue pair may go.
    Over,
}

/// See the module.
pub struct Connection {
    memory: Memory,
    level: Reliability,
    /// Whether the peer lets us write and read windows of any tag.
    may_write: bool,
    may_read: bool,
    /// A frame stands for the immediate data of a write: the network has none.
    frames_immediates: bool,
    max_transfer: usize,
    /// For messages that travel on the unreliable queue pair.
    unreliable: Option<Box<Unreliable>>,

    posts: VecDeque<Post>,
    /// Those of the device's requests of whose end something follows, oldest first.
    flying: VecDeque<Flying>,
    /// The numbers of the device's requests: from the first that is not over to the next one. As all numbers of 32 bits here
    /// they wrap, and are compared over distances only that are checked to be short: requests of one queue, messages or
    /// control frames under way.
    retired: u32,
    next_token: u32,
    unsignalled: u32,
    /// The next request's completion is to be told.
    seeks_confirmation: bool,
    fence: bool,
    /// Numbered frames so far, and how many of them the peer's program has taken.
    window: SendWindow,
    /// Reads of the program's that are not over.
    reads: u32,
    unacked: Unacked,
    offered: VecDeque<Offered>,

    /// Where the peer's windows are, as far as it was asked.
    places: HashMap<(u32, bool), Far>,
    /// A question is out: where is this window.
    seeking: Option<(u32, bool)>,

    // What the engine has to say: see `send_engine`.
    notes: Vec<Note>,
    says_where: Option<(u32, bool)>,
    says_here: VecDeque<(u32, bool)>,
    says_ask: bool,
    says_hungry: bool,
    control_sent: u32,
    control_acked: u32,

    recv_queue: RecvQueue<Box<Offer>>,
    /// Offers among it.
    offers: usize,
    /// The offer whose reads are being posted.
    reading: Option<RendezvousRead>,
    arrived: u32,
    credits: Credits,
    /// Control frames of the peer's that were received, and how many of them it knows to be.
    control_received: u32,
    control_ack_sent: u32,
    /// Receipts that our program has yet to give.
    owed: u32,

    close: Close,
    end_sent: bool,
    peer_done: bool,
    /// It failed on this side: what the peer is to be told.
    last_words: Option<String>,

    events: Events,
}

impl Connection {
    /// A connection on which nothing was sent yet.
    pub fn new(memory: &Memory, ours: &Hello, theirs: &Hello, max_transfer: usize) -> Self {
        Connection {
            memory: memory.clone(),
            level: ours.reliability,
            may_write: theirs.writable_ptag.is_some(),
            may_read: theirs.readable_ptag.is_some(),
            frames_immediates: false,
            max_transfer,
            unreliable: None,
            posts: VecDeque::new(),
            flying: VecDeque::new(),
            retired: 0,
            next_token: 0,
            unsignalled: 0,
            seeks_confirmation: false,
            fence: false,
            window: SendWindow::default(),
            reads: 0,
            unacked: Unacked::default(),
            offered: VecDeque::new(),
            places: HashMap::new(),
            seeking: None,
            notes: Vec::new(),
            says_where: None,
            says_here: VecDeque::new(),
            says_ask: false,
            says_hungry: false,
            control_sent: 0,
            control_acked: 0,
            recv_queue: RecvQueue::default(),
            offers: 0,
            reading: None,
            arrived: 0,
            credits: Credits::default(),
            control_received: 0,
            control_ack_sent: 0,
            owed: 0,
            close: Close::default(),
            end_sent: false,
            peer_done: false,
            last_words: None,
            events: Events::default(),
        }
    }

    /// The network has no immediate data.
    pub fn without_immediates(&mut self) {
        self.frames_immediates = true;
    }

    /// Whether there is something to tell.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.events.is_any()
    }

    /// Whether something lies there for the program, and that is all there is to tell: then it is told.
    #[inline]
    pub fn take_arrivals(&mut self) -> bool {
        self.has_arrivals() && self.events.take_arrivals()
    }

    /// What there is to tell.
    pub fn take_events(&mut self) -> Events {
        let arrivals = self.has_arrivals();
        self.events.take(arrivals)
    }

    /// There is somebody new to be told.
    pub fn tell_again(&mut self) {
        self.events.tell_again(self.close.end());
    }

    /// Whether a window's place was told, for what it is wanted for.
    fn place_of(&self, remote: RemoteBuffer, write: bool) -> Option<Far> {
        self.places.get(&(remote.handle.0, write)).copied()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("level", &self.level)
            .field("phase", &self.phase())
            .field("posts", &self.posts.len())
            .field("flying", &self.flying())
            .field("window", &self.window)
            .field("arrived", &self.arrived)
            .field("unreliable", &self.unreliable)
            .field("unacked", &self.unacked.len())
            .field("offered", &self.offered.len())
            .field("reads", &self.reads)
            .field("recv_queue", &self.recv_queue.len())
            .field("owed", &self.owed)
            .field("seeking", &self.seeking)
            .field(
                "control",
                &(self.control_sent, self.control_acked, self.control_received, self.control_ack_sent),
            )
            .field("close", &self.close)
            .field("end_sent", &self.end_sent)
            .finish_non_exhaustive()
    }
}
