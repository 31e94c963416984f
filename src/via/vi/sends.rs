//! The books of a send queue: what was posted, and how it ended.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::attributes::Reliability;
use crate::descriptor::{Descriptor, RawId, Status};
use crate::transport::{Fate, Port};

/// A send that is not reported yet.
pub(super) struct PostedSend {
    pub number: u64,
    /// `None` while the receiver may read its memory, or has yet to say that it arrived.
    pub status: Option<Status>,
    /// How it ends if the receiver has nothing to say against it.
    pub ends_as: Status,
    pub length: usize,
    pub owner: std::result::Result<Descriptor, RawId>,
}

/// Posted sends that are not reported yet, oldest first; their numbers ascend.
#[derive(Default)]
pub(super) struct Sends {
    posted: VecDeque<PostedSend>,
    /// How many have no status.
    under_way: usize,
}

/// How a send ends of which the port says this.
pub(super) fn status_of(fate: Fate, level: Reliability) -> Status {
    match (fate, level) {
        (Fate::Arrived, _) => Status::Done,
        (Fate::Protection, _) => Status::RdmaProtectionError,
        (Fate::Lost, _) => Status::TransportError,
        (Fate::Refused, Reliability::Reception) => Status::RemoteDescriptorError,
        (Fate::Unread, Reliability::Reception) => Status::Flushed,
        // The data left the sender: more is not promised.
        (Fate::Refused | Fate::Unread, Reliability::Unreliable | Reliability::Delivery) => Status::Done,
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

    /// Whether the next to be reported depends on the receiver.
    #[inline]
    pub fn oldest_is_under_way(&self) -> bool {
        self.posted.front().is_some_and(|send| send.status.is_none())
    }

    /// The oldest, if it is over.
    #[inline]
    pub fn pop_over(&mut self) -> Option<(Status, PostedSend)> {
        let status = self.posted.front()?.status?;
        self.posted.pop_front().map(|send| (status, send))
    }

    pub fn all_over(&self) -> bool {
        self.under_way == 0
    }

    /// Those whose memory the peer may still read, for good.
    pub fn take_unfinished(&mut self) -> impl Iterator<Item = PostedSend> {
        self.under_way = 0;
        self.posted.drain(..).filter(|send| send.status.is_none())
    }

    /// Notes what the port says has ended. Returns whether one ended by an error that breaks the connection; those
    /// behind it are flushed. (One that was to end so, because its connection had ended before, breaks none: those
    /// behind it may be the next connection's.)
    pub fn settle(&mut self, port: &mut dyn Port, level: Reliability) -> bool {
        let mut broke_at = None;
        while let Some((number, fate)) = port.ended() {
            let found = self.posted.binary_search_by_key(&number, |send| send.number);
            let Ok(at) = found else { continue };
            let send = &mut self.posted[at];
            let foregone = send.ends_as != Status::Done;
            let status = if foregone { send.ends_as } else { status_of(fate, level) };
            self.under_way -= usize::from(send.status.is_none());
            send.status = Some(status);
            if !foregone && breaks(status) {
                broke_at = Some(broke_at.map_or(at, |first: usize| first.min(at)));
            }
        }
        let Some(at) = broke_at else { return false };
        for later in self.posted.range_mut(at + 1..) {
            match later.status {
                None => later.ends_as = Status::Flushed,
                Some(Status::Done) if level != Reliability::Reception => {}
                Some(_) => later.status = Some(Status::Flushed),
            }
        }
        true
    }

    /// The connection ends: the oldest unfinished send ends as `first`, all others as flushed.
    pub fn flush(&mut self, first: Status) {
        let mut status = first;
        let unfinished = |send: &&mut PostedSend| send.status.is_none() && send.ends_as == Status::Done;
        for send in self.posted.iter_mut().filter(unfinished) {
            send.ends_as = status;
            status = Status::Flushed;
        }
    }
}

/// Whether the connection is over by a send that ended so.
fn breaks(status: Status) -> bool {
    matches!(status, Status::RemoteDescriptorError | Status::RdmaProtectionError | Status::TransportError)
}
