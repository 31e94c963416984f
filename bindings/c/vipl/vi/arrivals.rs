//! Arrivals from the peer.

use udeck::via::transport::{Body, Found, Inline};
use udeck::via::{Arrival, Error, Reliability};
use udeck_rdma::frame::{self, Head, IMMEDIATE, Reason};
use udeck_rdma::link;
use udeck_rdma::memory::{Right, Segment, locate};
use udeck_sys::copy_out;

use super::{Until, ViObject};
use crate::vipl::types::{Descriptor, ErrorCode, ViState, control, status};

/// Most arrivals that one poll takes, so that a peer that only sends does not keep the thread here.
const BOUND: usize = 64;

impl ViObject {
    /// Takes the message for the next receive, and completes it, when no completed receive waits. The shortest way for most messages.
    #[inline(always)]
    pub(super) fn receive_next(&mut self) -> Option<*mut Descriptor> {
        if self.state == ViState::CONNECTED
            && self.takes_plainly
            && let Some(below) = &mut self.below
        {
            let mut short = Inline::EMPTY;
            match below.arrival_short(&mut short) {
                Found::Short(_) => return self.take_plain(&short).or_else(|| self.take_first(&short)),
                Found::Nothing if self.unsent + self.answers.len() == 0 => return None,
                Found::Nothing | Found::Other => {}
            }
        }
        self.receive_slowly()
    }

    #[inline(never)]
    fn receive_slowly(&mut self) -> Option<*mut Descriptor> {
        self.asked();
        self.move_on(Until::OneReceived);
        self.received.pop_front().map(|place| place.descriptor)
    }

    /// Takes a short message into the one segment of the oldest receive. `None`: the case is not as simple, and nothing was done.
    #[inline(always)]
    fn take_plain(&mut self, bytes: &Inline) -> Option<*mut Descriptor> {
        let head = Head::read(bytes.bytes(), IMMEDIATE)?;
        let body = bytes.bytes().get(frame::HEAD..)?;
        let receive = self.receives.front()?;
        let (place, segment) = (receive.place, receive.segment);
        if head.kind != frame::SEND || receive.other.is_some() || body.len() > segment.last as usize {
            return None;
        }
        let to = locate(segment.data, body.len() as u64, segment.handle, self.ptag.0, Right::LocalWrite)?;
        // SAFETY: registered for so many bytes, and we have the VI's lock; `body` is memory of ours.
        unsafe { copy_out(to, body) };
        let immediate = head.immediate();
        let bits = status::OP_RECEIVE | if immediate.is_some() { status::IMMEDIATE } else { 0 };
        place.write(self.ptag, bits, body.len(), immediate);
        std::mem::forget(self.receives.pop_front()); // it has no `other` to be dropped
        self.completions += 1;
        Some(place.descriptor)
    }

    #[inline(never)]
    fn take_first(&mut self, bytes: &Inline) -> Option<*mut Descriptor> {
        self.take_inline(bytes);
        self.tell_of_completions();
        self.receive_slowly()
    }

    /// Takes what has arrived.
    #[inline]
    pub(super) fn take_arrivals(&mut self, until: Until) {
        if self.early.is_held() && !self.take_early() {
            return;
        }
        let mut short = Inline::EMPTY;
        for _ in 0..BOUND {
            if until == Until::OneReceived && !self.received.is_empty() {
                break;
            }
            let Some(below) = &mut self.below else { break };
            match below.arrival_short(&mut short) {
                Found::Short(_) => self.take_inline(&short),
                Found::Nothing => break,
                Found::Other => match below.arrival() {
                    Ok(Some(arrival)) => self.take_arrival(arrival),
                    Ok(None) => break,
                    Err(error) => {
                        self.ended(&error);
                        break;
                    }
                },
            }
            if self.state != ViState::CONNECTED || self.early.is_held() {
                break;
            }
        }
    }

    #[inline]
    fn take_inline(&mut self, bytes: &Inline) {
        if !self.take_frame(bytes.bytes(), &[]) {
            self.hold(Arrival { immediate: None, body: Body::Inline(*bytes) });
        }
    }

    pub(super) fn take_arrival(&mut self, arrival: Arrival) {
        let taken = link::with_frame(&arrival, |first, rest| self.take_frame(first, rest));
        let is_taken = taken.unwrap_or_else(|| self.nonsense());
        if !is_taken {
            self.hold(arrival);
        }
    }

