//! The single-producer single-consumer ring that carries messages between two processes.
//!
//! A cell is one cache line: a word with the lap and the meta data of the message, a word for the layer above, and 48 bytes
//! of payload. The producer writes the payload, then the first word (Release); the consumer that sees the right lap there
//! (Acquire) sees the payload: one shared line per message. The words that the consumer writes for the producer (how far it
//! has read, whether it is watching) lie in lines of their own.
//!
//! ```text
//! cell  0        4        8                16                                              64
//!       | lap    | meta   | aux            | payload, 6 words                              |
//! line  0        4        8            128    132
//!       | credit | attention |  ...     | read |  written by the consumer only
//! ```
//!
//! `credit` says which cells may be overwritten, and is written once in a while; the producer reads it, and `attention`, as
//! it posts. `read` says how far the consumer is after every message, for a producer that wants to know; as long as none
//! does, its line stays in the consumer's cache.
//!
//! # Memory ordering
//! * `SYNC POINT cell`: [`Producer::push_with`] stores word 0 with Release; [`Consumer::pop_if`] loads
//!   it with Acquire. Orders the payload.
//! * `SYNC POINT credit`: [`Consumer::publish_credit`] stores with Release after its last read of the cells it
//!   gives back; [`Producer::has_room`] loads with Acquire before it overwrites them.
//! * `SYNC POINT read`: [`Consumer::pop_if`] stores with Release after each message; [`Producer::unread`] loads with Acquire.
//!   Orders the consumer's earlier actions, for a program that waits until its message was read. No cell is overwritten
//!   because of it.
//! * `SYNC POINT attention`: the producer publishes the cell, or several ([`Batch`]), fences SeqCst, loads `attention`; the
//!   consumer stores `attention`, fences SeqCst, looks at the cell. The side whose fence comes second in the single total
//!   order sees the other's store: either the producer sees that it must ring, or the consumer sees the cell. Of several
//!   cells the consumer sees the first one that it has not taken.
//!
//! On x86 the first two are plain moves; on aarch64 they are `stlr`/`ldar`. Nothing relies on x86's order.
//!
//! # Hostility
//! Everything here may be overwritten by the peer at any time. All accesses are atomic, indices are masked, the consumer
//! copies a cell into private words before it is decoded, and a read count higher than the number of sent messages is
//! reported as [`Corrupt`].

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, Shared, fence};
use crate::sync::position::Position;
use crate::{memory::prefetch, os::fault};

/// Words of payload in a cell (loom's state space wants small cells).
#[cfg(not(loom))]
pub const PAYLOAD_WORDS: usize = 6;
/// Words of payload in a cell (loom's state space wants small cells).
#[cfg(loom)]
pub const PAYLOAD_WORDS: usize = 1;
/// Bytes of payload in a cell.
pub const PAYLOAD_BYTES: usize = PAYLOAD_WORDS * 8;

/// One message slot, one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Cell {
    /// Low half: lap (position + 1 of the message in the cell). High half: meta.
    head: AtomicU64,
    aux: AtomicU64,
    payload: [AtomicU64; PAYLOAD_WORDS],
}

/// Words that the consumer writes for the producer. Each part has two lines, so that the adjacent-line prefetcher of x86 does
/// not pull a neighbour's writes in.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ConsumerLine {
    /// Number of messages that were read, modulo 2^32.
    credit: AtomicU32,
    /// [`HOT`] or [`COLD`].
    attention: AtomicU32,
    read: Read,
}

/// Number of messages that were read, modulo 2^32; written after every message.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Read(AtomicU32);

// SAFETY: atomics only.
unsafe impl Shared for Cell {}
// SAFETY: atomics only.
unsafe impl Shared for ConsumerLine {}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Cell>() == 64 && PAYLOAD_BYTES == 64 - 16);
    assert!(size_of::<ConsumerLine>() == 256);
};

/// The consumer is not polling this ring: a post rings its doorbell. (The state of fresh, zeroed memory.)
pub const COLD: u32 = 0;
/// The consumer polls this ring: posting is enough.
pub const HOT: u32 = 1;

/// Distance in cells from the producer's next one to the one that it prefetches: near enough to be in the cache still, and
/// far enough from the cell that the consumer is polling.
const AHEAD: u32 = 3;

/// Place of a ring's cells. Both sides of a ring use the same storage and number of cells.
pub trait Storage {
    /// Number of cells: a power of two.
    fn cells(&self) -> u32;
    /// The cell at `index < cells()`.
    fn cell(&self, index: u32) -> &Cell;
    /// The consumer's line.
    fn line(&self) -> &ConsumerLine;
}

/// The error when the peer wrote a value that no correct peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer claims to have read more messages than were sent to it")]
pub struct Corrupt;

