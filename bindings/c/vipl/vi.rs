//! A VI: the program's two work queues, over a virtual interface of the library.
//!
//! The interface below takes messages as they come (`Receive::Lent`); work queues and RDMA are `udeck-rdma`'s,
//! because VIPL's reach any memory of the program's, in order with its messages
//! (docs/decisions/043-vipl-rdma-in-messages.md). Descriptors and the VI's state are here. A thread that polls a VI
//! moves it on: it takes what has arrived, places it, answers it, and sends what had found no room. If no thread
//! polls a VI that needs it, the NIC's engine does (`engine.rs`).
//!
//! A VI's lock is that of its place in the table of handles. It is never held during a wait, nor while the program's
//! handlers run.

mod arrivals;
mod connection;
mod early;
mod face;
mod sends;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use udeck::via::{self, AtomicSpinHistory, Caps, Reliability, ServiceLevel, Vi, ViAttributes as Below};

use udeck_rdma::frame::Reason;
use udeck_rdma::{End, Outcome, QueuePair};

use super::cq::CqState;
use super::engine::{Job, NicState, Notify, Visits};
use super::error;
use super::handle::{Handle, Table};
use super::types::{
    self, Descriptor, DescriptorSegment, ErrorCode, ViAttributes, ViState, VipReturn, control, status,
};
use super::work_request::{Place, Queue, Receive, Short, WorkRequest};
pub(super) use connection::PeerRequest;
use early::Early;
use face::{BAD_WRITE, ViplFace};

pub(super) static VIS: Table<ViObject> = Table::new(2);

/// Calls of the NIC on its VIs.
pub(super) static VISITS: Visits = Visits {
    move_on: |vi| {
        if let Some(mut vi) = VIS.lock(Handle::of_number(vi)) {
            vi.move_on(Until::Bound);
        }
    },
    look_after: |vi| {
        if let Some(mut vi) = VIS.lock(vi) {
            vi.count_needs();
        }
    },
    pass: |vi| drop(VIS.lock(vi)),
};

/// Most descriptors on one queue.
pub(super) const MAX_DESCRIPTORS: usize = 4096;

/// Reads `VIP_QOS`: the number of a service level, in place of a pointer. Where the NIC has no levels the result is 0, and `VipQueryVi`
/// reports it so.
fn service_level(nic: &NicState, qos: *mut c_void) -> Result<ServiceLevel, VipReturn> {
    let level = u8::try_from(qos.addr()).ok().and_then(ServiceLevel::new).ok_or(VipReturn::INVALID_QOS)?;
    Ok(if nic.nic.caps().has(Caps::SERVICE_LEVELS) { level } else { ServiceLevel::default() })
}

/// Returns the level in the form of `VIP_QOS`.
pub(super) fn qos_of(level: ServiceLevel) -> *mut c_void {
    std::ptr::without_provenance_mut(level.get().into())
}

pub(super) struct ViObject {
    face: ViplFace,
    /// Its interface below is missing while a thread connects it.
    queues: QueuePair<ViplFace>,
    state: ViState,
    send_notify: Option<Notify>,
    receive_notify: Option<Notify>,
    /// Experience of the waits for sends, and of those for receives. Waits hold them, because the VI may be destroyed meanwhile.
    spin_histories: [Arc<AtomicSpinHistory>; 2],
    peer: Option<PeerRequest>,
    /// Whether receives may be taken the short way: no reliable reception, completion queue or handler, and the connection's beginning is over.
    takes_plainly: bool,
    /// Whether the NIC knows that this VI has found no room.
    is_stuck: bool,
    /// Whether this VI is counted as one that the engine has to serve.
    needs_engine: bool,
}

