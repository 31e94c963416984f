//! Arrivals from the peer: messages, RDMA, answers to reads, and the end of the connection.

use std::time::{Duration, Instant};

use udeck::via::transport::{Body, Found, Inline};
use udeck::via::{Arrival, Error};
use udeck_rdma::frame::{self, Head, INVALIDATES, Reason};
use udeck_rdma::link;

use super::Ep;
use crate::core::event::{Dto, Status, number};
use crate::core::ia::HeldBytes;
use crate::core::memory::{self, Right, Triplet};
use crate::core::srq::Receive;

/// Most arrivals that one poll takes, so that a peer that only sends does not keep the thread here.
const BOUND: usize = 64;
/// Most messages that wait at a time: one without a receive, and those that came behind it.
const MAX_HELD: usize = 256;
/// Time that a message waits for a receive. (Hardware retries for about as long before it gives up.)
const PATIENCE: Duration = Duration::from_secs(10);

/// A message that has found no receive yet, or one that came behind it. It stays in the memory where it arrived, and takes no other
/// memory.
pub struct Held {
    what: Message,
    /// Time since which the message is the next one and finds no receive.
    since: Option<Instant>,
    _bytes: HeldBytes,
}

enum Message {
    Arrival(Arrival),
    /// The end of the connection.
    End(Error),
}

impl Message {
    fn short(bytes: Inline) -> Message {
        Message::Arrival(Arrival { immediate: None, body: Body::Inline(bytes) })
    }

    /// Returns the message's length in bytes, and whether it answers a read.
    fn len_and_is_answer(&self) -> (usize, bool) {
        let Message::Arrival(arrival) = self else { return (0, false) };
        let found = link::with_frame(arrival, |first, rest| {
            let is_answer = Head::read(first, INVALIDATES).is_some_and(|head| head.kind == frame::DATA);
            (first.len() + rest.iter().map(|part| part.len()).sum::<usize>(), is_answer)
        });
        found.unwrap_or_default()
    }
}

impl Ep {
    /// Takes what has arrived.
    #[inline]
    pub(super) fn take_arrivals(&mut self) {
        if !self.held.is_empty() && !self.take_held() {
            return;
        }
        let mut short = Inline::EMPTY;
        for _ in 0..BOUND {
            let Some(vi) = &mut self.vi else { return };
            match vi.arrival_short(&mut short) {
                Found::Short(_) => {
                    if !self.held.is_empty() || !self.take(short.bytes(), &[]) {
                        self.hold(Message::short(short));
                    }
                }
                Found::Nothing => return,
                Found::Other => match vi.arrival() {
                    Ok(Some(arrival)) => {
                        if !self.held.is_empty() || !self.take_arrival(&arrival) {
                            self.hold(Message::Arrival(arrival));
                        }
                    }
                    Ok(None) => return,
                    Err(error) if self.held.is_empty() => return self.ended(&error),
                    Err(error) => return self.hold(Message::End(error)),
                },
            }
            if self.held.len() >= MAX_HELD {
                return;
            }
        }
    }

    /// Takes a frame: `first` has its head and the beginning of its body, `rest` the rest of the body. `false`: a message without a receive, which
    /// is not taken.
    #[inline]
    fn take(&mut self, first: &[u8], rest: &[&[u8]]) -> bool {
        let Some(head) = Head::read(first, INVALIDATES) else {
            self.nonsense();
            return true;
        };
        let body = &first[frame::HEAD..];
        if head.kind == frame::SEND {
            let Some(receive) = self.next_receive() else { return false };
            self.take_send(head, &receive, body, rest);
        } else {
            self.take_other(head, body, rest);
        }
        true
    }

    #[inline]
    fn next_receive(&mut self) -> Option<Receive> {
        match &self.settings.srq {
            None => self.receives.pop_front(),
            Some(srq) => srq.take(),
        }
    }

    #[inline]
    fn take_send(&mut self, head: Head, receive: &Receive, body: &[u8], rest: &[&[u8]]) {
        let pz = self.settings.srq.as_ref().map_or(self.pz, |srq| srq.pz);
        // The shortest way for most: one piece, into one segment.
        if let Some(one) = receive.one()
            && rest.is_empty()
            && (1..=one.len as usize).contains(&body.len())
            && head.flags == 0
        {
            let into = Triplet { len: body.len() as u32, ..one };
            if memory::write(into, pz, Right::LocalWrite, body).is_ok() {
                return self.receive_over(
                    receive.cookie,
                    Status::Success,
                    body.len(),
                    Dto::Receive,
                    head.word,
                );
            }
        }
        self.take_scattered(head, receive, pz, body, rest);
    }

