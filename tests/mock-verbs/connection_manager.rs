//! The connection manager: listeners, connects, and the events about them. InfiniBand and RoCE use messages of their own for
//! this, iWARP uses TCP; here it is a table.
//!
//! Its lock is taken before the world's, never after it.

use crate::abi::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_CM_EVENT_UNREACHABLE,
};
use crate::config::{CmBehavior, Device, config};
use crate::objects::{Handle, Obstacle, State};
use crate::world::{self, Table, World, give, take};
use libc::c_int;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static CONNECTION_MANAGER: Mutex<ConnectionManager> =
    Mutex::new(ConnectionManager { channels: Table::new(1), ids: Table::new(1), last_port: 49_151 });
static ACKNOWLEDGED: Condvar = Condvar::new();
/// Longest time that a destroying call waits for acknowledgements.
const PATIENCE: Duration = Duration::from_secs(10);
/// InfiniBand's reasons of refusals: there is no listener; the listener refuses.
const NO_LISTENER: c_int = 8;
const REFUSED: c_int = 28;
/// Length of a request's private data on arrival: InfiniBand always pads them to it.
const PADDED: usize = 56;

pub struct ConnectionManager {
    pub channels: Table<CmChannel>,
    pub ids: Table<Id>,
    last_port: u16,
}

pub struct CmChannel {
    pub fd: OwnedFd,
    pub events: VecDeque<CmEvent>,
}

/// An event to be reported.
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// Number of the identifier that the event belongs to, and whose acknowledgements are counted.
    pub of: u32,
    /// Number of the new identifier, which a request makes.
    pub new: Option<u32>,
    pub kind: u32,
    pub status: c_int,
    pub private: Vec<u8>,
    pub depths: (u8, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Fresh,
    Bound,
    Listening,
    Addressed,
    Routed,
    /// The identifier has connected and waits for the answer.
    Asking,
    /// The identifier is a request that has not been answered.
    Asked,
    /// The identifier has accepted, and the requester has not confirmed yet.
    Accepted,
    /// The identifier was accepted and has not confirmed yet.
    Answered,
    Connected,
    Over,
}

pub struct Id {
    pub channel: u32,
    /// Handle of the identifier; none as long as no program knows it.
    pub handle: Option<Handle>,
    pub context: usize,
    pub stage: Stage,
    pub device: Option<usize>,
    pub address: Option<SocketAddr>,
    pub to: Option<SocketAddr>,
    /// Number of the other end.
    pub peer: Option<u32>,
    pub pair: u32,
    /// Depths of RDMA reads: served, and requested.
    pub depths: (u8, u8),
    pub events_delivered: u32,
    pub acknowledged: u32,
}

impl Id {
    pub fn new(channel: u32, context: usize) -> Self {
        Id {
            channel,
            handle: None,
            context,
            stage: Stage::Fresh,
            device: None,
            address: None,
            to: None,
            peer: None,
            pair: 0,
            depths: (0, 0),
            events_delivered: 0,
            acknowledged: 0,
        }
    }
}

/// Sequence number of the first packet from the end `number`: any function that both ends compute.
pub fn psn(number: u32) -> u32 {
    number.wrapping_mul(0x9e37) & 0xff_ffff
}

pub fn lock() -> MutexGuard<'static, ConnectionManager> {
    CONNECTION_MANAGER.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn device(index: usize) -> Option<&'static Device> {
    config().devices.as_deref()?.get(index)
}

/// Index of the device with this address.
pub fn device_at(address: &SocketAddr) -> Option<usize> {
    let devices = config().devices.as_deref()?;
    devices.iter().position(|device| device.ip() == address.ip())
}

impl ConnectionManager {
    pub fn free_port(&mut self) -> u16 {
        self.last_port = if self.last_port == u16::MAX { 49_152 } else { self.last_port + 1 };
        self.last_port
    }

