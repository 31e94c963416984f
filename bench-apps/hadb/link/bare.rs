//! A link by UDP sockets over the loopback device, without the library: the baseline. `window` makes the datagrams
//! reliable.
//!
//! A rank has a connected socket for each other rank. The kernel reports that a process is dead: its port is closed, so a
//! datagram to it is refused. Therefore each rank sends a datagram to each other rank ten times a second. Silence alone proves no
//! death: a rank that sends nothing for half a minute ends the run.

use super::{Blob, Event, Pairs, count_received, count_sent, window::Window};
use crate::failure::{HadbError, Result};
use crate::message::{Body, Outgoing, Usage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};
use udeck::World;

pub const DESCRIPTION: &str =
    "bare UDP sockets over the loopback device, with acknowledgements and repetition";
/// Time without a sent datagram after which an empty one is sent.
const ALIVE: Duration = Duration::from_millis(100);
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes of the receive buffer: more than the longest datagram.
const SCRATCH: usize = 64 << 10;

pub struct BareLink {
    /// Peers by rank; `None` at this rank's own place.
    peers: Vec<Option<Peer>>,
    ready: VecDeque<Event>,
    scratch: Vec<u8>,
    pub usage: Usage,
}

struct Peer {
    socket: UdpSocket,
    window: Window,
    /// Time of the last sent datagram.
    sent: Instant,
    dead: bool,
}

impl BareLink {
    /// Opens the sockets. Each rank tells each other rank the port of the socket for it; `world` only serves for this.
    pub(super) fn connect(world: &World, pairs: Pairs) -> Result<BareLink> {
        let open = HadbError::system::<io::Error>;
        let inbox = world.mailboxes::<u16>("hadb.ports")?;
        let outs = world.postboxes::<u16>("hadb.ports")?;
        let mut sockets: Vec<Option<UdpSocket>> = Vec::new();
        for (rank, out) in outs.iter().enumerate() {
            if !pairs.has(world.rank(), rank) {
                sockets.push(None);
                continue;
            }
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(open("opening a UDP socket"))?;
            let port = socket.local_addr().map_err(open("asking for a socket's port"))?.port();
            out.post(&[port])?;
            sockets.push(Some(socket));
        }
        for _ in 0..sockets.iter().flatten().count() {
            let port = inbox.retrieve()?;
            let socket = sockets.get(port.source()).and_then(Option::as_ref);
            let (Some(socket), Some(port)) = (socket, port.first()) else {
                return Err(HadbError::BadMessage { from: port.source() });
            };
            socket.connect((Ipv4Addr::LOCALHOST, *port)).map_err(open("connecting a UDP socket"))?;
            socket.set_nonblocking(true).map_err(open("setting a UDP socket up"))?;
        }
        drop((inbox, outs));
        world.barrier()?;
        let peer = |socket| Peer { socket, window: Window::default(), sent: Instant::now(), dead: false };
        let peers = sockets.into_iter().map(|socket| socket.map(peer)).collect();
        let (ready, usage) = (VecDeque::new(), Usage::default());
        Ok(BareLink { peers, ready, scratch: vec![0; SCRATCH], usage })
    }