impl ViObject {
    pub fn new(
        handle: Handle,
        nic: Arc<NicState>,
        attributes: ViAttributes,
        below: Vi,
        cqs: [Option<Arc<CqState>>; 2],
    ) -> Self {
        let (ptag, level) = (below.attributes().ptag, below.attributes().reliability);
        let [send_cq, receive_cq] = cqs;
        let face = ViplFace {
            handle,
            nic,
            attributes,
            ptag,
            level,
            send_cq,
            receive_cq,
            sent: VecDeque::new(),
            received: VecDeque::new(),
            completions: 0,
            early: Early::default(),
            told_of_refusal: false,
        };
        let mut made = ViObject {
            face,
            queues: QueuePair::new(Some(below)),
            state: ViState::IDLE,
            send_notify: None,
            receive_notify: None,
            spin_histories: Default::default(),
            peer: None,
            takes_plainly: false,
            is_stuck: false,
            needs_engine: false,
        };
        made.find_way();
        made
    }

    /// Returns the attributes of the library's VI for the program's attributes.
    pub fn below_for(nic: &NicState, attributes: &ViAttributes) -> Result<Below, VipReturn> {
        let ptag = nic.ptag(attributes.ptag).ok_or(VipReturn::INVALID_PTAG)?;
        let reliability = error::level(attributes.reliability)
            .filter(|level| nic.nic.caps().has(level.cap()))
            .ok_or(VipReturn::INVALID_RELIABILITY_LEVEL)?;
        if attributes.max_transfer > nic.max_transfer() as types::Ulong {
            return Err(VipReturn::INVALID_MTU);
        }
        if attributes.rdma_read != 0 && reliability == Reliability::Unreliable {
            return Err(VipReturn::INVALID_RDMAREAD);
        }
        let level = service_level(nic, attributes.qos)?;
        Ok(Below { reliability, receive: via::Receive::Lent, level, ..Below::new(ptag) })
    }

    pub fn nic(&self) -> &Arc<NicState> {
        &self.face.nic
    }

    /// Experience of the waits at this queue.
    pub fn spin_history(&self, queue: Queue) -> Arc<AtomicSpinHistory> {
        let [sends, receives] = &self.spin_histories;
        match queue {
            Queue::Send => sends.clone(),
            Queue::Receive => receives.clone(),
        }
    }

    pub fn attributes(&self) -> &ViAttributes {
        &self.face.attributes
    }

    pub fn state(&self) -> ViState {
        self.state
    }

    pub fn has_cq(&self, queue: Queue) -> bool {
        match queue {
            Queue::Send => self.face.send_cq.is_some(),
            Queue::Receive => self.face.receive_cq.is_some(),
        }
    }

    /// Whether the queue has neither posted descriptors nor completed ones that were not given back.
    pub fn is_empty(&self, queue: Queue) -> bool {
        match queue {
            Queue::Send => self.queues.posted() == 0 && self.face.sent.is_empty(),
            Queue::Receive => self.queues.receives.is_empty() && self.face.received.is_empty(),
        }
    }

    pub fn set_attributes(&mut self, mut attributes: ViAttributes) -> Result<(), VipReturn> {
        if self.state != ViState::IDLE {
            return Err(VipReturn::INVALID_STATE);
        }
        let mut wanted = Self::below_for(&self.face.nic, &attributes)?;
        let is_empty = self.is_empty(Queue::Send) && self.is_empty(Queue::Receive);
        let below = self.queues.vi.as_mut().ok_or(VipReturn::INVALID_STATE)?;
        if !is_empty {
            return Err(VipReturn::ERROR_RESOURCE); // descriptors were checked against the old attributes
        }
        wanted.context = self.face.handle.number();
        if attributes.max_transfer == 0 {
            attributes.max_transfer = self.face.nic.max_transfer() as types::Ulong;
        }
        attributes.qos = qos_of(wanted.level);
        below.set_attributes(wanted).map_err(|error| error::code(&error))?;
        (self.face.attributes, self.face.ptag, self.face.level) =
            (attributes, wanted.ptag, wanted.reliability);
        self.find_way();
        Ok(())
    }

    fn max_transfer(&self) -> usize {
        self.face.attributes.max_transfer as usize // no more than the NIC's
    }

