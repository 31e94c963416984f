//! Messages of an unreliable VI, which travel in datagrams outside the stream.
//!
//! Messages and writes are numbered from 0 in the order in which they leave. They are posted, held back and counted as in the
//! stream: at most [`MESSAGES`] of them, and [`DATAGRAM_BYTES`] of theirs, are not over at the receiver. A number is *over*
//! at the receiver when its message was taken or missed. The receiver's driver reports each message that came
//! ([`Connection::on_datagram`], [`Connection::on_receive_unreliable`]) or never will ([`Connection::on_missed`]). The
//! receiver does not know which datagrams in flight were lost. The sender's driver does, when nothing more is to be heard of
//! a message, and reports it through the stream ([`Connection::give_up`], [`Connection::take_given_up`]), as RFC 3758 has it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use smallvec::SmallVec;
use udeck_via::mem::MemHandle;
use udeck_via::transport::{Inline, TransferStatus};
use udeck_via::{Ptag, RemoteBuffer};

use super::outgoing::{OnRelease, OutFrame};
use super::{Connection, Pieces};
use crate::framed::windows::{Right, Windows};
use crate::framed::wire::{Frame, Header};
use crate::memory::{Memory, Place, Store};
use crate::{DATAGRAM_BYTES, Item, MESSAGES};

/// Header fields of a message that travels outside the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A message.
    Message {
        /// Immediate data.
        immediate: Option<u32>,
        /// Whether it is delivered as [`udeck_via::transport::Body::Lent`]; otherwise all of it is header.
        lent: bool,
        /// Bytes of its header.
        head: u8,
    },
    /// An RDMA write.
    Write {
        /// Immediate data.
        immediate: Option<u32>,
        /// Handle of the window.
        handle: u32,
        /// Byte offset in the window.
        offset: u64,
    },
}

/// A message that is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The message's number.
    pub number: u64,
    /// The message's header fields.
    pub content: Content,
    /// Length in bytes, with the header.
    pub len: usize,
}

/// Destination of a message that comes in parts. The program sees none of it before it is whole, except in a window.
pub struct Landing {
    content: Content,
    len: usize,
    to: To,
}

enum To {
    Store { head: [u8; Inline::CAPACITY], store: Store },
    Window { windows: Arc<Windows>, tag: Option<Ptag>, memory: Memory, at: RemoteBuffer },
}

/// State of a connection whose messages travel outside the stream.
#[derive(Default)]
pub(super) struct Unreliable {
    /// Messages that have not left; the first has number `left`.
    out: VecDeque<(Content, OutFrame)>,
    left: u64,
    /// The end frame, which goes into the stream when these messages have left.
    end: Option<OutFrame>,
    /// Messages below `given_up` have arrived or never will. The peer was told of those below `given_up_sent`, by a frame
    /// that ends at stream offset `given_up_sent_at`.
    given_up: u64,
    given_up_sent: u64,
    given_up_sent_at: u64,
    /// The number below which the peer has given up its messages.
    peer_given_up: Option<u64>,

    /// Numbers below this one are over.
    base: u64,
    /// Numbers from `base` on: the bytes of each message that is over.
    over: VecDeque<Option<u64>>,
    /// Numbers of the messages in the receive queue.
    numbers: VecDeque<u64>,
}

impl Content {
    /// Content of a message or write that would be this frame in the stream. `None`: another frame.
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

    pub fn posts(&self) -> impl Iterator<Item = &OutFrame> {
        self.out.iter().map(|(_, out)| out)
    }

    pub fn posts_mut(&mut self) -> impl Iterator<Item = &mut OutFrame> {
        self.out.iter_mut().map(|(_, out)| out)
    }

    /// Takes frames that go outside the stream, and the end that has to wait for them. Returns frames that go into the stream.
    pub fn admit(&mut self, out: OutFrame) -> Option<OutFrame> {
        let content = Header::decode(out.header()).ok().and_then(|header| Content::of(header.frame));
        if let Some(content) = content {
            self.out.push_back((content, out));
            return None;
        }
        if matches!(out.on_release(), OnRelease::Words(_)) && !self.out.is_empty() {
            self.end = Some(out);
            return None;
        }
        Some(out)
    }
}

/// The sender's side.
impl Connection {
    /// Lets messages and writes travel outside the stream from now on. Call it before anything was posted, on both sides or
    /// on none.
    pub fn go_unreliable(&mut self) {
        self.unreliable = Some(Box::default());
        self.credits.window = DATAGRAM_BYTES as u64;
    }

    /// Whether messages travel outside the stream.
    pub fn is_unreliable(&self) -> bool {
        self.unreliable.is_some()
    }

    /// The `nth` message (from 0) that has not left.
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

    /// Notes that the first `count` messages have left: their memory is not read any more.
    pub fn on_datagrams_sent(&mut self, count: usize) {
        self.leave(count, TransferStatus::Arrived);
    }