    #[inline(never)]
    fn take_scattered(&mut self, head: Head, receive: &Receive, pz: u32, body: &[u8], rest: &[&[u8]]) {
        let pieces = std::iter::once(body).chain(rest.iter().copied());
        let len = body.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        let status = match memory::scatter(receive.segments(), pz, pieces) {
            Ok(0) => Status::Success,
            Ok(_) => Status::LocalLength,
            Err(_) => Status::LocalProtection,
        };
        let invalidates = head.flags & INVALIDATES != 0;
        let dto = if invalidates { Dto::ReceiveWithInvalidate } else { Dto::Receive };
        if invalidates && !memory::invalidate(head.word, self.pz) {
            self.receive_over(receive.cookie, Status::LocalProtection, 0, dto, head.word);
            return self.break_connection(Reason::BadKey);
        }
        let taken = if status == Status::Success { len } else { 0 };
        self.receive_over(receive.cookie, status, taken, dto, head.word);
        if status != Status::Success {
            self.break_connection(Reason::BadReceive);
        }
    }

    /// Holds a message until a receive is posted, as with hardware, whose peer retries. Messages behind it wait, too,
    /// except answers to this end's reads: the program may post the receive when it has read.
    #[cold]
    fn hold(&mut self, what: Message) {
        let (len, is_answer) = what.len_and_is_answer();
        if !self.held.is_empty() && is_answer {
            self.take_message(&what);
            return;
        }
        match self.ia.hold(len) {
            Some(bytes) => self.held.push_back(Held { what, since: None, _bytes: bytes }),
            // Messages of other peers wait already, and the memory for messages without receives is bounded.
            None => self.break_connection(Reason::NoReceive),
        }
    }

    fn take_arrival(&mut self, arrival: &Arrival) -> bool {
        let taken = link::with_frame(arrival, |first, rest| self.take(first, rest));
        taken.unwrap_or_else(|| {
            self.nonsense();
            true
        })
    }

    fn take_message(&mut self, what: &Message) -> bool {
        match what {
            Message::Arrival(arrival) => self.take_arrival(arrival),
            Message::End(error) => {
                self.ended(error);
                true
            }
        }
    }

    /// Takes held messages as far as there are receives. `false`: no more can be held.
    #[cold]
    fn take_held(&mut self) -> bool {
        while let Some(mut held) = self.held.pop_front() {
            if self.take_message(&held.what) {
                continue;
            }
            if held.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                self.break_connection(Reason::NoReceive);
                return true;
            }
            self.held.push_front(held);
            let is_over = matches!(self.held.back(), Some(Held { what: Message::End(_), .. }));
            return self.held.len() < MAX_HELD && !is_over;
        }
        true
    }

    #[cold]
    fn take_other(&mut self, head: Head, body: &[u8], rest: &[&[u8]]) {
        let mut whole = Vec::new();
        let flat = link::flat(body, rest, &mut whole);
        let understood = match head.kind {
            frame::WRITE => self.take_write(flat),
            frame::READ => self.take_read(flat),
            frame::DATA => self.take_data(flat),
            frame::BROKEN => {
                Reason::read(flat).map(|reason| self.end(Status::of(reason), number::BROKEN)).is_some()
            }
            _ => false,
        };
        if !understood {
            self.nonsense();
        }
    }

    /// Takes a write of the peer to memory here.
    fn take_write(&mut self, body: &[u8]) -> bool {
        let Some((address, context, data)) = frame::read_write(body) else { return false };
        let Ok(len) = u32::try_from(data.len()) else { return false };
        if memory::write(Triplet { address, len, key: context }, self.pz, Right::RemoteWrite, data).is_err() {
            self.break_connection(Reason::BadKey);
        }
        true
    }

    /// Takes the peer's request to read memory here.
    fn take_read(&mut self, body: &[u8]) -> bool {
        let Some((address, context, len)) = frame::read_read(body) else { return false };
        let len = u32::try_from(len).ok().filter(|len| *len as usize <= self.ia.max_transfer());
        self.answer_read(len.map(|len| Triplet { address, len, key: context }))
    }

    /// Ends the connection, because the interface below says that it is over.
    #[cold]
    pub(super) fn ended(&mut self, error: &Error) {
        match error {
            Error::Closed => self.end(Status::Flushed, number::DISCONNECTED),
            _ => self.end(Status::Transport, number::BROKEN),
        }
    }

    #[cold]
    fn nonsense(&mut self) {
        udeck::via::say!(
            "uDAPL: the peer says what this provider does not understand: is it of another version?"
        );
        self.break_connection(Reason::BadReceive);
    }
}
