//! The table of unacknowledged sends, and the ends that the program has yet to hear.
//!
//! Below reliable reception a send is over when its data have left. At reliable reception a caller waits for a receipt, and
//! its memory is its own again when, besides, nobody reads it any more.

use std::collections::VecDeque;

use udeck_sys::position::Position;
use udeck_via::transport::{Owner, PostedBuffer, TransferStatus};

use crate::Events;

/// See the module.
#[derive(Default)]
pub struct Unacked {
    /// In the order of their numbers.
    sends: VecDeque<Send>,
    ended: VecDeque<(u64, TransferStatus)>,
    /// The program is gone.
    gone: bool,
    wants_room: bool,
}

/// A message or write of which a receipt is to come.
struct Send {
    number: Position,
    held: PostedBuffer,
    /// Nobody reads its memory any more.
    released: bool,
    status: Option<TransferStatus>,
}

impl Unacked {
    /// A receipt is to come of the send of this number, the last so far.
    pub fn push(&mut self, number: Position, held: PostedBuffer) {
        self.sends.push_back(Send { number, held, released: false, status: None });
    }

    /// Sends of which a receipt is to come.
    pub fn len(&self) -> usize {
        self.sends.len()
    }

    /// Whether there are none.
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

    /// Nobody reads the memory of this send any more.
    pub fn release(&mut self, number: Position, events: &mut Events) {
        if let Some(at) = self.at(number) {
            self.sends[at].released = true;
            self.end_if_over(at, events);
        }
    }

    /// What became of a send. `false`: nobody waits for that.
    pub fn settle(&mut self, number: Position, status: TransferStatus, events: &mut Events) -> bool {
        let Some(at) = self.at(number) else { return false };
        self.sends[at].status.get_or_insert(status);
        self.end_if_over(at, events);
        true
    }

    /// As [`Unacked::settle`], of the number that is `narrow` on the wire. A receipt may come when 2^32 messages have been
    /// sent since, `sent` in all; then the table tells which one is meant.
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

    /// Settles all of which nothing is known and that are meant.
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

    /// Something that was posted is over, and nobody reads its memory any more.
    #[inline]
    pub fn end(&mut self, held: PostedBuffer, status: TransferStatus, events: &mut Events) {
        match held {
            PostedBuffer::Caller(_) if self.gone => {}
            PostedBuffer::Caller(number) => self.ended.push_back((number, status)),
            PostedBuffer::Block(block) => drop(block),
            PostedBuffer::Owner(owner) => events.bury(owner),
        }
        self.tell_of_room(events);
    }

    /// The next end of a caller's send or read.
    pub fn next_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.ended.pop_front()
    }

    /// [`udeck_via::transport::ViEndpoint::request_send_notify`].
    pub fn request_send_notify(&mut self, events: &mut Events) {
        self.wants_room = true;
        // What is over already is news to who has not looked since.
        events.send |= !self.ended.is_empty();
    }

    /// The program has posted: there was room.
    #[inline]
    pub fn found_room(&mut self) {
        self.wants_room = false;
    }

    /// There may be room again.
    #[inline]
    pub fn tell_of_room(&self, events: &mut Events) {
        events.send |= self.wants_room;
    }

    /// The program is gone: what has left is nobody's concern any more.
    pub fn endpoint_gone(&mut self, events: &mut Events) {
        self.gone = true;
        self.ended = VecDeque::new();
        self.settle_all(TransferStatus::Unread, events, |_| true);
    }

    /// Who has the memory of these sends.
    pub fn held_mut(&mut self) -> impl Iterator<Item = &mut PostedBuffer> {
        self.sends.iter_mut().map(|send| &mut send.held)
    }

    /// Bytes of the outbox that these sends have.
    pub fn lent_bytes(&self) -> usize {
        self.sends.iter().map(|send| send.held.bytes()).sum()
    }
}

/// Puts `owner` in the place of the caller who was to be told of `number`, among all memory that is held.
///
/// # Errors
/// The owner: nobody was to be told of that.
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
