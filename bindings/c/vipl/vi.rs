//! A VI: the program's two work queues, over a virtual interface of the library.
//!
//! The interface below takes messages as they come (`Receive::Lent`); work queues, descriptors and RDMA are here, because VIPL's
//! reach any memory of the program's, in order with its messages (docs/decisions/043-vipl-rdma-in-messages.md). A thread that polls a
//! VI moves it on: it takes what has arrived, places it, answers it, and sends what had found no room. If no thread polls a VI that
//! needs it, the NIC's engine does (`engine.rs`).
//!
//! A VI's lock is that of its place in the table of handles. It is never held during a wait, nor while the program's
//! handlers run.

mod arrivals;
mod connection;
mod early;
mod sends;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use udeck::via::{self, Caps, Ptag, Reliability, ServiceLevel, Vi, ViAttributes as Below};

use udeck_rdma::frame::Reason;
use udeck_rdma::link::Answers;

use super::cq::CqState;
use super::engine::{Job, NicState, Notify, Visits};
use super::error::{self, Event};
use super::handle::{Handle, Table};
use super::order::{Order, Place, Queue, Receive, Short};
use super::types::{
    self, Descriptor, DescriptorSegment, ErrorCode, ResourceCode, ViAttributes, ViState, VipReturn, status,
};
pub(super) use connection::PeerRequest;
use early::Early;
use sends::Posted;

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
    handle: Handle,
    nic: Arc<NicState>,
    /// `None` while a thread connects it.
    below: Option<Vi>,
    attributes: ViAttributes,
    ptag: Ptag,
    level: Reliability,
    state: ViState,
    send_cq: Option<Arc<CqState>>,
    receive_cq: Option<Arc<CqState>>,
    /// Posted receives, oldest first.
    receives: VecDeque<Receive>,
    /// Completed receives that were not given back yet, oldest first.
    received: VecDeque<Place>,
    sends: VecDeque<Posted>,
    /// Number of sends, from the oldest, that can be given back.
    sends_over: usize,
    /// Number of completed descriptors so far, of both queues.
    completions: u64,
    /// Number of sends, from the youngest, that have not been sent: they found no room, or are fenced.
    unsent: usize,
    /// Number of RDMA reads in flight.
    reads: usize,
    answers: Answers,
    /// Number of SENDs and WRITEs that were taken since the last TAKEN to the peer.
    taken: u32,
    /// Whether the program was told that this peer reaches for memory that it may not have.
    told_of_refusal: bool,
    send_notify: Option<Notify>,
    receive_notify: Option<Notify>,
    peer: Option<PeerRequest>,
    early: Early,
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
        let mut made = ViObject {
            handle,
            nic,
            below: Some(below),
            attributes,
            ptag,
            level,
            state: ViState::IDLE,
            send_cq,
            receive_cq,
            receives: VecDeque::new(),
            received: VecDeque::new(),
            sends: VecDeque::new(),
            sends_over: 0,
            completions: 0,
            unsent: 0,
            reads: 0,
            answers: Answers::default(),
            taken: 0,
            told_of_refusal: false,
            send_notify: None,
            receive_notify: None,
            peer: None,
            early: Early::default(),
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
        &self.nic
    }

    pub fn attributes(&self) -> &ViAttributes {
        &self.attributes
    }

    pub fn state(&self) -> ViState {
        self.state
    }

    pub fn has_cq(&self, queue: Queue) -> bool {
        match queue {
            Queue::Send => self.send_cq.is_some(),
            Queue::Receive => self.receive_cq.is_some(),
        }
    }

    /// Whether the queue has neither posted descriptors nor completed ones that were not given back.
    pub fn is_empty(&self, queue: Queue) -> bool {
        match queue {
            Queue::Send => self.sends.is_empty(),
            Queue::Receive => self.receives.is_empty() && self.received.is_empty(),
        }
    }

    pub fn set_attributes(&mut self, mut attributes: ViAttributes) -> Result<(), VipReturn> {
        if self.state != ViState::IDLE {
            return Err(VipReturn::INVALID_STATE);
        }
        let mut wanted = Self::below_for(&self.nic, &attributes)?;
        let below = self.below.as_mut().ok_or(VipReturn::INVALID_STATE)?;
        if !(self.sends.is_empty() && self.receives.is_empty() && self.received.is_empty()) {
            return Err(VipReturn::ERROR_RESOURCE); // descriptors were checked against the old attributes
        }
        wanted.context = self.handle.number();
        if attributes.max_transfer == 0 {
            attributes.max_transfer = self.nic.max_transfer() as types::Ulong;
        }
        attributes.qos = qos_of(wanted.level);
        below.set_attributes(wanted).map_err(|error| error::code(&error))?;
        (self.attributes, self.ptag, self.level) = (attributes, wanted.ptag, wanted.reliability);
        self.find_way();
        Ok(())
    }

    fn max_transfer(&self) -> usize {
        self.attributes.max_transfer as usize // no more than the NIC's
    }

    /// `VipPostRecv`.
    #[inline]
    pub fn post_receive(&mut self, place: Place) -> VipReturn {
        if self.receives.len() + self.received.len() >= MAX_DESCRIPTORS {
            return VipReturn::ERROR_RESOURCE;
        }
        if self.state != ViState::ERROR
            && let Some(short) = Short::read(place, self.ptag)
        {
            short.renew();
            self.receives.push_back(Receive { place, segment: short.segment, other: None });
            return VipReturn::SUCCESS;
        }
        self.post_other_receive(place)
    }

    #[inline(never)]
    fn post_other_receive(&mut self, place: Place) -> VipReturn {
        let Some(order) = Order::read(place, self.ptag, Queue::Receive, usize::MAX) else {
            return VipReturn::DESCRIPTOR_ERROR;
        };
        if self.state == ViState::ERROR {
            self.receive_over(place, status::OP_RECEIVE | status::DESC_FLUSHED_ERROR, 0, None);
            self.tell_of_completions();
        } else {
            let segment = DescriptorSegment { data: 0, handle: 0, last: 0 };
            self.receives.push_back(Receive { place, segment, other: Some(Box::new(order)) });
        }
        VipReturn::SUCCESS
    }

    /// Takes the next completed receive.
    #[inline]
    pub fn receive_done(&mut self) -> Option<*mut Descriptor> {
        if self.received.is_empty() {
            return self.receive_next();
        }
        self.received.pop_front().map(|place| place.descriptor)
    }

    /// Completes a receive.
    #[inline]
    fn receive_over(&mut self, place: Place, bits: u32, length: usize, immediate: Option<u32>) {
        place.write(self.ptag, bits, length, immediate);
        self.received.push_back(place);
        self.completions += 1;
        if let Some(cq) = &self.receive_cq {
            cq.push(self.handle, true);
        }
    }

    /// Takes what has arrived, answers it, and sends what waits.
    #[inline]
    pub fn move_on(&mut self, until: Until) {
        if self.state != ViState::CONNECTED || self.below.is_none() {
            return;
        }
        let before = self.completions;
        self.take_arrivals(until);
        if self.unsent + self.answers.len() > 0 || self.taken > 0 {
            self.send_waiting();
        }
        // By an arrival, or because what waited has found room.
        if self.completions != before {
            self.tell_of_completions();
        }
    }

    /// Wakes threads that wait for completions, and has handlers called.
    #[inline]
    fn tell_of_completions(&mut self) {
        if self.send_notify.is_some() || self.receive_notify.is_some() {
            self.notify();
        }
        self.nic.progress.bell().ring();
    }

    #[cold]
    fn notify(&mut self) {
        if let (Some(notify), Some(place)) = (self.receive_notify, self.received.front().copied()) {
            self.receive_notify = None;
            self.find_way();
            self.received.pop_front();
            self.nic.call(Job::Queue { notify, vi: self.handle, place });
        }
        if let Some(notify) = self.send_notify
            && let Some(place) = self.pop_send()
        {
            self.send_notify = None;
            self.nic.call(Job::Queue { notify, vi: self.handle, place });
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
        self.takes_plainly = self.level != Reliability::Reception
            && self.receive_cq.is_none()
            && self.receive_notify.is_none()
            && self.early.is_over();
    }

    /// Whether the engine has to look after this VI when the program does not: it is to be notified, the peer reaches its memory, or
    /// something waits to be sent.
    fn count_needs(&mut self) {
        let is_reached = self.attributes.rdma_write != 0 || self.attributes.rdma_read != 0;
        let is_stuck = self.state == ViState::CONNECTED
            && (self.unsent + self.answers.len() > 0 || self.taken > 0 || self.early.is_held());
        let waits = is_stuck || self.reads > 0;
        let has_cq = self.send_cq.iter().chain(&self.receive_cq).any(|cq| cq.is_to_notify());
        let needs = (self.state == ViState::CONNECTED
            && (is_reached || waits || has_cq || self.level == Reliability::Reception))
            || self.send_notify.is_some()
            || self.receive_notify.is_some();
        if needs != self.needs_engine {
            self.needs_engine = needs;
            self.nic.need(needs);
        }
        if is_stuck != self.is_stuck {
            self.is_stuck = is_stuck;
            self.nic.progress.set_stalled(self.handle.number(), is_stuck);
        }
    }

    /// Ends the connection: posted descriptors are flushed, and the oldest send under way ends by `first`. `state`: the VI's state
    /// from now on.
    #[cold]
    fn end(&mut self, state: ViState, first: u32) {
        self.state = state;
        self.answers.clear();
        self.early = Early::default();
        self.find_way();
        self.taken = 0;
        self.flush_sends(first);
        for receive in std::mem::take(&mut self.receives) {
            self.receive_over(receive.place, status::OP_RECEIVE | status::DESC_FLUSHED_ERROR, 0, None);
        }
        self.count_needs();
        self.tell_of_completions();
    }

    /// Ends a reliable connection by an error on this side, and tells the peer. `reason` decides the status of the peer's oldest send.
    #[cold]
    fn break_connection(&mut self, error: ErrorCode, reason: Reason, op_code: u32, why: &str) {
        self.say_broken(reason);
        if let Some(below) = &mut self.below {
            below.disconnect();
        }
        self.raise(error, op_code, why);
        self.end(ViState::ERROR, status::DESC_FLUSHED_ERROR);
    }

    #[cold]
    fn raise(&self, error: ErrorCode, op_code: u32, why: &str) {
        let resource = ResourceCode::VI;
        let event =
            Event { nic: self.nic.handle(), vi: self.handle, op_code, resource, error, why: why.into() };
        self.nic.raise(event);
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
            self.nic.need(false);
        }
        if self.is_stuck {
            self.nic.progress.set_stalled(self.handle.number(), false);
        }
    }
}
