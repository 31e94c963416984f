//! Messages in datagrams, for unreliable VIs: each arrives whole and at most once, or not at all; in any order.
//!
//! A message that is longer than a datagram travels in pieces. The receiver puts them together in memory that it gets from
//! the user when the first one comes; one that fits a datagram is handed on out of it. Nothing is sent again: a message that
//! misses a piece is *missed*, when its sender gives it up, when nothing comes of it for long, or when newer ones need its
//! place. Each message either arrives or is missed, once.
//!
//! Datagrams are QUIC's: it counts them as under way, and slows down when they are lost (RFC 9221).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use udeck_session::{Content, Landing};

use crate::ranges::Ranges;
use crate::wire::Piece;

/// Most separate parts of a message that may have arrived at a time. A piece that makes one more ends it.
pub const MAX_PARTS: usize = 256;

/// What an [`Assembly`] takes at most.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a message.
    pub message: usize,
    /// Incomplete messages at a time.
    pub messages: usize,
    /// Bytes of all of them together.
    pub bytes: usize,
    /// How long nothing may come of one.
    pub patience: Duration,
}

impl Default for Limits {
    /// 1 MiB, 64 messages, 4 MiB, 1 s.
    fn default() -> Self {
        Limits { message: 1 << 20, messages: 64, bytes: 4 << 20, patience: Duration::from_secs(1) }
    }
}

/// Where a message is put together.
pub trait Land {
    /// Puts bytes of the message there, from its byte `at`. `false`: they must not lie there.
    fn land(&mut self, at: usize, bytes: &[u8]) -> bool;
}

impl Land for Landing {
    fn land(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.fill(at, bytes)
    }
}

impl Land for Vec<u8> {
    fn land(&mut self, at: usize, bytes: &[u8]) -> bool {
        let place = self.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.map(|place| place.copy_from_slice(bytes)).is_some()
    }
}

/// A message that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a, B> {
    /// In the datagram.
    Whole(&'a [u8]),
    /// In memory of the user's.
    Assembled(B),
}

/// Why a piece was dropped; but for the first two, its message is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// Its message arrived before, or was missed.
    #[error("a piece of a message that is done with")]
    Done,
    /// Its message may not have been sent yet.
    #[error("a piece of a message that may not have been sent yet")]
    Beyond,
    /// It contradicts the other pieces.
    #[error("a piece that does not fit its message")]
    Contradiction,
    /// Its message is longer than is taken.
    #[error("a piece of a message that is too long")]
    TooLong,
    /// There is no memory for its message, or it may not go there.
    #[error("a piece of a message that there is no place for")]
    NoRoom,
    /// What came of its message has too many gaps.
    #[error("a piece that would leave too many gaps")]
    Scattered,
}

/// The messages of a connection that have not arrived whole.
#[derive(Debug)]
pub struct Assembly<B> {
    limits: Limits,
    /// Messages with smaller numbers are done with.
    floor: u64,
    /// Those from there that are known of; the first is not done with.
    slots: VecDeque<Slot<B>>,
    partial: usize,
    bytes: usize,
    missed: VecDeque<(u64, Option<B>)>,
}

#[derive(Debug)]
enum Slot<B> {
    /// Newer ones came.
    Expected(Instant),
    Partial(Box<Partial<B>>),
    Done,
}

#[derive(Debug)]
struct Partial<B> {
    /// When something of it came last.
    since: Instant,
    total: u32,
    content: Content,
    memory: B,
    came: Ranges,
}

impl<B: Land> Assembly<B> {
    /// Takes so much.
    pub fn new(limits: Limits) -> Self {
        Assembly { limits, floor: 0, slots: VecDeque::new(), partial: 0, bytes: 0, missed: VecDeque::new() }
    }