    /// `VipPostRecv`.
    #[inline]
    pub fn post_receive(&mut self, place: Place) -> VipReturn {
        if self.queues.receives.len() + self.face.received.len() >= MAX_DESCRIPTORS {
            return VipReturn::ERROR_RESOURCE;
        }
        if self.state != ViState::ERROR
            && let Some(short) = Short::read(place, self.face.ptag)
        {
            short.renew();
            self.queues.receives.push_back(Receive { place, segment: short.segment, other: None });
            return VipReturn::SUCCESS;
        }
        self.post_other_receive(place)
    }

    #[inline(never)]
    fn post_other_receive(&mut self, place: Place) -> VipReturn {
        let Some(request) = WorkRequest::read(place, self.face.ptag, Queue::Receive, usize::MAX) else {
            return VipReturn::DESCRIPTOR_ERROR;
        };
        if self.state == ViState::ERROR {
            self.face.receive_over(place, status::OP_RECEIVE | status::DESC_FLUSHED_ERROR, 0, None);
            self.tell_of_completions();
        } else {
            let segment = DescriptorSegment { data: 0, handle: 0, last: 0 };
            self.queues.receives.push_back(Receive { place, segment, other: Some(Box::new(request)) });
        }
        VipReturn::SUCCESS
    }

    /// Takes the next completed receive.
    #[inline]
    pub fn receive_done(&mut self) -> Option<*mut Descriptor> {
        if self.face.received.is_empty() {
            return self.receive_next();
        }
        self.face.received.pop_front().map(|place| place.descriptor)
    }

    /// Takes what has arrived, answers it, and sends what waits.
    #[inline]
    pub fn move_on(&mut self, until: Until) {
        if self.state != ViState::CONNECTED || self.queues.vi.is_none() {
            return;
        }
        let before = self.face.completions;
        let is_enough = |face: &ViplFace| until == Until::OneReceived && !face.received.is_empty();
        let moved = self.queues.move_on(&mut self.face, is_enough);
        self.settle(moved);
        // By an arrival, or because what waited has found room.
        if self.face.completions != before {
            self.tell_of_completions();
        }
    }

    /// Ends the connection if the engine says so, and has the VI served if it waits for room or a receive.
    #[inline]
    fn settle(&mut self, moved: Result<(), End>) {
        match moved {
            Err(end) => self.end_by(end),
            Ok(()) if self.is_stuck || self.queues.has_unsent() || self.queues.is_holding() => {
                self.find_way();
                self.count_needs();
            }
            Ok(()) => {}
        }
    }

    /// Wakes threads that wait for completions, and has handlers called.
    #[inline]
    fn tell_of_completions(&mut self) {
        if self.send_notify.is_some() || self.receive_notify.is_some() {
            self.notify();
        }
        self.face.nic.progress.bell().ring();
    }

    #[cold]
    fn notify(&mut self) {
        if let (Some(notify), Some(place)) = (self.receive_notify, self.face.received.front().copied()) {
            self.receive_notify = None;
            self.find_way();
            self.face.received.pop_front();
            self.face.nic.call(Job::Queue { notify, vi: self.face.handle, place });
        }
        if let Some(notify) = self.send_notify
            && let Some(place) = self.face.sent.pop_front()
        {
            self.send_notify = None;
            self.face.nic.call(Job::Queue { notify, vi: self.face.handle, place });
        }
        self.count_needs();
    }

    /// `VipSendNotify`, `VipRecvNotify`.
    pub fn set_notify(&mut self, queue: Queue, notify: Notify) -> VipReturn {
        let place = match queue {
            Queue::Send => &mut self.send_notify,
            Queue::Receive => &mut self.receive_notify,
        };
        if place.is_some() {
            return VipReturn::ERROR_RESOURCE;
        }
        *place = Some(notify);
        self.find_way();
        self.move_on(Until::Bound);
        self.notify();
        VipReturn::SUCCESS
    }

