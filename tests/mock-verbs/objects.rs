//! What lies behind the handles: contexts, channels, completion queues, queue pairs, shared receive queues, regions.

use crate::abi::{ibv_ah_attr, ibv_qp_attr, ibv_qp_cap, ibv_sge, ibv_wc};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

/// Where the C handle of an object lies: handed back in events, never followed by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub usize);

impl Handle {
    pub fn of<T>(object: *mut T) -> Self {
        Handle(object as usize)
    }

    pub fn pointer<T>(self) -> *mut T {
        self.0 as *mut T
    }
}

/// One opening of a device.
#[derive(Debug)]
pub struct Context {
    pub device: usize,
    /// A semaphore with one unit for each event below.
    pub fd: OwnedFd,
    pub events: VecDeque<AsyncEvent>,
}

/// Whose asynchronous event it is: its owner cannot be destroyed until it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOf {
    Pair(u32),
    Queue(u32),
    Shared(u32),
    Device,
}

/// An asynchronous event that nobody has got yet.
#[derive(Clone, Copy, Debug)]
pub struct AsyncEvent {
    pub of: EventOf,
    /// The object's handle; `None`: it is the port's.
    pub about: Option<Handle>,
    /// `IBV_EVENT_…`.
    pub what: u32,
}

#[derive(Debug)]
pub struct Domain {
    pub context: u32,
    /// Regions, queue pairs and shared receive queues in it.
    pub users: u32,
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub domain: u32,
    /// Where it lies in the process.
    pub address: usize,
    /// How its first byte is addressed in work requests.
    pub iova: u64,
    pub length: usize,
    pub access: u32,
}

/// A completion channel.
#[derive(Debug)]
pub struct CompletionChannel {
    pub context: u32,
    /// A semaphore with one unit for each event below.
    pub fd: OwnedFd,
    pub events: VecDeque<u32>,
    /// Completion queues that report to it.
    pub users: u32,
}

/// What a completion queue waits for before it reports to its channel, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    No,
    Solicited,
    Any,
}

#[derive(Debug)]
pub struct Queue {
    pub context: u32,
    pub handle: Handle,
    pub capacity: usize,
    pub entries: VecDeque<Entry>,
    /// How many entries there are, to look at without the lock.
    pub ready: Arc<AtomicUsize>,
    pub channel: Option<u32>,
    pub armed: Armed,
    /// Work queues that complete here.
    pub users: u32,
    /// Events that programs have got from the channel, and asynchronous ones.
    pub told: u32,
    pub told_async: u32,
    /// Entries were lost.
    pub overrun: bool,
    /// Polling it is an error from now on.
    pub failed: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub wc: ibv_wc,
    pub frees: Frees,
}

/// Whose place in a work queue comes free when the completion is polled.
#[derive(Clone, Copy, Debug)]
pub enum Frees {
    /// All of the pair's send requests before this one, too: so do unsignalled ones end.
    Send {
        pair: u32,
        upto: u64,
    },
    Receive {
        pair: u32,
    },
    Shared {
        shared: u32,
        pair: u32,
    },
}

impl Frees {
    pub fn pair(&self) -> u32 {
        match *self {
            Frees::Send { pair, .. } | Frees::Receive { pair } | Frees::Shared { pair, .. } => pair,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Reliable,
    Unreliable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    /// Unreliable pairs only: the send queue failed, receives go on.
    SendError,
    Error,
}

impl State {
    /// Takes what peers send.
    pub fn receives(self) -> bool {
        matches!(self, State::ReadyToReceive | State::ReadyToSend | State::SendError)
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Pair {
    pub context: u32,
    pub device: usize,
    pub handle: Handle,
    pub kind: Kind,
    pub domain: u32,
    pub send_queue: u32,
    pub receive_queue: u32,
    pub shared: Option<u32>,
    pub cap: ibv_qp_cap,
    pub all_signalled: bool,
    pub state: State,
    /// As they were set by `ibv_modify_qp`.
    pub attributes: ibv_qp_attr,
    /// Not carried out yet.
    pub pending: VecDeque<SendRequest>,
    /// Carried out, not acknowledged.
    pub unacknowledged: VecDeque<SendRequest>,
    /// Send requests that were posted so far, and how many of them have left the queue.
    pub posted: u64,
    pub retired: u64,
    pub receives: VecDeque<ReceiveRequest>,
    /// Receive requests whose completion was not polled yet.
    pub receives_out: u32,
    /// The engine has it on its list.
    pub scheduled: bool,
    pub waiting: Option<Waiting>,
    /// Of the next packet to send, and of the next one to take (24 bits).
    pub sends_from: u32,
    pub expects: u32,
    /// `IBV_EVENT_QP_LAST_WQE_REACHED` has been told.
    pub flushed: bool,
    /// `IBV_EVENT_COMM_EST` has been told.
    pub established: bool,
    /// iWARP: it was asked for its connection, and may not send before it has heard the other.
    pub listens: bool,
    /// Asynchronous events that programs have got.
    pub told: u32,
    /// What it sends is not always what was posted (`engine/spoil.rs`).
    pub spoils: bool,
}

impl Pair {
    pub fn path(&self) -> &ibv_ah_attr {
        &self.attributes.ah_attr
    }

    /// Reads that are under way.
    pub fn reads(&self) -> usize {
        self.unacknowledged.iter().filter(|request| request.is_read()).count()
    }
}

/// Why the first request of a pair is not carried out, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub what: Obstacle,
    /// `None`: for ever.
    pub until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing comes back: packets are sent again until `retry_cnt` is used up.
    Silence,
    /// The responder has no receive posted, in this pair.
    NoReceive(u32),
    /// Nor in this shared receive queue.
    NoShared(u32),
}

#[derive(Clone, Debug)]
pub struct SendRequest {
    pub id: u64,
    /// Its place among all that were posted to the pair.
    pub number: u64,
    pub opcode: u32,
    pub flags: u32,
    pub signalled: bool,
    pub immediate: u32,
    pub remote: u64,
    pub rkey: u32,
    pub payload: Payload,
    pub length: u64,
}

impl SendRequest {
    pub fn is_read(&self) -> bool {
        self.opcode == crate::abi::IBV_WR_RDMA_READ
    }
}

#[derive(Clone, Debug)]
pub enum Payload {
    /// Taken when it was posted.
    Inline(Vec<u8>),
    Gather(Vec<ibv_sge>),
}

#[derive(Clone, Debug)]
pub struct ReceiveRequest {
    pub id: u64,
    pub scatter: Vec<ibv_sge>,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Shared {
    pub context: u32,
    pub handle: Handle,
    pub domain: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    /// 0: not armed.
    pub limit: u32,
    pub receives: VecDeque<ReceiveRequest>,
    pub receives_out: u32,
    pub users: u32,
    pub told: u32,
}
