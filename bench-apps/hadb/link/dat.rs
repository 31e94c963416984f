//! A link by uDAPL's objects, through their Rust interface: HADB's messages were once moved to uDAPL in this
//! way.
//!
//! A rank has an end point for each other rank, and one event dispatcher for the events of all. Packets go by send and receive.
//! `stream` decides their contents, and ensures that none arrives without a posted receive. All memory is registered when the
//! connections are made, and reused: packets to be sent, receives, and slots for RDMA.
//!
//! BLOBs are *written* by RDMA, into landing memory that the receiver announces with the connection, instead of being read from
//! the sender's memory. A write with the message behind it goes one way. A read would wait for an answer of the sender, and would
//! then have to tell it that its memory is free again. The number of the receiver's slots bounds the sender, and when the sender
//! dies, nothing of it remains to be waited for.
//!
//! Messages are packed: the answers to all packets that have arrived leave together, in one packet for each other rank.
//!
//! A broken connection is no proof of a death. The launcher reports deaths; after a break the link only asks it sooner.

mod connect;
mod stream;
mod wire;

use super::{Blob, Event, Pairs, count_received, count_sent};
use crate::failure::{HadbError, Result};
use crate::message::{Body, Outgoing, Usage};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};
use stream::{SLOT, Stream};
use udeck::via::Deadline;
use udeck::{ExitKind, World};
use udeck_dat::{
    Completion, Connection, Ep, EpId, Error, Evd, Event as DatEvent, Flags, Iov, Lmr, Operation,
    RemoteMemory, SharedLmr, Status,
};

/// Largest number of events taken before their answers are sent; until then the answers wait to be packed.
const BATCH: usize = 16;
/// Interval of checks for dead ranks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The same interval while a connection is broken for an unknown reason.
const CHECK_INTERVAL_WHILE_BROKEN: Duration = Duration::from_millis(1);
/// Longest time that a connection may be broken, or need to end, before the run ends.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct DatLink {
    /// Peers by rank; `None` at this rank's own place.
    peers: Vec<Option<Peer>>,
    ready: VecDeque<Event>,
    /// Free registered memory: for packets, and for pieces of BLOBs. It suffices for the credits of all connections.
    packets: Vec<Lmr>,
    pieces: Vec<Lmr>,
    evd: Evd,
    /// Time of the last check for dead ranks.
    checked: Instant,
    pub usage: Usage,
    // The world is dropped after the objects of its NIC.
    world: Rc<World>,
}

struct Peer {
    ep: Ep,
    stream: Stream,
    /// Landing memory for the peer's pieces, and the peer's landing memory for this rank's pieces.
    landing: SharedLmr,
    remote: RemoteMemory,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connected,
    /// The peer has said that it leaves.
    Left,
    /// The connection has been broken since this time.
    Broken(Instant),
    Dead,
}

impl DatLink {
    pub(super) fn connect(world: &Rc<World>, pairs: Pairs) -> Result<DatLink> {
        connect::connect(world, pairs)
    }

    /// Makes a function for another thread, which ends this rank's wait with [`Event::Idle`].
    pub fn waker(&self) -> impl Fn() + Send + use<> {
        let evd = self.evd.clone();
        // A dispatcher without room is one that has events.
        move || drop(evd.post_software(0))
    }

    pub fn describe(&self) -> String {
        format!("uDAPL's end points over {}", self.evd.ia().name())
    }

    /// Queues a message, which leaves at the next [`DatLink::receive`].
    pub fn send(&mut self, message: Outgoing<Blob>) -> Result {
        let Outgoing { to, body, blob } = message;
        count_sent(&mut self.usage, &body);
        let Some(Some(peer)) = self.peers.get_mut(to) else { return Ok(()) };
        if peer.state != State::Connected {
            return Ok(());
        }
        let bytes = postcard::to_allocvec(&body).map_err(|_| HadbError::BadMessage { from: to })?;
        if peer.stream.push(bytes, blob) { Ok(()) } else { Err(HadbError::Full { peer: to }) }
    }

