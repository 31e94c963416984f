//! The table of unacknowledged sends, and the ends that the program has yet to hear.
//!
//! Below reliable reception a send is over when its data have left. At reliable reception a caller waits for a receipt, and
//! its memory is its own again when, besides, nobody reads it any more.

use std::collections::VecDeque;

use udeck_sys::position::Position;
use udeck_via::transport::{Fate, Held, Owner};

use crate::Events;

/// See the module.
#[derive(Default)]
pub struct Unacked {
    /// In the order of their numbers.
    sends: VecDeque<Send>,
    ended: VecDeque<(u64, Fate)>,
    /// The program is gone.
    gone: bool,
    wants_room: bool,
}

/// A message or write of which a receipt is to come.
struct Send {
    number: Position,
    held: Held,
    /// Nobody reads its memory any more.
    released: bool,
    fate: Option<Fate>,
}

impl Unacked {
    /// A receipt is to come of the send of this number, the last so far.
    pub fn push(&mut self, number: Position, held: Held) {
        self.sends.push_back(Send { number, held, released: false, fate: None });
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
    pub fn settle(&mut self, number: Position, fate: Fate, events: &mut Events) -> bool {
        let Some(at) = self.at(number) else { return false };
        self.sends[at].fate.get_or_insert(fate);
        self.end_if_over(at, events);
        true
    }

    /// As [`Unacked::settle`], of the number that is `narrow` on the wire. A receipt may come when 2^32 messages have been
    /// sent since, `sent` in all; then the table tells which one is meant.
    pub fn settle_named(&mut self, narrow: u32, sent: Position, fate: Fate, events: &mut Events) -> bool {
        let found = sent.all_of(narrow).find(|number| self.has(*number));
        found.is_some_and(|number| self.settle(number, fate, events))
    }

    /// Settles all of which nothing is known and that are meant.
    pub fn settle_all(&mut self, fate: Fate, events: &mut Events, meant: impl Fn(Position) -> bool) {
        for send in self.sends.iter_mut().filter(|send| send.fate.is_none() && meant(send.number)) {
            send.fate = Some(fate);
        }
        let mut at = 0;
        while at < self.sends.len() {
            at += usize::from(!self.end_if_over(at, events));
        }
    }

    fn end_if_over(&mut self, at: usize, events: &mut Events) -> bool {
        let Some(Send { released: true, fate: Some(fate), .. }) = self.sends.get(at) else { return false };
        let fate = *fate;
        if let Some(send) = self.sends.remove(at) {
            self.end(send.held, fate, events);
        }
        true
    }

    /// Something that was posted is over, and nobody reads its memory any more.
    #[inline]
    pub fn end(&mut self, held: Held, fate: Fate, events: &mut Events) {
        match held {
            Held::Caller(_) if self.gone => {}
            Held::Caller(number) => self.ended.push_back((number, fate)),
            Held::Block(block) => drop(block),
            Held::Owner(owner) => events.bury(owner),
        }
        self.tell_of_room(events);
    }

    /// The next end of a caller's send or read.
    pub fn next_ended(&mut self) -> Option<(u64, Fate)> {
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
    pub fn port_gone(&mut self, events: &mut Events) {
        self.gone = true;
        self.ended = VecDeque::new();
        self.settle_all(Fate::Unread, events, |_| true);
    }

    /// Who has the memory of these sends.
    pub fn held_mut(&mut self) -> impl Iterator<Item = &mut Held> {
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
    mut held: impl Iterator<Item = &'a mut Held>,
    number: u64,
    owner: Owner,
) -> Result<(), Owner> {
    match held.find(|held| matches!(held, Held::Caller(other) if *other == number)) {
        Some(held) => {
            *held = Held::Owner(owner);
            Ok(())
        }
        None => Err(owner),
    }
}