    /// Takes a frame: its head with the beginning of its body, and the rest of the body.
    /// `false`: a message without a receive, which may be early.
    #[inline]
    fn take_frame(&mut self, first: &[u8], rest: &[&[u8]]) -> bool {
        let Some(head) = Head::read(first, IMMEDIATE) else { return self.nonsense() };
        let body = &first[frame::HEAD..];
        if head.kind == frame::SEND {
            self.take_send(head.immediate(), body, rest)
        } else {
            self.take_other(head, body, rest)
        }
    }

    #[inline]
    fn take_send(&mut self, immediate: Option<u32>, body: &[u8], rest: &[&[u8]]) -> bool {
        let Some(receive) = self.receives.pop_front() else { return self.no_descriptor() };
        let order = receive.order();
        let pieces = std::iter::once(body).chain(rest.iter().copied());
        let length = body.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        let mut bits = status::OP_RECEIVE | order.error;
        let mut placed = length;
        if order.error == 0 {
            match order.scatter(self.ptag, pieces) {
                Ok(0) => {}
                Ok(left_over) => (bits, placed) = (bits | status::LENGTH_ERROR, placed - left_over),
                Err(_) => (bits, placed) = (bits | status::PROTECTION_ERROR, 0),
            }
        } else {
            placed = 0;
        }
        if immediate.is_some() {
            bits |= status::IMMEDIATE;
        }
        self.receive_over(order.place, bits, placed, immediate);
        if bits & status::ERROR_MASK != 0 {
            let why =
                "a message came that its receive descriptor could not take: too long, or a wrong descriptor";
            self.arrival_failed(ErrorCode::RECVQ_EMPTY, Reason::BadReceive, why);
        } else {
            self.count_taken();
        }
        true
    }

    #[inline]
    fn count_taken(&mut self) {
        if self.level == Reliability::Reception {
            // A peer that goes on without reading TAKEN has sent more than any queue holds: a wrong count does no harm then.
            self.taken = self.taken.saturating_add(1);
        }
    }

    /// `false`: the message is early.
    #[cold]
    fn no_descriptor(&mut self) -> bool {
        if self.early.may_wait() {
            return false;
        }
        let why = "a message came and no receive descriptor was posted";
        self.arrival_failed(ErrorCode::RECVQ_EMPTY, Reason::NoReceive, why);
        true
    }

    /// Ends a reliable connection: an arrival found no place. An unreliable connection stands.
    #[cold]
    fn arrival_failed(&mut self, error: ErrorCode, reason: Reason, why: &str) {
        if self.level != Reliability::Unreliable {
            self.break_connection(error, reason, 0, why);
        }
    }

    #[cold]
    fn take_other(&mut self, head: Head, body: &[u8], rest: &[&[u8]]) -> bool {
        let immediate = head.immediate();
        let mut whole = Vec::new();
        let flat = link::flat(body, rest, &mut whole);
        let understood = match head.kind {
            frame::WRITE if immediate.is_some() && self.receives.is_empty() && self.early.may_wait() => {
                return false; // early: its data are written when a receive takes it
            }
            frame::WRITE => self.take_write(immediate, flat),
            frame::READ => self.take_read(flat),
            frame::DATA => self.take_data(flat),
            frame::TAKEN => frame::word(flat).is_some_and(|count| self.were_taken(count)),
            frame::BROKEN => Reason::read(flat).map(|reason| self.peer_broke(reason)).is_some(),
            _ => false,
        };
        understood || self.nonsense()
    }

    /// Takes a write of the peer to memory here.
    fn take_write(&mut self, immediate: Option<u32>, body: &[u8]) -> bool {
        let Some((address, handle, data)) = frame::read_write(body) else { return false };
        // A write of no bytes names memory, too.
        let to = locate(address, data.len() as u64, handle, self.ptag.0, Right::RemoteWrite);
        let written = match to.filter(|_| self.attributes.rdma_write != 0) {
            // SAFETY: the memory is registered for so many bytes, and stays so while this VI's lock is held.
            Some(to) => unsafe {
                copy_out(to, data);
                true
            },
            None => false,
        };
        if !written {
            let why = "the peer's RDMA write names memory that it may not write";
            if self.level == Reliability::Unreliable {
                self.raise_refusal(ErrorCode::RDMAW_PROT, control::OP_RDMAWRITE, why);
            }
            self.arrival_failed(ErrorCode::RDMAW_PROT, Reason::BadKey, why); // reports the error on a reliable connection
            return true;
        }
        if immediate.is_none() {
            self.count_taken();
            return true;
        }
        let Some(receive) = self.receives.pop_front() else {
            self.no_descriptor();
            return true;
        };
        let bits = status::OP_REMOTE_RDMA_WRITE | status::IMMEDIATE;
        self.receive_over(receive.place, bits, data.len(), immediate);
        self.count_taken();
        true
    }

