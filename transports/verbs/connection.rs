//! Connection of a VI over one queue pair: the protocol, without a device, sockets, clocks or threads.
//!
//! The program's side posts and takes messages. The device's side is a [`Work`], to which [`Connection::pump`] gives
//! work requests as long as it has room. Completions are reported to [`Connection::sent`], [`Connection::failed`],
//! [`Connection::on_receive`] and [`Connection::written`]. Posted memory is never copied: a request refers to it
//! until it has completed.
//!
//! Two queues wait for the device: the program's posts, in order, and the engine's own control frames and reads,
//! which do not wait for the posts. Nothing waits for the peer's program, so both queues advance as long as both
//! engines run.
//!
//! | file | what it is |
//! |---|---|
//! | `send_queue` | the program's posts: room for them |
//! | `send_engine` | from both queues to the device, and completions |
//! | `recv_engine` | incoming messages, notes, questions |
//! | `rendezvous_read` | offered messages, which are read from their sender's memory |
//! | `recv_queue` | messages for the program, and the credits that follow when it takes them |
//! | `close` | owners of posted memory; the end, in order or not |
//! | `unreliable` | messages of an unreliable VI, on a queue pair that may lose them |

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
use crate::wire::{Note, RemoteKey, RemotePiece};
use close::Offered;
use recv_queue::Offer;
use rendezvous_read::RendezvousRead;
use send_engine::InFlight;
use send_queue::Post;
use unreliable::Unreliable;

/// Upper bound of messages sent and not taken by the peer's program, in each direction; also of reads in flight.
pub const MESSAGES: u32 = 64;
/// Upper bound of control frames sent and not acknowledged by the peer's engine; with [`CREDITS`] more for frames
/// that only report credits.
const CONTROL: u32 = 8;
/// Receive buffers of a connection, so many that each frame finds one. One is for the end, which is sent in any
/// case; some wait to be posted again ([`CHAIN`]).
pub const RECEIVES: u32 = MESSAGES + CONTROL + CREDITS + 1 + (CHAIN - 1);
/// Number of receive buffers that are posted at a time.
pub const CHAIN: u32 = 8;
/// Further receive buffers for frames that only report credits. One is sent when four control frames are
/// unacknowledged, and the peer sends no more than [`CONTROL`] of those, and its own credits, without an
/// acknowledgement.
const CREDITS: u32 = 8;
/// Bytes of untaken messages beyond which no further offer is read.
const WAITING: usize = 256 << 10;
/// Upper bound of the peer's windows whose places are remembered.
const PLACES: usize = 1024;

/// Device side of a connection.
pub trait Work {
    /// Whether the device takes one more request.
    fn has_room(&self) -> bool;
    /// Number of bytes of `segments`, starting at `from`, that one request takes.
    ///
    /// # Errors
    /// As [`Work::send`]: the device cannot use that memory.
    fn fitting(&mut self, segments: &[Segment], from: usize) -> Result<usize, String>;
    /// Number of bytes that one read brings to `segments`, starting at `from`.
    ///
    /// # Errors
    /// The errors of [`Work::fitting`].
    fn fitting_read(&mut self, segments: &[Segment], from: usize) -> Result<usize, String> {
        self.fitting(segments, from)
    }
    /// Sends `lead`, which is copied, and then `body`, in one frame.
    ///
    /// # Errors
    /// Reason as text why the connection is lost.
    fn send(&mut self, lead: &[u8], body: &[Segment], options: RequestOptions) -> Result<(), String>;
    /// Writes [`Work::fitting`] bytes.
    ///
    /// # Errors
    /// The errors of [`Work::send`].
    fn write(
        &mut self,
        from: Span<'_>,
        to: RemoteKey,
        immediate: Option<u32>,
        options: RequestOptions,
    ) -> Result<(), String>;
    /// Reads [`Work::fitting_read`] bytes.
    ///
    /// # Errors
    /// The errors of [`Work::send`].
    fn read(&mut self, to: Span<'_>, from: RemoteKey, options: RequestOptions) -> Result<(), String>;
    /// Appends the places where peers can read `segments`: one part for each piece of memory that has a key of its own.
    ///
    /// # Errors
    /// The errors of [`Work::send`].
    fn offer(&mut self, segments: &[Segment], parts: &mut Vec<RemotePiece>) -> Result<(), String>;
    /// Registers memory for reading into it, until the region is dropped.
    ///
    /// # Errors
    /// The errors of [`Work::send`].
    fn register(&mut self, memory: NonNull<[u8]>) -> Result<Mr, String>;
    /// Returns where the peer finds the window `handle`; `None` if the peer may not access it.
    fn find(&mut self, handle: u32, write: bool) -> Option<RemoteKey>;
    /// Device side of the unreliable queue pair, if there is one.
    fn unreliable(&mut self) -> Option<&mut dyn Work> {
        None
    }
}

/// A range of bytes within several segments.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub segments: &'a [Segment],
    pub from: usize,
    pub len: usize,
}

