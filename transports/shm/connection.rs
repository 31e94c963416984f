//! One connection as this process sees it: its shared memory, the peer's doorbells, and the table of lent buffers.

mod lent_memory;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use udeck_sys::atomic::fence;
use udeck_sys::position::Position;
use udeck_sys::ring::{credit_of, ready_at};
use udeck_sys::segment::Mapping;
use udeck_sys::tokens::{Collector, Returner, SLOTS};
use udeck_via::mem::Lender;
use udeck_via::transport::{Hello, Owner, PostedBuffer, Reporter, TransferStatus};

use crate::layout::{BROKEN, CLOSED, Direction, OPEN};
use crate::peer_socket::PeerSocket;
use crate::peer_socket_wire::{Datagram, Doorbells};
use crate::waiter::Attached;

/// A connection, shared by its endpoint, the waiters that watch it, messages lent over it, and its peer socket.
pub struct Connection {
    /// Ring from us to the peer.
    pub outgoing: Direction,
    /// Ring from the peer to us.
    pub incoming: Direction,
    pub peer_socket: Arc<PeerSocket>,
    /// Doorbells on which the peer listens for news.
    peer_doorbells: Doorbells,
    /// The peer's protection tag for writing its windows and for reading them. `None` where we may not.
    pub writable_ptag: Option<u32>,
    pub readable_ptag: Option<u32>,
    /// Our consumer's position, modulo 2^32, for waiters ([`Connection::has_arrival`]). They ask whether the cell
    /// there holds a message, and how many messages a burst has taken. Wrap-around costs at most one unfair poll.
    pub position: AtomicU32,
    /// Number of messages that we have sent. The peer's 32-bit count of messages read is widened to 64 bits by it.
    sent: AtomicU64,
    returner: Returner<Direction>,
    lent: Mutex<LentTable>,
    lost: AtomicBool,
    why_lost: OnceLock<String>,
    /// The peer's process has left, or is dead: it no longer accesses our memory.
    has_left: AtomicBool,
    /// Reports the loss of the connection to the program's error callback.
    reporter: Arc<Reporter>,
    /// Places of our two queues on our doorbells. They are rung when the connection ends.
    own: Mutex<Own>,
}

#[derive(Default)]
struct Own {
    send: Option<Attached>,
    receive: Option<Attached>,
}

/// Buffers that the peer holds, by token.
struct LentTable {
    collector: Collector<Direction>,
    /// Lent buffers by token, as long as the highest token that was ever lent: most connections lend nothing and
    /// need no room here.
    held: Vec<Option<PostedBuffer>>,
    /// Ring position of the message that each buffer is part of, by token. As long as `held`.
    position: Vec<Position>,
    free: u64,
    /// Completions of [`PostedBuffer::Caller`]s that were not reported yet.
    returned: VecDeque<(u64, TransferStatus)>,
}

const _: () = assert!(SLOTS == u64::BITS);

/// Kind of a peer's loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The peer's process is dead, or has closed its peer socket.
    Dead,
    /// The peer broke the protocol. Its process lives and may be inside our windows. The buffers of ours that it
    /// reads are taken back.
    ProtocolError,
    /// The peer does not read its peer socket. It may only be stopped and go on later, so it keeps the buffers that
    /// it has.
    Unresponsive,
}

/// Bit of a returned token: the receiver had no place for the message.
const REFUSED: u16 = 1 << 15;
const _: () = assert!(SLOTS <= REFUSED as u32);

/// Reason of a connection's end when the peer's state is [`BROKEN`].
pub const BROKEN_BY_PEER: &str = "the peer found no receive descriptor for a message, or one too short";

/// Error: the peer returned a buffer that it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer returned a buffer that it does not hold (token {0})")]
pub struct ForeignToken(u16);

