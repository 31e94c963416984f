//! Reassembly of messages of unreliable VIs from datagrams. Each message arrives whole and at most once, or not at
//! all; in any order.
//!
//! A message that is longer than a datagram travels in fragments. The receiver reassembles them in a buffer that the
//! user provides when the first fragment arrives. A message that fits a datagram is delivered out of it. Nothing is
//! retransmitted. A message without all its fragments is *missed* when its sender gives it up, when none of its
//! fragments arrives for long, or when newer messages need its place. Each message either arrives or is missed,
//! once.
//!
//! The datagrams are QUIC's, so its congestion control counts them (RFC 9221).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use udeck_session::{Content, Landing};

use crate::range_set::RangeSet;
use crate::wire::Fragment;

/// Upper bound of the separate ranges of one message that have arrived. A fragment that makes one more ends the message.
pub const MAX_GAPS: usize = 256;

/// Bounds of a [`Reassembly`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Upper bound of a message in bytes.
    pub message: usize,
    /// Upper bound of the incomplete messages.
    pub messages: usize,
    /// Upper bound of all incomplete messages together, in bytes.
    pub bytes: usize,
    /// Time without a fragment after which a message is missed.
    pub timeout: Duration,
}

impl Default for Limits {
    /// Limits of 1 MiB a message, 64 messages, 4 MiB in all, and 1 s.
    fn default() -> Self {
        Limits { message: 1 << 20, messages: 64, bytes: 4 << 20, timeout: Duration::from_secs(1) }
    }
}

/// A buffer in which a message is reassembled.
pub trait ReassemblyBuffer {
    /// Writes bytes of the message at its offset `at`. Returns `false` if they may not be written there.
    fn land(&mut self, at: usize, bytes: &[u8]) -> bool;
}

impl ReassemblyBuffer for Landing {
    fn land(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.fill(at, bytes)
    }
}

impl ReassemblyBuffer for Vec<u8> {
    fn land(&mut self, at: usize, bytes: &[u8]) -> bool {
        let place = self.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.map(|place| place.copy_from_slice(bytes)).is_some()
    }
}

/// A message that has arrived whole.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a, B> {
    /// The message lies in the datagram.
    Whole(&'a [u8]),
    /// The message lies in a buffer of the user.
    Assembled(B),
}

/// Why a fragment was dropped. Except for the first two, its message is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FragmentError {
    /// The message arrived before, or was missed.
    #[error("a fragment of a message that arrived or was missed before")]
    Stale,
    /// The message's number is not one that the peer may use yet.
    #[error("a fragment of a message that may not have been sent yet")]
    OutOfWindow,
    /// The fragment contradicts earlier fragments of its message.
    #[error("a fragment that does not fit its message")]
    Contradiction,
    /// The message is longer than the limit.
    #[error("a fragment of a message that is too long")]
    TooLong,
    /// There is no memory for the message, or its bytes may not be written there.
    #[error("a fragment of a message that there is no buffer for")]
    NoBuffer,
    /// Too many separate ranges of the message have arrived.
    #[error("a fragment that would leave too many gaps")]
    TooManyGaps,
}

/// Incomplete messages of a connection.
#[derive(Debug)]
pub struct Reassembly<B> {
    limits: Limits,
    /// Number below which every message is done with: it arrived or was missed.
    floor: u64,
    /// Messages from `floor` on, as far as they are known. The first is not done with.
    slots: VecDeque<MessageSlot<B>>,
    partial: usize,
    bytes: usize,
    missed: VecDeque<(u64, Option<B>)>,
}

#[derive(Debug)]
enum MessageSlot<B> {
    /// Newer messages have arrived, but no fragment of this one.
    Expected(Instant),
    Partial(Box<Partial<B>>),
    Done,
}

#[derive(Debug)]
struct Partial<B> {
    /// When the last fragment arrived.
    since: Instant,
    total: u32,
    content: Content,
    memory: B,
    received: RangeSet,
}

impl<B: ReassemblyBuffer> Reassembly<B> {
    /// Makes an empty reassembly with these limits.
    pub fn new(limits: Limits) -> Self {
        Reassembly { limits, floor: 0, slots: VecDeque::new(), partial: 0, bytes: 0, missed: VecDeque::new() }
    }

