//! The send queue, and answers to the peer's reads.

use udeck::via::Reliability;
use udeck_rdma::frame::{self, Head, Reason};
use udeck_rdma::link::{self, INLINE, Stop};
use udeck_rdma::memory::{Refusal, Right, gather_located, locate};
use udeck_sys::copy_in;

use super::{MAX_DESCRIPTORS, ViObject};
use crate::vipl::order::{Operation, Order, Place, Queue, Short};
use crate::vipl::types::{Descriptor, ErrorCode, ViState, VipReturn, status};

/// A descriptor on the send queue.
pub(super) struct Posted {
    place: Place,
    stage: Stage,
}

enum Stage {
    Unsent(Box<Order>),
    /// A message or write of reliable reception that the peer has not taken.
    Untaken {
        kind: u32,
        length: usize,
    },
    /// A read in flight.
    Reading(Box<Order>),
    Over,
}

impl ViObject {
    /// `VipPostSend`.
    #[inline]
    pub fn post_send(&mut self, place: Place) -> VipReturn {
        if self.state == ViState::CONNECTED
            && self.unsent == 0
            && self.level != Reliability::Reception
            && self.sends.len() < MAX_DESCRIPTORS
            && self.send_short(place)
        {
            self.sends.push_back(Posted { place, stage: Stage::Over });
            // The descriptor is over already, unless one before it is not.
            if self.sends_over + 1 == self.sends.len() {
                self.sends_over += 1;
                self.completions += 1;
                if let Some(cq) = &self.send_cq {
                    cq.push(self.handle, false);
                }
                self.tell_of_completions();
            }
            return VipReturn::SUCCESS;
        }
        self.post_slowly(place)
    }

    /// Sends a short message the shortest way. `false`: it was not sent.
    #[inline(always)]
    fn send_short(&mut self, place: Place) -> bool {
        let Some(short) = Short::read(place, self.ptag) else { return false };
        let (segment, len) = (short.segment, short.segment.last as usize);
        if len > INLINE || len > self.max_transfer() {
            return false;
        }
        let found = locate(segment.data, len as u64, segment.handle, self.ptag.0, Right::LocalRead);
        let (Some(at), Some(below)) = (found, &mut self.below) else { return false };
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
        if self.sends.len() >= MAX_DESCRIPTORS {
            return VipReturn::ERROR_RESOURCE;
        }
        let Some(order) = Order::read(place, self.ptag, Queue::Send, self.max_transfer()) else {
            return VipReturn::DESCRIPTOR_ERROR;
        };
        self.post_other(order);
        VipReturn::SUCCESS
    }

    #[cold]
    fn post_unconnected(&mut self, place: Place) -> VipReturn {
        if self.state != ViState::ERROR {
            return VipReturn::INVALID_STATE;
        }
        if self.sends.len() >= MAX_DESCRIPTORS {
            return VipReturn::ERROR_RESOURCE;
        }
        let Some(order) = Order::read(place, self.ptag, Queue::Send, usize::MAX) else {
            return VipReturn::DESCRIPTOR_ERROR;
        };
        self.push_over(place, order.kind() | status::DESC_FLUSHED_ERROR, 0);
        self.tell_of_completions();
        VipReturn::SUCCESS
    }

    #[inline(never)]
    fn post_other(&mut self, mut order: Order) {
        if order.error == 0 && !order.is_registered(self.ptag) {
            order.error = status::PROTECTION_ERROR;
        }
        if order.error == 0
            && matches!(order.operation, Operation::Read(..))
            && self.level == Reliability::Unreliable
        {
            order.error = status::FORMAT_ERROR;
        }
        self.sends.push_back(Posted { place: order.place, stage: Stage::Unsent(Box::new(order)) });
        self.unsent += 1;
        self.send_waiting();
        self.tell_of_completions();
    }