/// A message as it lay in its cell, copied into private memory and not yet checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CellCopy {
    /// The high half of the first word.
    pub meta: u32,
    /// The second word.
    pub aux: u64,
    /// All payload words (words that the message did not use hold leftovers).
    pub payload: [u64; PAYLOAD_WORDS],
}

/// A message in its cell, not yet checked: the producer may write it again, so each word is read once.
#[derive(Debug)]
pub struct CellRef<'c> {
    /// The high half of the first word.
    pub meta: u32,
    cell: &'c Cell,
}

impl CellRef<'_> {
    /// The second word.
    #[inline]
    pub fn aux(&self) -> u64 {
        self.cell.aux.load(Ordering::Relaxed)
    }

    /// The payload words, read as they are asked for.
    #[inline]
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.cell.payload.iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// All payload words.
    #[inline]
    pub fn all_words(&self) -> [u64; PAYLOAD_WORDS] {
        std::array::from_fn(|i| self.cell.payload[i].load(Ordering::Relaxed))
    }

    /// Copies the whole message.
    #[inline]
    pub fn take(&self) -> CellCopy {
        CellCopy { meta: self.meta, aux: self.aux(), payload: self.all_words() }
    }
}

/// Payload of a cell that is being written; words and bytes that do not fit are left out.
#[derive(Debug)]
pub struct Payload<'c>(&'c [AtomicU64; PAYLOAD_WORDS]);

