//! Events, with what they carry.

use super::id::{EpId, EvdId, ServiceId, SrqId};
use super::memory::Iov;
use super::request::ConnectionRequest;
use super::rmr::Rmr;

/// An event of a dispatcher (`DAT_EVENT`).
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Work is over (`DAT_DTO_COMPLETION_EVENT`).
    Dto(Completion),
    /// A bind is over (`DAT_RMR_BIND_COMPLETION_EVENT`).
    Bind {
        /// The region, which is the program's again. After a failed bind it is bound to nothing.
        rmr: Rmr,
        /// The program's.
        cookie: u64,
        /// How the bind ended.
        status: Status,
    },
    /// A peer asks for a connection (`DAT_CONNECTION_REQUEST_EVENT`).
    Request(ConnectionRequest),
    /// A connection was made, refused, or ended. [`Ep::peer`](super::Ep::peer) has the data that the peer sent along.
    Connection {
        /// The end point of the connection.
        ep: EpId,
        /// The change of the connection.
        what: Connection,
    },
    /// An event that belongs to no call (`DAT_ASYNC_ERROR_*`).
    Asynchronous(Asynchronous),
    /// The value that [`Evd::post_software`](super::Evd::post_software) was called with (`DAT_SOFTWARE_EVENT`).
    Software(u64),
}

/// Changes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Connection {
    /// `DAT_CONNECTION_EVENT_ESTABLISHED`: both sides may post.
    Established,
    /// `DAT_CONNECTION_EVENT_PEER_REJECTED`: the program there said no.
    PeerRejected,
    /// `DAT_CONNECTION_EVENT_NON_PEER_REJECTED`: nobody serves that qualifier there, or no uDAPL program does.
    NonPeerRejected,
    /// `DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR`: the asker has gone before the answer came.
    AcceptFailed,
    /// `DAT_CONNECTION_EVENT_DISCONNECTED`: in order, by either side.
    Disconnected,
    /// `DAT_CONNECTION_EVENT_BROKEN`: by an error, or by the peer's death.
    Broken,
    /// `DAT_CONNECTION_EVENT_TIMED_OUT`: no answer in time.
    TimedOut,
    /// `DAT_CONNECTION_EVENT_UNREACHABLE`: there is no way to that address.
    Unreachable,
}

/// Events that belong to no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Asynchronous {
    /// `DAT_ASYNC_ERROR_EVD_OVERFLOW`: the dispatcher has lost events. Reported once.
    Overflow(EvdId),
    /// `DAT_ASYNC_ERROR_EP_BROKEN`: the end point takes nothing from its shared queue any more.
    EpBroken(EpId),
    /// `DAT_SRQ_LOW_WATERMARK_EVENT`: the queue has fewer receives than its low watermark. Reported once.
    LowWatermark(SrqId),
}

/// Work that is over, and its memory (`DAT_DTO_COMPLETION_EVENT_DATA`).
#[derive(Debug)]
pub struct Completion {
    /// The end point of the work. For a receive of a shared queue: the end point that the message came to.
    pub ep: EpId,
    /// The program's.
    pub cookie: u64,
    /// The kind of work.
    pub operation: Operation,
    /// How it ended.
    pub status: Status,
    /// Bytes that were sent, received, read or written; 0 unless it succeeded.
    pub length: usize,
    /// The memory that was posted.
    pub iov: Iov,
}

impl Completion {
    /// The memory of work that succeeded and was posted with one piece of memory.
    ///
    /// # Errors
    /// The whole completion, if the work failed.
    #[allow(clippy::result_large_err, reason = "it is what was asked for, and moves by value either way")]
    pub fn done(self) -> Result<super::Lmr, Completion> {
        if self.status == Status::Success { Ok(self.iov.into_lmr()) } else { Err(self) }
    }
}

/// Kinds of posted work (`DAT_DTOS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A send.
    Send,
    /// An RDMA write.
    RdmaWrite,
    /// An RDMA read.
    RdmaRead,
    /// A receive.
    Receive,
    /// A receive whose message has ended this RMR context, which was this process's (`DAT_DTO_RECEIVE_WITH_INVALIDATE`).
    ReceiveWithInvalidate(u32),
}

/// How work ended (`DAT_DTO_COMPLETION_STATUS`). Everything but [`Status::Success`] ends the connection.
///
/// A send or an RDMA write is over when its data have left: if the target refuses it, both ends get [`Connection::Broken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Success,
    /// The connection had ended before it was done.
    Flushed,
    /// A message was longer than the memory of its receive.
    LocalLength,
    /// The memory was not the end point's to use.
    LocalProtection,
    /// The peer does not allow RDMA to that memory.
    RemoteAccess,
    /// The peer could not take the message.
    RemoteResponder,
    /// The connection was lost.
    Transport,
    /// The peer had no receive for the message, for too long.
    ReceiverNotReady,
}

impl Status {
    pub(super) fn of(number: u32) -> Status {
        match number {
            0 => Status::Success,
            1 => Status::Flushed,
            2 => Status::LocalLength,
            4 => Status::LocalProtection,
            6 => Status::RemoteAccess,
            8 => Status::Transport,
            9 => Status::ReceiverNotReady,
            _ => Status::RemoteResponder,
        }
    }
}

impl Event {
    /// The service point of a connection request; `None` for other events.
    pub fn service(&self) -> Option<ServiceId> {
        match self {
            Event::Request(request) => Some(request.service()),
            _ => None,
        }
    }
}
