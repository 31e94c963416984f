//! A reliable, ordered stream of bytes in each direction, over datagrams: `(now, input) -> actions`.
//!
//! The machine has no bytes of the sender's. The user says up to where there are some ([`Flow::offer`]); the machine says
//! which to send ([`Transmit::range`]), and asks for the same ones again when they were lost. They have to stay where they
//! are until [`Flow::released`] is past them. What arrives in order is handed on out of the datagram; what comes too early
//! waits in memory of the size that the sender was told.
//!
//! ```
//! # use std::time::{Duration, Instant};
//! use udeck_udp::flow::{Flow, Names, Options};
//! use udeck_udp::wire::{Packet, open};
//!
//! let (now, options) = (Instant::now(), Options::default());
//! let mut sender = Flow::new(now, Names { ours: 1, theirs: 2 }, &options);
//! let mut receiver = Flow::new(now, Names { ours: 2, theirs: 1 }, &options);
//!
//! let bytes = b"in place until released";
//! sender.offer(bytes.len() as u64);
//! let mut packet = sender.transmit(now).expect("something to send");
//! let payload = &bytes[packet.range.start as usize..packet.range.end as usize];
//! packet.header.seal([payload]);
//! let datagram = [packet.header.bytes(), payload].concat();
//!
//! let mut arrived = Vec::new();
//! let packet = Packet::decode(&open(&datagram)?)?;
//! receiver.receive(now, &packet, &mut |bytes| arrived.extend_from_slice(bytes)).expect("a good packet");
//! assert_eq!(arrived, bytes);
//! # Ok::<(), udeck_udp::wire::Malformed>(())
//! ```
//!
//! After every input ([`Flow::offer`], [`Flow::receive`], [`Flow::time`], [`Flow::close`]) call [`Flow::transmit`] until it
//! has nothing more, and [`Flow::time`] when [`Flow::timer`] says. Read what has arrived before calling `time`: otherwise a
//! process that was stopped for long believes that its peer was silent, when only it did not listen.
//!
//! | file | what it is | from |
//! |---|---|---|
//! | `receiving`, `sending`, `timing` | what is done for a packet that came, one that goes, and when time passes | |
//! | `apart` | datagrams beside the stream, which are not sent again | RFC 9221 |
//! | `outgoing` | what is to be sent, again or first | |
//! | `incoming` | what arrived too early | |
//! | `sent` | packets under way, which are lost | RFC 9002, 6.1 |
//! | `arrivals` | packets that came, when to say so | RFC 9000, 13.2 |
//! | `rtt` | round-trip time | RFC 9002, 5 |
//! | `congestion` | NewReno | RFC 9002, 7 |
//! | `mtu` | longest datagram | RFC 8899 |
//! | `ranges` | sets of numbers | |

mod apart;
mod arrivals;
mod congestion;
mod incoming;
mod mtu;
mod outgoing;
mod ranges;
mod receiving;
mod rtt;
mod sending;
mod sent;
mod timing;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::wire::{Close, NUMBERS, PacketHeader};
pub use apart::Cut;
use arrivals::Arrivals;
use congestion::Congestion;
use incoming::Incoming;
use mtu::PathMtu;
pub use mtu::{BASE as BASE_DATAGRAM, MOST as MAX_DATAGRAM};
use outgoing::Outgoing;
pub(crate) use ranges::Ranges;
pub(crate) use rtt::INITIAL as FIRST_RTT;
use rtt::Rtt;
use sent::Sent;

/// Silence ends a connection only when it has been asked so often whether somebody is there.
const LEAST_ASKED: u32 = 3;
/// Every receiver takes so many bytes before it has said how many it takes.
pub const LEAST_WINDOW: usize = 64 << 10;

/// The two numbers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// What the peer's datagrams carry. Random: who does not know it cannot send us any.
    pub ours: u64,
    /// What ours carry.
    pub theirs: u64,
}

/// How a connection behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that the peer may send beyond what has arrived in one piece, rounded up to a power of two, at least
    /// [`LEAST_WINDOW`]. Memory of that size is taken when something comes too early, and given back when the connection
    /// rests.
    pub window: usize,
    /// Silence of this length ends the connection; after a fifth of it, the peer is asked.
    pub dead_after: Duration,
    /// Longest datagram that the interface carries, as UDP payload in bytes.
    pub max_datagram: usize,
    /// The round-trip time, if something was measured before.
    pub first_rtt: Option<Duration>,
}

impl Default for Options {
    /// 1 MiB, 10 s, and what Ethernet carries over IPv4.
    fn default() -> Self {
        Options { window: 1 << 20, dead_after: Duration::from_secs(10), max_datagram: 1472, first_rtt: None }
    }
}

/// How a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In use.
    Open,
    /// Ended by us ([`Flow::close`]).
    Over(Close),
    /// Ended by the peer. Whether all that it had sent before arrived is not known.
    Closed(Close),
    /// Nothing was heard of the peer for [`Options::dead_after`].
    Silent,
}

/// A packet that had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// It is for another connection.
    #[error("a packet for another connection")]
    Foreign,
    /// It came before, or is too old to tell.
    #[error("a packet that came before")]
    Duplicate,
    /// It breaks the protocol.
    #[error("a packet that breaks the protocol: {0}")]
    Protocol(&'static str),
    /// What came too early lies in too many places already.
    #[error("a packet that would leave too many gaps")]
    Scattered,
    /// The connection has ended.
    #[error("a packet for a connection that has ended")]
    Over,
}