    /// A piece came. `end`: the first number that the peer may not use yet; at most a few hundred after the first that is
    /// not done with. `room` gives a place for a message of so many bytes, if there is one. [`Assembly::next_missed`] has to
    /// be asked after this.
    ///
    /// # Errors
    /// Why it was dropped.
    pub fn receive<'a>(
        &mut self,
        now: Instant,
        piece: &Piece<'a>,
        end: u64,
        room: impl FnOnce(Content, usize) -> Option<B>,
    ) -> Result<Option<Message<'a, B>>, Dropped> {
        let number = piece.message;
        let at = number.checked_sub(self.floor).ok_or(Dropped::Done)? as usize;
        if number >= end {
            return Err(Dropped::Beyond);
        }
        while self.slots.len() <= at {
            self.slots.push_back(Slot::Expected(now));
        }
        match self.slots[at] {
            Slot::Done => return Err(Dropped::Done),
            Slot::Expected(_) if piece.total as usize > self.limits.message => {
                self.miss(number);
                return Err(Dropped::TooLong);
            }
            Slot::Expected(_) if piece.is_whole() && matches!(piece.content, Content::Message { .. }) => {
                self.done(number);
                return Ok(Some(Message::Whole(piece.payload)));
            }
            Slot::Expected(_) => {
                if let Err(why) = self.begin(now, piece, room) {
                    self.miss(number);
                    return Err(why);
                }
            }
            Slot::Partial(_) => {}
        }
        match self.partial_mut(number).map_or(Err(Dropped::Done), |partial| partial.add(now, piece)) {
            Ok(false) => Ok(None),
            Ok(true) => Ok(self.done(number).map(Message::Assembled)),
            Err(why) => {
                self.miss(number);
                Err(why)
            }
        }
    }

    /// Makes place for a message, the oldest ones giving way.
    fn begin(
        &mut self,
        now: Instant,
        piece: &Piece<'_>,
        room: impl FnOnce(Content, usize) -> Option<B>,
    ) -> Result<(), Dropped> {
        let (content, len) = (piece.content, piece.total as usize);
        while self.partial >= self.limits.messages || self.bytes + len > self.limits.bytes {
            self.miss(self.oldest().ok_or(Dropped::NoRoom)?);
        }
        let memory = room(content, len).ok_or(Dropped::NoRoom)?;
        let came = Ranges::default();
        let partial = Partial { since: now, total: piece.total, content, memory, came };
        // It lies behind those that gave way: it is not before the floor.
        self.slots[(piece.message - self.floor) as usize] = Slot::Partial(Box::new(partial));
        self.partial += 1;
        self.bytes += len;
        Ok(())
    }

    /// The incomplete message with the smallest number.
    fn oldest(&self) -> Option<u64> {
        let at = self.slots.iter().position(|slot| matches!(slot, Slot::Partial(_)))?;
        Some(self.floor + at as u64)
    }

    fn partial_mut(&mut self, number: u64) -> Option<&mut Partial<B>> {
        match self.slots.get_mut(number.checked_sub(self.floor)? as usize)? {
            Slot::Partial(partial) => Some(partial),
            Slot::Expected(_) | Slot::Done => None,
        }
    }

    /// The messages below `upto`, which is [`Assembly::receive`]'s `end` at most, will not come if they have not.
    pub fn give_up(&mut self, now: Instant, upto: u64) {
        while self.floor < upto {
            if self.slots.is_empty() {
                self.slots.push_back(Slot::Expected(now));
            }
            self.miss(self.floor);
        }
    }

    /// Gives up the messages that nothing has come of for too long.
    pub fn time(&mut self, now: Instant) {
        while self.timer().is_some_and(|due| due <= now) {
            self.miss(self.floor);
        }
    }

    /// When [`Assembly::time`] has something to do.
    pub fn timer(&self) -> Option<Instant> {
        let since = match self.slots.front()? {
            Slot::Expected(since) => *since,
            Slot::Partial(partial) => partial.since,
            // None lies in front.
            Slot::Done => return None,
        };
        Some(since + self.limits.patience)
    }

    /// A message that was missed, and what there is of it.
    pub fn next_missed(&mut self) -> Option<(u64, Option<B>)> {
        self.missed.pop_front()
    }

    #[cfg(test)]
    /// Bytes of the incomplete messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    /// Incomplete messages.
    pub fn len(&self) -> usize {
        self.partial
    }

    #[cfg(test)]
    /// Whether no message is incomplete.
    pub fn is_empty(&self) -> bool {
        self.partial == 0
    }

    #[cfg(test)]
    /// Messages that are known of, from the first that is not done with.
    pub fn span(&self) -> usize {
        self.slots.len()
    }

    fn miss(&mut self, number: u64) {
        let memory = self.done(number);
        self.missed.push_back((number, memory));
    }

    /// What there was of it.
    fn done(&mut self, number: u64) -> Option<B> {
        let slot = self.slots.get_mut(number.checked_sub(self.floor)? as usize)?;
        let memory = match std::mem::replace(slot, Slot::Done) {
            Slot::Partial(partial) => {
                self.partial -= 1;
                self.bytes -= partial.total as usize;
                Some(partial.memory)
            }
            Slot::Expected(_) | Slot::Done => None,
        };
        while let Some(Slot::Done) = self.slots.front() {
            self.slots.pop_front();
            self.floor += 1;
        }
        memory
    }
}

impl<B: Land> Partial<B> {
    /// Whether the message is whole now.
    fn add(&mut self, now: Instant, piece: &Piece<'_>) -> Result<bool, Dropped> {
        if piece.total != self.total || piece.content != self.content {
            return Err(Dropped::Contradiction);
        }
        let range = u64::from(piece.offset)..u64::from(piece.offset) + piece.payload.len() as u64;
        if self.came.len_with(&range) > MAX_PARTS {
            return Err(Dropped::Scattered);
        }
        // `Piece::decode` has checked that it lies within the message.
        if !self.memory.land(piece.offset as usize, piece.payload) {
            return Err(Dropped::NoRoom);
        }
        self.since = now;
        if piece.is_whole() {
            return Ok(true);
        }
        self.came.insert(range);
        Ok(self.came.first() == Some(&(0..u64::from(self.total))))
    }
}

#[cfg(test)]
mod tests;