    /// Sockets of all peers.
    pub fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.peers.iter().flatten().map(|peer| &peer.socket)
    }

    pub fn send(&mut self, message: Outgoing<Blob>) -> Result {
        let Outgoing { to, body, blob } = message;
        count_sent(&mut self.usage, &body);
        let bytes = postcard::to_allocvec(&body).map_err(|_| HadbError::BadMessage { from: to })?;
        let len = (bytes.len() as u32).to_le_bytes();
        let Some(Some(peer)) = self.peers.get_mut(to) else { return Ok(()) };
        peer.window.push(&[&len, &bytes, blob.as_deref().unwrap_or_default()]);
        self.serve(to, Instant::now());
        Ok(())
    }

    /// Sends the datagrams that the window of this rank has ready.
    fn serve(&mut self, rank: usize, now: Instant) {
        let Some(Some(peer)) = self.peers.get_mut(rank) else { return };
        if peer.dead {
            return;
        }
        let Peer { socket, window, sent, .. } = peer;
        let usage = &mut self.usage;
        let mut refused = false;
        window.transmit(now, |datagram, again| {
            refused |= is_refused(socket.send(datagram));
            *sent = now;
            usage.packets += 1;
            usage.again += u64::from(again);
        });
        if refused {
            self.died(rank);
        }
    }

    fn died(&mut self, rank: usize) {
        if let Some(Some(peer)) = self.peers.get_mut(rank)
            && !peer.dead
        {
            peer.dead = true;
            self.ready.push_back(Event::Lost(rank));
        }
    }

    pub fn receive(&mut self, limit: Duration) -> Result<Event> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(Event::Idle);
            }
            let next = self.maintain(now)?;
            if self.ready.is_empty() {
                self.wait(next.min(deadline).saturating_duration_since(now))?;
            }
        }
    }

    /// Takes all datagrams that have arrived, if there may be any. Returns the time until which nothing else is due: none, while
    /// events wait to be taken, so that an acknowledgement travels with the answer.
    pub fn poll(&mut self, has_news: bool) -> Result<Option<Instant>> {
        while has_news && self.wait(Duration::ZERO)? {}
        if self.ready.is_empty() { self.maintain(Instant::now()).map(Some) } else { Ok(None) }
    }

    /// Takes an event that [`BareLink::poll`] has found.
    pub fn take_event(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Sends the datagrams that are due. Returns the time until which no other will be due.
    fn maintain(&mut self, now: Instant) -> Result<Instant> {
        let mut next = now + ALIVE;
        for rank in 0..self.peers.len() {
            self.serve(rank, now);
            let Some(Some(peer)) = self.peers.get_mut(rank) else { continue };
            if peer.dead {
                continue;
            }
            if peer.window.waits_since().is_some_and(|since| now > since + SILENCE) {
                return Err(HadbError::Silent { peer: rank, after: SILENCE });
            }
            let mut refused = false;
            if peer.window.owes() || now >= peer.sent + ALIVE {
                refused = is_refused(peer.socket.send(&peer.window.acknowledgement()));
                peer.sent = now;
                self.usage.packets += 1;
            }
            next = next.min(peer.sent + ALIVE);
            if let Some(at) = peer.window.repeat_at() {
                next = next.min(at);
            }
            if refused {
                self.died(rank);
            }
        }
        Ok(next)
    }

    /// Waits for datagrams, and takes one from each rank that has sent some. Returns whether there were any.
    fn wait(&mut self, limit: Duration) -> Result<bool> {
        let asked: Vec<usize> = (0..self.peers.len())
            .filter(|rank| self.peers[*rank].as_ref().is_some_and(|peer| !peer.dead))
            .collect();
        let sockets = asked.iter().filter_map(|rank| self.peers[*rank].as_ref());
        let mut waiting: Vec<PollFd<'_>> =
            sockets.map(|peer| PollFd::new(&peer.socket, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut waiting, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(HadbError::system("waiting for datagrams")(error)),
        }
        let heard: Vec<usize> = asked
            .iter()
            .zip(&waiting)
            .filter(|(_, socket)| !socket.revents().is_empty())
            .map(|(rank, _)| *rank)
            .collect();
        heard.iter().try_for_each(|rank| self.take(*rank))?;
        Ok(!heard.is_empty())
    }

    fn take(&mut self, rank: usize) -> Result {
        let Some(Some(peer)) = self.peers.get_mut(rank) else { return Ok(()) };
        let len = match peer.socket.recv(&mut self.scratch) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.died(rank);
                return Ok(());
            }
            Err(error) if is_passing(&error) => return Ok(()),
            Err(error) => return Err(HadbError::system("receiving a datagram")(error)),
        };
        let bad = HadbError::BadMessage { from: rank };
        let Some(message) = peer.window.receive(&self.scratch[..len], Instant::now()) else {
            return Err(bad);
        };
        let Some(bytes) = message else { return Ok(()) };
        let (body, blob) = decode(&bytes).ok_or(bad)?;
        count_received(&mut self.usage, rank, &body);
        self.ready.push_back(Event::Message { from: rank, body, blob });
        Ok(())
    }

    /// Waits until all ranks have acknowledged their messages, and `last` has left.
    ///
    /// A rank that left earlier would look dead to ranks that have not yet read that the run is over; `last` leaves after all
    /// others.
    pub fn finish(mut self, last: Option<usize>) -> Result {
        let deadline = Instant::now() + SILENCE;
        let awaited = |(rank, peer): (usize, &Option<Peer>)| {
            peer.as_ref().is_some_and(|peer| !peer.dead && (!peer.window.is_empty() || Some(rank) == last))
        };
        while self.peers.iter().enumerate().any(awaited) {
            self.ready.clear();
            let now = Instant::now();
            if now >= deadline {
                let what = "acknowledgements of the last messages".to_owned();
                return Err(HadbError::Overdue { what, after: SILENCE });
            }
            let next = self.maintain(now)?;
            self.wait(next.saturating_duration_since(now))?;
        }
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.window.owes()) {
            // A rank that misses this acknowledgement learns that the port is closed.
            let _ = peer.socket.send(&peer.window.acknowledgement());
        }
        Ok(())
    }
}

/// Splits bytes that begin with the body's length into body and BLOB.
fn decode(bytes: &[u8]) -> Option<(Body, Option<Blob>)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (body, blob) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let blob = (!blob.is_empty()).then(|| Blob::Bytes(Arc::new(blob.to_vec())));
    Some((postcard::from_bytes(body).ok()?, blob))
}

/// Whether the peer's port is closed. Any other error counts as the loss of the datagram.
fn is_refused(sent: io::Result<usize>) -> bool {
    sent.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
