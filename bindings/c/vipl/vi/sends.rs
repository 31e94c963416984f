//! The send queue: what may be posted.

use udeck::via::Reliability;
use udeck_rdma::INLINE;
use udeck_rdma::frame::{self, Head};
use udeck_rdma::memory::{Right, locate};
use udeck_sys::copy_in;

use super::{MAX_DESCRIPTORS, ViObject};
use crate::vipl::types::{Descriptor, ViState, VipReturn, status};
use crate::vipl::work_request::{Operation, Place, Queue, Short, WorkRequest};

impl ViObject {
    /// `VipPostSend`.
    #[inline]
    pub fn post_send(&mut self, place: Place) -> VipReturn {
        if self.state == ViState::CONNECTED
            && self.queues.posted() == 0
            && self.face.level != Reliability::Reception
            && self.face.sent.len() < MAX_DESCRIPTORS
            && self.send_short(place)
        {
            self.face.count_send(place);
            self.tell_of_completions();
            return VipReturn::SUCCESS;
        }
        self.post_slowly(place)
    }

    /// Sends a short message the shortest way. `false`: it was not sent.
    #[inline(always)]
    fn send_short(&mut self, place: Place) -> bool {
        let Some(short) = Short::read(place, self.face.ptag) else { return false };
        let (segment, len) = (short.segment, short.segment.last as usize);
        if len > INLINE || len > self.max_transfer() {
            return false;
        }
        let found = locate(segment.data, len as u64, segment.handle, self.face.ptag.0, Right::LocalRead);
        let (Some(at), Some(below)) = (found, &mut self.queues.vi) else { return false };
        let mut body = [0; INLINE];
        let body = &mut body[..len];
        // SAFETY: the memory is registered for so many bytes, and stays so while this VI's lock is held. Others may write it meanwhile.
        unsafe { copy_in(body, at) };
        let head = Head::with_immediate(frame::SEND, short.immediate);
        let sent = below.send_short(0, head.bytes(), body);
        if sent {
            short.finish(status::OP_SEND);
        }
        sent
    }

    #[inline(never)]
    fn post_slowly(&mut self, place: Place) -> VipReturn {
        if self.state != ViState::CONNECTED {
            return self.post_unconnected(place);
        }
        if self.queues.posted() + self.face.sent.len() >= MAX_DESCRIPTORS {
            return VipReturn::ERROR_RESOURCE;
        }
        let Some(request) = WorkRequest::read(place, self.face.ptag, Queue::Send, self.max_transfer()) else {
            return VipReturn::DESCRIPTOR_ERROR;
        };
        self.post_other(request);
        VipReturn::SUCCESS
    }

    #[cold]
    fn post_unconnected(&mut self, place: Place) -> VipReturn {
        if self.state != ViState::ERROR {
            return VipReturn::INVALID_STATE;
        }
        if self.queues.posted() + self.face.sent.len() >= MAX_DESCRIPTORS {
            return VipReturn::ERROR_RESOURCE;
        }
        let Some(request) = WorkRequest::read(place, self.face.ptag, Queue::Send, usize::MAX) else {
            return VipReturn::DESCRIPTOR_ERROR;
        };
        self.face.send_over(place, request.kind() | status::DESC_FLUSHED_ERROR, 0);
        self.tell_of_completions();
        VipReturn::SUCCESS
    }

    #[inline(never)]
    fn post_other(&mut self, mut request: WorkRequest) {
        if request.error == 0 && !request.is_registered(self.face.ptag) {
            request.error = status::PROTECTION_ERROR;
        }
        if request.error == 0
            && matches!(request.operation, Operation::Read(..))
            && self.face.level == Reliability::Unreliable
        {
            request.error = status::FORMAT_ERROR;
        }
        match self.queues.post(&mut self.face, request) {
            Ok(()) => self.count_needs(),
            Err(end) => self.end_by(end),
        }
        self.tell_of_completions();
    }

    /// Takes the next completed send.
    #[inline]
    pub fn send_done(&mut self) -> Option<*mut Descriptor> {
        if self.face.sent.is_empty() && self.queues.posted() > 0 {
            self.move_on(super::Until::Bound);
        }
        self.face.sent.pop_front().map(|place| place.descriptor)
    }
}
