//! Messages that travel outside the stream, in datagrams: those of an unreliable VI.
//!
//! Messages and writes are numbered from 0 in the order in which they leave. They are posted, held back and counted as in
//! the stream: at most [`MESSAGES`] of them, and [`DATAGRAM_BYTES`] of theirs, are not over at the receiver. There a number is *over*
//! when its message was taken, or missed: its driver says so of each message that came ([`Connection::on_datagram`],
//! [`Connection::on_receive_unreliable`]) or never will ([`Connection::on_missed`]). Who takes what is under way does not know that it was
//! lost; the sender's driver does, when nothing more is to be heard of a message, and says it by the stream
//! ([`Connection::give_up`], [`Connection::take_given_up`]), as RFC 3758 has it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use smallvec::SmallVec;
use udeck_via::mem::MemHandle;
use udeck_via::transport::{Inline, TransferStatus};
use udeck_via::{Ptag, RemoteBuffer};

use super::outgoing::{Out, Then};
use super::{Connection, Pieces};
use crate::framed::windows::{Right, Windows};
use crate::framed::wire::{Frame, Header};
use crate::memory::{Memory, Place, Store};
use crate::{DATAGRAM_BYTES, Item, MESSAGES};

/// What a message that travels outside the stream says besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A message.
    Message {
        /// Immediate data.
        immediate: Option<u32>,
        /// It is given out as [`udeck_via::transport::Body::Lent`]; otherwise all of it is header.
        lent: bool,
        /// How many of its bytes are its header.
        head: u8,
    },
    /// RDMA write.
    Write {
        /// Immediate data.
        immediate: Option<u32>,
        /// Where to.
        handle: u32,
        /// Where to.
        offset: u64,
    },
}

/// A message that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its number.
    pub number: u64,
    /// What it is.
    pub content: Content,
    /// Its bytes, the header among them.
    pub len: usize,
}

/// Where a message goes that comes in parts. Nobody sees any of it before it is whole, except in a window.
pub struct Landing {
    content: Content,
    len: usize,
    to: To,
}

enum To {
    Store { head: [u8; Inline::CAPACITY], store: Store },
    Window { windows: Arc<Windows>, tag: Option<Ptag>, memory: Memory, at: RemoteBuffer },
}

/// See the module.
#[derive(Default)]
pub(super) struct Unreliable {
    /// Messages that have not left; the first is number `left`.
    out: VecDeque<(Content, Out)>,
    left: u64,
    /// The end, which goes into the stream when they have.
    end: Option<Out>,
    /// Messages below have arrived or never will; what the peer was told of that, and where in the stream that ends.
    given_up: u64,
    given_up_sent: u64,
    given_up_sent_at: u64,
    /// What the peer told of it.
    peer_given_up: Option<u64>,

    /// Numbers below are over.
    base: u64,
    /// Those from there: the bytes of one that is over.
    over: VecDeque<Option<u64>>,
    /// Of what lies in the recv_queue.
    numbers: VecDeque<u64>,
}

impl Content {
    /// Of a message or write as it would be a frame.
    fn of(frame: Frame) -> Option<Self> {
        match frame {
            Frame::Message { immediate, lent, head, .. } => Some(Content::Message { immediate, lent, head }),
            Frame::Write { immediate, handle, offset, .. } => {
                Some(Content::Write { immediate, handle, offset })
            }
            _ => None,
        }
    }
}

impl Unreliable {
    pub fn is_empty(&self) -> bool {
        self.out.is_empty() && self.end.is_none()
    }

    pub fn posts(&self) -> impl Iterator<Item = &Out> {
        self.out.iter().map(|(_, out)| out)
    }

    pub fn posts_mut(&mut self) -> impl Iterator<Item = &mut Out> {
        self.out.iter_mut().map(|(_, out)| out)
    }

    /// Takes what goes outside the stream, and what has to wait for that; gives back what goes into the stream.
    pub fn admit(&mut self, out: Out) -> Option<Out> {
        let content = Header::decode(out.header()).ok().and_then(|header| Content::of(header.frame));
        if let Some(content) = content {
            self.out.push_back((content, out));
            return None;
        }
        if matches!(out.then(), Then::Words(_)) && !self.out.is_empty() {
            self.end = Some(out);
            return None;
        }
        Some(out)
    }
}

/// The sender's side.
impl Connection {
    /// From now on messages and writes travel outside the stream. Before anything was posted; both sides or none.
    pub fn go_unreliable(&mut self) {
        self.unreliable = Some(Box::default());
        self.credits.window = DATAGRAM_BYTES as u64;
    }

    /// Whether messages travel outside the stream.
    pub fn is_unreliable(&self) -> bool {
        self.unreliable.is_some()
    }

    /// A message that has not left; `nth` from 0.
    pub fn next_datagram(&self, nth: usize) -> Option<Datagram> {
        let unreliable = self.unreliable.as_ref().filter(|_| !self.close.dead)?;
        let (content, out) = unreliable.out.get(nth)?;
        Some(Datagram { number: unreliable.left + nth as u64, content: *content, len: out.unreliable_len() })
    }