    pub fn tell(&mut self, of: u32, kind: u32, status: c_int) {
        let event = CmEvent { of, new: None, kind, status, private: Vec::new(), depths: (0, 0) };
        self.tell_all(event);
    }

    pub fn tell_all(&mut self, event: CmEvent) {
        let channel = self.ids.get(event.of).map(|id| id.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(channel)) {
            channel.events.push_back(event);
            give(&channel.fd);
        }
    }

    /// Connects `number` to the address that it was resolved to.
    ///
    /// # Errors
    /// The identifier has no route.
    pub fn connect(&mut self, number: u32, pair: u32, depths: (u8, u8), private: &[u8]) -> Result<(), c_int> {
        let id = self.ids.get_mut(number).filter(|id| id.stage == Stage::Routed).ok_or(libc::EINVAL)?;
        let (to, fate) = (id.to, id.device.and_then(device).map(|device| device.cm).unwrap_or_default());
        (id.stage, id.pair, id.depths) = (Stage::Asking, pair, depths);
        match fate {
            CmBehavior::Unreachable => {
                self.tell(number, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
                return Ok(());
            }
            CmBehavior::Silent => return Ok(()),
            _ => {}
        }
        let listens = |id: &Id| id.stage == Stage::Listening && id.address == to;
        let Some((listener, found)) = self.ids.iter().find(|(_, id)| listens(id)) else {
            let status = if self.is_iwarp(number) { -libc::ECONNREFUSED } else { NO_LISTENER };
            self.tell(number, RDMA_CM_EVENT_REJECTED, status);
            return Ok(());
        };
        let mut new = Id::new(found.channel, found.context);
        (new.device, new.address, new.peer) = (found.device, found.address, Some(number));
        (new.stage, new.depths) = (Stage::Asked, (depths.1, depths.0));
        let depths = new.depths;
        let new = self.ids.insert(new);
        if let Some(id) = self.ids.get_mut(number) {
            id.peer = Some(new);
        }
        let mut private = private.to_vec();
        private.resize(private.len().max(PADDED), 0);
        let (kind, status) = (RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        self.tell_all(CmEvent { of: listener, new: Some(new), kind, status, private, depths });
        Ok(())
    }

    fn is_iwarp(&self, number: u32) -> bool {
        let device = self.ids.get(number).and_then(|id| id.device).and_then(device);
        device.is_some_and(|device| device.iwarp)
    }

    /// # Errors
    /// The requester is gone.
    pub fn accept(&mut self, number: u32, pair: u32, depths: (u8, u8)) -> Result<(), c_int> {
        let id = self.ids.get_mut(number).filter(|id| id.stage == Stage::Asked).ok_or(libc::EINVAL)?;
        (id.pair, id.depths) = (pair, depths);
        let peer = id.peer.ok_or(libc::ECONNRESET)?;
        if self.is_iwarp(number) {
            let asks = self.ids.get(peer).map(|id| id.pair).ok_or(libc::ECONNRESET)?;
            world::with(|world| {
                join(world, asks, pair, depths, false)?;
                join(world, pair, asks, (depths.1, depths.0), true)
            })?;
            for end in [number, peer] {
                self.enter(end, Stage::Connected);
                self.tell(end, RDMA_CM_EVENT_ESTABLISHED, 0);
            }
            return Ok(());
        }
        self.enter(number, Stage::Accepted);
        self.enter(peer, Stage::Answered);
        if let Some(asking) = self.ids.get_mut(peer) {
            asking.depths = (depths.1, depths.0);
        }
        self.tell(peer, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
        Ok(())
    }

    fn enter(&mut self, number: u32, stage: Stage) {
        self.ids.get_mut(number).into_iter().for_each(|id| id.stage = stage);
    }

    /// # Errors
    /// The request was not accepted.
    pub fn establish(&mut self, number: u32) -> Result<(), c_int> {
        let id = self.ids.get(number).filter(|id| id.stage == Stage::Answered).ok_or(libc::EINVAL)?;
        let peer = id.peer.ok_or(libc::ECONNRESET)?;
        self.enter(number, Stage::Connected);
        self.enter(peer, Stage::Connected);
        self.tell(peer, RDMA_CM_EVENT_ESTABLISHED, 0);
        Ok(())
    }

    /// Ends this side of the connection: the other side gets an event.
    pub fn leave(&mut self, number: u32) {
        let Some(id) = self.ids.get_mut(number) else { return };
        let (stage, peer) = (std::mem::replace(&mut id.stage, Stage::Over), id.peer.take());
        let Some(peer) = peer else { return };
        let iwarp = self.is_iwarp(number);
        let Some(other) = self.ids.get_mut(peer) else { return };
        let pair = other.pair;
        other.peer = None;
        match stage {
            Stage::Asked => {
                let status = if iwarp { -libc::ECONNREFUSED } else { REFUSED };
                self.enter(peer, Stage::Over);
                self.tell(peer, RDMA_CM_EVENT_REJECTED, status);
            }
            // The other side learns it when it answers.
            Stage::Asking => {}
            Stage::Accepted | Stage::Answered | Stage::Connected => {
                self.enter(peer, Stage::Over);
                self.tell(peer, RDMA_CM_EVENT_DISCONNECTED, 0);
                if iwarp {
                    world::with(|world| world.fail_pair(pair, None));
                } else {
                    self.tell(peer, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
                }
            }
            _ => {}
        }
    }

    /// Forgets undelivered events of `number`; requests at it are refused.
    pub fn forget(&mut self, number: u32) {
        let Some(channel) = self.ids.get(number).map(|id| id.channel) else { return };
        let Some(channel) = self.channels.get_mut(channel) else { return };
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut channel.events).into_iter().partition(|event| event.of == number);
        channel.events = kept;
        gone.iter().for_each(|_| take(&channel.fd));
        for new in gone.into_iter().filter_map(|event| event.new) {
            self.leave(new);
            self.ids.remove(new);
        }
    }
}

/// Ends iWARP's connection of a queue pair that was destroyed.
pub fn pair_gone(pair: u32) {
    let mut manager = lock();
    let of_it = |id: &Id| {
        id.pair == pair && id.peer.is_some() && id.device.and_then(device).is_some_and(|device| device.iwarp)
    };
    let found = manager.ids.iter().find(|(_, id)| of_it(id)).map(|(number, _)| number);
    found.into_iter().for_each(|number| manager.leave(number));
}

/// Connects two iWARP pairs: the kernel allows a queue pair to send when both are connected. The accepting side must hear the
/// other first.
fn join(world: &mut World, pair: u32, to: u32, depths: (u8, u8), listens: bool) -> Result<(), c_int> {
    let found = world.pairs.get_mut(pair).filter(|pair| pair.state == State::Init).ok_or(libc::EINVAL)?;
    found.state = State::ReadyToSend;
    found.attributes.dest_qp_num = to;
    (found.attributes.max_rd_atomic, found.attributes.max_dest_rd_atomic) = depths;
    (found.attributes.path_mtu, found.attributes.rnr_retry, found.attributes.timeout) = (3, 7, 14);
    (found.attributes.retry_cnt, found.listens) = (7, listens);
    (found.sends_from, found.expects) = (0, 0);
    world.schedule(pair);
    world.reconsider(|what| what == Obstacle::Silence);
    Ok(())
}

/// Waits until all events about this identifier that programs have got were acknowledged. Returns whether this
/// happened in time.
pub fn wait_for_acknowledgements(number: u32) -> bool {
    let until = Instant::now() + PATIENCE;
    let mut manager = lock();
    while manager.ids.get(number).is_some_and(|id| id.events_delivered != id.acknowledged) {
        let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
        manager = ACKNOWLEDGED.wait_timeout(manager, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

pub fn acknowledge(number: u32) {
    lock().ids.get_mut(number).into_iter().for_each(|id| id.acknowledged += 1);
    ACKNOWLEDGED.notify_all();
}
