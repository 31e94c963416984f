//! One connection as this process sees it: shared memory, the peer's doorbells, and who holds which lent buffer.

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

/// A connection. Shared by its endpoint, the waiters that watch it, messages lent over it, and its peer socket.
pub struct Connection {
    /// What we write.
    pub outgoing: Direction,
    /// What we read.
    pub incoming: Direction,
    pub peer_socket: Arc<PeerSocket>,
    /// Where the peer listens for news.
    peer_doorbells: Doorbells,
    /// The peer's protection tag, if we may write its windows, and if we may read them.
    pub writable_ptag: Option<u32>,
    pub readable_ptag: Option<u32>,
    /// Our consumer's position, modulo 2^32, for waiters ([`Connection::has_arrival`]). They ask whether the cell there has it,
    /// and how many messages a burst has taken: who is wrong by 2^32 of them lets a ring go first once too often.
    pub position: AtomicU32,
    /// How many messages we have sent: what the peer's word of what it has read is widened beside.
    sent: AtomicU64,
    returner: Returner<Direction>,
    lent: Mutex<LentBooks>,
    lost: AtomicBool,
    why_lost: OnceLock<String>,
    /// The peer's process has left, or is dead: it touches nothing of ours any more.
    gone: AtomicBool,
    /// The program's callback for errors is told over this.
    reporter: Arc<Reporter>,
    /// Our own queues' places on our doorbells, to be told of the connection's end.
    own: Mutex<Own>,
}

#[derive(Default)]
struct Own {
    send: Option<Attached>,
    receive: Option<Attached>,
}

/// Buffers that the peer holds, by token.
struct LentBooks {
    collector: Collector<Direction>,
    /// As long as the highest token that was ever out: most connections lend nothing, and none of them needs room for it.
    held: Vec<Option<PostedBuffer>>,
    /// By token: the position in the ring of the message that it is part of. As long as `held`.
    position: Vec<Position>,
    free: u64,
    /// Ends of [`PostedBuffer::Caller`]s that were not reported yet.
    returned: VecDeque<(u64, TransferStatus)>,
}

const _: () = assert!(SLOTS == u64::BITS);

/// How a peer came to be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its process is dead, or has closed its peer socket.
    Dead,
    /// It broke the protocol. Its process lives, and may be inside our windows; what it reads of ours it loses.
    Lied,
    /// It does not read its peer socket. Stopped, perhaps: it may go on with what it was doing, and keeps what it has.
    Stuck,
}

/// Set in a token that comes back with word that its message found no place.
const REFUSED: u16 = 1 << 15;
const _: () = assert!(SLOTS <= REFUSED as u32);

/// Why a connection is over whose peer says [`BROKEN`].
pub const BROKEN_BY_PEER: &str = "the peer found no receive descriptor for a message, or one too short";

/// The peer returned a buffer that it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer returned a buffer that it does not hold (token {0})")]
pub struct ForeignToken(u16);