    /// Appends pieces that hold the message from its byte `from`, as [`Connection::gather`] does of the stream.
    pub fn gather_unreliable<'a>(
        &'a self,
        nth: usize,
        from: usize,
        limit: usize,
        pieces: &mut Pieces<'a>,
    ) -> usize {
        let out = self
            .unreliable
            .as_ref()
            .filter(|_| !self.close.dead)
            .and_then(|unreliable| unreliable.out.get(nth));
        out.map_or(0, |(_, out)| out.gather_unreliable(from, limit, pieces))
    }

    /// The first `count` messages have left: nobody reads their memory any more.
    pub fn on_datagrams_sent(&mut self, count: usize) {
        self.leave(count, TransferStatus::Arrived);
    }

    fn leave(&mut self, count: usize, status: TransferStatus) {
        for _ in 0..count {
            let Some(unreliable) = &mut self.unreliable else { return };
            let Some((_, out)) = unreliable.out.pop_front() else { break };
            unreliable.left += 1;
            self.after(out.into_then(), status);
        }
        let Some(unreliable) = self.unreliable.as_mut().filter(|unreliable| unreliable.out.is_empty()) else {
            return;
        };
        if let Some(end) = unreliable.end.take() {
            self.queue(end);
        }
    }

    /// They do not leave any more.
    pub(super) fn stay(&mut self, status: TransferStatus) {
        self.leave(usize::MAX, status);
    }

    /// Nothing more is to be heard of the messages below `upto`: what did not arrive of them never will. May be repeated.
    pub fn give_up(&mut self, upto: u64) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.given_up = unreliable.given_up.max(upto);
            self.tell_given_up();
        }
    }

    /// Tells the peer: by one frame at a time, so that a peer that does not read has no more of our memory.
    pub(super) fn tell_given_up(&mut self) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let quiet = self.close.dead || self.broken || self.end_sent;
        if quiet
            || unreliable.given_up <= unreliable.given_up_sent
            || unreliable.given_up_sent_at > self.outgoing.start()
        {
            return;
        }
        unreliable.given_up_sent = unreliable.given_up;
        let upto = unreliable.given_up_sent;
        self.control(Frame::Forget { upto }, Then::Nothing);
        let end = self.outgoing.end();
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.given_up_sent_at = end;
        }
    }
}

/// The receiver's side.
impl Connection {
    /// The first number that a peer that keeps the rules does not use yet.
    pub fn unreliable_end(&self) -> u64 {
        self.unreliable.as_ref().map_or(0, |unreliable| unreliable.base + u64::from(MESSAGES))
    }

    /// The peer has given up the messages below, said since this was asked last.
    pub fn take_given_up(&mut self) -> Option<u64> {
        let end = self.unreliable_end();
        self.unreliable.as_mut()?.peer_given_up.take().map(|upto| upto.min(end))
    }

