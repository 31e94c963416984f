//! Set-up of the connections: in each pair of ranks, the one with the higher number connects.

use super::stream::{RECEIVES, SLOT, SLOTS, Stream};
use super::wire::{Greeting, PACKET};
use super::{DatLink, Pairs, Peer, State};
use crate::failure::{HadbError, Result};
use crate::message::Usage;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};
use udeck::World;
use udeck::via::Deadline;
use udeck_dat::{
    Connection, ConnectionRequest, Ep, EpAttributes, EpState, Error, Evd, Event, Ia, Lmr, Psp, Pz,
    RemoteMemory, Rights, ServiceAddress, SharedLmr,
};

/// Qualifier of each rank's service point, at its own NIC.
const QUALIFIER: u64 = 2004;
/// Longest wait until all have connected.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest number of a connection's events between two polls: all receives, packets and pieces, and the connection's own events.
const EVENTS: usize = 2 * RECEIVES as usize + SLOTS as usize + 8;

/// Connects the ranks of these pairs. All ranks must call it; it waits for them. `world` exchanges the addresses of the service
/// points, and later tells which ranks have died.
pub(in super::super) fn connect(world: &Rc<World>, pairs: Pairs) -> Result<DatLink> {
    let ia = Ia::on_nic(world.nic())?;
    ia.set_oversubscribed(ranks_here(world) > udeck::sys::usable_cpus().len());
    let (rank, size) = (world.rank(), world.size());
    let (pz, evd) = (Pz::new(&ia), Evd::new(&ia, EVENTS * size));
    let peers = (0..size).map(|other| pairs.has(rank, other).then(|| peer(&pz, &evd)).transpose());
    let peers = peers.collect::<Result<Vec<_>>>()?;
    let connections = peers.iter().flatten().count();
    let several = |each: u8, len: usize| {
        (0..usize::from(each) * connections).map(|_| Lmr::new(&pz, len)).collect::<Result<Vec<_>, Error>>()
    };
    let (packets, pieces) = (several(RECEIVES, PACKET)?, several(SLOTS, SLOT)?);
    // The service point is made before the others learn its address.
    let psp = Psp::new(QUALIFIER, &evd)?;
    let addresses = exchange(world, &psp)?;
    let (ready, usage, checked) = (VecDeque::new(), Usage::default(), Instant::now());
    let mut link = DatLink { peers, ready, packets, pieces, evd, checked, usage, world: world.clone() };
    for (other, address) in addresses.iter().enumerate().take(rank) {
        if let (Some(peer), Some(address)) = (&link.peers[other], address) {
            peer.ep.connect(address, PATIENCE, &greeting(rank, peer))?;
        }
    }
    let mut waits: Vec<bool> = link.peers.iter().map(Option::is_some).collect();
    let deadline = Deadline::after(PATIENCE);
    while let Some(missing) = waits.iter().position(|waits| *waits) {
        match link.evd.wait(deadline) {
            Ok(Event::Request(request)) => accept(&mut link, request)?,
            Ok(Event::Connection { ep, what }) => {
                let of = link.peer_of(ep).map_or(missing, |(other, _)| other);
                established(&mut link, of, what)?;
                waits[of] = false;
            }
            // A rank that is ready may already send messages.
            Ok(event) => link.handle(event)?,
            Err(Error::Timeout { .. }) => {
                let what = format!("a connection with rank {missing}");
                return Err(HadbError::Overdue { what, after: PATIENCE });
            }
            Err(error) => return Err(error.into()),
        }
    }
    link.world.barrier()?;
    Ok(link)
}

/// Number of the job's ranks on this host.
fn ranks_here(world: &World) -> usize {
    let placement = &world.client().welcome().placement;
    let own = placement.host_of(world.rank() as u32);
    (0..world.size()).filter(|rank| placement.host_of(*rank as u32) == own).count()
}

/// Makes an end point with all of its receives and its landing memory.
fn peer(pz: &Pz, evd: &Evd) -> Result<Peer> {
    let attributes = EpAttributes {
        max_receives: RECEIVES.into(),
        max_requests: usize::from(RECEIVES) + usize::from(SLOTS),
        ..EpAttributes::default()
    };
    let ep = Ep::new(pz, evd, evd, evd, attributes)?;
    for _ in 0..RECEIVES {
        ep.post_receive(Lmr::new(pz, PACKET)?, 0).map_err(|(error, _)| error)?;
    }
    let landing = SharedLmr::new(pz, usize::from(SLOTS) * SLOT, Rights::WRITE)?;
    let remote = RemoteMemory { address: 0, len: 0, context: 0 };
    Ok(Peer { ep, stream: Stream::default(), landing, remote, state: State::Connected })
}

/// Exchanges the addresses of the service points, by rank.
fn exchange(world: &World, psp: &Psp) -> Result<Vec<Option<ServiceAddress>>> {
    const NAME: &str = "hadb.service-points";
    let ServiceAddress::Nic { nic, .. } = psp.address() else { return Ok(Vec::new()) };
    let inbox = world.mailboxes::<u8>(NAME)?;
    for (rank, out) in world.postboxes::<u8>(NAME)?.iter().enumerate() {
        if rank != world.rank() {
            out.post(&nic)?;
        }
    }
    let mut addresses = vec![None; world.size()];
    for _ in 1..world.size() {
        let said = inbox.retrieve()?;
        addresses[said.source()] = Some(ServiceAddress::Nic { nic: said.to_vec(), qualifier: QUALIFIER });
    }
    Ok(addresses)
}

fn greeting(rank: usize, peer: &Peer) -> Vec<u8> {
    Greeting { rank, landing: peer.landing.remote() }.encode().to_vec()
}

/// Accepts a request if it comes from a higher rank that has not connected yet. The request names its rank and
/// landing memory.
fn accept(link: &mut DatLink, request: ConnectionRequest) -> Result {
    let rank = link.world.rank();
    let asker = Greeting::decode(request.private_data()).filter(|asker| asker.rank > rank);
    let peer = asker.and_then(|asker| link.peers.get_mut(asker.rank)).and_then(Option::as_mut);
    let unconnected = |peer: &&mut Peer| peer.ep.state() == EpState::Unconnected;
    let (Some(peer), Some(Greeting { landing, .. })) = (peer.filter(unconnected), asker) else {
        return Ok(request.reject(b"hadb: this rank waits for other ranks, of the same program")?);
    };
    peer.remote = landing;
    let answer = greeting(rank, peer);
    peer.ep.accept(request, &answer).map_err(|(error, _)| error.into())
}

/// Completes a connection. The connecting side learns the other side's landing memory from the answer.
fn established(link: &mut DatLink, rank: usize, what: Connection) -> Result {
    let Some(peer) = &mut link.peers[rank] else { return Ok(()) };
    if what != Connection::Established {
        return Err(HadbError::Unconnected { peer: rank, what });
    }
    if rank < link.world.rank() {
        let said = peer.ep.peer().map(|other| other.private_data).unwrap_or_default();
        let theirs = Greeting::decode(&said).filter(|greeting| greeting.rank == rank);
        peer.remote = theirs.ok_or(HadbError::BadMessage { from: rank })?.landing;
    }
    Ok(())
}