    /// Handles a fragment. `end` is the first number that the peer may not use yet, at most a few hundred above the
    /// first message that is not done with. `allocate` returns a buffer for a message of the given length, if there
    /// is one. The caller must call [`Reassembly::next_missed`] afterwards.
    ///
    /// # Errors
    /// Why the fragment was dropped.
    pub fn receive<'a>(
        &mut self,
        now: Instant,
        fragment: &Fragment<'a>,
        end: u64,
        allocate: impl FnOnce(Content, usize) -> Option<B>,
    ) -> Result<Option<Message<'a, B>>, FragmentError> {
        let number = fragment.message;
        let at = number.checked_sub(self.floor).ok_or(FragmentError::Stale)? as usize;
        if number >= end {
            return Err(FragmentError::OutOfWindow);
        }
        while self.slots.len() <= at {
            self.slots.push_back(MessageSlot::Expected(now));
        }
        match self.slots[at] {
            MessageSlot::Done => return Err(FragmentError::Stale),
            MessageSlot::Expected(_) if fragment.total as usize > self.limits.message => {
                self.miss(number);
                return Err(FragmentError::TooLong);
            }
            MessageSlot::Expected(_)
                if fragment.is_whole() && matches!(fragment.content, Content::Message { .. }) =>
            {
                self.done(number);
                return Ok(Some(Message::Whole(fragment.payload)));
            }
            MessageSlot::Expected(_) => {
                if let Err(why) = self.begin(now, fragment, allocate) {
                    self.miss(number);
                    return Err(why);
                }
            }
            MessageSlot::Partial(_) => {}
        }
        match self.partial_mut(number).map_or(Err(FragmentError::Stale), |partial| partial.add(now, fragment))
        {
            Ok(false) => Ok(None),
            Ok(true) => Ok(self.done(number).map(Message::Assembled)),
            Err(why) => {
                self.miss(number);
                Err(why)
            }
        }
    }

    /// Takes a buffer for a message. The oldest incomplete messages are given up for it if need be.
    fn begin(
        &mut self,
        now: Instant,
        fragment: &Fragment<'_>,
        allocate: impl FnOnce(Content, usize) -> Option<B>,
    ) -> Result<(), FragmentError> {
        let (content, len) = (fragment.content, fragment.total as usize);
        while self.partial >= self.limits.messages || self.bytes + len > self.limits.bytes {
            self.miss(self.oldest().ok_or(FragmentError::NoBuffer)?);
        }
        let memory = allocate(content, len).ok_or(FragmentError::NoBuffer)?;
        let received = RangeSet::default();
        let partial = Partial { since: now, total: fragment.total, content, memory, received };
        // Only older messages were given up, so this one is not below the floor.
        self.slots[(fragment.message - self.floor) as usize] = MessageSlot::Partial(Box::new(partial));
        self.partial += 1;
        self.bytes += len;
        Ok(())
    }

    /// Number of the oldest incomplete message.
    fn oldest(&self) -> Option<u64> {
        let at = self.slots.iter().position(|slot| matches!(slot, MessageSlot::Partial(_)))?;
        Some(self.floor + at as u64)
    }

    fn partial_mut(&mut self, number: u64) -> Option<&mut Partial<B>> {
        match self.slots.get_mut(number.checked_sub(self.floor)? as usize)? {
            MessageSlot::Partial(partial) => Some(partial),
            MessageSlot::Expected(_) | MessageSlot::Done => None,
        }
    }

    /// Gives up all messages below `upto` that have not arrived. `upto` is at most [`Reassembly::receive`]'s `end`.
    pub fn give_up(&mut self, now: Instant, upto: u64) {
        while self.floor < upto {
            if self.slots.is_empty() {
                self.slots.push_back(MessageSlot::Expected(now));
            }
            self.miss(self.floor);
        }
    }

    /// Gives up the messages of which no fragment has come for too long.
    pub fn on_timeout(&mut self, now: Instant) {
        while self.next_timeout().is_some_and(|due| due <= now) {
            self.miss(self.floor);
        }
    }

    /// When [`Reassembly::on_timeout`] is due next.
    pub fn next_timeout(&self) -> Option<Instant> {
        let since = match self.slots.front()? {
            MessageSlot::Expected(since) => *since,
            MessageSlot::Partial(partial) => partial.since,
            // A message that is done with is never the first.
            MessageSlot::Done => return None,
        };
        Some(since + self.limits.timeout)
    }

    /// Takes the next missed message: its number, and its buffer if it had one.
    pub fn next_missed(&mut self) -> Option<(u64, Option<B>)> {
        self.missed.pop_front()
    }

    #[cfg(test)]
    /// Bytes of the incomplete messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    /// Number of incomplete messages.
    pub fn len(&self) -> usize {
        self.partial
    }

    #[cfg(test)]
    /// Whether no message is incomplete.
    pub fn is_empty(&self) -> bool {
        self.partial == 0
    }

    #[cfg(test)]
    /// Number of known messages, from the first that is not done with.
    pub fn span(&self) -> usize {
        self.slots.len()
    }

    fn miss(&mut self, number: u64) {
        let memory = self.done(number);
        self.missed.push_back((number, memory));
    }

    /// Marks a message as done with. Returns its buffer if it had one.
    fn done(&mut self, number: u64) -> Option<B> {
        let slot = self.slots.get_mut(number.checked_sub(self.floor)? as usize)?;
        let memory = match std::mem::replace(slot, MessageSlot::Done) {
            MessageSlot::Partial(partial) => {
                self.partial -= 1;
                self.bytes -= partial.total as usize;
                Some(partial.memory)
            }
            MessageSlot::Expected(_) | MessageSlot::Done => None,
        };
        while let Some(MessageSlot::Done) = self.slots.front() {
            self.slots.pop_front();
            self.floor += 1;
        }
        memory
    }
}

impl<B: ReassemblyBuffer> Partial<B> {
    /// Writes a fragment. Returns whether the message is complete now.
    fn add(&mut self, now: Instant, fragment: &Fragment<'_>) -> Result<bool, FragmentError> {
        if fragment.total != self.total || fragment.content != self.content {
            return Err(FragmentError::Contradiction);
        }
        let range = u64::from(fragment.offset)..u64::from(fragment.offset) + fragment.payload.len() as u64;
        if self.received.len_with(&range) > MAX_GAPS {
            return Err(FragmentError::TooManyGaps);
        }
        // `Fragment::decode` has checked that the fragment lies within the message.
        if !self.memory.land(fragment.offset as usize, fragment.payload) {
            return Err(FragmentError::NoBuffer);
        }
        self.since = now;
        if fragment.is_whole() {
            return Ok(true);
        }
        self.received.insert(range);
        Ok(self.received.first() == Some(&(0..u64::from(self.total))))
    }
}

#[cfg(test)]
mod tests;
