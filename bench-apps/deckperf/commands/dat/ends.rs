//! One rank's endpoints on its adapter, and the memory of their data.

use std::time::Duration;

use udeck::via::Deadline;
use udeck_dat::{
    Connection, Ep, EpAttributes, Evd, Event, Ia, Lmr, Psp, Pz, RemoteMemory, Rights, ServiceAddress,
    SharedLmr,
};

use super::lane::{DatLane, DatPost, Work};
use crate::{
    commands::vi::Transfer,
    experiment::{
        rank_pair::RankPair,
        turn::{Lanes, Pool},
    },
    failure::{PerfError, Result},
};

/// Qualifier of the service point.
const DOOR: u64 = 0xdec0;

/// Connections and memory of all batches.
pub struct DatEnds {
    lanes: Lanes<Transfer, DatLane>,
    memory: LmrPool,
    /// Memory that the peer writes and reads.
    pub mine: SharedLmr,
    /// Place of the peer's memory.
    theirs: RemoteMemory,
}

/// Connections per transfer where batches are compared with those of virtual interfaces: as many as one way of theirs has.
pub const LANES: usize = 8;

impl DatEnds {
    /// Opens and connects everything: `lanes` connections for each of `transfers`. Both ranks call this with the same
    /// arguments; blocks until all endpoints are connected. Up to `window` messages are under way, and RDMA reaches `largest`
    /// bytes.
    pub fn open(
        pair: &RankPair<'_>,
        transfers: &[Transfer],
        lanes: usize,
        largest: usize,
        window: u64,
    ) -> Result<Self> {
        let ia = Ia::on_nic(pair.world().nic())?;
        // Both ranks refuse the size here, before one of them waits for the other.
        let most = ia.max_transfer();
        if largest > most {
            return Err(PerfError::TooLarge { wanted: largest, most });
        }
        let pz = Pz::new(&ia);
        let mine = SharedLmr::new(&pz, largest.max(1), Rights::READ_WRITE)?;
        let theirs = exchange_places(pair, mine.remote())?;
        let mut greeter = Greeter::new(pair, &pz, window)?;
        let lanes = Lanes::open(transfers, |_| lanes, |_| greeter.connect(theirs))?;
        Ok(Self { lanes, memory: LmrPool { pz, idle: Pool::new() }, mine, theirs })
    }

    /// The pool of registered memory.
    pub fn memory(&mut self) -> &mut LmrPool {
        &mut self.memory
    }

    /// The connection for the next batch of `transfer`, and the memory.
    pub fn of(&mut self, transfer: Transfer, size: usize) -> Result<(&mut DatLane, &mut LmrPool)> {
        let place = self.theirs.part(0..size)?;
        let (lane, _) = self.lanes.next(transfer)?;
        lane.place = place;
        Ok((lane, &mut self.memory))
    }
}

/// The work of a request that makes this transfer.
pub fn work_of(transfer: Transfer) -> Work {
    match transfer {
        Transfer::Send => Work::Send,
        Transfer::RdmaWrite => Work::Write,
        Transfer::RdmaRead => Work::Read,
    }
}

fn exchange_places(pair: &RankPair<'_>, mine: RemoteMemory) -> Result<RemoteMemory> {
    pair.send_words(&mine.to_bytes().map(u64::from))?;
    let words = pair.receive_words()?;
    let bytes: Vec<u8> = words.iter().map(|&word| word as u8).collect();
    Ok(RemoteMemory::from_bytes(bytes.try_into().map_err(|_| PerfError::BadReport(words.len()))?))
}

/// Makes the connections, one after the other, on both sides in the same order.
struct Greeter<'l> {
    pz: &'l Pz,
    side: Side,
    attributes: EpAttributes,
    connections: Evd,
    setup: Duration,
}

enum Side {
    Asks(ServiceAddress),
    Answers { _listening: Psp },
}

impl<'l> Greeter<'l> {
    fn new(pair: &RankPair<'_>, pz: &'l Pz, window: u64) -> Result<Self> {
        let connections = Evd::new(pz.ia(), 64);
        let side = if pair.leads() {
            let nic = pair.receive_words()?.iter().map(|&word| word as u8).collect();
            Side::Asks(ServiceAddress::Nic { nic, qualifier: DOOR })
        } else {
            // Rank 1 listens before it sends its address.
            let listening = Psp::new(DOOR, &connections)?;
            let ServiceAddress::Nic { nic, .. } = listening.address() else {
                return Err(PerfError::BadEvent("a service point that has no address by its NIC".into()));
            };
            pair.send_words(&nic.iter().map(|&byte| u64::from(byte)).collect::<Vec<_>>())?;
            Side::Answers { _listening: listening }
        };
        // A write takes two requests: the write itself, and the message behind it.
        let most = |messages: u64| usize::try_from(messages).unwrap_or(usize::MAX).clamp(256, 8192);
        let attributes = EpAttributes {
            max_receives: most(window + 2),
            max_requests: most(2 * window + 2),
            ..EpAttributes::default()
        };
        Ok(Self { pz, side, attributes, connections, setup: pair.world().config().setup })
    }

    fn connect(&mut self, place: RemoteMemory) -> Result<DatLane> {
        let [requests, receives] = [(); 2].map(|()| Evd::new(self.pz.ia(), 0));
        let ep = Ep::new(self.pz, &requests, &receives, &self.connections, self.attributes)?;
        match &self.side {
            Side::Asks(peer) => ep.connect(peer, self.setup, &[])?,
            Side::Answers { .. } => match self.connections.wait(Deadline::after(self.setup))? {
                Event::Request(request) => ep.accept(request, &[]).map_err(|(error, _)| error)?,
                other => return Err(PerfError::BadEvent(format!("{other:?}"))),
            },
        }
        match self.connections.wait(Deadline::after(self.setup))? {
            Event::Connection { what: Connection::Established, .. } => {}
            other => return Err(PerfError::BadEvent(format!("{other:?}"))),
        }
        Ok(DatLane::new(ep, self.pz.clone(), requests, receives, place))
    }
}

/// Registered memory between two batches.
pub struct LmrPool {
    pz: Pz,
    idle: Pool<Lmr>,
}

impl LmrPool {
    /// Takes memory for a message of `size` bytes.
    pub fn take(&mut self, size: usize) -> Result<Lmr> {
        self.idle.take(size, || {
            // The memory of an empty message has one byte, but the message names none of it.
            let mut lmr = Lmr::new(&self.pz, size.max(1))?;
            lmr.select(0..size)?;
            Ok(lmr)
        })
    }

    /// Takes the memory of a post back.
    pub fn give_back(&mut self, post: DatPost) {
        self.idle.give_back(post.lmr.selected().len(), post.lmr);
    }
}
