//! The request queue, and answers to the peer's reads.

use smallvec::SmallVec;
use udeck_rdma::frame::{self, Head, INVALIDATES, Reason};
use udeck_rdma::link::{self, INLINE, Stop};

use super::{Ep, MAX_DTOS, is_told};
use crate::core::code::{Code, Result, Sub};
use crate::core::event::{Dto, Event, Status, flags, total};
use crate::core::memory::{self, Right, Triplet};
use crate::core::state::{EpCall, EpState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Send,
    /// A send that ends this RMR of the peer's.
    SendAndInvalidate(u32),
    /// To or from this address of the peer's, by this RMR context.
    Write(u64, u32),
    Read(u64, u32),
    /// Gives the RMR with this handle the context `new` in place of `old`, in order: work posted before does not see it. 0: none.
    /// After a failed bind the RMR has neither: the peer reaches nothing by either of them.
    Bind {
        rmr: usize,
        old: u32,
        new: u32,
    },
}

/// A request on the queue.
pub struct Posted {
    cookie: u64,
    bits: u32,
    operation: Operation,
    len: usize,
    stage: Stage,
}

enum Stage {
    Unsent(SmallVec<[Triplet; 2]>),
    /// A read in flight.
    Reading(SmallVec<[Triplet; 2]>),
    Over(Status),
}

impl Operation {
    fn dto(self) -> Dto {
        match self {
            Operation::Send | Operation::SendAndInvalidate(_) => Dto::Send,
            Operation::Write(..) => Dto::RdmaWrite,
            Operation::Read(..) => Dto::RdmaRead,
            Operation::Bind { .. } => Dto::BindMw,
        }
    }
}

impl Ep {
    /// `dat_ep_post_send` of one segment: the shortest way for most.
    ///
    /// # Errors
    /// As [`Ep::post_request`].
    #[inline(always)]
    pub fn post_send(&mut self, segment: Triplet, cookie: u64, bits: u32) -> Result {
        // An empty segment may name any memory, because nothing is read: `post_request` takes it.
        if (1..=INLINE).contains(&(segment.len as usize))
            && self.state == EpState::Connected
            && self.sends.is_empty()
            && let Some(vi) = &mut self.vi
        {
            let head = Head::plain(frame::SEND).bytes();
            let mut bytes = [0; INLINE];
            let bytes = &mut bytes[..segment.len as usize];
            memory::read(segment, self.pz, Right::LocalRead, bytes)
                .map_err(|why| memory::refused(why, Right::LocalRead))?;
            if vi.send_short(0, head, bytes) {
                if let Some(evd) = &self.settings.request_evd
                    && is_told(bits, Status::Success)
                {
                    let len = segment.len as usize;
                    let sent = Event::dto(self.handle, cookie, Status::Success, len, Dto::Send, 0);
                    evd.push_from(sent, || self.process());
                }
                return Ok(());
            }
        }
        self.post_request(Operation::Send, &[segment], cookie, bits)
    }