impl Payload<'_> {
    /// Writes words.
    #[inline]
    pub fn words(&self, words: &[u64]) {
        for (place, word) in self.0.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
    }

    /// Writes bytes, from word `at` on; the last word is filled up with zeros.
    #[inline]
    pub fn bytes(&self, at: usize, bytes: &[u8]) {
        self.whole_words(at, bytes);
        let (whole, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            self.last_bytes(at + whole.len(), rest);
        }
    }

    /// Writes bytes as [`Payload::bytes`] does, only those that make whole words.
    #[inline]
    pub fn whole_words(&self, at: usize, bytes: &[u8]) {
        let mut words = bytes.as_chunks::<8>().0.iter();
        // The loop is over the places, whose number is known: the compiler unrolls it. It ends with the words.
        for place in self.0.iter().skip(at) {
            let Some(word) = words.next() else { break };
            place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    fn last_bytes(&self, at: usize, rest: &[u8]) {
        if let Some(place) = self.0.get(at) {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }
}

/// The producer's end of a ring. Exactly one per ring.
#[derive(Debug)]
pub struct Producer<S> {
    storage: S,
    mask: u32,
    /// Position of the next message.
    next: Position,
    /// Number of messages that the consumer had read when `credit` was loaded last, modulo 2^32.
    credit: u32,
}

impl<S: Storage> Producer<S> {
    /// The producer's end of a fresh (zeroed) ring.
    pub fn new(storage: S) -> Self {
        let cells = storage.cells();
        assert!(cells.is_power_of_two() && cells <= 1 << 16, "ring of {cells} cells");
        Producer { storage, mask: cells - 1, next: Position::START, credit: 0 }
    }

    /// Whether a push would succeed. Loads the consumer's credit only when the known credit is used up.
    ///
    /// # Errors
    /// [`Corrupt`] if the consumer's credit is impossible.
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, Corrupt> {
        if self.has_known_room() {
            return Ok(true);
        }
        self.reload_credit()
    }

    #[cold]
    fn reload_credit(&mut self) -> Result<bool, Corrupt> {
        // SYNC POINT credit: the cells counted here are no longer read by the consumer.
        let credit = self.storage.line().credit.load(Ordering::Acquire);
        let unread = self.next.narrow().wrapping_sub(credit);
        if unread > self.mask + 1 {
            return Err(Corrupt);
        }
        self.credit = credit;
        Ok(unread <= self.mask)
    }

    /// Whether a push would succeed, as far as is known without reading the consumer's line.
    #[inline]
    pub fn has_known_room(&self) -> bool {
        self.next.narrow().wrapping_sub(self.credit) <= self.mask
    }

    /// Writes one message. The caller has seen [`Producer::has_room`]. `true`: the consumer is not watching, so ring its
    /// doorbell.
    #[inline]
    #[must_use]
    pub fn push(&mut self, meta: u32, aux: u64, payload: &[u64]) -> bool {
        self.push_with(meta, aux, |place| place.words(payload))
    }

    /// Writes a message as [`Producer::push`] does, with a payload that `write` writes in place.
    #[inline]
    #[must_use]
    pub fn push_with(&mut self, meta: u32, aux: u64, write: impl FnOnce(Payload<'_>)) -> bool {
        self.publish(meta, aux, write);
        self.must_ring()
    }

    /// Begins a batch of messages, after which the consumer's attention is read once.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, S> {
        Batch(self)
    }

    /// Number of pushes that would succeed, at most `wanted`. Loads the consumer's credit only when fewer are known to succeed.
    ///
    /// # Errors
    /// [`Corrupt`] if the consumer's credit is impossible.
    #[inline]
    pub fn room_for(&mut self, wanted: u32) -> Result<u32, Corrupt> {
        if self.known_room() < wanted {
            self.reload_credit()?;
        }
        Ok(self.known_room().min(wanted))
    }

    #[inline]
    fn known_room(&self) -> u32 {
        (self.mask + 1).saturating_sub(self.next.narrow().wrapping_sub(self.credit))
    }

    /// Publishes a message. The consumer may be asleep.
    #[inline]
    fn publish(&mut self, meta: u32, aux: u64, write: impl FnOnce(Payload<'_>)) {
        debug_assert!(self.has_known_room());
        let cell = self.storage.cell(self.next.narrow() & self.mask);
        fault::point("post.claimed");
        write(Payload(&cell.payload));
        cell.aux.store(aux, Ordering::Relaxed);
        fault::point("post.written");
        self.next = self.next.plus(1);
        // SYNC POINT cell: publishes payload and aux.
        cell.head.store(u64::from(meta) << 32 | u64::from(self.next.narrow()), Ordering::Release);
        fault::point("post.published");
    }

    /// Whether the consumer is not watching. Called after the last message that it might miss.
    #[inline]
    fn must_ring(&self) -> bool {
        // SYNC POINT attention, producer's half.
        fence(Ordering::SeqCst);
        self.storage.line().attention.load(Ordering::Relaxed) != HOT
    }

    /// Position of the next message.
    #[inline]
    pub fn position(&self) -> Position {
        self.next
    }

    /// Number of messages that the consumer has not read yet.
    ///
    /// # Errors
    /// [`Corrupt`] if the consumer's count is impossible.
    pub fn unread(&self) -> Result<u32, Corrupt> {
        // SYNC POINT read: the consumer's earlier actions are visible.
        let read = self.storage.line().read.0.load(Ordering::Acquire);
        let unread = self.next.narrow().wrapping_sub(read);
        if unread > self.mask + 1 { Err(Corrupt) } else { Ok(unread) }
    }
}

/// Messages that are pushed one after another. A consumer that polls takes each as soon as it is written; one that sleeps is
/// woken only at the end, so nothing that may block comes in between.
#[derive(Debug)]
#[must_use = "a consumer that sleeps has to be told"]
pub struct Batch<'p, S>(&'p mut Producer<S>);

impl<S: Storage> Batch<'_, S> {
    /// Writes one message. The caller has seen that there is room ([`Producer::room_for`]).
    #[inline]
    pub fn push_with(&mut self, meta: u32, aux: u64, write: impl FnOnce(Payload<'_>)) {
        self.0.publish(meta, aux, write);
    }

    /// Prefetches a cell for a further message. The consumer read the cells of the last lap, so they lie in its cache, and if
    /// they were fetched only when they are written, each message would wait for its line. Cells that the consumer may not
    /// have read yet are left out: it would have to fetch them back. A single message does without: in a ping-pong the fetch
    /// costs more than it gains (docs/internals/messages.md).
    #[inline]
    pub fn fetch_ahead(&self) {
        let Producer { storage, mask, next, credit } = &*self.0;
        let ahead = next.narrow().wrapping_add(AHEAD);
        if ahead.wrapping_sub(*credit) <= *mask {
            prefetch::for_writing(storage.cell(ahead & mask));
        }
    }

    /// Position of the next message.
    #[inline]
    pub fn position(&self) -> Position {
        self.0.position()
    }

    /// Ends the batch. `true`: the consumer is not watching, so ring its doorbell.
    #[inline]
    #[must_use]
    pub fn must_ring(self) -> bool {
        self.0.must_ring()
    }
}

/// Result of [`Consumer::pop_if`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PopResult<R> {
    /// A message, which is taken.
    Taken(R),
    /// A message, which is left in the ring.
    Kept,
    /// No message.
    Empty,
}

/// The consumer's end of a ring. Exactly one per ring.
#[derive(Debug)]
pub struct Consumer<S> {
    storage: S,
    mask: u32,
    /// Position of the next message, modulo 2^32, as in the cells. It is compared with the next cell's for equality, and with
    /// `advertised`, which the caller moves up every quarter ring ([`Consumer::owes_credit`]).
    next: u32,
    /// Value of the credit that was published last.
    advertised: u32,
}

impl<S: Storage> Consumer<S> {
    /// The consumer's end of a fresh (zeroed) ring.
    pub fn new(storage: S) -> Self {
        let cells = storage.cells();
        assert!(cells.is_power_of_two() && cells <= 1 << 16, "ring of {cells} cells");
        Consumer { storage, mask: cells - 1, next: 0, advertised: 0 }
    }

    #[inline]
    fn next_cell(&self) -> Option<CellRef<'_>> {
        let cell = self.storage.cell(self.next & self.mask);
        // SYNC POINT cell: the right lap means payload and aux are visible.
        let head = cell.head.load(Ordering::Acquire);
        let meta = (head >> 32) as u32;
        (head as u32 == self.next.wrapping_add(1)).then_some(CellRef { meta, cell })
    }

    /// Takes the next message, if there is one. After a quarter ring the caller publishes the credit
    /// ([`Consumer::owes_credit`]).
    #[inline]
    pub fn pop(&mut self) -> Option<CellCopy> {
        self.pop_with(|message| message.take())
    }

    /// Takes a message as [`Consumer::pop`] does, and lets `read` read it in place. A cell that is copied first and taken
    /// apart later is loaded by wider words than it was stored by, which stalls.
    #[inline]
    pub fn pop_with<R>(&mut self, read: impl FnOnce(&CellRef<'_>) -> R) -> Option<R> {
        match self.pop_if(|message| Some(read(message))) {
            PopResult::Taken(result) => Some(result),
            PopResult::Kept | PopResult::Empty => None,
        }
    }

    /// Takes a message as [`Consumer::pop_with`] does, but leaves it in the ring if `read` returns `None`.
    #[inline]
    pub fn pop_if<R>(&mut self, read: impl FnOnce(&CellRef<'_>) -> Option<R>) -> PopResult<R> {
        let Some(message) = self.next_cell() else { return PopResult::Empty };
        fault::point("retrieve.seen");
        let Some(result) = read(&message) else { return PopResult::Kept };
        self.next = self.next.wrapping_add(1);
        // SYNC POINT read: after the message, in a line that the producer reads only if it wants to know.
        self.storage.line().read.0.store(self.next, Ordering::Release);
        fault::point("retrieve.taken");
        PopResult::Taken(result)
    }

    /// Takes at most `most` messages in a row, as [`Consumer::pop_if`] does. Returns how many `read` took; it gets each with
    /// its number in the run. The read count is stored once.
    #[inline]
    pub fn pop_run(&mut self, most: usize, mut read: impl FnMut(usize, &CellRef<'_>) -> Option<()>) -> usize {
        let mut taken = 0;
        while taken < most
            && let Some(message) = self.next_cell()
            && read(taken, &message).is_some()
        {
            self.next = self.next.wrapping_add(1);
            taken += 1;
        }
        if taken > 0 {
            // SYNC POINT read: after the messages.
            self.storage.line().read.0.store(self.next, Ordering::Release);
            fault::point("retrieve.taken");
        }
        taken
    }

    /// Whether a quarter ring has been read since the credit was published: often enough that the producer never waits for
    /// room that exists, seldom enough that the line that it reads stays in its cache.
    #[inline]
    pub fn owes_credit(&self) -> bool {
        self.next.wrapping_sub(self.advertised) > self.mask / 4
    }

    /// Publishes the credit: tells the producer how far this end has read.
    #[inline]
    pub fn publish_credit(&mut self) {
        if self.advertised != self.next {
            self.advertised = self.next;
            // SYNC POINT credit: after the last read of the cells given back.
            self.storage.line().credit.store(self.next, Ordering::Release);
            fault::point("retrieve.credited");
        }
    }

    /// Position of the next message, modulo 2^32, for [`ready_at`].
    #[inline]
    pub fn position(&self) -> u32 {
        self.next
    }
}

/// Whether the consumer at `position` would find a message. For the consumer's process only: a completion queue polls many
/// rings whose consumers belong to other objects.
#[inline]
pub fn ready_at(storage: &impl Storage, position: u32) -> bool {
    let cell = storage.cell(position & (storage.cells() - 1));
    // This is a hint: the message itself is taken by `pop`, which loads the word again, with Acquire.
    cell.head.load(Ordering::Relaxed) as u32 == position.wrapping_add(1)
}

/// Number of messages that the consumer has published as read. For the producer's process, which checks it.
pub fn credit_of(storage: &impl Storage) -> u32 {
    storage.line().credit.load(Ordering::Acquire)
}

/// Notes, for the consumer, whether it polls the ring. After going [`COLD`] the caller must poll once more ([`ready_at`]): a
/// message that came before the producer could see the change rings no doorbell.
pub fn attend(storage: &impl Storage, attention: u32) {
    storage.line().attention.store(attention, Ordering::Relaxed);
    // SYNC POINT attention, consumer's half.
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
