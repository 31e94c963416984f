//! The objects behind the handles: contexts, channels, completion queues, queue pairs, shared receive queues,
//! regions.

use crate::abi::{ibv_ah_attr, ibv_qp_attr, ibv_qp_cap, ibv_sge, ibv_wc};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

/// Address of an object's C handle: returned in events, never followed by the engine.
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

/// An open context of a device.
#[derive(Debug)]
pub struct Context {
    pub device: usize,
    /// A semaphore with one unit for each of these events.
    pub fd: OwnedFd,
    pub events: VecDeque<AsyncEvent>,
}

/// Object of an asynchronous event: it cannot be destroyed until the event was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOf {
    Pair(u32),
    Queue(u32),
    Shared(u32),
    Device,
}

/// An asynchronous event that no program has got yet.
#[derive(Clone, Copy, Debug)]
pub struct AsyncEvent {
    pub of: EventOf,
    /// Handle of the object; `None`: the event is about the port.
    pub about: Option<Handle>,
    /// Number of the event, `IBV_EVENT_…`.
    pub what: u32,
}

#[derive(Debug)]
pub struct Domain {
    pub context: u32,
    /// Number of regions, queue pairs and shared receive queues in the domain.
    pub users: u32,
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub domain: u32,
    /// Address of the region in the process.
    pub address: usize,
    /// Address of its first byte in work requests.
    pub iova: u64,
    pub length: usize,
    pub access: u32,
}

/// A completion channel.
#[derive(Debug)]
pub struct CompletionChannel {
    pub context: u32,
    /// A semaphore with one unit for each of these events.
    pub fd: OwnedFd,
    pub events: VecDeque<u32>,
    /// Number of completion queues that report to the channel.
    pub users: u32,
}

/// Condition for a completion queue's report to its channel, which comes once.
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
    /// Number of entries, readable without the lock.
    pub ready: Arc<AtomicUsize>,
    pub channel: Option<u32>,
    pub armed: Armed,
    /// Number of work queues that complete here.
    pub users: u32,
    /// Number of events that programs have got from the channel, and of asynchronous ones.
    pub events_delivered: u32,
    pub async_events_delivered: u32,
    /// Whether entries were lost.
    pub overrun: bool,
    /// Whether polling the queue is an error from now on.
    pub failed: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub wc: ibv_wc,
    pub frees: Frees,
}

/// Entry of a work queue that becomes free when the completion is polled.
#[derive(Clone, Copy, Debug)]
pub enum Frees {
    /// This send request and all of the pair's before it: unsignalled ones end in this way.
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
    /// The send queue failed and receives go on; unreliable pairs only.
    SendError,
    Error,
}

impl State {
    /// Whether the pair accepts messages of its peer.
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
    /// Attributes as set by `ibv_modify_qp`.
    pub attributes: ibv_qp_attr,
    /// Requests that were not carried out yet.
    pub pending: VecDeque<SendRequest>,
    /// Requests that were carried out but not acknowledged.
    pub unacknowledged: VecDeque<SendRequest>,
    /// Number of send requests that were posted, and number of those that have left the queue.
    pub posted: u64,
    pub retired: u64,
    pub receives: VecDeque<ReceiveRequest>,
    /// Number of receive requests whose completion was not polled yet.
    pub receives_out: u32,
    /// Whether the pair is on the engine's list.
    pub scheduled: bool,
    pub waiting: Option<Waiting>,
    /// Sequence number of the next packet to send, and of the next one to accept (24 bits).
    pub sends_from: u32,
    pub expects: u32,
    /// Whether `IBV_EVENT_QP_LAST_WQE_REACHED` has been reported.
    pub flushed: bool,
    /// Whether `IBV_EVENT_COMM_EST` has been reported.
    pub established: bool,
    /// Whether an iWARP pair is the accepting side, and may not send before it has heard the other.
    pub listens: bool,
    /// Number of asynchronous events that programs have got.
    pub events_delivered: u32,
    /// Whether it sends other data than were posted (`engine/corrupt_sender.rs`).
    pub corrupts_sends: bool,
}

impl Pair {
    pub fn path(&self) -> &ibv_ah_attr {
        &self.attributes.ah_attr
    }

    /// Number of reads under way.
    pub fn reads(&self) -> usize {
        self.unacknowledged.iter().filter(|request| request.is_read()).count()
    }
}

/// Why the first request of a pair is not carried out, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub what: Obstacle,
    /// Time until which it waits; `None`: for ever.
    pub until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing comes back: packets are repeated until `retry_cnt` is used up.
    Silence,
    /// The responder has no receive posted, in this pair.
    NoReceive(u32),
    /// The responder has no receive posted, in this shared receive queue.
    NoShared(u32),
}

#[derive(Clone, Debug)]
pub struct SendRequest {
    pub id: u64,
    /// Sequence number among all requests that were posted to the pair.
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
    /// Bytes that were copied by the post.
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
    /// Number of receives below which an event is due; 0: not armed.
    pub limit: u32,
    pub receives: VecDeque<ReceiveRequest>,
    pub receives_out: u32,
    pub users: u32,
    pub events_delivered: u32,
}