    /// Posts a send, RDMA or a bind.
    ///
    /// # Errors
    /// The state forbids it, the queue is full, the request is too long, or it names memory that may not be used so.
    #[inline(never)]
    pub fn post_request(
        &mut self,
        operation: Operation,
        segments: &[Triplet],
        cookie: u64,
        bits: u32,
    ) -> Result {
        self.state.check(EpCall::PostRequest)?;
        if segments.len() > self.settings.max_request_segments {
            return Err(Code::argument(2));
        }
        let len = total(segments);
        if len > self.ia.max_transfer() {
            return Err(Code::LENGTH_ERROR);
        }
        let right =
            if matches!(operation, Operation::Read(..)) { Right::LocalWrite } else { Right::LocalRead };
        for segment in segments.iter().filter(|segment| segment.len > 0) {
            memory::access(*segment, self.pz, right, |_| ()).map_err(|why| memory::refused(why, right))?;
        }
        if self.state == EpState::Disconnected {
            self.request_over(operation, cookie, bits, Status::Flushed, 0);
            return Ok(());
        }
        if self.sends.len() >= self.settings.max_requests.min(MAX_DTOS) {
            return Err(Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemory));
        }
        let stage = Stage::Unsent(SmallVec::from_slice(segments));
        self.sends.push_back(Posted { cookie, bits, operation, len, stage });
        self.unsent += 1;
        self.send_waiting();
        self.note_stuck();
        Ok(())
    }

    fn request_over(&self, operation: Operation, cookie: u64, bits: u32, status: Status, len: usize) {
        if let Operation::Bind { old, new, .. } = operation
            && status != Status::Success
        {
            memory::remove(old);
            memory::remove(new);
        }
        if let Some(evd) = &self.settings.request_evd
            && is_told(bits, status)
        {
            let len = if status == Status::Success { len } else { 0 };
            let over = match operation {
                Operation::Bind { rmr, .. } => Event::bind(rmr, cookie, status),
                other => Event::dto(self.handle, cookie, status, len, other.dto(), 0),
            };
            evd.push_from(over, || self.process());
        }
    }

    /// Sends what waits, as far as there is room: answers to reads first.
    pub(super) fn send_waiting(&mut self) {
        for attempt in 0..2 {
            match self.send_all() {
                Ok(()) => return,
                Err(Stop::Busy) if attempt == 0 => {
                    // Asks for a notification when there may be room, and tries once more.
                    let Some(vi) = &mut self.vi else { return };
                    vi.reclaim();
                    vi.request_send_notify();
                }
                Err(Stop::Busy) => return,
                Err(Stop::Bad) => return, // `send_all` has ended the connection
                Err(Stop::Ended(error)) => return self.ended(&error),
            }
        }
    }

    fn send_all(&mut self) -> Result<(), Stop> {
        let read = |from, to: &mut [u8]| memory::read(from, self.pz, Right::RemoteRead, to).is_ok();
        self.answers.send(&mut self.vi, &self.ia.nic, read)?;
        while self.unsent > 0 {
            let at = self.sends.len() - self.unsent;
            let posted = &mut self.sends[at];
            if posted.bits & flags::BARRIER_FENCE != 0 && self.reads > 0 {
                return Ok(());
            }
            let Stage::Unsent(segments) = std::mem::replace(&mut posted.stage, Stage::Over(Status::Success))
            else {
                unreachable!("the youngest are unsent");
            };
            let (operation, len) = (posted.operation, posted.len);
            match self.send(operation, &segments, len) {
                Ok(()) => {
                    self.unsent -= 1;
                    if let Operation::Read(..) = operation {
                        self.reads += 1;
                        self.sends[at].stage = Stage::Reading(segments);
                    }
                    self.tell_of_requests();
                }
                Err(Stop::Bad) => {
                    self.unsent -= 1;
                    self.sends[at].stage = Stage::Over(Status::LocalProtection);
                    self.tell_of_requests();
                    self.break_connection(Reason::BadReceive);
                    return Err(Stop::Bad);
                }
                Err(other) => {
                    self.sends[at].stage = Stage::Unsent(segments);
                    return Err(other);
                }
            }
        }
        Ok(())
    }

    /// Puts the events of requests that are over, in order.
    fn tell_of_requests(&mut self) {
        while let Some(Posted { stage: Stage::Over(status), cookie, bits, operation, len }) =
            self.sends.front()
        {
            self.request_over(*operation, *cookie, *bits, *status, *len);
            self.sends.pop_front();
        }
    }

    fn send(&mut self, operation: Operation, segments: &[Triplet], len: usize) -> Result<(), Stop> {
        match operation {
            Operation::Send => self.send_gathered(Head::plain(frame::SEND), segments, len, &[]),
            Operation::SendAndInvalidate(word) => {
                let head = Head { kind: frame::SEND, flags: INVALIDATES, word };
                self.send_gathered(head, segments, len, &[])
            }
            Operation::Write(address, context) => self.send_gathered(
                Head::plain(frame::WRITE),
                segments,
                len,
                &frame::write_head(address, context),
            ),
            Operation::Read(address, context) => link::send(
                &mut self.vi,
                Head::plain(frame::READ),
                &frame::read_request(address, context, len),
            ),
            Operation::Bind { old, new, .. } => {
                memory::remove(old);
                memory::open(new);
                Ok(())
            }
        }
    }

    fn send_gathered(
        &mut self,
        head: Head,
        segments: &[Triplet],
        len: usize,
        prefix: &[u8],
    ) -> Result<(), Stop> {
        let gather = |to: &mut [u8]| memory::gather(segments, self.pz, to).is_ok();
        link::send_filled(&mut self.vi, &self.ia.nic, head, prefix, len, gather)
    }

    /// Queues the answer to the peer's read of this memory; `None`: the read is longer than any message. `false`: too many reads are queued.
    pub(super) fn answer_read(&mut self, from: Option<Triplet>) -> bool {
        let may = |from: &Triplet| memory::access(*from, self.pz, Right::RemoteRead, |_| ()).is_ok();
        self.answers.push(from.filter(may), MAX_DTOS)
    }

    /// Takes the answer to the oldest read. `false`: the frame is no valid answer.
    pub(super) fn take_data(&mut self, body: &[u8]) -> bool {
        let Some(answer) = frame::read_data(body) else { return false };
        let is_read = |posted: &Posted| matches!(posted.stage, Stage::Reading(_));
        let Some(at) = self.sends.iter().position(is_read) else { return false };
        let Stage::Reading(segments) =
            std::mem::replace(&mut self.sends[at].stage, Stage::Over(Status::RemoteAccess))
        else {
            return false;
        };
        self.reads -= 1;
        let Some(data) = answer else {
            self.tell_of_requests();
            self.break_connection(Reason::Own); // none of the peer's requests is at fault
            return true;
        };
        if data.len() != self.sends[at].len {
            return false;
        }
        match memory::scatter(&segments, self.pz, std::iter::once(data)) {
            Ok(_) => self.sends[at].stage = Stage::Over(Status::Success),
            Err(_) => {
                self.sends[at].stage = Stage::Over(Status::LocalProtection);
                self.tell_of_requests();
                self.break_connection(Reason::BadReceive);
                return true;
            }
        }
        self.tell_of_requests();
        true
    }

    /// Ends all requests: the oldest under way gets the status `first`, those behind it are flushed.
    pub(super) fn flush_sends(&mut self, first: Status) {
        let mut status = first;
        for posted in &mut self.sends {
            if !matches!(posted.stage, Stage::Over(_)) {
                posted.stage = Stage::Over(status);
                status = Status::Flushed;
            }
        }
        (self.unsent, self.reads) = (0, 0);
        self.tell_of_requests();
    }
}