    pub(super) fn on_given_up(&mut self, upto: u64) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.peer_given_up = unreliable.peer_given_up.max(Some(upto));
        }
    }

    /// Where a message of `len` bytes goes, the first part of which has come. `None`: nobody wants it, it may not go there,
    /// or there is no room.
    pub fn land(&mut self, content: Content, len: usize) -> Option<Landing> {
        if self.takes_none() {
            return None;
        }
        let to = match content {
            Content::Message { head, .. } => {
                let body = len.checked_sub(head.into()).filter(|&body| body <= self.max_transfer)?;
                if !self.credits.has_room_for(len as u64) {
                    return None;
                }
                let store = Store::new(&self.memory, body)?;
                self.credits.wait_for(len as u64);
                To::Store { head: [0; Inline::CAPACITY], store }
            }
            Content::Write { handle, offset, .. } => {
                let at =
                    RemoteBuffer { handle: MemHandle(handle), offset: usize::try_from(offset).ok()?, len };
                let (_, spot) = self.windows.enter(at, self.writable, Right::Write)?;
                let (windows, memory) = (self.windows.clone(), self.memory.clone());
                let to = To::Window { windows, tag: self.writable, memory, at };
                Some(to).filter(|_| !spot.in_outbox)?
            }
        };
        Some(Landing { content, len, to })
    }

    /// A message has come, in one part. (A write needs a [`Landing`].)
    pub fn on_datagram(&mut self, number: u64, content: Content, bytes: &[u8]) {
        let Content::Message { immediate, lent: false, .. } = content else {
            let mut landing = self.land(content, bytes.len());
            let landed = landing.as_mut().is_some_and(|landing| landing.fill(0, bytes));
            return match landing {
                Some(landing) if landed => self.on_receive_unreliable(number, landing),
                landing => self.on_missed(number, landing),
            };
        };
        let inline = Inline::gather(&bytes[..bytes.len().min(Inline::CAPACITY)], &[]);
        let len = inline.bytes().len() as u64;
        if self.takes_none() || !self.credits.has_room_for(len) {
            return self.on_missed(number, None);
        }
        self.credits.wait_for(len);
        self.arrive(number, Item::Inline { immediate, bytes: inline });
    }

    /// A message has come: all of it lies where it was to go.
    pub fn on_receive_unreliable(&mut self, number: u64, mut landing: Landing) {
        if self.takes_none() || !landing.is_whole() {
            return self.on_missed(number, Some(landing));
        }
        let Landing { content, len, to } = landing;
        match (content, to) {
            (Content::Message { immediate, lent: true, head: n }, To::Store { head, store }) => {
                let head = Inline::gather(&head[..n.into()], &[]);
                self.arrive(number, Item::Body { immediate, head, store, landed: 0, receipt: None });
            }
            (Content::Message { immediate, .. }, To::Store { head, .. }) => {
                let bytes = Inline::gather(&head[..len.min(Inline::CAPACITY)], &[]);
                self.arrive(number, Item::Inline { immediate, bytes });
            }
            (Content::Write { immediate: Some(immediate), .. }, _) => {
                self.arrive(number, Item::Written { immediate, len, receipt: None });
            }
            (Content::Write { immediate: None, .. } | Content::Message { .. }, _) => self.is_over(number, 0),
        }
    }

    /// A message did not come, or only a part of it: it counts as taken.
    pub fn on_missed(&mut self, number: u64, part: Option<Landing>) {
        if let Some(Landing { len, to: To::Store { .. }, .. }) = part {
            self.credits.wait_no_more(len as u64);
        }
        self.is_over(number, 0);
    }

    /// Its program takes nothing more, or was told that nothing more comes.
    fn takes_none(&self) -> bool {
        self.close.closed || self.close.dead || self.broken || self.close.peer_has_ended()
    }

    fn arrive(&mut self, number: u64, item: Item<Infallible>) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.numbers.push_back(number);
            self.deliver(item);
        }
    }

    /// The program has taken the first arrival, of so many bytes. `false`: it came by the stream.
    pub(super) fn taken_unreliable(&mut self, bytes: u64) -> bool {
        let Some(unreliable) = &mut self.unreliable else { return false };
        if let Some(number) = unreliable.numbers.pop_front() {
            self.credits.wait_no_more(bytes);
            self.is_over(number, bytes);
        }
        true
    }

    /// What is told to the peer is how many are over in a row: so it knows which.
    fn is_over(&mut self, number: u64, bytes: u64) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let Some(at) = number.checked_sub(unreliable.base).filter(|&at| at < u64::from(MESSAGES)) else {
            return;
        };
        let at = at as usize;
        if unreliable.over.len() <= at {
            unreliable.over.resize(at + 1, None);
        }
        unreliable.over[at] = Some(bytes);
        while let Some(Some(bytes)) = unreliable.over.front().copied() {
            unreliable.over.pop_front();
            unreliable.base += 1;
            self.credits.count(bytes);
        }
        self.tell_credits();
    }
}

impl Landing {
    /// What it is.
    pub fn content(&self) -> Content {
        self.content
    }

    /// The message's bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it was put there: whether it can be read.
    fn is_whole(&mut self) -> bool {
        match &mut self.to {
            To::Store { store, .. } => store.is_whole(),
            To::Window { .. } => true,
        }
    }

    /// Puts bytes of the message there, from its byte `at`. `false`: they may not go there, or not any more.
    pub fn fill(&mut self, at: usize, bytes: &[u8]) -> bool {
        if at.checked_add(bytes.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        match &mut self.to {
            To::Store { head, store } => {
                let head_len = self.len - store.len();
                let (first, rest) = bytes.split_at(head_len.saturating_sub(at).min(bytes.len()));
                head[at.min(head_len)..][..first.len()].copy_from_slice(first);
                rest.is_empty() || store.scatter(at.max(head_len) - head_len, rest)
            }
            To::Window { windows, tag, memory, at: window } => {
                let RemoteBuffer { handle, offset, .. } = *window;
                let here = RemoteBuffer { handle, offset: offset + at, len: bytes.len() };
                let Some((inside, spot)) = windows.enter(here, *tag, Right::Write) else { return false };
                let place = Place::of(&memory.landing, spot.offset, spot.len).filter(|_| !spot.in_outbox);
                if let Some(place) = place {
                    place.fill(bytes);
                    memory.count_copied(bytes.len());
                }
                drop(inside);
                place.is_some()
            }
        }
    }
}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Landing({} bytes, {:?})", self.len, self.content)
    }
}

/// Of a message that travels outside the stream: without the header that a frame has.
impl Out {
    fn unreliable_len(&self) -> usize {
        self.unreliable_places().map(Place::len).sum()
    }

    fn gather_unreliable<'a>(&'a self, from: usize, limit: usize, pieces: &mut Pieces<'a>) -> usize {
        pieces.append(self.unreliable_places(), from, limit)
    }

    fn unreliable_places(&self) -> impl Iterator<Item = Place> {
        let lead: SmallVec<[Place; 1]> = SmallVec::from_iter([Place::bytes(self.head())]);
        lead.into_iter().chain(self.body().iter().copied())
    }
}