    /// Sends what waits, as far as there is room: answers to reads first.
    #[inline(never)]
    pub(super) fn send_waiting(&mut self) {
        loop {
            match self.send_all() {
                Ok(()) => break,
                Err(Stop::Busy) => {
                    // Asks for a notification when there may be room, and tries once more.
                    let Some(below) = &mut self.below else { break };
                    below.reclaim();
                    below.request_send_notify();
                    match self.send_all() {
                        Ok(()) | Err(Stop::Busy) => break,
                        Err(Stop::Ended(error)) => return self.ended(&error),
                        Err(Stop::Bad) => {}
                    }
                }
                Err(Stop::Ended(error)) => return self.ended(&error),
                // The descriptor has the error; on an unreliable connection the others go on.
                Err(Stop::Bad) if self.state == ViState::CONNECTED => {}
                Err(Stop::Bad) => return,
            }
        }
        self.count_needs();
    }

    fn send_all(&mut self) -> Result<(), Stop> {
        // SAFETY: the caller keeps this VI's lock.
        let read = |from, to: &mut [u8]| unsafe {
            gather_located(&[from], self.ptag.0, Right::RemoteRead, to).is_ok()
        };
        self.answers.send(&mut self.below, &self.nic.nic, read)?;
        if self.taken > 0 {
            self.say_taken()?;
            self.taken = 0;
        }
        while self.unsent > 0 {
            let at = self.sends.len() - self.unsent;
            let Stage::Unsent(order) = std::mem::replace(&mut self.sends[at].stage, Stage::Over) else {
                unreachable!("the youngest are unsent");
            };
            if order.fenced && self.reads > 0 {
                self.sends[at].stage = Stage::Unsent(order);
                return Ok(());
            }
            let sent = self.send(&order);
            self.note(at, order, sent)?;
        }
        Ok(())
    }

    /// Notes how the oldest unsent send was sent.
    fn note(&mut self, at: usize, order: Box<Order>, sent: Result<(), Stop>) -> Result<(), Stop> {
        let kind = order.kind();
        match sent {
            Ok(()) => {
                self.unsent -= 1;
                match order.operation {
                    Operation::Read(..) => {
                        self.reads += 1;
                        self.sends[at].stage = Stage::Reading(order);
                    }
                    _ if self.level == Reliability::Reception => {
                        self.sends[at].stage = Stage::Untaken { kind, length: order.total };
                    }
                    _ => self.send_over(at, kind, order.total),
                }
                Ok(())
            }
            Err(Stop::Bad) => {
                let bits = if order.error == 0 { status::PROTECTION_ERROR } else { order.error };
                self.unsent -= 1;
                self.send_over(at, kind | bits, 0);
                if self.level != Reliability::Unreliable {
                    let why = "a send descriptor is wrong, or names memory that is not registered with the VI's tag";
                    self.break_connection(ErrorCode::POST_DESC, Reason::Own, kind, why);
                }
                Err(Stop::Bad)
            }
            Err(other) => {
                self.sends[at].stage = Stage::Unsent(order);
                Err(other)
            }
        }
    }

    fn send(&mut self, order: &Order) -> Result<(), Stop> {
        if order.error != 0 {
            return Err(Stop::Bad);
        }
        match order.operation {
            Operation::Send => self.send_gathered(frame::SEND, order, &[]),
            Operation::Write(address, handle) => {
                self.send_gathered(frame::WRITE, order, &frame::write_head(address, handle))
            }
            Operation::Read(address, handle) => link::send(
                &mut self.below,
                Head::plain(frame::READ),
                &frame::read_request(address, handle, order.total),
            ),
        }
    }

    fn send_gathered(&mut self, kind: u8, order: &Order, prefix: &[u8]) -> Result<(), Stop> {
        let head = Head::with_immediate(kind, order.immediate);
        let gather = |to: &mut [u8]| order.gather(self.ptag, to);
        link::send_filled(&mut self.below, &self.nic.nic, head, prefix, order.total, gather)
    }

    /// Tells the peer that an error ends the connection, if there is room for the frame.
    pub(super) fn say_broken(&mut self, reason: Reason) {
        if self.state == ViState::CONNECTED {
            // Without TAKEN the peer would blame an operation that was taken.
            let reason = if self.taken == 0 || self.say_taken_somehow() { reason } else { Reason::Own };
            link::say_broken(&mut self.below, reason);
        }
    }

    /// Sends TAKEN, if need be with room that is reclaimed first.
    fn say_taken_somehow(&mut self) -> bool {
        let sent = self.say_taken().or_else(|_| {
            self.below.iter_mut().for_each(|below| below.reclaim());
            self.say_taken()
        });
        sent.is_ok()
    }

