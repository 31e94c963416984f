//! One rank's ends of all connections, and the memory of its messages.

use udeck::via::{
    Cq, Deadline, Descriptor, Listener, MemHandle, NetAddress, Nic, Ptag, Region, RemoteBuffer, Rights,
    Segment, Vi, ViAttributes, Window,
};

use super::{
    contender::{Transfer, ViSetup},
    lane::ViLane,
};
use crate::{
    experiment::{
        rank_pair::RankPair,
        turn::{Lanes, Pool},
    },
    failure::Result,
};

const DOOR: &[u8] = b"deckperf.vi";

/// Connections and memory of all batches.
pub struct ViEnds {
    lanes: Lanes<ViSetup, ViLane>,
    memory: RegionPool,
    /// The peer's window; `None` without RDMA.
    theirs: Option<RemoteBuffer>,
    /// This rank's window, which the peer writes and reads; held to keep it open.
    _mine: Option<Window>,
}

/// Lanes of a setup with one VI. With many VIs there are as many places as VIs.
const LANES_OF_ONE: usize = 8;

impl ViEnds {
    /// Opens and connects everything. Both ranks call this with the same setups; blocks until all VIs are connected.
    pub fn open(pair: &RankPair<'_>, setups: &[ViSetup], largest: usize) -> Result<Self> {
        let nic = pair.world().nic();
        let memory = RegionPool { nic: nic.clone(), ptag: nic.ptag(), idle: Pool::new() };
        let any = |transfer| setups.iter().any(|way| way.transfer == transfer);
        let rights = Rights { write: any(Transfer::RdmaWrite), read: any(Transfer::RdmaRead) };
        let is_reached = rights != Rights::NONE;
        let mine = is_reached.then(|| nic.window_for(largest, memory.ptag, rights)).transpose()?;
        let mut greeter = Greeter::new(pair, mine.as_ref().map(Window::remote))?;
        let count = |way: ViSetup| if way.vis == 1 { LANES_OF_ONE } else { 1 };
        let lanes = Lanes::open(setups, count, |way| {
            let attributes = |context| ViAttributes {
                enable_rdma_write: way.transfer == Transfer::RdmaWrite,
                enable_rdma_read: way.transfer == Transfer::RdmaRead,
                context,
                ..ViAttributes::new(memory.ptag)
            };
            let cq = Cq::new(nic)?;
            let vis = (0..way.vis as u64).map(|context| greeter.connect(attributes(context), &cq));
            Ok(ViLane::new(way.detection, vis.collect::<Result<_>>()?, cq))
        })?;
        Ok(Self { lanes, memory, theirs: greeter.theirs, _mine: mine })
    }

    /// The VIs for the next batch of `way` with the batch's number, the memory, and the place that RDMA of `size` bytes writes
    /// or reads.
    pub fn of(
        &mut self,
        way: ViSetup,
        size: usize,
    ) -> Result<(&mut ViLane, u64, &mut RegionPool, Option<RemoteBuffer>)> {
        let place = match way.transfer {
            Transfer::Send => None,
            Transfer::RdmaWrite | Transfer::RdmaRead => {
                self.theirs.map(|theirs| RemoteBuffer { len: size, ..theirs })
            }
        };
        let (lane, number) = self.lanes.next(way)?;
        Ok((lane, number, &mut self.memory, place))
    }
}

/// Makes the connections, one after the other, on both sides in the same order.
struct Greeter<'l> {
    nic: &'l Nic,
    deadline: Deadline,
    side: ConnectRole,
    mine: Option<RemoteBuffer>,
    theirs: Option<RemoteBuffer>,
}

enum ConnectRole {
    Asks(NetAddress),
    Answers(Listener),
}

impl<'l> Greeter<'l> {
    fn new(pair: &'l RankPair<'_>, mine: Option<RemoteBuffer>) -> Result<Self> {
        let nic = pair.world().nic();
        let side = if pair.leads() {
            let host = pair.receive_words()?.iter().map(|&word| word as u8).collect();
            ConnectRole::Asks(NetAddress { host, discriminator: DOOR.to_vec() })
        } else {
            // The rank listens before it sends its address.
            let listener = Listener::new(nic, DOOR)?;
            let words: Vec<u64> = nic.attributes().address.iter().map(|&byte| u64::from(byte)).collect();
            pair.send_words(&words)?;
            ConnectRole::Answers(listener)
        };
        let deadline = Deadline::after(pair.world().config().setup);
        Ok(Self { nic, deadline, side, mine, theirs: None })
    }

    /// Connects the next VI. The place of each side's window travels along.
    fn connect(&mut self, attributes: ViAttributes, cq: &Cq) -> Result<Vi> {
        let mut vi = Vi::new(self.nic, attributes)?;
        let queue = cq.handle();
        let said = self.mine.map(encode).unwrap_or_default();
        let heard = match &self.side {
            ConnectRole::Asks(peer) => vi.connect(peer, &queue, &queue, &said, self.deadline)?,
            ConnectRole::Answers(listener) => {
                let request = listener.wait(self.deadline)?;
                let heard = request.private_data().to_vec();
                request.accept(&mut vi, &queue, &queue, &said)?;
                heard
            }
        };
        self.theirs = decode(&heard);
        Ok(vi)
    }
}

fn encode(window: RemoteBuffer) -> Vec<u8> {
    [u64::from(window.handle.0), window.len as u64].into_iter().flat_map(u64::to_le_bytes).collect()
}

fn decode(bytes: &[u8]) -> Option<RemoteBuffer> {
    let (handle, len) = (bytes.first_chunk::<8>()?, bytes.get(8..)?.first_chunk::<8>()?);
    let handle = MemHandle(u32::try_from(u64::from_le_bytes(*handle)).ok()?);
    Some(RemoteBuffer { handle, offset: 0, len: usize::try_from(u64::from_le_bytes(*len)).ok()? })
}

/// Registered memory between two batches.
pub struct RegionPool {
    nic: Nic,
    ptag: Ptag,
    idle: Pool<Region>,
}

impl RegionPool {
    /// Takes memory for a message of `size` bytes.
    pub fn take(&mut self, size: usize) -> Result<Region> {
        self.idle.take(size, || Ok(self.nic.region(size, self.ptag)?))
    }

    /// Takes the memory of a descriptor back.
    pub fn give_back(&mut self, descriptor: Descriptor) {
        for region in descriptor.into_segments().into_iter().map(Segment::into_region) {
            self.idle.give_back(region.len(), region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_window_survives_the_journey() {
        let window = RemoteBuffer { handle: MemHandle(0xfedc_ba98), offset: 0, len: 4 << 20 };
        assert_eq!(decode(&encode(window)), Some(window));
        assert_eq!(decode(&encode(window)[..15]), None);
        assert_eq!(decode(&[]), None);
    }
}