    /// Reports RDMA that was refused, once: a peer could repeat it without end.
    fn raise_refusal(&mut self, error: ErrorCode, op_code: u16, why: &str) {
        if !std::mem::replace(&mut self.told_of_refusal, true) {
            self.raise(error, op_code.into(), why);
        }
    }

    /// Takes the peer's request to read memory here.
    fn take_read(&mut self, body: &[u8]) -> bool {
        let Some((address, handle, len)) = frame::read_read(body) else { return false };
        let is_allowed = self.attributes.rdma_read != 0
            && usize::try_from(len).is_ok_and(|len| {
                len <= self.nic.max_transfer()
                    && locate(address, len as u64, handle, self.ptag.0, Right::RemoteRead).is_some()
            });
        if !is_allowed {
            let why = "the peer's RDMA read names memory that it may not read";
            self.raise_refusal(ErrorCode::RDMAR_PROT, control::OP_RDMAREAD, why);
        }
        let from = Segment { address, len: len as u32, key: handle };
        // Bounded by what the peer's send queue holds.
        self.answers.push(is_allowed.then_some(from), super::MAX_DESCRIPTORS)
    }

    /// Takes the answer to the oldest read.
    fn take_data(&mut self, body: &[u8]) -> bool {
        let Some(answer) = frame::read_data(body) else { return false };
        let Some(read) = self.oldest_read() else { return false };
        let Some(data) = answer else {
            self.raise(
                ErrorCode::CONN_LOST,
                control::OP_RDMAREAD.into(),
                "an RDMA read of memory of the peer's that it may not read ended the connection",
            );
            if let Some(below) = &mut self.below {
                below.disconnect();
            }
            self.read_over(read, status::RDMA_PROT_ERROR, 0);
            self.end(ViState::ERROR, status::DESC_FLUSHED_ERROR);
            return true;
        };
        let (mut error, mut length) = (0, data.len());
        match self.scatter_read(read, data) {
            Some(Ok(_)) => {}
            Some(Err(_)) => (error, length) = (status::PROTECTION_ERROR, 0),
            None => return false,
        }
        self.read_over(read, error, length);
        if error != 0 {
            let why = "memory that an RDMA read was to fill was deregistered";
            self.break_connection(ErrorCode::COMP_PROT, Reason::Own, control::OP_RDMAREAD.into(), why);
        }
        true
    }

    /// Ends the connection, because the peer has met an error.
    fn peer_broke(&mut self, reason: Reason) {
        let why = "the peer ended the connection by an error: it had no place for a message, or refused an RDMA operation";
        if let Some(below) = &mut self.below {
            below.disconnect();
        }
        self.raise(ErrorCode::CONN_LOST, 0, why);
        match reason {
            Reason::Own => {}
            Reason::NoReceive | Reason::BadReceive => self.untaken_failed(status::REMOTE_DESC_ERROR),
            Reason::BadKey => self.untaken_failed(status::RDMA_PROT_ERROR),
        }
        self.end(ViState::ERROR, status::DESC_FLUSHED_ERROR);
    }

    /// Ends the connection, because the interface below says that it is over.
    #[cold]
    pub(super) fn ended(&mut self, error: &Error) {
        // The NIC's own callback reports a loss.
        let first = match error {
            Error::Closed => status::DESC_FLUSHED_ERROR,
            _ => status::TRANSPORT_ERROR,
        };
        self.end(ViState::ERROR, first);
    }

    /// `true`: it is done with.
    #[cold]
    fn nonsense(&mut self) -> bool {
        let why = "the peer says what this VIPL does not understand: is it a program of another version?";
        self.break_connection(ErrorCode::CONN_LOST, Reason::Own, 0, why);
        true
    }
}
