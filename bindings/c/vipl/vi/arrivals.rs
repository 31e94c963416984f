//! The shortest way of a message to its receive. `udeck-rdma` takes all other arrivals.

use udeck::via::transport::{Found, Inline};
use udeck_rdma::frame::{self, Head, IMMEDIATE};
use udeck_rdma::memory::{Right, locate};
use udeck_sys::copy_out;

use super::{Until, ViObject};
use crate::vipl::types::{Descriptor, ViState, status};

impl ViObject {
    /// Takes the message for the next receive, and completes it, when no completed receive waits. The shortest way for most messages.
    #[inline(always)]
    pub(super) fn receive_next(&mut self) -> Option<*mut Descriptor> {
        if self.state == ViState::CONNECTED
            && self.takes_plainly
            && let Some(below) = &mut self.queues.vi
        {
            let mut short = Inline::EMPTY;
            match below.arrival_short(&mut short) {
                Found::Short(_) => return self.take_plain(&short).or_else(|| self.take_first(&short)),
                Found::Nothing if !self.queues.has_unsent() => return None,
                Found::Nothing | Found::Other => {}
            }
        }
        self.receive_slowly()
    }

    #[inline(never)]
    fn receive_slowly(&mut self) -> Option<*mut Descriptor> {
        self.asked();
        self.move_on(Until::OneReceived);
        self.face.received.pop_front().map(|place| place.descriptor)
    }

    /// Takes a short message into the one segment of the oldest receive. `None`: the case is not as simple, and nothing was done.
    #[inline(always)]
    fn take_plain(&mut self, bytes: &Inline) -> Option<*mut Descriptor> {
        let head = Head::read(bytes.bytes(), IMMEDIATE)?;
        let body = bytes.bytes().get(frame::HEAD..)?;
        let receive = self.queues.receives.front()?;
        let (place, segment) = (receive.place, receive.segment);
        if head.kind != frame::SEND || receive.other.is_some() || body.len() > segment.last as usize {
            return None;
        }
        let to =
            locate(segment.data, body.len() as u64, segment.handle, self.face.ptag.0, Right::LocalWrite)?;
        // SAFETY: registered for so many bytes, and we have the VI's lock; `body` is memory of ours.
        unsafe { copy_out(to, body) };
        let immediate = head.immediate();
        let bits = status::OP_RECEIVE | if immediate.is_some() { status::IMMEDIATE } else { 0 };
        place.write(self.face.ptag, bits, body.len(), immediate);
        std::mem::forget(self.queues.receives.pop_front()); // it has no `other` to be dropped
        self.face.completions += 1;
        Some(place.descriptor)
    }

    #[inline(never)]
    fn take_first(&mut self, bytes: &Inline) -> Option<*mut Descriptor> {
        let taken = self.queues.take_short(&mut self.face, bytes);
        self.settle(taken);
        self.tell_of_completions();
        self.receive_slowly()
    }
}
