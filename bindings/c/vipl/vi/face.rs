//! VIPL's face of the engine: a VI's attributes, and its descriptors that are over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use udeck::via::{Nic, Ptag, Reliability};
use udeck_rdma::frame::{self, Head, IMMEDIATE, Reason};
use udeck_rdma::memory::{Right, Segment, gather_located, locate};
use udeck_rdma::{Face, HeldBytes, Outcome, Request};
use udeck_sys::copy_out;

use super::MAX_DESCRIPTORS;
use super::early::Early;
use crate::vipl::cq::CqState;
use crate::vipl::engine::NicState;
use crate::vipl::error::Event;
use crate::vipl::handle::Handle;
use crate::vipl::types::{ErrorCode, ResourceCode, ViAttributes, control, status};
use crate::vipl::work_request::{Operation, Place, Receive, WorkRequest};

/// Most messages of a VI that wait for receives.
pub(super) const MAX_HELD: usize = 16;

/// The report of a write that is refused.
pub(super) const BAD_WRITE: &str = "the peer's RDMA write names memory that it may not write";

/// The part of a VI that completions and memory need.
pub(super) struct ViplFace {
    pub handle: Handle,
    pub nic: Arc<NicState>,
    pub attributes: ViAttributes,
    pub ptag: Ptag,
    pub level: Reliability,
    pub send_cq: Option<Arc<CqState>>,
    pub receive_cq: Option<Arc<CqState>>,
    /// Completed sends that were not given back yet, oldest first.
    pub sent: VecDeque<Place>,
    /// Completed receives that were not given back yet, oldest first.
    pub received: VecDeque<Place>,
    /// Number of completed descriptors so far, of both queues.
    pub completions: u64,
    /// The beginning of the connection.
    pub early: Early,
    /// Whether the program was told that this peer reaches for memory that it may not have.
    pub told_of_refusal: bool,
}

impl ViplFace {
    /// Completes a send.
    pub fn send_over(&mut self, place: Place, bits: u32, length: usize) {
        place.write(self.ptag, bits, length, None);
        self.count_send(place);
    }

    /// Counts a send whose status is written.
    #[inline]
    pub fn count_send(&mut self, place: Place) {
        self.sent.push_back(place);
        self.completions += 1;
        if let Some(cq) = &self.send_cq {
            cq.push(self.handle, false);
        }
    }

    /// Completes a receive.
    #[inline]
    pub fn receive_over(&mut self, place: Place, bits: u32, length: usize, immediate: Option<u32>) {
        place.write(self.ptag, bits, length, immediate);
        self.received.push_back(place);
        self.completions += 1;
        if let Some(cq) = &self.receive_cq {
            cq.push(self.handle, true);
        }
    }

    /// Reports an operation that has failed on this side.
    #[cold]
    fn raise_failure(&self, request: &WorkRequest) {
        if let (Operation::Read(..), 0) = (request.operation, request.error) {
            let why = "memory that an RDMA read was to fill was deregistered";
            self.raise(ErrorCode::COMP_PROT, control::OP_RDMAREAD.into(), why);
        } else {
            let why = "a send descriptor is wrong, or names memory that is not registered with the VI's tag";
            self.raise(ErrorCode::POST_DESC, request.kind(), why);
        }
    }

    /// Reports RDMA that was refused, once: a peer could repeat it without end.
    fn raise_refusal(&mut self, error: ErrorCode, op_code: u16, why: &str) {
        if !std::mem::replace(&mut self.told_of_refusal, true) {
            self.raise(error, op_code.into(), why);
        }
    }

    #[cold]
    pub fn raise(&self, error: ErrorCode, op_code: u32, why: &str) {
        let resource = ResourceCode::VI;
        let event =
            Event { nic: self.nic.handle(), vi: self.handle, op_code, resource, error, why: why.into() };
        self.nic.raise(event);
    }
}

impl Face for ViplFace {
    type Operation = WorkRequest;
    type Receive = Receive;

    const FLAG: u8 = IMMEDIATE;
    const MAX_POSTED: usize = MAX_DESCRIPTORS;
    const BLAMES_ANY: bool = false;

    fn nic(&self) -> &Nic {
        &self.nic.nic
    }

    fn is_reliable(&self) -> bool {
        self.level != Reliability::Unreliable
    }

    #[inline]
    fn is_acknowledged(&self) -> bool {
        self.level == Reliability::Reception
    }

    fn len(request: &WorkRequest) -> usize {
        request.total
    }

    fn is_fenced(request: &WorkRequest) -> bool {
        request.fenced
    }

