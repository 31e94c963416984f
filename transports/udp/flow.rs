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
//! | `outgoing` | what is to be sent, again or first | |
//! | `incoming` | what arrived too early | |
//! | `sent` | packets under way, which are lost | RFC 9002, 6.1 |
//! | `arrivals` | packets that came, when to say so | RFC 9000, 13.2 |
//! | `rtt` | round-trip time | RFC 9002, 5 |
//! | `congestion` | NewReno | RFC 9002, 7 |
//! | `mtu` | longest datagram | RFC 8899 |
//! | `ranges` | sets of numbers | |

mod arrivals;
mod congestion;
mod incoming;
mod mtu;
mod outgoing;
mod ranges;
mod rtt;
mod sent;

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::wire::{AckRanges, Acks, Close, Flags, NUMBERS, Packet, PacketHeader};
use arrivals::{Arrivals, MAX_DELAY, Wish};
use congestion::Congestion;
use incoming::{Incoming, NotTaken};
use mtu::PathMtu;
pub use mtu::{BASE as BASE_DATAGRAM, MOST as MAX_DATAGRAM};
use outgoing::Outgoing;
pub(crate) use ranges::Ranges;
use rtt::Rtt;
use sent::{Load, Sent};

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

    /// A packet came. `deliver` gets the bytes that are in order now, piece after piece, and has to take them all.
    ///
    /// # Errors
    /// Why it had no effect. Nothing that has to be acted upon.
    pub fn receive(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Ignored> {
        let done = self.take(now, packet, deliver);
        match done {
            Ok(()) => self.stats.received += 1,
            Err(_) => self.stats.ignored += 1,
        }
        done
    }

    fn take(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Ignored> {
        if packet.connection != self.names.ours {
            return Err(Ignored::Foreign);
        }
        if self.state != State::Open {
            self.say_it_again(packet);
            return Err(Ignored::Over);
        }
        if packet.acks.is_some_and(|acks| acks.largest >= self.number) {
            return Err(Ignored::Protocol("it acknowledges what was not sent"));
        }
        if self.arrivals.knows(packet.number) {
            return Err(Ignored::Duplicate);
        }
        if !packet.payload.is_empty() {
            self.incoming.take(packet.offset, packet.payload, deliver).map_err(|why| match why {
                NotTaken::Beyond => Ignored::Protocol("it lies beyond the window"),
                NotTaken::Scattered => Ignored::Scattered,
            })?;
        }
        (self.heard, self.asked) = (now, 0);
        self.arrivals.note(now, packet.number, wish(packet));
        self.outgoing.allow(packet.window);
        if let Some(acks) = &packet.acks {
            self.acknowledged(now, acks);
        }
        if let Some(code) = packet.close() {
            self.state = State::Closed(code);
        }
        Ok(())
    }

    /// Who goes on sending has not heard that it is over.
    fn say_it_again(&mut self, packet: &Packet<'_>) {
        if let (State::Over(code), None) = (self.state, packet.close()) {
            self.close = Some(code);
        }
    }

    fn acknowledged(&mut self, now: Instant, acks: &Acks<'_>) {
        let used = 2 * self.sent.in_flight() >= self.congestion.window();
        let Flow { sent, outgoing, congestion, mtu, rtt, .. } = self;
        let news = sent.acknowledge(acks.ranges(), |packet| {
            match &packet.load {
                Load::Stream(range) => outgoing.arrived(range.clone()),
                Load::Probe(size) => mtu.arrived(*size),
                Load::Ping => {}
            }
            mtu.passed(packet.number, packet.size);
            if packet.was_given_up() {
                rtt.late(now.saturating_duration_since(packet.at));
            }
            congestion.arrived(packet.at, packet.size, used);
        });
        if !news.any {
            return;
        }
        self.stats.spurious += u64::from(news.spurious);
        if let Some(at) = news.largest {
            self.rtt.measure(now.saturating_duration_since(at), acks.delay, MAX_DELAY);
        }
        self.backoff = 0;
        self.find_losses(now);
        if let Some(then) = now.checked_sub(2 * self.patience()) {
            self.sent.forget(then);
        }
    }

    fn find_losses(&mut self, now: Instant) {
        let Flow { sent, outgoing, mtu, stats, .. } = self;
        let losses = sent.lose(now, self.rtt.loss_delay(), |packet| {
            match &packet.load {
                Load::Stream(range) => _ = outgoing.lost(range.clone()),
                Load::Probe(_) => return mtu.failed(),
                Load::Ping => {}
            }
            mtu.missed(now, packet.number, packet.size);
            stats.lost += 1;
        });
        self.congestion.set_datagram(self.mtu.current());
        let Some(at) = losses.last else { return };
        self.congestion.lost(now, at);
        if self.rtt.is_measured() && losses.span > 3 * self.patience() {
            self.congestion.collapsed();
        }
    }

    /// It is `now`, which is what [`Flow::timer`] said or later.
    pub fn time(&mut self, now: Instant) {
        if self.state != State::Open {
            return;
        }
        let due = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        if due(self.death()) {
            self.state = State::Silent;
            return;
        }
        if due(self.sent.loss_time()) {
            self.find_losses(now);
        }
        if due(self.mtu.deadline()) {
            self.mtu.failed();
        }
        if due(self.probe_time()) {
            self.probe();
        }
        if due(self.ping_time()) && !self.ping {
            self.ping = true;
            self.asked += 1;
            self.incoming.rest();
        }
    }

    /// Silence although something is under way: something is sent that has to be answered (RFC 9002, section 6.2.4).
    fn probe(&mut self) {
        self.probes = if self.backoff == 0 { 1 } else { 2 };
        self.backoff += 1;
        self.asked += 1;
        self.stats.probes += 1;
    }

    /// When [`Flow::time`] has to be called. May lie in the past: then now.
    pub fn timer(&self) -> Option<Instant> {
        if self.state != State::Open {
            return None;
        }
        let times = [
            self.sent.loss_time(),
            self.mtu.deadline(),
            self.probe_time(),
            self.ping_time(),
            self.death(),
            self.arrivals.due(),
        ];
        times.into_iter().flatten().min()
    }

    fn death(&self) -> Option<Instant> {
        (self.asked >= LEAST_ASKED).then(|| self.heard + self.dead_after)
    }

    fn ping_time(&self) -> Option<Instant> {
        self.sent.waiting_since().is_none().then(|| self.heard + self.keep_alive())
    }

    fn probe_time(&self) -> Option<Instant> {
        let patience = self.patience();
        let longest = patience.max(self.keep_alive());
        let backed_off = patience.saturating_mul(1 << self.backoff.min(16)).min(longest);
        self.sent.waiting_since().map(|since| since + backed_off)
    }

    fn patience(&self) -> Duration {
        self.rtt.patience() + MAX_DELAY
    }

    fn keep_alive(&self) -> Duration {
        self.dead_after / 5
    }

    /// The next datagram to send, if there is one.
    pub fn transmit(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(code) = self.close.take() {
            let flags = Flags { close: true, ..Flags::default() };
            return Some(self.packet(now, flags, u64::from(code.0)));
        }
        if self.state != State::Open {
            return None;
        }
        if let Some(load) = self.load() {
            return Some(self.loaded(now, load));
        }
        if let Some(size) = self.mtu.probe(now).filter(|_| self.rtt.is_measured() && self.sent.has_room()) {
            return Some(self.loaded(now, Load::Probe(size)));
        }
        self.arrivals.due().filter(|due| *due <= now)?;
        self.stats.acks_alone += 1;
        let transmit = self.packet(now, Flags::default(), self.outgoing.next());
        self.arrivals.sent(now, false);
        Some(transmit)
    }

    /// What the next packet carries that wants an acknowledgement, if one may go.
    fn load(&mut self) -> Option<Load> {
        let probing = self.probes > 0;
        if !self.sent.has_room() {
            if !probing {
                return None;
            }
            if let Some(Load::Stream(range)) = self.sent.evict() {
                self.outgoing.lost(range);
            }
        }
        if probing && self.backoff > 1 && self.probes == 1 {
            // The second of two: short, should it be the length that keeps the others from arriving.
            return Some(Load::Ping);
        }
        let header = self.arrivals.header();
        let room = self.mtu.current() - header;
        if let Some(range) = self.outgoing.peek(room) {
            let size = header + (range.end - range.start) as usize;
            let fits = self.sent.in_flight() + size <= self.congestion.window();
            return (fits || probing).then_some(Load::Stream(range));
        }
        if !probing {
            return self.ping.then_some(Load::Ping);
        }
        let oldest = self.sent.oldest().and_then(|range| self.outgoing.missing(range));
        Some(
            oldest.map_or(Load::Ping, |range| {
                Load::Stream(range.start..range.end.min(range.start + room as u64))
            }),
        )
    }

    fn loaded(&mut self, now: Instant, load: Load) -> Transmit {
        let mut flags = Flags::default();
        let (mut range, mut target) = (self.outgoing.next()..self.outgoing.next(), 0);
        match &load {
            Load::Stream(bytes) => range = bytes.clone(),
            Load::Ping => flags.ping = true,
            Load::Probe(size) => (flags.probe, target) = (true, *size),
        }
        let number = self.number;
        self.stats.bytes_again += range.end.min(self.outgoing.next()).saturating_sub(range.start);
        self.outgoing.sent(&range);
        flags.last = self.outgoing.peek(1).is_none();
        let mut transmit = self.packet(now, flags, range.start);
        self.arrivals.sent(now, !range.is_empty());
        transmit.padding = target.saturating_sub(transmit.header.bytes().len());
        transmit.range = range;
        let size = transmit.size();
        if flags.probe {
            self.mtu.sent(size, now + 2 * self.patience());
            self.sent.push(number, now, 0, load);
            return transmit;
        }
        if size == self.mtu.current() {
            self.mtu.want();
        }
        self.probes = self.probes.saturating_sub(1);
        self.ping = false;
        self.sent.push(number, now, size, load);
        transmit
    }

    /// A header, with what there is to acknowledge.
    fn packet(&mut self, now: Instant, flags: Flags, offset: u64) -> Transmit {
        let (connection, number, window) = (self.names.theirs, self.number, self.incoming.limit());
        let packet = Packet { connection, number, offset, window, flags, acks: None, payload: &[] };
        let acks: Option<AckRanges<_>> = self.arrivals.acknowledgement(now);
        let header = PacketHeader::new(&packet, acks);
        self.number += 1;
        self.stats.sent += 1;
        Transmit { header, range: 0..0, padding: 0 }
    }

    /// The host does not send datagrams of `size` bytes (`EMSGSIZE`): one that was to go counts as lost on its way.
    pub fn too_long(&mut self, size: usize) {
        self.mtu.too_long(size);
    }
}

fn wish(packet: &Packet<'_>) -> Wish {
    match packet.flags {
        Flags { ping: true, .. } | Flags { probe: true, .. } => Wish::Now,
        _ if packet.payload.is_empty() => Wish::Nothing,
        Flags { last: true, .. } => Wish::Last,
        _ => Wish::Soon,
    }
}
