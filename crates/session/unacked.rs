//! Table of unacknowledged sends, and the completions that the program has not taken yet.
//!
//! Below reliable reception, a send is over when its data have left. At reliable reception a caller waits for a receipt, and
//! has its memory back when, besides, nobody reads it any more.

use std::collections::VecDeque;

use udeck_sys::position::Position;
use udeck_via::transport::{Owner, PostedBuffer, TransferStatus};

use crate::Events;

/// Sends that wait for a receipt, and completions that wait for the program.
#[derive(Default)]
pub struct Unacked {
    /// Sends in the order of their numbers.
    sends: VecDeque<Send>,
    ended: VecDeque<(u64, TransferStatus)>,
    /// Whether the program is gone.
    gone: bool,
    wants_room: bool,
}

/// A message or write for which a receipt is to come.
struct Send {
    number: Position,
    held: PostedBuffer,
    /// Whether nobody reads the memory any more.
    released: bool,
    status: Option<TransferStatus>,
}

impl Unacked {
    /// Adds the send of this number, the last so far.
    pub fn push(&mut self, number: Position, held: PostedBuffer) {
        self.sends.push_back(Send { number, held, released: false, status: None });
    }

    /// Number of sends for which a receipt is to come.
    pub fn len(&self) -> usize {
        self.sends.len()
    }

    /// Whether there are no such sends.
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Whether a receipt is to come that the program waits for.
    pub fn is_awaited(&self) -> bool {
        !self.gone && !self.sends.is_empty()
    }

    /// Whether this send is in the table.
    pub fn has(&self, number: Position) -> bool {
        self.at(number).is_some()
    }

    fn at(&self, number: Position) -> Option<usize> {
        self.sends.binary_search_by_key(&number, |send| send.number).ok()
    }

    /// Notes that nobody reads the memory of this send any more.
    pub fn release(&mut self, number: Position, events: &mut Events) {
        if let Some(at) = self.at(number) {
            self.sends[at].released = true;
            self.end_if_over(at, events);
        }
    }

    /// Notes what became of a send. Returns `false` if nobody waits for that.
    pub fn settle(&mut self, number: Position, status: TransferStatus, events: &mut Events) -> bool {
        let Some(at) = self.at(number) else { return false };
        self.sends[at].status.get_or_insert(status);
        self.end_if_over(at, events);
        true
    }

    /// The same as [`Unacked::settle`], for the number that is `narrow` (modulo 2^32) on the wire, of `sent` in all. A
    /// receipt may come when 2^32 messages have been sent since; the table then tells which send is meant.
    pub fn settle_named(
        &mut self,
        narrow: u32,
        sent: Position,
        status: TransferStatus,
        events: &mut Events,
    ) -> bool {
        let found = sent.all_of(narrow).find(|number| self.has(*number));
        found.is_some_and(|number| self.settle(number, status, events))
    }

    /// Settles all sends whose status is unknown and for which `meant` is true.
    pub fn settle_all(
        &mut self,
        status: TransferStatus,
        events: &mut Events,
        meant: impl Fn(Position) -> bool,
    ) {
        for send in self.sends.iter_mut().filter(|send| send.status.is_none() && meant(send.number)) {
            send.status = Some(status);
        }
        let mut at = 0;
        while at < self.sends.len() {
            at += usize::from(!self.end_if_over(at, events));
        }
    }

    fn end_if_over(&mut self, at: usize, events: &mut Events) -> bool {
        let Some(Send { released: true, status: Some(status), .. }) = self.sends.get(at) else {
            return false;
        };
        let status = *status;
        if let Some(send) = self.sends.remove(at) {
            self.end(send.held, status, events);
        }
        true
    }

    /// Completes a post, whose memory nobody reads any more.
    #[inline]
    pub fn end(&mut self, held: PostedBuffer, status: TransferStatus, events: &mut Events) {
        match held {
            PostedBuffer::Caller(_) if self.gone => {}
            PostedBuffer::Caller(number) => self.ended.push_back((number, status)),
            PostedBuffer::Block(block) => drop(block),
            PostedBuffer::Owner(owner) => events.defer_drop(owner),
        }
        self.notify_room(events);
    }

    /// The next completion of a caller's send or read.
    pub fn next_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.ended.pop_front()
    }

    /// [`udeck_via::transport::ViEndpoint::request_send_notify`].
    pub fn request_send_notify(&mut self, events: &mut Events) {
        self.wants_room = true;
        // Completions that are there already are news to a program that has not polled since.
        events.send |= !self.ended.is_empty();
    }

    /// Notes that the program has posted, so there was room.
    #[inline]
    pub fn found_room(&mut self) {
        self.wants_room = false;
    }

    /// Announces that there may be room again.
    #[inline]
    pub fn notify_room(&self, events: &mut Events) {
        events.send |= self.wants_room;
    }

    /// Notes that the program is gone: completions have no receiver any more.
    pub fn endpoint_gone(&mut self, events: &mut Events) {
        self.gone = true;
        self.ended = VecDeque::new();
        self.settle_all(TransferStatus::Unread, events, |_| true);
    }

    /// Holders of the memory of these sends.
    pub fn held_mut(&mut self) -> impl Iterator<Item = &mut PostedBuffer> {
        self.sends.iter_mut().map(|send| &mut send.held)
    }

    /// Bytes of the outbox that these sends hold.
    pub fn lent_bytes(&self) -> usize {
        self.sends.iter().map(|send| send.held.bytes()).sum()
    }
}

/// Makes `owner` the holder of the memory, in the place of the caller that was to be told of `number`, among all held memory.
///
/// # Errors
/// The owner, when no caller was to be told of that number.
pub fn keep<'a>(
    mut held: impl Iterator<Item = &'a mut PostedBuffer>,
    number: u64,
    owner: Owner,
) -> Result<(), Owner> {
    match held.find(|held| matches!(held, PostedBuffer::Caller(other) if *other == number)) {
        Some(held) => {
            *held = PostedBuffer::Owner(owner);
            Ok(())
        }
        None => Err(owner),
    }
}
