//! The queue of a channel: messages in the order of posting, counted, and bounded in bytes.
//!
//! A connection has room for a fixed number of messages, whatever their length: those in its ring, and a few
//! that are announced. Further messages wait here. The bound is the memory that each poster spends on a
//! mailbox whose owner does not retrieve ([`crate::World::mailbox_with_queue`], `DECK_QUEUE`).
//!
//! | counts towards the bound | as |
//! |---|---|
//! | a message | its memory and [`ENTRY`], and at most a sixteenth of the bound: so 16 messages fit, whatever their length |
//! | the only one that waits | nothing: one message may always wait |
//! | an announced message | nothing: it has its place at the mailbox |
//!
//! All sums are maintained, never recomputed, and a message is found by its number in logarithmic time: there
//! may be tens of thousands.

use std::collections::VecDeque;

use udeck_via::Error as ViaError;

use super::requests::RequestId;
use crate::protocol::outgoing::Outgoing;
use crate::protocol::rdma_read::AnnouncedReads;
use crate::protocol::side::SendSide;
use crate::stats::trace;
use crate::wire::MAX_ANNOUNCED;

/// Bytes that a message counts beside its memory: its place in the list, which may be half empty.
pub(super) const ENTRY: usize = 128;
/// Number of messages that always have a place, whatever their length.
const SHARES: usize = 16;
/// Capacity that an empty list keeps, in entries.
const KEPT: usize = 64;

/// A message that was announced, waits behind an announced one, or found no room.
pub(super) struct Entry {
    pub message: Outgoing,
    id: RequestId,
    /// Whether the program holds a request for the message, and is told its result.
    pub is_held: bool,
}

impl Entry {
    /// The request's id, if the program holds one.
    pub fn request(&self) -> Option<RequestId> {
        self.is_held.then_some(self.id)
    }
}

/// Messages in the order of posting, the oldest first.
pub(super) struct Backlog {
    /// Entries with ascending ids. The announced ones are the first.
    entries: VecDeque<Entry>,
    announced: usize,
    /// Bytes that the entries that are not announced count towards the bound.
    waiting: usize,
    /// Bytes of message memory held by the entries.
    memory: usize,
    /// The bound, in bytes.
    limit: usize,
    last: RequestId,
}