impl Connection {
    /// Builds this side's view of a connection. `side` is 0 for the requester, 1 for the acceptor.
    pub fn new(
        control: Arc<Mapping>,
        side: usize,
        peer_socket: Arc<PeerSocket>,
        peer_doorbells: Doorbells,
        peer: &Hello,
        reporter: &Arc<Reporter>,
    ) -> Arc<Self> {
        let outgoing = Direction::new(&control, side);
        let incoming = Direction::new(&control, 1 - side);
        let lent = LentTable {
            collector: Collector::new(outgoing.clone()),
            held: Vec::new(),
            position: Vec::new(),
            free: u64::MAX,
            returned: VecDeque::new(),
        };
        Arc::new(Connection {
            returner: Returner::new(incoming.clone()),
            outgoing,
            incoming,
            peer_socket,
            peer_doorbells,
            writable_ptag: peer.writable_ptag.map(|ptag| ptag.0),
            readable_ptag: peer.readable_ptag.map(|ptag| ptag.0),
            position: AtomicU32::new(0),
            sent: AtomicU64::new(0),
            lent: Mutex::new(lent),
            lost: AtomicBool::new(false),
            why_lost: OnceLock::new(),
            has_left: AtomicBool::new(false),
            reporter: reporter.clone(),
            own: Mutex::default(),
        })
    }

    /// Stores the places of both queues on our doorbells. Nothing rings them from [`Connection::detach`] on.
    pub fn attach(&self, send: Attached, receive: Attached) {
        *self.own.lock() = Own { send: Some(send), receive: Some(receive) };
    }

    /// Stops ringing our receive queue for this connection.
    pub fn detach_receive(&self) {
        self.own.lock().receive = None;
    }

    /// Stops ringing both queues.
    pub fn detach(&self) {
        *self.own.lock() = Own::default();
    }

    fn announce_to_own(&self) {
        let own = self.own.lock();
        for attached in own.send.iter().chain(&own.receive) {
            attached.announce();
        }
    }

    /// Whether the incoming ring has a message. For waiters.
    #[inline]
    pub fn has_arrival(&self) -> bool {
        ready_at(&self.incoming, self.position.load(Ordering::Relaxed))
    }

    /// Rings the doorbell of the peer's receive queue.
    #[cold]
    pub fn ring_receiver(&self) {
        let doorbell = self.peer_doorbells.receive;
        self.peer_socket.peer_board().doorbell(doorbell.doorbell).ring(doorbell.bit);
    }

    /// Rings the peer's send queue, if it waits, because there is room or a buffer came back. The caller has
    /// published the news before; the fence pairs with the one in `ViEndpoint::request_send_notify`.
    #[inline]
    pub fn notify_sender(&self) {
        fence(Ordering::SeqCst);
        if self.incoming.sender().waiting.load(Ordering::Relaxed) != 0 {
            let doorbell = self.peer_doorbells.send;
            self.peer_socket.peer_board().doorbell(doorbell.doorbell).ring(doorbell.bit);
        }
    }

    // ---- buffers that we lend ----

    /// Keeps `held` under a token for the message at `position` of the ring, or gives it back when all tokens are out.
    #[inline]
    pub fn lend(&self, held: PostedBuffer, position: Position) -> Result<u16, LendError> {
        let mut table = self.lent.lock();
        if let Err(foreign) = table.collect() {
            return Err(LendError::Foreign(foreign, held));
        }
        if table.free == 0 {
            return Err(LendError::Busy(held));
        }
        let token = table.free.trailing_zeros() as u16;
        table.free &= table.free - 1;
        table.hold(token, held, position);
        Ok(token)
    }

    /// Whether the next [`Connection::lend`] finds a free token. Only this endpoint takes tokens.
    pub fn has_token(&self) -> Result<bool, ForeignToken> {
        let mut table = self.lent.lock();
        table.collect()?;
        Ok(table.free != 0)
    }

    /// Returns the next completion: the caller's number of a buffer that the peer reads no more, and the status of
    /// its message.
    ///
    /// # Errors
    /// [`ForeignToken`]: the peer returned a token that it does not hold.
    pub fn poll_completion(&self) -> Result<Option<(u64, TransferStatus)>, ForeignToken> {
        let mut table = self.lent.lock();
        if let Some(returned) = table.returned.pop_front() {
            return Ok(Some(returned));
        }
        table.collect()?;
        if self.peer_state() != OPEN {
            table.collect_unread(self.read_by_peer());
        }
        Ok(table.returned.pop_front())
    }