    pub fn receive(&mut self, limit: Duration) -> Result<Event> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let now = Instant::now();
            self.step(now, deadline)?;
            if now >= deadline && self.ready.is_empty() {
                return Ok(Event::Idle);
            }
        }
    }

    /// Sends what is due, and takes the next events; waits for the first one until `deadline`.
    fn step(&mut self, now: Instant, deadline: Instant) -> Result {
        self.flush()?;
        let is_broken = |peer: &Peer| matches!(peer.state, State::Broken(_));
        let any_broken = self.peers.iter().flatten().any(is_broken);
        let next = self.checked + if any_broken { CHECK_INTERVAL_WHILE_BROKEN } else { CHECK_INTERVAL };
        if now >= next {
            return self.check_for_deaths(now);
        }
        match self.evd.wait(Deadline::after(next.min(deadline).saturating_duration_since(now))) {
            Ok(event) => self.handle(event)?,
            Err(Error::Timeout { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for _ in 1..BATCH {
            let Some(event) = self.evd.dequeue() else { break };
            self.handle(event)?;
        }
        Ok(())
    }

    /// Makes packets of the waiting messages, as long as there is memory for them.
    fn flush(&mut self) -> Result {
        let DatLink { peers, packets, pieces, usage, .. } = self;
        for peer in peers.iter_mut().flatten().filter(|peer| peer.state == State::Connected) {
            let Peer { ep, stream, remote, .. } = peer;
            while stream.is_due() {
                let Some(mut packet) = packets.pop() else { return Ok(()) };
                let filled = stream.fill(&mut packet, |slot, bytes| {
                    let Some(mut piece) = pieces.pop() else { return Ok(false) };
                    piece[..bytes.len()].copy_from_slice(bytes);
                    piece.select(0..bytes.len())?;
                    let place = remote.part(slot * SLOT..slot * SLOT + bytes.len())?;
                    usage.packets += 1;
                    let posted = ep.post_rdma_write(piece, place, 0, Flags::NONE);
                    posted.or_else(|refused| keep(refused, pieces)).map(|()| true)
                });
                let Some(len) = filled? else {
                    packets.push(packet);
                    break;
                };
                packet.select(0..len)?;
                usage.packets += 1;
                ep.post_send(packet, 0).or_else(|refused| keep(refused, packets))?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: DatEvent) -> Result {
        match event {
            DatEvent::Dto(completion) => match completion.operation {
                Operation::Send => self.packets.push(completion.iov.into_lmr()),
                Operation::RdmaWrite => self.pieces.push(completion.iov.into_lmr()),
                // A request that the connection's end flushed is no longer needed.
                _ if completion.status != Status::Success => {}
                _ => return self.received(completion),
            },
            DatEvent::Connection { ep, what } => {
                let now = Instant::now();
                if let Some((_, peer)) = self.peer_of(ep)
                    && peer.state == State::Connected
                {
                    let in_order = what == Connection::Disconnected;
                    peer.state = if in_order { State::Left } else { State::Broken(now) };
                }
            }
            DatEvent::Software(_) => self.ready.push_back(Event::Idle),
            // No other rank connects; a dropped request is rejected.
            _ => {}
        }
        Ok(())
    }

    fn peer_of(&mut self, ep: EpId) -> Option<(usize, &mut Peer)> {
        let ranks = self.peers.iter_mut().enumerate();
        ranks.filter_map(|(rank, peer)| Some((rank, peer.as_mut()?))).find(|(_, peer)| peer.ep.id() == ep)
    }

    /// Takes a packet, and posts its receive again.
    fn received(&mut self, completion: Completion) -> Result {
        let Completion { ep, length, iov, .. } = completion;
        let mut ready = std::mem::take(&mut self.ready);
        let mut usage = self.usage;
        let Some((rank, peer)) = self.peer_of(ep).filter(|(_, peer)| peer.state != State::Dead) else {
            self.ready = ready;
            return Ok(());
        };
        let lmr = iov.into_lmr();
        let landing = &peer.landing;
        let taken = peer.stream.receive(
            lmr.get(..length).unwrap_or_default(),
            |slot, to| landing.read(slot * SLOT, to).ok(),
            |body, blob| {
                let body: Body = postcard::from_bytes(body).ok()?;
                count_received(&mut usage, rank, &body);
                ready.push_back(Event::Message { from: rank, body, blob });
                Some(())
            },
        );
        let posted = peer.ep.post_receive(lmr, 0).or_else(|refused| keep(refused, &mut Vec::new()));
        (self.ready, self.usage) = (ready, usage);
        taken.ok_or(HadbError::BadMessage { from: rank })?;
        posted
    }

    /// Asks the launcher which ranks have died.
    fn check_for_deaths(&mut self, now: Instant) -> Result {
        self.checked = now;
        for exit in self.world.exited_ranks() {
            let Some(Some(peer)) = self.peers.get_mut(exit.rank) else { continue };
            if matches!(exit.how, ExitKind::Lost(_)) && peer.state != State::Dead {
                peer.state = State::Dead;
                // The disconnect returns the posted requests.
                peer.ep.disconnect(false)?;
                self.ready.push_back(Event::Lost(exit.rank));
            }
        }
        for (rank, peer) in self.peers.iter().enumerate() {
            if let Some(Peer { state: State::Broken(since), .. }) = peer
                && now > *since + PATIENCE
            {
                return Err(HadbError::Broken { peer: rank, after: PATIENCE });
            }
        }
        Ok(())
    }

    /// Delivers waiting messages, says that this rank leaves, and leaves. `last` must have heard it; without a `last`, all others
    /// leave first.
    ///
    /// Their leaving shows that they have received the last message to them, which says that the run is over.
    pub fn finish(mut self, last: Option<usize>) -> Result {
        self.step_while("the last messages to leave", |peer| {
            peer.state == State::Connected && !peer.stream.is_empty()
        })?;
        if last.is_some() {
            for peer in self.peers.iter().flatten().filter(|peer| peer.state == State::Connected) {
                peer.ep.disconnect(true)?;
            }
        }
        self.step_while("the end of all connections", |peer| peer.state == State::Connected)?;
        Ok(())
    }

    fn step_while(&mut self, what: &str, is_awaited: impl Fn(&Peer) -> bool) -> Result {
        let deadline = Instant::now() + PATIENCE;
        while self.peers.iter().flatten().any(&is_awaited) {
            self.ready.clear();
            let now = Instant::now();
            if now >= deadline {
                return Err(HadbError::Overdue { what: what.to_owned(), after: PATIENCE });
            }
            self.step(now, deadline)?;
        }
        Ok(())
    }
}

/// Returns the memory of a post that was refused because the connection has ended: the dispatcher reports this
/// end, too.
fn keep((error, iov): (Error, Iov), free: &mut Vec<Lmr>) -> Result {
    free.push(iov.into_lmr());
    if matches!(error, Error::InvalidState { .. }) { Ok(()) } else { Err(error.into()) }
}