    /// Finds out whether receives may be taken the short way.
    fn find_way(&mut self) {
        self.takes_plainly = self.face.level != Reliability::Reception
            && self.face.receive_cq.is_none()
            && self.receive_notify.is_none()
            && self.face.early.is_over()
            && !self.queues.is_holding();
    }

    /// Whether the engine has to look after this VI when the program does not: it is to be notified, the peer reaches its memory, or
    /// something waits to be sent.
    fn count_needs(&mut self) {
        let is_reached = self.face.attributes.rdma_write != 0 || self.face.attributes.rdma_read != 0;
        let is_stuck =
            self.state == ViState::CONNECTED && (self.queues.has_unsent() || self.queues.is_holding());
        let waits = is_stuck || self.queues.reads() > 0;
        let has_cq = self.face.send_cq.iter().chain(&self.face.receive_cq).any(|cq| cq.is_to_notify());
        let needs = (self.state == ViState::CONNECTED
            && (is_reached || waits || has_cq || self.face.level == Reliability::Reception))
            || self.send_notify.is_some()
            || self.receive_notify.is_some();
        if needs != self.needs_engine {
            self.needs_engine = needs;
            self.face.nic.need(needs);
        }
        if is_stuck != self.is_stuck {
            self.is_stuck = is_stuck;
            self.face.nic.progress.set_stalled(self.face.handle.number(), is_stuck);
        }
    }

    /// Ends the connection: posted descriptors are flushed, and the oldest send under way ends by `first`. `state`: the VI's state
    /// from now on.
    #[cold]
    fn end(&mut self, state: ViState, first: Outcome) {
        self.state = state;
        self.face.early = Early::default();
        self.queues.flush(&mut self.face, first);
        self.find_way();
        self.count_needs();
        self.tell_of_completions();
    }

    /// Ends the connection by what the engine has met.
    #[cold]
    fn end_by(&mut self, end: End) {
        match end {
            End::Local | End::Nonsense => self.queues.say_broken(Reason::Own),
            End::Arrival(reason) => self.queues.say_broken(reason),
            End::Refused | End::Broken(_) | End::Closed | End::Lost => {}
        }
        let (error, op_code, why) = match end {
            // The operation's completion has reported the error; the NIC's own callback reports a loss.
            End::Local | End::Closed | End::Lost => (None, 0, ""),
            End::Arrival(Reason::BadKey) => (Some(ErrorCode::RDMAW_PROT), 0, BAD_WRITE),
            End::Arrival(Reason::NoReceive) => {
                (Some(ErrorCode::RECVQ_EMPTY), 0, "a message came and no receive descriptor was posted")
            }
            End::Arrival(_) => (
                Some(ErrorCode::RECVQ_EMPTY),
                0,
                "a message came that its receive descriptor could not take: too long, or a wrong descriptor",
            ),
            End::Nonsense => (
                Some(ErrorCode::CONN_LOST),
                0,
                "the peer says what this VIPL does not understand: is it a program of another version?",
            ),
            End::Refused => (
                Some(ErrorCode::CONN_LOST),
                control::OP_RDMAREAD,
                "an RDMA read of memory of the peer's that it may not read ended the connection",
            ),
            End::Broken(_) => (
                Some(ErrorCode::CONN_LOST),
                0,
                "the peer ended the connection by an error: it had no place for a message, or refused an RDMA operation",
            ),
        };
        if !matches!(end, End::Closed | End::Lost)
            && let Some(below) = &mut self.queues.vi
        {
            below.disconnect();
        }
        if let Some(error) = error {
            self.face.raise(error, op_code.into(), why);
        }
        self.end(ViState::ERROR, end.outcome());
    }
}

/// How far to move on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until a receive is over.
    OneReceived,
    /// Until one move has taken as much as it may.
    Bound,
}

impl Drop for ViObject {
    fn drop(&mut self) {
        if self.needs_engine {
            self.face.nic.need(false);
        }
        if self.is_stuck {
            self.face.nic.progress.set_stalled(self.face.handle.number(), false);
        }
    }
}