/// A datagram to send: the header, closed over the payload by [`PacketHeader::seal`]; then the stream's bytes `range`; then
/// `padding` bytes of zero. At most one of the latter two has a length. Not to be fragmented on its way.
#[derive(Debug)]
pub struct Transmit {
    /// Goes first.
    pub header: PacketHeader,
    /// Stream bytes: the payload.
    pub range: Range<u64>,
    /// Zeros: the payload of a datagram that only tries a length.
    pub padding: usize,
}

impl Transmit {
    /// Bytes of the datagram.
    pub fn size(&self) -> usize {
        self.header.bytes().len() + (self.range.end - self.range.start) as usize + self.padding
    }
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent.
    pub sent: u64,
    /// Those that only acknowledge.
    pub acks_alone: u64,
    /// Stream bytes that were sent not for the first time.
    pub bytes_again: u64,
    /// Packets that were given up.
    pub lost: u64,
    /// Packets that were given up, and had only been late.
    pub spurious: u64,
    /// Times that silence made it probe.
    pub probes: u64,
    /// Packets received, the ignored ones not counted.
    pub received: u64,
    /// Packets that had no effect.
    pub ignored: u64,
}

/// What a connection holds at the moment; each has a bound, whatever the peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Packets under way, or lately lost. At most 4,096.
    pub packets: usize,
    /// Ranges of packet numbers that came. At most 32.
    pub ranges: usize,
    /// Separate parts of the stream that arrived at the peer, or are to be sent again. At most 8,192.
    pub outgoing: usize,
    /// Separate parts of the stream that came too early. At most 1,024.
    pub incoming: usize,
    /// Bytes of memory for these. At most [`Options::window`].
    pub bytes: usize,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Flow {
    names: Names,
    dead_after: Duration,
    state: State,
    /// Packet number of the next packet.
    number: u64,
    outgoing: Outgoing,
    incoming: Incoming,
    sent: Sent,
    arrivals: Arrivals,
    rtt: Rtt,
    congestion: Congestion,
    mtu: PathMtu,
    /// Probes in a row that nobody answered: each waits twice as long as the one before.
    backoff: u32,
    /// Packets that go whatever the congestion window says, because silence asked for them.
    probes: u8,
    /// The peer is to be asked whether it is there.
    ping: bool,
    /// Times that it was, since anything was heard.
    asked: u32,
    heard: Instant,
    /// The close to send: to everything that comes.
    close: Option<Close>,
    /// What was heard of pieces beside the stream.
    settled: VecDeque<(u64, bool)>,
    stats: Stats,
}

impl Flow {
    /// A connection that both ends have agreed on.
    pub fn new(now: Instant, names: Names, options: &Options) -> Self {
        let incoming = Incoming::new(options.window.max(LEAST_WINDOW));
        let mut outgoing = Outgoing::default();
        outgoing.allow(LEAST_WINDOW as u64);
        let mtu = PathMtu::new(options.max_datagram);
        Flow {
            names,
            dead_after: options.dead_after,
            state: State::Open,
            number: 0,
            outgoing,
            incoming,
            sent: Sent::new(),
            arrivals: Arrivals::default(),
            rtt: Rtt::new(options.first_rtt),
            congestion: Congestion::new(mtu.current()),
            mtu,
            backoff: 0,
            probes: 0,
            ping: false,
            asked: 0,
            heard: now,
            close: None,
            settled: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// How it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// What it holds.
    pub fn holdings(&self) -> Holdings {
        Holdings {
            packets: self.sent.len(),
            ranges: self.arrivals.ranges(),
            outgoing: self.outgoing.islands(),
            incoming: self.incoming.islands(),
            bytes: self.incoming.memory(),
        }
    }

    /// Stream bytes below are not asked for again: the peer has them.
    pub fn released(&self) -> u64 {
        self.outgoing.released()
    }

    /// Stream bytes below have been handed on.
    pub fn delivered(&self) -> u64 {
        self.incoming.delivered()
    }

    /// Longest datagram that it sends now.
    pub fn datagram(&self) -> usize {
        self.mtu.current()
    }

    /// The round-trip time, smoothed.
    pub fn round_trip(&self) -> Duration {
        self.rtt.smooth()
    }

    /// Bytes that may be under way at once.
    pub fn congestion_window(&self) -> usize {
        self.congestion.window()
    }

    /// There are bytes to send up to `end`.
    pub fn offer(&mut self, end: u64) {
        self.outgoing.offer(end.min(NUMBERS));
    }

    /// Ends the connection for both sides, at once: what is under way is not waited for.
    pub fn close(&mut self, code: Close) {
        if self.state == State::Open {
            (self.state, self.close) = (State::Over(code), Some(code));
        }
    }

    /// The host does not send datagrams of `size` bytes (`EMSGSIZE`): one that was to go counts as lost on its way.
    pub fn too_long(&mut self, size: usize) {
        self.mtu.too_long(size);
    }

    /// A router on the path says that it carries datagrams of at most `size` bytes. What was longer counts as lost when
    /// that shows.
    pub fn carries(&mut self, size: usize) {
        self.mtu.carries(size);
    }
}