/// Options of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// Start only after all earlier reads are complete.
    pub fence: bool,
    /// Report the completion.
    pub signalled: bool,
    /// Number of the request. Requests complete in order.
    pub token: u32,
}

/// Phase of a connection, for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The connection stands, or only one side has closed it, or somebody still waits for a receipt.
    Open,
    /// This side has nothing more to send or to wait for: its driver tells the peer.
    Done,
    /// The peer is done, too, or the connection is lost: the queue pair may go.
    Over,
}

/// State of a connection, without its device.
pub struct Connection {
    memory: Memory,
    level: Reliability,
    /// Whether the peer lets us write windows, and below, read windows, of any tag.
    may_write: bool,
    may_read: bool,
    /// A frame carries the immediate data of a write, because the network has none.
    frames_immediates: bool,
    max_transfer: usize,
    /// State of the unreliable queue pair's messages.
    unreliable: Option<Box<Unreliable>>,

    posts: VecDeque<Post>,
    /// The device's requests whose completion has an effect, oldest first.
    in_flight: VecDeque<InFlight>,
    /// Numbers of the device's requests: from the first that is not complete (`retired`) to the next one
    /// (`next_token`). Like all numbers of 32 bits here they wrap. They are compared only over distances that are
    /// known to be short: requests of one queue, messages or control frames in flight.
    retired: u32,
    next_token: u32,
    unsignalled: u32,
    /// The completion of the next request is to be reported.
    seeks_confirmation: bool,
    fence: bool,
    /// Numbered frames sent so far, and how many of them the peer's program has taken.
    window: SendWindow,
    /// Number of the program's reads that are not complete.
    reads: u32,
    unacked: Unacked,
    offered: VecDeque<Offered>,

    /// Places of the peer's windows, as far as they are known.
    places: HashMap<(u32, bool), RemoteKey>,
    /// Window whose place the peer was asked for and has not told.
    seeking: Option<(u32, bool)>,

    // The engine's own control frames: see `send_engine`.
    notes: Vec<Note>,
    pending_where: Option<(u32, bool)>,
    pending_here: VecDeque<(u32, bool)>,
    pending_ask: bool,
    pending_credit_request: bool,
    control_sent: u32,
    control_acked: u32,

    recv_queue: RecvQueue<Box<Offer>>,
    /// Number of offers in the receive queue.
    offers: usize,
    /// Read of an offer whose requests are being posted.
    reading: Option<RendezvousRead>,
    arrived: u32,
    credits: Credits,
    /// Number of the peer's control frames received, and below, how many of them were acknowledged.
    control_received: u32,
    control_ack_sent: u32,
    /// Number of receipts that our program has yet to give.
    owed: u32,

    close: Close,
    end_sent: bool,
    peer_done: bool,
    /// Text for the peer about a failure on this side.
    last_words: Option<String>,

    events: Events,
}

impl Connection {
    /// Makes a connection on which nothing was sent yet.
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
            in_flight: VecDeque::new(),
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
            pending_where: None,
            pending_here: VecDeque::new(),
            pending_ask: false,
            pending_credit_request: false,
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

    /// Carries immediate data of writes in frames: the network has none.
    pub fn without_immediates(&mut self) {
        self.frames_immediates = true;
    }

    /// Whether there are events to report.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.events.is_any()
    }

    /// Whether the only event is that the program has messages to receive. That event is then taken.
    #[inline]
    pub fn take_arrivals(&mut self) -> bool {
        self.has_arrivals() && self.events.take_arrivals()
    }

    /// Takes the events to report.
    pub fn take_events(&mut self) -> Events {
        let arrivals = self.has_arrivals();
        self.events.take(arrivals)
    }

    /// Reports all states again, to a new receiver of events.
    pub fn renotify(&mut self) {
        self.events.renotify(self.close.end());
    }

    /// Place of a window, for writing or for reading, if it is known.
    fn place_of(&self, remote: RemoteBuffer, write: bool) -> Option<RemoteKey> {
        self.places.get(&(remote.handle.0, write)).copied()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("level", &self.level)
            .field("phase", &self.phase())
            .field("posts", &self.posts.len())
            .field("in_flight", &self.in_flight())
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
