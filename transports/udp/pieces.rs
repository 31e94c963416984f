//! Messages in datagrams, for unreliable VIs: each arrives whole and at most once, or not at all; in any order.
//!
//! A message that is longer than a datagram travels in pieces. The receiver puts them together in memory that it gets from
//! the user when the first one comes; one that fits a datagram is handed on out of it. A message that misses a piece is
//! dropped: after a time, or when newer ones need its place.
//!
//! ```
//! # use std::time::Instant;
//! use udeck_udp::pieces::{Assembly, Cutter, Limits, Message};
//! use udeck_udp::wire::{Piece, open};
//!
//! let mut cutter = Cutter::new(7);
//! let mut assembly = Assembly::<Vec<u8>>::new(Limits::default());
//! let message = [42; 2000];
//! let mut got = None;
//! for cut in cutter.message(2000, 1200) {
//!     let payload = &message[cut.range.start as usize..cut.range.end as usize];
//!     let datagram = [&cut.header([payload])[..], payload].concat();
//!
//!     let piece = Piece::decode(&open(&datagram)?)?;
//!     let arrived = assembly.receive(Instant::now(), &piece, |len| Some(vec![0; len]));
//!     if let Ok(Some(Message::Assembled(memory))) = arrived {
//!         got = Some(memory);
//!     }
//! }
//! assert_eq!(got.as_deref(), Some(&message[..]));
//! # Ok::<(), udeck_udp::wire::Malformed>(())
//! ```

mod seen;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::flow::Ranges;
use crate::wire::{PIECE_HEADER, Piece, PieceHeader};
use seen::Seen;

/// Most separate parts of a message that may have arrived at a time. A piece that makes one more is dropped.
pub const MAX_PARTS: usize = 256;

/// Numbers a connection's messages and cuts them into pieces.
#[derive(Debug)]
pub struct Cutter {
    connection: u64,
    next: u64,
}

/// A piece to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The bytes of the message that it carries.
    pub range: Range<u32>,
    connection: u64,
    message: u64,
    total: u32,
}

impl Cut {
    /// What goes before its bytes, which are those of `payload`, one after another.
    pub fn header<'a>(&self, payload: impl IntoIterator<Item = &'a [u8]>) -> PieceHeader {
        let Cut { connection, message, total, .. } = *self;
        Piece { connection, message, offset: self.range.start, total, payload: &[] }.header(payload)
    }
}

impl Cutter {
    /// `connection`: the number that the peer gave it.
    pub fn new(connection: u64) -> Self {
        Cutter { connection, next: 0 }
    }

    /// The pieces of the next message, of `total` bytes, in datagrams of at most `datagram` bytes (of UDP payload): all
    /// of the same length but the last.
    ///
    /// # Panics
    /// When `datagram` has no room for more than the header.
    pub fn message(&mut self, total: u32, datagram: usize) -> impl Iterator<Item = Cut> + use<> {
        assert!(datagram > PIECE_HEADER, "a datagram of {datagram} bytes has no room for a message");
        let (connection, message) = (self.connection, self.next);
        self.next += 1;
        let room = u32::try_from(datagram - PIECE_HEADER).unwrap_or(u32::MAX);
        (0..total.div_ceil(room).max(1)).map(move |nth| {
            let start = nth * room;
            Cut { range: start..start.saturating_add(room).min(total), connection, message, total }
        })
    }
}

/// What an [`Assembly`] takes at most.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a message.
    pub message: usize,
    /// Incomplete messages at a time.
    pub messages: usize,
    /// Bytes of all of them together.
    pub bytes: usize,
    /// How long one waits for its last piece.
    pub patience: Duration,
}

impl Default for Limits {
    /// 1 MiB, 64 messages, 4 MiB, 1 s.
    fn default() -> Self {
        Limits { message: 1 << 20, messages: 64, bytes: 4 << 20, patience: Duration::from_secs(1) }
    }
}

/// A message that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a, B> {
    /// In the datagram.
    Whole(&'a [u8]),
    /// In memory of the user's, from its start.
    Assembled(B),
}

/// Why a piece was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// Its message arrived before, was given up, or is too old to tell.
    #[error("a piece of a message that is done with")]
    Done,
    /// It contradicts the other pieces.
    #[error("a piece that does not fit its message")]
    Contradiction,
    /// Its message is longer than is taken.
    #[error("a piece of a message that is too long")]
    TooLong,
    /// There is no memory for its message.
    #[error("a piece of a message that there is no memory for")]
    NoRoom,
    /// What came of its message has too many gaps.
    #[error("a piece that would leave too many gaps")]
    Scattered,
}