impl Backlog {
    pub fn new(limit: usize) -> Self {
        Backlog { entries: VecDeque::new(), announced: 0, waiting: 0, memory: 0, limit, last: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of message memory that wait in the queue.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Whether a message with `memory` bytes of memory may be queued now.
    pub fn has_place(&self, memory: usize) -> bool {
        self.entries.len() == self.announced || self.waiting.saturating_add(self.cost(memory)) <= self.limit
    }

    fn cost(&self, memory: usize) -> usize {
        memory.saturating_add(ENTRY).min((self.limit / SHARES).max(ENTRY))
    }

    // ---- in and out ----

    /// Adds a message behind all others. Returns its id, which is needed only if the program holds a request.
    pub fn push(&mut self, message: Outgoing, is_held: bool) -> RequestId {
        self.last += 1;
        let entry = Entry { message, id: self.last, is_held };
        self.count(&entry);
        self.entries.push_back(entry);
        self.last
    }

    /// Completes the first message, if possible. `Err` holds the error that keeps it; `None`: it waits for
    /// its answer.
    #[allow(clippy::type_complexity, reason = "each layer says another thing")]
    pub fn advance_first(
        &mut self,
        side: &mut SendSide,
        announced_reads: &mut AnnouncedReads,
    ) -> Option<Result<(), Option<ViaError>>> {
        let Entry { message, id, is_held } = self.pop()?;
        let step = trace::begin_step(|| message.described());
        Some(match message.advance(side, announced_reads, !self.entries.is_empty()) {
            Ok(()) => {
                trace::end_step(step, side.world.rank(), "send");
                Ok(())
            }
            Err((error, message)) => {
                self.put_back(Entry { message, id, is_held });
                Err(error)
            }
        })
    }

    fn pop(&mut self) -> Option<Entry> {
        let first = self.entries.pop_front()?;
        self.discount(&first);
        if self.entries.is_empty() && self.entries.capacity() > KEPT {
            self.entries = VecDeque::new();
        }
        Some(first)
    }

    fn put_back(&mut self, first: Entry) {
        self.count(&first);
        self.entries.push_front(first);
    }

    /// Takes back the last message, unless it was announced.
    pub fn take_back(&mut self) -> Option<Outgoing> {
        if self.entries.len() == self.announced {
            return None;
        }
        let last = self.entries.pop_back()?;
        self.discount(&last);
        Some(last.message)
    }

    /// Drops the memory of the last message if it is short: the message has been accepted for certain.
    pub fn shorten_last(&mut self) {
        if let Some(last) = self.entries.pop_back() {
            self.discount(&last);
            let last = Entry { message: last.message.shortened(), ..last };
            self.count(&last);
            self.entries.push_back(last);
        }
    }

    /// Takes all messages, the first one first.
    pub fn take_all(&mut self) -> VecDeque<Entry> {
        (self.announced, self.waiting, self.memory) = (0, 0, 0);
        std::mem::take(&mut self.entries)
    }

    fn count(&mut self, entry: &Entry) {
        let memory = entry.message.memory();
        self.memory += memory;
        if entry.message.is_announced() {
            self.announced += 1;
        } else {
            self.waiting += self.cost(memory);
        }
    }

    fn discount(&mut self, entry: &Entry) {
        let memory = entry.message.memory();
        self.memory -= memory;
        if entry.message.is_announced() {
            self.announced -= 1;
        } else {
            self.waiting -= self.cost(memory);
        }
    }

    // ---- announcements ----

    /// Announces the first message that is not announced, if its announcement has a place. `false`: nothing
    /// more can be announced.
    pub fn announce_next(&mut self, side: &mut SendSide) -> Result<bool, ViaError> {
        if self.announced >= MAX_ANNOUNCED {
            return Ok(false);
        }
        let Some(next) = self.entries.get_mut(self.announced) else { return Ok(false) };
        let memory = next.message.memory();
        let step = trace::begin_step(|| next.message.described());
        if !next.message.announce(side)? {
            return Ok(false);
        }
        trace::end_step(step, side.world.rank(), "announce");
        self.announced += 1;
        self.waiting -= self.cost(memory);
        Ok(true)
    }

    /// The oldest message that waits for the answer to its announcement.
    pub fn asked(&mut self) -> Option<&mut Outgoing> {
        let at = self.asked_at()?;
        Some(&mut self.entries[at].message)
    }

    /// Removes the oldest message that waits for an answer: it was refused.
    pub fn remove_asked(&mut self) -> Option<Entry> {
        let removed = self.entries.remove(self.asked_at()?)?;
        self.discount(&removed);
        Some(removed)
    }

    fn asked_at(&self) -> Option<usize> {
        self.entries.iter().take(self.announced).position(|entry| entry.message.is_asked())
    }

    // ---- single messages ----

    pub fn first(&self) -> Option<&Outgoing> {
        self.entries.front().map(|first| &first.message)
    }

    pub fn first_mut(&mut self) -> Option<&mut Outgoing> {
        self.entries.front_mut().map(|first| &mut first.message)
    }

    /// The message with this id, if it is still queued.
    pub fn find(&mut self, id: RequestId) -> Option<&mut Entry> {
        let at = self.entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        self.entries.get_mut(at)
    }

    pub fn has(&self, id: RequestId) -> bool {
        self.entries.binary_search_by_key(&id, |entry| entry.id).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Outgoing {
        Outgoing::short(&[7; 8], 1)
    }

    /// Fills a queue with short messages until it has no place for another.
    fn filled(limit: usize) -> Backlog {
        let mut backlog = Backlog::new(limit);
        while backlog.has_place(0) {
            backlog.push(short(), false);
        }
        backlog
    }

    #[test]
    fn one_message_always_has_a_place() {
        for limit in [0, 1, ENTRY, 2 * ENTRY - 1] {
            assert_eq!(filled(limit).len(), 1, "{limit} bytes");
        }
        assert!(Backlog::new(0).has_place(usize::MAX));
    }

    #[test]
    fn the_bound_is_in_bytes() {
        assert_eq!(filled(100 * ENTRY).len(), 100);
        assert!(filled(4 << 20).len() >= 10_000);
        let mut backlog = Backlog::new(4 << 20);
        backlog.push(short(), false);
        assert!(backlog.has_place(usize::MAX), "it counts a sixteenth");
        (0..16 * 1024).for_each(|_| _ = backlog.push(short(), false));
        assert!(!filled(4 << 20).has_place(0) && backlog.has_place(1 << 20));
    }

    #[test]
    fn what_has_left_makes_room_and_the_list_gives_its_memory_back() {
        let mut backlog = filled(1000 * ENTRY);
        let first = backlog.pop().unwrap();
        assert!(backlog.has_place(0));
        backlog.put_back(first);
        assert!(!backlog.has_place(0));
        assert!(backlog.entries.capacity() >= 1000);
        while backlog.pop().is_some() {}
        assert!(backlog.entries.capacity() <= KEPT);
        assert_eq!((backlog.waiting, backlog.memory, backlog.announced), (0, 0, 0));
    }

    #[test]
    fn messages_are_found_by_their_numbers() {
        let mut backlog = Backlog::new(4 << 20);
        let ids: Vec<_> = (0..100).map(|nth| backlog.push(short(), nth % 2 == 0)).collect();
        (0..10).for_each(|_| drop(backlog.pop()));
        for (nth, id) in ids.iter().enumerate() {
            assert_eq!(backlog.has(*id), nth >= 10);
            let held = backlog.find(*id).map(|entry| entry.request());
            assert_eq!(held, (nth >= 10).then_some((nth % 2 == 0).then_some(*id)));
        }
    }

    #[test]
    fn the_last_can_be_taken_back() {
        let mut backlog = Backlog::new(0);
        backlog.push(short(), false);
        assert!(backlog.take_back().is_some() && backlog.take_back().is_none());
        assert_eq!((backlog.len(), backlog.waiting), (0, 0));
    }
}