impl Connection {
    /// `side`: 0 for the requester, 1 for the acceptor.
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
        let lent = LentBooks {
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
            gone: AtomicBool::new(false),
            reporter: reporter.clone(),
            own: Mutex::default(),
        })
    }

    /// The places on our own doorbells; they are silent from [`Connection::detach`] on.
    pub fn attach(&self, send: Attached, receive: Attached) {
        *self.own.lock() = Own { send: Some(send), receive: Some(receive) };
    }

    /// Our receive queue no longer wants to hear of this connection.
    pub fn detach_receive(&self) {
        self.own.lock().receive = None;
    }

    /// Neither queue does.
    pub fn detach(&self) {
        *self.own.lock() = Own::default();
    }

    fn announce_to_own(&self) {
        let own = self.own.lock();
        for attached in own.send.iter().chain(&own.receive) {
            attached.announce();
        }
    }

    /// Whether our ring has a message, for waiters.
    #[inline]
    pub fn has_arrival(&self) -> bool {
        ready_at(&self.incoming, self.position.load(Ordering::Relaxed))
    }

    /// A writer of the incoming direction: tells the peer's receive queue.
    #[cold]
    pub fn ring_receiver(&self) {
        let doorbell = self.peer_doorbells.receive;
        self.peer_socket.peer_board().doorbell(doorbell.doorbell).ring(doorbell.bit);
    }

    /// Tells the peer's send queue, if it waits, that there is room or that a buffer came back. Called after the
    /// news was published; the fence pairs with the one in `ViEndpoint::request_send_notify`.
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
        let mut books = self.lent.lock();
        if let Err(foreign) = books.collect() {
            return Err(LendError::Foreign(foreign, held));
        }
        if books.free == 0 {
            return Err(LendError::Busy(held));
        }
        let token = books.free.trailing_zeros() as u16;
        books.free &= books.free - 1;
        books.hold(token, held, position);
        Ok(token)
    }

    /// Whether the next [`Connection::lend`] finds a token: nobody else takes them.
    pub fn has_token(&self) -> Result<bool, ForeignToken> {
        let mut books = self.lent.lock();
        books.collect()?;
        Ok(books.free != 0)
    }

    /// A caller's number whose buffer nobody reads any more, and what became of its message.
    ///
    /// # Errors
    /// [`ForeignToken`]: the peer lies.
    pub fn poll_completion(&self) -> Result<Option<(u64, TransferStatus)>, ForeignToken> {
        let mut books = self.lent.lock();
        if let Some(returned) = books.returned.pop_front() {
            return Ok(Some(returned));
        }
        books.collect()?;
        if self.peer_state() != OPEN {
            books.collect_unread(self.read_by_peer());
        }
        Ok(books.returned.pop_front())
    }

    /// Puts `owner` in the place of the caller that was to be told of `number`; gives it back if there is none.
    pub fn keep(&self, number: u64, owner: Owner) -> Result<(), Owner> {
        let mut books = self.lent.lock();
        let is_this = |held: &&mut Option<PostedBuffer>| matches!(held, Some(PostedBuffer::Caller(other)) if *other == number);
        match books.held.iter_mut().find(is_this) {
            Some(held) => {
                *held = Some(PostedBuffer::Owner(owner));
                Ok(())
            }
            None => Err(owner),
        }
    }

    /// Collects what came back. Returns whether the peer still holds something. A lying peer only keeps what it
    /// holds.
    pub fn reclaim(&self) -> bool {
        let mut books = self.lent.lock();
        let _ = books.collect();
        if self.peer_state() != OPEN {
            books.collect_unread(self.read_by_peer());
        }
        books.free != u64::MAX
    }

    /// A message is about to be sent, and there are so many then. By the endpoint, which alone sends, *before* the message can be
    /// seen: so whoever sees the peer's word that it was read sees this.
    #[inline]
    pub fn count_sent(&self, sent: Position) {
        self.sent.store(sent.since(Position::START).unwrap_or_default(), Ordering::Relaxed);
    }

    /// How many messages the peer says that it has read. A number that cannot be counts as all: the endpoint finds the lie.
    fn read_by_peer(&self) -> Position {
        // First the peer's word (Acquire), then ours: it cannot have read what was not sent by then.
        let read = credit_of(&self.outgoing);
        let sent = Position::START.plus(self.sent.load(Ordering::Relaxed));
        sent.widen(read).unwrap_or(sent)
    }

    // ---- buffers that we borrow ----

    /// How many of the peer's buffers we have given back, modulo 2^32.
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

    /// Whether the peer's process touches nothing of ours any more. Not the same as [`Connection::lost`]: a connection
    /// may be lost to a peer that lives.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the peer may be in the middle of an access to our windows, on a connection that we have closed. Once not,
    /// never again: after the fence, either its gate is seen occupied here, or it sees the connection closed inside its gate
    /// (`ShmEndpoint::inside_gate`) and turns back.
    pub fn has_visitor(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.is_gone() && self.incoming.sender().gate.is_occupied()
    }

    /// Ends the connection for this process. What we lent to a peer that is dead is ours again. Wakes whoever waits on
    /// it. A peer that had closed in order before it died has left: that is no loss. May be called again when a peer
    /// that was lost alive has died.
    pub fn lose(&self, why: &str, how: Loss) {
        if how == Loss::Dead && !matches!(self.peer_state(), OPEN | BROKEN) {
            return self.part();
        }
        // First: whoever finds the loss by looking knows less about it.
        self.reporter.lost(why);
        let _ = self.why_lost.set(why.to_owned());
        self.lost.store(true, Ordering::Release);
        match how {
            Loss::Dead => {
                self.gone.store(true, Ordering::Release);
                self.lent.lock().forget();
            }
            Loss::Lied => self.lent.lock().report_lost(),
            Loss::Stuck => {}
        }
        self.announce_to_own();
    }

    /// The peer's process has left in order without closing this connection: closes it in its name.
    pub fn part(&self) {
        let theirs = &self.incoming.sender().state;
        if theirs.load(Ordering::Relaxed) == OPEN {
            theirs.store(CLOSED, Ordering::Release);
        }
        self.gone.store(true, Ordering::Release);
        self.lent.lock().forget();
        self.announce_to_own();
    }

    /// The peer says that it ended one of the peer socket's connections by an error. If it is this one, the program is told,
    /// which may not look at it; the connection ends when it does, after what came before.
    pub fn report_broken(&self) {
        if self.peer_state() == BROKEN {
            self.reporter.lost(BROKEN_BY_PEER);
        }
    }

    /// Whether the peer has said that nothing more comes, and how.
    #[inline]
    pub fn peer_state(&self) -> u32 {
        self.incoming.sender().state.load(Ordering::Acquire)
    }

    /// Whether what is in the ring is the last of it.
    pub fn has_ended(&self) -> bool {
        self.peer_state() != OPEN || self.lost.load(Ordering::Acquire)
    }

    /// Tells the peer that nothing more comes.
    pub fn close(&self, state: u32) {
        debug_assert!(state >= CLOSED);
        let ours = &self.outgoing.sender().state;
        if ours.load(Ordering::Relaxed) == OPEN {
            ours.store(state, Ordering::Release);
            self.ring_receiver();
            // The peer may wait for room that will never come.
            let doorbell = self.peer_doorbells.send;
            self.peer_socket.peer_board().doorbell(doorbell.doorbell).ring(doorbell.bit);
            if state == BROKEN {
                // For its callback. A peer socket that cannot take this is at its end, or holds another datagram that its
                // reactor has yet to read; either way the state is there for who looks.
                let _ = self.peer_socket.send(&Datagram::Broken, &[]);
            }
        }
    }
}

/// Why [`Connection::lend`] failed.
pub enum LendError {
    Busy(PostedBuffer),
    Foreign(ForeignToken, PostedBuffer),
}

impl LentBooks {
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

    /// The peer has closed after reading the messages before `read`: it never looks at the others, which may have been sent
    /// before we could know. A peer that looks all the same spoils its own reading.
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

    /// The connection is lost: callers learn that no receiver will return their buffers.
    fn report_lost(&mut self) {
        // What came home before is not lost. A peer that lies here loses nothing that it has not lost anyway.
        let _ = self.collect();
        for held in &mut self.held {
            if let Some(PostedBuffer::Caller(number)) = *held {
                self.returned.push_back((number, TransferStatus::Lost));
                *held = None;
            }
        }
    }

    /// The borrower is dead: everything comes home.
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
