//! What comes from the peer.

use std::time::{Duration, Instant};

use udeck::via::transport::{Body, Found, Inline};
use udeck::via::{Arrival, Error, Lent};
use udeck_rdma::frame::{self, Head, INVALIDATES, Reason};

use super::Ep;
use crate::core::event::{Dto, Status, number};
use crate::core::ia::HeldBytes;
use crate::core::memory::{self, Right, Triplet};
use crate::core::srq::Receive;

/// Arrivals that one look takes, at most: a peer that only sends does not keep us here.
const BOUND: usize = 64;
/// What waits at a time: a message without a receive, and what came behind it.
const MAX_HELD: usize = 256;
/// How long a message waits for a receive. (Hardware asks again for about as long, before it gives up.)
const PATIENCE: Duration = Duration::from_secs(10);

/// A message that has found no receive yet, or what came behind it. It stays where it has arrived, so it takes no memory of ours
/// beside that.
pub struct Held {
    what: Message,
    /// Since when it is the next, and finds no receive.
    since: Option<Instant>,
    _bytes: HeldBytes,
}

enum Message {
    Short(Inline),
    Lent(Inline, Lent),
    /// The connection's.
    End(Error),
}

/// The pieces of a message's body behind its first one.
fn parts_of(lent: &Lent) -> [&[u8]; Lent::MAX_PARTS] {
    let mut parts: [&[u8]; Lent::MAX_PARTS] = [&[]; Lent::MAX_PARTS];
    for (place, part) in parts.iter_mut().zip(lent.parts()) {
        *place = part;
    }
    parts
}

impl Message {
    fn len(&self) -> usize {
        match self {
            Message::Short(bytes) => bytes.bytes().len(),
            Message::Lent(head, lent) => head.bytes().len() + lent.len(),
            Message::End(_) => 0,
        }
    }

    fn is_answer(&self) -> bool {
        let (Message::Short(first) | Message::Lent(first, _)) = self else { return false };
        Head::read(first.bytes(), INVALIDATES).is_some_and(|head| head.kind == frame::DATA)
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
                        self.hold(Message::Short(short));
                    }
                }
                Found::Nothing => return,
                Found::Other => match vi.arrival() {
                    Ok(Some(arrival)) => self.take_arrival(arrival),
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

    fn take_arrival(&mut self, arrival: Arrival) {
        let waits = !self.held.is_empty();
        match arrival.body {
            Body::Inline(bytes) => {
                if waits || !self.take(bytes.bytes(), &[]) {
                    self.hold(Message::Short(bytes));
                }
            }
            Body::Lent(head, lent) => {
                if waits || !self.take(head.bytes(), &parts_of(&lent)) {
                    self.hold(Message::Lent(head, lent));
                }
            }
            // No window is exposed to anybody, and a confirmation has no bytes.
            Body::Written(_) => self.nonsense(),
        }
    }

    /// A frame: its head and what of its body lies behind it, and the rest of the body. `false`: a message without a receive, which
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

    /// No receive is posted: the message waits for one, as it would with hardware, whose peer asks again. What comes behind it waits, too,
    /// but for answers to our reads: the program may post the receive when it has read.
    #[cold]
    fn hold(&mut self, what: Message) {
        if !self.held.is_empty() && what.is_answer() {
            self.take_message(&what);
            return;
        }
        match self.ia.hold(what.len()) {
            Some(bytes) => self.held.push_back(Held { what, since: None, _bytes: bytes }),
            // Others wait already: peers that send without receives get so much memory and no more.
            None => self.break_connection(Reason::NoReceive),
        }
    }

    fn take_message(&mut self, what: &Message) -> bool {
        match what {
            Message::Short(bytes) => self.take(bytes.bytes(), &[]),
            Message::Lent(head, lent) => self.take(head.bytes(), &parts_of(lent)),
            Message::End(error) => {
                self.ended(error);
                true
            }
        }
    }

    /// Takes what waits, as far as there are receives. `false`: no more can wait.
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
        // A transport decides how many pieces a body comes in.
        let bytes: Vec<u8>;
        let mut parts = std::iter::once(body).chain(rest.iter().copied()).filter(|part| !part.is_empty());
        let flat: &[u8] = match (parts.next(), parts.next()) {
            (one, None) => one.unwrap_or(&[]),
            _ => {
                bytes = std::iter::once(body).chain(rest.iter().copied()).collect::<Vec<_>>().concat();
                &bytes
            }
        };
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

    /// The peer writes our memory.
    fn take_write(&mut self, body: &[u8]) -> bool {
        let Some((address, context, data)) = frame::read_write(body) else { return false };
        let Ok(len) = u32::try_from(data.len()) else { return false };
        if memory::write(Triplet { address, len, key: context }, self.pz, Right::RemoteWrite, data).is_err() {
            self.break_connection(Reason::BadKey);
        }
        true
    }

    /// The peer reads our memory.
    fn take_read(&mut self, body: &[u8]) -> bool {
        let Some((address, context, len)) = frame::read_read(body) else { return false };
        let len = u32::try_from(len).ok().filter(|len| *len as usize <= self.ia.max_transfer());
        self.answer_read(len.map(|len| Triplet { address, len, key: context }))
    }

    /// The interface below says that the connection is over.
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