    /// Lets `owner` hold the buffer of the send `number` instead of the caller, who is then not told of its
    /// completion. Gives `owner` back if no such send is pending.
    pub fn keep(&self, number: u64, owner: Owner) -> Result<(), Owner> {
        let mut table = self.lent.lock();
        let is_this = |held: &&mut Option<PostedBuffer>| matches!(held, Some(PostedBuffer::Caller(other)) if *other == number);
        match table.held.iter_mut().find(is_this) {
            Some(held) => {
                *held = Some(PostedBuffer::Owner(owner));
                Ok(())
            }
            None => Err(owner),
        }
    }

    /// Collects returned tokens. Returns whether the peer still holds a buffer. A peer that returns a false token
    /// only keeps the buffers that it holds.
    pub fn reclaim(&self) -> bool {
        let mut table = self.lent.lock();
        let _ = table.collect();
        if self.peer_state() != OPEN {
            table.collect_unread(self.read_by_peer());
        }
        table.free != u64::MAX
    }

    /// Stores the number of messages sent, including the one that is about to be sent. Only the endpoint sends. It
    /// calls this *before* the message becomes visible, so whoever sees that the peer has read the message also sees
    /// this count.
    #[inline]
    pub fn count_sent(&self, sent: Position) {
        self.sent.store(sent.since(Position::START).unwrap_or_default(), Ordering::Relaxed);
    }

    /// Returns how many messages the peer has read, by its own word. An impossible number counts as all: the
    /// endpoint finds the lie.
    fn read_by_peer(&self) -> Position {
        // The peer's count is loaded first (Acquire), then ours: the peer cannot have read a message that was not
        // sent by then.
        let read = credit_of(&self.outgoing);
        let sent = Position::START.plus(self.sent.load(Ordering::Relaxed));
        sent.widen(read).unwrap_or(sent)
    }

    // ---- buffers that we borrow ----

    /// Number of the peer's buffers that we have given back, modulo 2^32.
    #[inline]
    pub fn returned(&self) -> u32 {
        self.returner.returned()
    }

    /// The address of a piece of the peer's outbox.
    pub fn peer_memory(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        self.peer_socket.outbox_at(offset, len)
    }

    // ---- the end ----

    /// Why the connection is lost, if it is.
    #[inline]
    pub fn lost(&self) -> Option<&str> {
        if !self.lost.load(Ordering::Acquire) {
            return None;
        }
        Some(self.why_lost.get().map_or("", String::as_str))
    }

    /// Whether the peer's process no longer accesses our memory. This differs from [`Connection::lost`]: a
    /// connection may be lost while its peer lives.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Whether the peer may be in the middle of an access to our windows, on a connection that we have closed. Once
    /// false, the answer stays false: after the fence, either the peer's gate is seen occupied here, or the peer
    /// sees the connection closed inside its gate (`ShmEndpoint::inside_gate`) and turns back.
    pub fn has_visitor(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.has_left() && self.incoming.sender().gate.is_occupied()
    }

    /// Ends the connection for this process, and wakes whoever waits on it. Buffers that we lent to a dead peer are
    /// ours again. A peer that had closed in order before it died has left: that is no loss. May be called again
    /// when a peer that was lost alive has died.
    pub fn mark_lost(&self, why: &str, how: Loss) {
        if how == Loss::Dead && !matches!(self.peer_state(), OPEN | BROKEN) {
            return self.close_for_peer();
        }
        // The report comes first: a thread that finds the loss by polling knows less about it.
        self.reporter.lost(why);
        let _ = self.why_lost.set(why.to_owned());
        self.lost.store(true, Ordering::Release);
        match how {
            Loss::Dead => {
                self.has_left.store(true, Ordering::Release);
                self.lent.lock().forget();
            }
            Loss::ProtocolError => self.lent.lock().report_lost(),
            Loss::Unresponsive => {}
        }
        self.announce_to_own();
    }

    /// Closes the connection in the peer's name: its process has left in order without closing it.
    pub fn close_for_peer(&self) {
        let theirs = &self.incoming.sender().state;
        if theirs.load(Ordering::Relaxed) == OPEN {
            theirs.store(CLOSED, Ordering::Release);
        }
        self.has_left.store(true, Ordering::Release);
        self.lent.lock().forget();
        self.announce_to_own();
    }

    /// Reports to the program that the peer ended this connection by an error, if it was this one. The program may
    /// not poll the connection. The connection itself ends when it is polled, after the messages sent before.
    pub fn report_broken(&self) {
        if self.peer_state() == BROKEN {
            self.reporter.lost(BROKEN_BY_PEER);
        }
    }

