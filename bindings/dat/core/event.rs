//! Events, as the program gets them.

use udeck_rdma::Outcome;
use udeck_rdma::frame::Reason;

use super::memory::Triplet;

/// A `DAT_EVENT` without what its event dispatcher adds. `data` is the union `DAT_EVENT_DATA`, as a little-endian machine has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub number: u32,
    pub data: [u64; 5],
}

/// `DAT_EVENT_NUMBER`.
pub mod number {
    pub const DTO_COMPLETION: u32 = 0x00001;
    pub const RMR_BIND_COMPLETION: u32 = 0x01001;
    pub const CONNECTION_REQUEST: u32 = 0x02001;
    pub const ESTABLISHED: u32 = 0x04001;
    pub const PEER_REJECTED: u32 = 0x04002;
    pub const NON_PEER_REJECTED: u32 = 0x04003;
    pub const ACCEPT_COMPLETION_ERROR: u32 = 0x04004;
    pub const DISCONNECTED: u32 = 0x04005;
    pub const BROKEN: u32 = 0x04006;
    pub const TIMED_OUT: u32 = 0x04007;
    pub const UNREACHABLE: u32 = 0x04008;
    pub const ASYNC_EVD_OVERFLOW: u32 = 0x08001;
    pub const ASYNC_EP_BROKEN: u32 = 0x08003;
    pub const SOFTWARE: u32 = 0x10001;
}

/// `DAT_DTO_COMPLETION_STATUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    Success = 0,
    Flushed = 1,
    LocalLength = 2,
    LocalProtection = 4,
    RemoteAccess = 6,
    RemoteResponder = 7,
    Transport = 8,
    ReceiverNotReady = 9,
}

impl Status {
    /// Returns the status of a request with this outcome.
    pub fn of(outcome: Outcome) -> Status {
        match outcome {
            Outcome::Success => Status::Success,
            Outcome::Flushed | Outcome::Remote(Reason::Own) => Status::Flushed,
            Outcome::Local => Status::LocalProtection,
            Outcome::Remote(Reason::NoReceive) => Status::ReceiverNotReady,
            Outcome::Remote(Reason::BadReceive) => Status::RemoteResponder,
            Outcome::Remote(Reason::BadKey) => Status::RemoteAccess,
            Outcome::Lost => Status::Transport,
        }
    }
}

/// `DAT_DTOS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Dto {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    Receive = 3,
    ReceiveWithInvalidate = 4,
    BindMw = 5,
}

/// `DAT_COMPLETION_FLAGS` that have an effect here. (Each completion wakes waiting threads: solicited or not, signalled or not.)
pub mod flags {
    pub const SUPPRESS: u32 = 0x01;
    pub const BARRIER_FENCE: u32 = 0x08;
    /// All flags of `dat.h`.
    pub const ALL: u32 = 0x3f;
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

impl Event {
    #[inline]
    pub fn dto(ep: usize, cookie: u64, status: Status, len: usize, dto: Dto, rmr: u32) -> Event {
        let data = [ep as u64, cookie, pair(status as u32, len as u32), pair(dto as u32, rmr), 0];
        Event { number: number::DTO_COMPLETION, data }
    }

    pub fn bind(rmr: usize, cookie: u64, status: Status) -> Event {
        Event { number: number::RMR_BIND_COMPLETION, data: [rmr as u64, cookie, status as u64, 0, 0] }
    }

    pub fn request(service_point: usize, address: usize, qualifier: u64, request: usize) -> Event {
        let data = [service_point as u64, address as u64, qualifier, request as u64, 0];
        Event { number: number::CONNECTION_REQUEST, data }
    }

    pub fn connection(number: u32, ep: usize, private_data: &[u8]) -> Event {
        let at = if private_data.is_empty() { 0 } else { private_data.as_ptr() as u64 };
        Event { number, data: [ep as u64, private_data.len() as u64, at, 0, 0] }
    }

    /// Whether the event points to private data of a peer's.
    pub fn has_private_data(&self) -> bool {
        self.number & !0xff == number::ESTABLISHED & !0xff && self.data[1] > 0
    }

    /// Whether the event's private data are these.
    pub fn points_to(&self, private_data: &[u8]) -> bool {
        self.data[2] == private_data.as_ptr() as u64
    }

    pub fn asynchronous(number: u32, handle: usize, reason: u32) -> Event {
        Event { number, data: [handle as u64, reason.into(), 0, 0, 0] }
    }

    pub fn software(pointer: usize) -> Event {
        Event { number: number::SOFTWARE, data: [pointer as u64, 0, 0, 0, 0] }
    }
}

/// Bytes of all segments.
#[inline]
pub fn total(segments: &[Triplet]) -> usize {
    segments.iter().map(|segment| segment.len as usize).sum()
}