    fn begin(&mut self, request: &WorkRequest) -> Option<Request> {
        let head = |kind| Head::with_immediate(kind, request.immediate);
        (request.error == 0).then(|| match request.operation {
            Operation::Send => Request::Data(head(frame::SEND), None),
            Operation::Write(address, handle) => Request::Data(head(frame::WRITE), Some((address, handle))),
            Operation::Read(address, handle) => Request::Read(address, handle),
        })
    }

    fn gather(&self, request: &WorkRequest, to: &mut [u8]) -> bool {
        request.gather(self.ptag, to)
    }

    fn scatter(&self, request: &WorkRequest, data: &[u8]) -> bool {
        request.scatter(self.ptag, std::iter::once(data)).is_ok()
    }

    fn complete(&mut self, request: WorkRequest, outcome: Outcome) {
        let bits = match outcome {
            Outcome::Success => return self.send_over(request.place, request.kind(), request.total),
            Outcome::Flushed | Outcome::Remote(Reason::Own) => status::DESC_FLUSHED_ERROR,
            Outcome::Local if request.error != 0 => request.error,
            Outcome::Local => status::PROTECTION_ERROR,
            Outcome::Remote(Reason::NoReceive | Reason::BadReceive) => status::REMOTE_DESC_ERROR,
            Outcome::Remote(Reason::BadKey) => status::RDMA_PROT_ERROR,
            Outcome::Lost => status::TRANSPORT_ERROR,
        };
        self.send_over(request.place, request.kind() | bits, 0);
        // The handler runs on another thread, and may look at the descriptor's status.
        if outcome == Outcome::Local && self.is_reliable() {
            self.raise_failure(&request);
        }
    }

    #[inline]
    fn receive(&mut self, receive: Receive, head: Head, body: &[u8], rest: &[&[u8]]) -> Result<(), Reason> {
        let request = receive.into_request();
        let pieces = std::iter::once(body).chain(rest.iter().copied());
        let length = body.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        let (error, placed) = match request.error {
            0 => match request.scatter(self.ptag, pieces) {
                Ok(0) => (0, length),
                Ok(left_over) => (status::LENGTH_ERROR, length - left_over),
                Err(_) => (status::PROTECTION_ERROR, 0),
            },
            error => (error, 0),
        };
        let immediate = head.immediate();
        let bits = status::OP_RECEIVE | error | if immediate.is_some() { status::IMMEDIATE } else { 0 };
        self.receive_over(request.place, bits, placed, immediate);
        if error == 0 { Ok(()) } else { Err(Reason::BadReceive) }
    }

    fn receive_immediate(&mut self, receive: Receive, immediate: u32, len: usize) {
        let bits = status::OP_REMOTE_RDMA_WRITE | status::IMMEDIATE;
        self.receive_over(receive.place, bits, len, Some(immediate));
    }

    fn flush_receive(&mut self, receive: Receive) {
        self.receive_over(receive.place, status::OP_RECEIVE | status::DESC_FLUSHED_ERROR, 0, None);
    }

    fn may_wait(&mut self, since: Option<Instant>) -> bool {
        self.early.may_wait(since.is_some())
    }

    fn held(&self) -> &HeldBytes {
        self.nic.progress.held()
    }

    /// Messages behind one without a receive stay in the connection, unless the answer to a descriptor may be among
    /// them.
    fn may_hold_more(messages: usize, is_under_way: bool) -> bool {
        is_under_way && messages < MAX_HELD
    }

    fn may_read(&mut self, from: Segment) -> bool {
        let is_allowed = self.attributes.rdma_read != 0
            && from.len as usize <= self.nic.max_transfer()
            && locate(from.address, from.len.into(), from.key, self.ptag.0, Right::RemoteRead).is_some();
        if !is_allowed {
            let why = "the peer's RDMA read names memory that it may not read";
            self.raise_refusal(ErrorCode::RDMAR_PROT, control::OP_RDMAREAD, why);
        }
        is_allowed
    }

    fn read(&self, from: Segment, to: &mut [u8]) -> bool {
        // SAFETY: the caller keeps the VI's lock.
        unsafe { gather_located(&[from], self.ptag.0, Right::RemoteRead, to).is_ok() }
    }

    fn write(&mut self, to: Segment, data: &[u8]) -> bool {
        // A write of no bytes names memory, too.
        let found = locate(to.address, data.len() as u64, to.key, self.ptag.0, Right::RemoteWrite);
        let Some(at) = found.filter(|_| self.attributes.rdma_write != 0) else {
            // The end of a reliable connection reports the error.
            if !self.is_reliable() {
                self.raise_refusal(ErrorCode::RDMAW_PROT, control::OP_RDMAWRITE, BAD_WRITE);
            }
            return false;
        };
        // SAFETY: the memory is registered for so many bytes, and stays so while the VI's lock is held.
        unsafe { copy_out(at, data) };
        true
    }
}