/// The messages of a connection that have not arrived whole.
#[derive(Debug)]
pub struct Assembly<B> {
    limits: Limits,
    seen: Seen,
    /// The oldest first.
    partial: VecDeque<Partial<B>>,
    bytes: usize,
    given_up: u64,
}

#[derive(Debug)]
struct Partial<B> {
    number: u64,
    since: Instant,
    total: u32,
    memory: B,
    came: Ranges,
}

impl<B: AsMut<[u8]>> Assembly<B> {
    /// Takes so much.
    pub fn new(limits: Limits) -> Self {
        Assembly { limits, seen: Seen::default(), partial: VecDeque::new(), bytes: 0, given_up: 0 }
    }

    /// A piece came. `room` gives memory for a message of so many bytes, if there is some.
    ///
    /// # Errors
    /// Why it was dropped.
    pub fn receive<'a>(
        &mut self,
        now: Instant,
        piece: &Piece<'a>,
        room: impl FnOnce(usize) -> Option<B>,
    ) -> Result<Option<Message<'a, B>>, Dropped> {
        let known = self.partial.iter().position(|partial| partial.number == piece.message);
        let at = match known {
            Some(at) => at,
            None if self.seen.knows(piece.message) => return Err(Dropped::Done),
            None if piece.total as usize > self.limits.message => return Err(Dropped::TooLong),
            None if piece.payload.len() == piece.total as usize => {
                self.seen.note(piece.message);
                return Ok(Some(Message::Whole(piece.payload)));
            }
            None => self.begin(now, piece, room)?,
        };
        let partial = &mut self.partial[at];
        if partial.add(piece)? {
            return Ok(self.remove(at).map(|partial| Message::Assembled(partial.memory)));
        }
        Ok(None)
    }

    /// Makes place for a message, the oldest ones giving way. Where it is.
    fn begin(
        &mut self,
        now: Instant,
        piece: &Piece<'_>,
        room: impl FnOnce(usize) -> Option<B>,
    ) -> Result<usize, Dropped> {
        let len = piece.total as usize;
        while self.partial.len() >= self.limits.messages || self.bytes + len > self.limits.bytes {
            if self.give_up_oldest().is_none() {
                return Err(Dropped::NoRoom);
            }
        }
        self.seen.note(piece.message);
        let mut memory = room(len).ok_or(Dropped::NoRoom)?;
        if memory.as_mut().len() < len {
            return Err(Dropped::NoRoom);
        }
        self.bytes += len;
        let partial = Partial {
            number: piece.message,
            since: now,
            total: piece.total,
            memory,
            came: Ranges::default(),
        };
        self.partial.push_back(partial);
        Ok(self.partial.len() - 1)
    }

    /// Gives up the messages that have waited for too long.
    pub fn time(&mut self, now: Instant) {
        while self.timer().is_some_and(|due| due <= now) {
            self.give_up_oldest();
        }
    }

    /// When [`Assembly::time`] has something to do.
    pub fn timer(&self) -> Option<Instant> {
        self.partial.front().map(|oldest| oldest.since + self.limits.patience)
    }

    /// Messages that were given up although a piece of them came.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Bytes of the incomplete messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Incomplete messages.
    pub fn len(&self) -> usize {
        self.partial.len()
    }

    /// Whether no message is incomplete.
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    fn give_up_oldest(&mut self) -> Option<()> {
        self.remove(0)?;
        self.given_up += 1;
        Some(())
    }

    fn remove(&mut self, at: usize) -> Option<Partial<B>> {
        let partial = self.partial.remove(at)?;
        self.bytes -= partial.total as usize;
        Some(partial)
    }
}

impl<B: AsMut<[u8]>> Partial<B> {
    /// Whether the message is whole now.
    fn add(&mut self, piece: &Piece<'_>) -> Result<bool, Dropped> {
        if piece.total != self.total {
            return Err(Dropped::Contradiction);
        }
        let start = piece.offset as usize;
        let range = u64::from(piece.offset)..u64::from(piece.offset) + piece.payload.len() as u64;
        if self.came.len_with(&range) > MAX_PARTS {
            return Err(Dropped::Scattered);
        }
        // `Piece::decode` has checked that it lies within the message, `begin` that the memory does.
        self.memory.as_mut()[start..start + piece.payload.len()].copy_from_slice(piece.payload);
        self.came.insert(range);
        Ok(self.came.first() == Some(&(0..u64::from(self.total))))
    }
}

#[cfg(test)]
mod tests;
