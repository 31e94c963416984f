//! Records of a send queue: posted sends, and how they ended.

mod reads;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::attributes::Reliability;
use crate::descriptor::{Descriptor, Kind, RawId, Status};
use crate::transport::{TransferStatus, ViEndpoint};
pub(super) use reads::Reads;

/// A send that is not reported yet.
pub(super) struct PostedSend {
    pub number: u64,
    /// `None` while its memory may be accessed, or while the receiver has not confirmed its arrival.
    pub status: Option<Status>,
    /// Status with which it ends, unless the receiver reports an error.
    pub ends_as: Status,
    pub kind: Kind,
    pub length: usize,
    pub owner: std::result::Result<Descriptor, RawId>,
}

/// Posted sends that are not reported yet, oldest first; their numbers ascend.
#[derive(Default)]
pub(super) struct Sends {
    posted: VecDeque<PostedSend>,
    /// Number of sends without a status.
    under_way: usize,
    /// Reads without a descriptor. Their numbers are not in `posted`.
    pub reads: Reads,
}

/// Kind of a connection's end that a failed send reveals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionEnd {
    /// The peer has left in order.
    Closed,
    /// The connection broke by an error.
    Broken,
    /// The connection broke by an error that only this side may know of: the peer does not allow RDMA to that place.
    Forbidden,
}

/// The status of a send whose transfer ended with `transfer_status`.
pub(super) fn status_of(transfer_status: TransferStatus, level: Reliability, kind: Kind) -> Status {
    match (transfer_status, level) {
        (TransferStatus::Arrived, _) => Status::Done,
        (TransferStatus::Protection, _) => Status::RdmaProtectionError,
        (TransferStatus::Lost, _) => Status::TransportError,
        (TransferStatus::Refused, Reliability::Reception) => Status::RemoteDescriptorError,
        (TransferStatus::Unread, Reliability::Reception) => Status::Flushed,
        // The data of the read have not come.
        (TransferStatus::Refused | TransferStatus::Unread, _) if kind == Kind::Read => Status::Flushed,
        // The data left the sender, and no more is promised at these levels.
        (
            TransferStatus::Refused | TransferStatus::Unread,
            Reliability::Unreliable | Reliability::Delivery,
        ) => Status::Done,
    }
}

/// The end of the connection that a send with this status reveals, if any.
fn end_by(status: Status, level: Reliability) -> Option<ConnectionEnd> {
    match status {
        Status::Flushed => Some(ConnectionEnd::Closed),
        Status::RemoteDescriptorError | Status::TransportError => Some(ConnectionEnd::Broken),
        // VIA: an unreliable connection stands, whatever is lost on it.
        Status::RdmaProtectionError if level == Reliability::Unreliable => None,
        Status::RdmaProtectionError => Some(ConnectionEnd::Forbidden),
        Status::Done | Status::LengthError => None,
    }
}

impl Sends {
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    #[inline]
    pub fn push(&mut self, send: PostedSend) {
        self.under_way += usize::from(send.status.is_none());
        self.posted.push_back(send);
    }

    /// Whether the oldest send, the next to be reported, is still in progress.
    #[inline]
    pub fn oldest_is_under_way(&self) -> bool {
        self.posted.front().is_some_and(|send| send.status.is_none())
    }

    /// Takes the oldest send, if it is over.
    #[inline]
    pub fn pop_over(&mut self) -> Option<(Status, PostedSend)> {
        let status = self.posted.front()?.status?;
        self.posted.pop_front().map(|send| (status, send))
    }

    pub fn all_over(&self) -> bool {
        self.under_way == 0 && self.reads.all_over()
    }

    /// Takes the sends whose memory may still be accessed, for good.
    pub fn take_unfinished(&mut self) -> impl Iterator<Item = PostedSend> {
        self.under_way = 0;
        self.posted.drain(..).filter(|send| send.status.is_none())
    }

    /// Notes the completions of the endpoint. Returns how the connection ended by them, if it did. At reliable reception no
    /// send is done behind one that is not: the sends that are done are a prefix of the posts.
    pub fn settle(&mut self, endpoint: &mut dyn ViEndpoint, level: Reliability) -> Option<ConnectionEnd> {
        let mut end = None;
        let mut stopped_at = None;
        while let Some((number, transfer_status)) = endpoint.poll_completion() {
            let found = self.posted.binary_search_by_key(&number, |send| send.number);
            let Ok(at) = found else {
                let status = self.reads.settle(number, transfer_status, level);
                end = end.max(status.and_then(|status| end_by(status, level)));
                continue;
            };
            let send = &mut self.posted[at];
            // Otherwise the end of its connection has settled the sends behind it, among which may be sends of a later
            // connection.
            let is_open = send.ends_as == Status::Done;
            let status = if is_open { status_of(transfer_status, level, send.kind) } else { send.ends_as };
            self.under_way -= usize::from(send.status.is_none());
            send.status = Some(status);
            let ended = if is_open { end_by(status, level) } else { None };
            if ended.is_some() {
                end = end.max(ended);
                stopped_at = Some(stopped_at.map_or(at, |first: usize| first.min(at)));
            }
        }
        if let Some(at) = stopped_at {
            for later in self.posted.range_mut(at + 1..) {
                match later.status {
                    None => later.ends_as = Status::Flushed,
                    Some(_) => later.flush_done(level),
                }
            }
        }
        end
    }

    /// Notes the end of the connection: the oldest unfinished send ends as `first`, all others as flushed.
    pub fn flush(&mut self, first: Status, level: Reliability) {
        self.reads.flush(first);
        let mut stopped = false;
        for send in &mut self.posted {
            if send.status.is_some() {
                if stopped {
                    send.flush_done(level);
                }
            } else if send.ends_as == Status::Done {
                send.ends_as = if stopped { Status::Flushed } else { first };
                stopped = true;
            }
        }
    }
}

impl PostedSend {
    /// Flushes a send that is over, because one before it has failed.
    fn flush_done(&mut self, level: Reliability) {
        // Below reliable reception a send that had left is done: no more is promised.
        if self.status != Some(Status::Done) || level == Reliability::Reception {
            self.status = Some(Status::Flushed);
        }
    }
}
