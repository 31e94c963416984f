//! uDAPL's face of the engine: an end point's settings and peer, by which its requests are carried out and completed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use udeck::via::Nic;
use udeck_rdma::frame::{self, Head, INVALIDATES, Reason};
use udeck_rdma::{Face, HeldBytes, Outcome, Request, Ring};

use super::{MAX_DTOS, Peer, Settings, is_told};
use crate::core::event::{Dto, Event, Status, flags};
use crate::core::ia::Ia;
use crate::core::memory::{self, Right, Triplet};
use crate::core::srq::Receive;
use crate::core::wire::Process;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Send,
    /// A send that ends this RMR of the peer's.
    SendAndInvalidate(u32),
    /// To or from this address of the peer's, by this RMR context.
    Write(u64, u32),
    Read(u64, u32),
    /// Gives the RMR with this handle the context `new` in place of `old`, in order: work posted before does not see
    /// it. 0: none. After a failed bind the RMR has neither: the peer reaches nothing by either of them.
    Bind {
        rmr: usize,
        old: u32,
        new: u32,
    },
}

/// A request on the queue.
pub struct Posted {
    pub cookie: u64,
    pub bits: u32,
    pub operation: Operation,
    pub len: usize,
    pub segments: SmallVec<[Triplet; 2]>,
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

/// Time that a message waits for a receive. (Hardware retries for about as long before it gives up.)
const PATIENCE: Duration = Duration::from_secs(10);

/// Most messages of an end point that wait for receives.
const MAX_HELD: usize = 256;

/// The part of an end point that completions and memory need.
pub struct DatFace {
    /// The handle that the end point's events carry. Another end point that gets this slot later may have another one.
    pub handle: usize,
    pub ia: Arc<Ia>,
    pub settings: Settings,
    /// Number of the protection zone; no region has 0.
    pub pz: u32,
    pub peer: Option<Peer>,
}

impl DatFace {
    /// Returns the peer's process, which the end point's events may come from.
    pub fn process(&self) -> Option<Process> {
        self.peer.as_ref().map(Peer::process)
    }

    #[inline(always)]
    pub fn receive_over(&self, cookie: u64, status: Status, len: usize, dto: Dto, rmr: u32) {
        if let Some(evd) = &self.settings.receive_evd {
            evd.push_from(Event::dto(self.handle, cookie, status, len, dto, rmr), || self.process());
        }
    }
}

impl DatFace {
    #[inline(never)]
    fn receive_scattered(
        &self,
        receive: &Receive,
        pz: u32,
        head: Head,
        body: &[u8],
        rest: &[&[u8]],
    ) -> Result<(), Reason> {
        let pieces = std::iter::once(body).chain(rest.iter().copied());
        let len = body.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        let mut status = match memory::scatter(receive.segments(), pz, pieces) {
            Ok(0) => Status::Success,
            Ok(_) => Status::LocalLength,
            Err(_) => Status::LocalProtection,
        };
        let (mut dto, mut reason) = (Dto::Receive, Reason::BadReceive);
        if head.flags & INVALIDATES != 0 {
            dto = Dto::ReceiveWithInvalidate;
            if !memory::invalidate(head.word, self.pz) {
                (status, reason) = (Status::LocalProtection, Reason::BadKey);
            }
        }
        let taken = if status == Status::Success { len } else { 0 };
        self.receive_over(receive.cookie, status, taken, dto, head.word);
        if status == Status::Success { Ok(()) } else { Err(reason) }
    }
}

impl Face for DatFace {
    type Operation = Posted;
    type Receive = Receive;

    const FLAG: u8 = INVALIDATES;
    const MAX_POSTED: usize = MAX_DTOS;
    const BLAMES_ANY: bool = true;

    fn nic(&self) -> &Nic {
        &self.ia.nic
    }

    fn len(posted: &Posted) -> usize {
        posted.len
    }

    fn is_fenced(posted: &Posted) -> bool {
        posted.bits & flags::BARRIER_FENCE != 0
    }

    fn begin(&mut self, posted: &Posted) -> Option<Request> {
        Some(match posted.operation {
            Operation::Send => Request::Data(Head::plain(frame::SEND), None),
            Operation::SendAndInvalidate(word) => {
                Request::Data(Head { kind: frame::SEND, flags: INVALIDATES, word }, None)
            }
            Operation::Write(address, context) => {
                Request::Data(Head::plain(frame::WRITE), Some((address, context)))
            }
            Operation::Read(address, context) => Request::Read(address, context),
            Operation::Bind { old, new, .. } => {
                memory::remove(old);
                memory::open(new);
                Request::Nothing
            }
        })
    }

    fn gather(&self, posted: &Posted, to: &mut [u8]) -> bool {
        memory::gather(&posted.segments, self.pz, to).is_ok()
    }

    fn scatter(&self, posted: &Posted, data: &[u8]) -> bool {
        memory::scatter(&posted.segments, self.pz, std::iter::once(data)).is_ok()
    }

    fn complete(&mut self, posted: Posted, outcome: Outcome) {
        let Posted { cookie, bits, operation, len, .. } = posted;
        let status = Status::of(outcome);
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

    #[inline]
    fn next_receive(&mut self, own: &mut Ring<Receive>) -> Option<Receive> {
        match &self.settings.srq {
            None => own.pop_front(),
            Some(srq) => srq.take(),
        }
    }

    #[inline]
    fn receive(&mut self, receive: Receive, head: Head, body: &[u8], rest: &[&[u8]]) -> Result<(), Reason> {
        let pz = self.settings.srq.as_ref().map_or(self.pz, |srq| srq.pz);
        // The shortest way for most: one piece, into one segment.
        if let Some(one) = receive.one()
            && rest.is_empty()
            && (1..=one.len as usize).contains(&body.len())
            && head.flags == 0
        {
            let into = Triplet { len: body.len() as u32, ..one };
            if memory::write(into, pz, Right::LocalWrite, body).is_ok() {
                let dto = Dto::Receive;
                self.receive_over(receive.cookie, Status::Success, body.len(), dto, head.word);
                return Ok(());
            }
        }
        self.receive_scattered(&receive, pz, head, body, rest)
    }

    fn flush_receive(&mut self, receive: Receive) {
        self.receive_over(receive.cookie, Status::Flushed, 0, Dto::Receive, 0);
    }

    fn may_wait(&mut self, since: Option<Instant>) -> bool {
        since.is_none_or(|since| since.elapsed() <= PATIENCE)
    }

    fn held(&self) -> &HeldBytes {
        self.ia.progress.held()
    }

    fn may_hold_more(messages: usize, _: bool) -> bool {
        messages < MAX_HELD
    }

    fn may_read(&mut self, from: Triplet) -> bool {
        from.len as usize <= self.ia.max_transfer()
            && memory::access(from, self.pz, Right::RemoteRead, |_| ()).is_ok()
    }

    fn read(&self, from: Triplet, to: &mut [u8]) -> bool {
        memory::read(from, self.pz, Right::RemoteRead, to).is_ok()
    }

    fn write(&mut self, to: Triplet, data: &[u8]) -> bool {
        memory::write(to, self.pz, Right::RemoteWrite, data).is_ok()
    }
}