    fn leave(&mut self, count: usize, status: TransferStatus) {
        for _ in 0..count {
            let Some(unreliable) = &mut self.unreliable else { return };
            let Some((_, out)) = unreliable.out.pop_front() else { break };
            unreliable.left += 1;
            self.after(out.into_on_release(), status);
        }
        let Some(unreliable) = self.unreliable.as_mut().filter(|unreliable| unreliable.out.is_empty()) else {
            return;
        };
        if let Some(end) = unreliable.end.take() {
            self.queue(end);
        }
    }

    /// Drops the messages that have not left: they never will.
    pub(super) fn drop_unsent(&mut self, status: TransferStatus) {
        self.leave(usize::MAX, status);
    }

    /// Gives up the messages below `upto`: nothing more is to be heard of them, and those that did not arrive never will. May
    /// be repeated.
    pub fn give_up(&mut self, upto: u64) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.given_up = unreliable.given_up.max(upto);
            self.report_given_up();
        }
    }

    /// Tells the peer, by one frame at a time, so that a peer that does not read takes no more of our memory.
    pub(super) fn report_given_up(&mut self) {
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
        self.control(Frame::Forget { upto }, OnRelease::Nothing);
        let end = self.outgoing.end();
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.given_up_sent_at = end;
        }
    }
}

/// The receiver's side.
impl Connection {
    /// Lowest number that a peer that keeps the rules does not use yet.
    pub fn unreliable_end(&self) -> u64 {
        self.unreliable.as_ref().map_or(0, |unreliable| unreliable.base + u64::from(MESSAGES))
    }

    /// The number below which the peer has given up its messages, if it said so since the last call.
    pub fn take_given_up(&mut self) -> Option<u64> {
        let end = self.unreliable_end();
        self.unreliable.as_mut()?.peer_given_up.take().map(|upto| upto.min(end))
    }

    pub(super) fn on_given_up(&mut self, upto: u64) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.peer_given_up = unreliable.peer_given_up.max(Some(upto));
        }
    }

    /// Destination of a message of `len` bytes whose first part has come. `None`: the program takes no messages, it may not
    /// go there, or there is no room.
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
                let (_, range) = self.windows.enter(at, self.writable, Right::Write)?;
                let (windows, memory) = (self.windows.clone(), self.memory.clone());
                let to = To::Window { windows, tag: self.writable, memory, at };
                Some(to).filter(|_| !range.in_outbox)?
            }
        };
        Some(Landing { content, len, to })
    }

    /// Handles a message that has come in one part. (A write needs a [`Landing`].)
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

    /// Handles a message that has come as a whole: all of it lies at its destination.
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

    /// Handles a message that did not come, or only in part: it counts as taken.
    pub fn on_missed(&mut self, number: u64, part: Option<Landing>) {
        if let Some(Landing { len, to: To::Store { .. }, .. }) = part {
            self.credits.wait_no_more(len as u64);
        }
        self.is_over(number, 0);
    }

    /// Whether our program takes nothing more, or was told that nothing more comes.
    fn takes_none(&self) -> bool {
        self.close.closed || self.close.dead || self.broken || self.close.peer_has_ended()
    }

    fn arrive(&mut self, number: u64, item: Item<Infallible>) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.numbers.push_back(number);
            self.deliver(item);
        }
    }

    /// Notes that the program has taken the first arrival, of `bytes`. Returns `false` if it came by the stream.
    pub(super) fn taken_unreliable(&mut self, bytes: u64) -> bool {
        let Some(unreliable) = &mut self.unreliable else { return false };
        if let Some(number) = unreliable.numbers.pop_front() {
            self.credits.wait_no_more(bytes);
            self.is_over(number, bytes);
        }
        true
    }

    /// Notes that a message is over. The peer is told how many are over in a row, so it knows which.
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
        self.send_credits();
    }
}

impl Landing {
    /// Header fields of the message.
    pub fn content(&self) -> Content {
        self.content
    }

    /// Length of the message in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the message can be read, once all of it was put there.
    fn is_whole(&mut self) -> bool {
        match &mut self.to {
            To::Store { store, .. } => store.is_whole(),
            To::Window { .. } => true,
        }
    }

    /// Puts bytes of the message into the destination, from its byte `at`. Returns `false` if they may not go there, or not
    /// any more.
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
                let Some((access, range)) = windows.enter(here, *tag, Right::Write) else { return false };
                let place = Place::of(&memory.landing, range.offset, range.len).filter(|_| !range.in_outbox);
                if let Some(place) = place {
                    place.fill(bytes);
                    memory.count_copied(bytes.len());
                }
                drop(access);
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

/// Messages that travel outside the stream, without the header of a frame.
impl OutFrame {
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