    /// Returns the state that the peer has set: [`OPEN`], [`CLOSED`] or [`BROKEN`].
    #[inline]
    pub fn peer_state(&self) -> u32 {
        self.incoming.sender().state.load(Ordering::Acquire)
    }

    /// Whether no message follows those in the ring.
    pub fn has_ended(&self) -> bool {
        self.peer_state() != OPEN || self.lost.load(Ordering::Acquire)
    }

    /// Tells the peer that no more messages follow. `state` is [`CLOSED`] or [`BROKEN`].
    pub fn close(&self, state: u32) {
        debug_assert!(state >= CLOSED);
        let ours = &self.outgoing.sender().state;
        if ours.load(Ordering::Relaxed) == OPEN {
            ours.store(state, Ordering::Release);
            self.ring_receiver();
            // The peer may be waiting for room, which will never come.
            let doorbell = self.peer_doorbells.send;
            self.peer_socket.peer_board().doorbell(doorbell.doorbell).ring(doorbell.bit);
            if state == BROKEN {
                // The datagram is for the peer's error callback. A peer socket that cannot take it is at its end; the
                // state itself is visible to the peer.
                let _ = self.peer_socket.answer(&Datagram::Broken);
            }
        }
    }
}

/// Why [`Connection::lend`] failed. The buffer is given back.
pub enum LendError {
    Busy(PostedBuffer),
    Foreign(ForeignToken, PostedBuffer),
}

impl LentTable {
    #[inline]
    fn collect(&mut self) -> Result<(), ForeignToken> {
        while let Some(word) = self.collector.collect() {
            self.take_back(word)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn take_back(&mut self, word: u16) -> Result<(), ForeignToken> {
        let status = if word & REFUSED == 0 { TransferStatus::Arrived } else { TransferStatus::Refused };
        let token = word & !REFUSED;
        let held = self.held.get_mut(usize::from(token)).and_then(Option::take);
        match held {
            None => return Err(ForeignToken(word)),
            Some(PostedBuffer::Block(block)) => drop(block),
            Some(PostedBuffer::Owner(owner)) => drop(owner),
            Some(PostedBuffer::Caller(number)) => self.returned.push_back((number, status)),
        }
        self.free |= 1 << token;
        Ok(())
    }

    #[inline]
    fn hold(&mut self, token: u16, held: PostedBuffer, position: Position) {
        let token = usize::from(token);
        let (Some(place), Some(at)) = (self.held.get_mut(token), self.position.get_mut(token)) else {
            return self.hold_further(token, held, position);
        };
        (*place, *at) = (Some(held), position);
    }

    #[cold]
    fn hold_further(&mut self, token: usize, held: PostedBuffer, position: Position) {
        self.held.resize_with(token + 1, || None);
        self.position.resize(token + 1, Position::START);
        (self.held[token], self.position[token]) = (Some(held), position);
    }

    /// Takes back the messages from position `read` on: the peer has closed and will not read them. Some may have
    /// been sent before we could know. A peer that reads them all the same only spoils its own data.
    fn collect_unread(&mut self, read: Position) {
        for token in 0..self.held.len() {
            if self.position[token] >= read
                && let Some(held) = self.held[token].take()
            {
                if let PostedBuffer::Caller(number) = held {
                    self.returned.push_back((number, TransferStatus::Unread));
                }
                self.free |= 1 << token;
            }
        }
    }

    /// Ends all pending callers' sends as lost: no receiver will return their buffers.
    fn report_lost(&mut self) {
        // Buffers that came back before are not lost. A peer that returns a false token here is lost in any case.
        let _ = self.collect();
        for held in &mut self.held {
            if let Some(PostedBuffer::Caller(number)) = *held {
                self.returned.push_back((number, TransferStatus::Lost));
                *held = None;
            }
        }
    }

    /// Takes every buffer back: the borrower is dead.
    fn forget(&mut self) {
        self.report_lost();
        self.held.fill_with(|| None);
        self.free = u64::MAX;
    }
}

impl Lender for Connection {
    fn give_back(&self, token: u16) {
        self.returner.give_back(token);
        self.notify_sender();
    }

    fn refuse(&self, token: u16) {
        self.give_back(token | REFUSED);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("lost", &self.lost()).finish()
    }
}