    fn say_taken(&mut self) -> Result<(), Stop> {
        link::send(&mut self.below, Head::plain(frame::TAKEN), &self.taken.to_le_bytes())
    }

    /// Completes as many sends as the peer says it has taken. `false`: fewer were under way.
    pub(super) fn were_taken(&mut self, count: u32) -> bool {
        for _ in 0..count {
            let Some(at) = self.oldest(|stage| matches!(stage, Stage::Untaken { .. })) else { return false };
            let Stage::Untaken { kind, length } = self.sends[at].stage else { return false };
            self.send_over(at, kind, length);
        }
        true
    }

    /// Ends the oldest message or write that the peer has not taken, by these bits. (A read before it has met no error.)
    #[cold]
    pub(super) fn untaken_failed(&mut self, bits: u32) {
        let Some(at) = self.oldest(|stage| matches!(stage, Stage::Untaken { .. })) else { return };
        let Stage::Untaken { kind, .. } = self.sends[at].stage else { return };
        self.send_over(at, kind | bits, 0);
    }

    fn oldest(&self, is_it: impl Fn(&Stage) -> bool) -> Option<usize> {
        self.sends.iter().position(|posted| is_it(&posted.stage))
    }

    pub(super) fn oldest_read(&self) -> Option<usize> {
        self.oldest(|stage| matches!(stage, Stage::Reading(_)))
    }

    /// Copies data to the segments of the read at this index. `None`: the read asked for another number of bytes.
    pub(super) fn scatter_read(&self, at: usize, data: &[u8]) -> Option<Result<usize, Refusal>> {
        match &self.sends[at].stage {
            Stage::Reading(order) if order.total == data.len() => {
                Some(order.scatter(self.ptag, std::iter::once(data)))
            }
            _ => None,
        }
    }

    pub(super) fn read_over(&mut self, at: usize, bits: u32, length: usize) {
        self.reads -= 1;
        self.send_over(at, status::OP_RDMA_READ | bits, length);
    }

    fn send_over(&mut self, at: usize, bits: u32, length: usize) {
        let posted = &mut self.sends[at];
        posted.stage = Stage::Over;
        posted.place.write(self.ptag, bits, length, None);
        self.count_over();
    }

    /// Counts the sends that can be given back, in order; the completion queue names this VI once for each.
    #[inline]
    fn count_over(&mut self) {
        while let Some(Posted { stage: Stage::Over, .. }) = self.sends.get(self.sends_over) {
            self.sends_over += 1;
            self.completions += 1;
            if let Some(cq) = &self.send_cq {
                cq.push(self.handle, false);
            }
        }
    }

    fn push_over(&mut self, place: Place, bits: u32, length: usize) {
        self.sends.push_back(Posted { place, stage: Stage::Over });
        self.send_over(self.sends.len() - 1, bits, length);
    }

    #[inline]
    pub(super) fn pop_send(&mut self) -> Option<Place> {
        if self.sends_over == 0 {
            return None;
        }
        self.sends_over -= 1;
        self.sends.pop_front().map(|posted| posted.place)
    }

    /// Takes the next completed send.
    #[inline]
    pub fn send_done(&mut self) -> Option<*mut Descriptor> {
        if self.sends_over == 0 && !self.sends.is_empty() {
            self.move_on(super::Until::Bound);
        }
        self.pop_send().map(|place| place.descriptor)
    }

    /// Ends all sends: the oldest under way ends by `first`, those behind it are flushed.
    pub(super) fn flush_sends(&mut self, first: u32) {
        let mut bits = first;
        for at in 0..self.sends.len() {
            let kind = match &self.sends[at].stage {
                Stage::Over => continue,
                Stage::Unsent(order) | Stage::Reading(order) => order.kind(),
                Stage::Untaken { kind, .. } => *kind,
            };
            // An operation that was never sent has met no error of the peer's.
            if matches!(self.sends[at].stage, Stage::Unsent(_)) || bits == 0 {
                bits = status::DESC_FLUSHED_ERROR;
            }
            self.send_over(at, kind | bits, 0);
            bits = status::DESC_FLUSHED_ERROR;
        }
        (self.unsent, self.reads) = (0, 0);
    }
}
