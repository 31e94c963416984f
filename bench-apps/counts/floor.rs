//! The floor: the cost of 8 bytes between two processors with only the work that a message needs. `deckperf peers`
//! measures the library beside it in the same rounds, and `cargo xtask counts` counts the instructions of both.
//!
//! The floor is a ring of cells like the one in the library's shared memory, and does everything that the library does for
//! a message under way:
//!
//! * a length and a tag, which the receiver checks and returns,
//! * a check on both sides whether the connection lives,
//! * credit: every 16th time the receiver publishes which cells may be written again,
//! * a sleeping receiver: after a message the sender fences and checks whether to wake it.
//!
//! The library adds what the floor lacks: moving a message into the library and out of it, fair polling of many connections,
//! protocols, the deaths of ranks, and an order that holds whatever else the connection carries.
//!
//! Two threads represent two processes: the cache lines travel between the same two processors, and the shared memory
//! consists of atomics, so all of it is safe code.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Largest length of a message, in bytes.
pub const MAX_BYTES: usize = PAYLOAD_WORDS * 8;

const PAYLOAD_WORDS: usize = 6;
/// Number of cells, a power of two.
const CELLS: u32 = 128;
/// Number of messages after which the receiver returns their cells together.
const CREDIT_EVERY: u32 = 16;

/// Value of `attention` while the receiver polls.
const AWAKE: u32 = 0;
/// Value of a connection's state until it ends.
const ALIVE: u32 = 0;

/// One message, one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    /// Low half: position + 1 of the message in this cell. High half: its length.
    head: AtomicU64,
    tag: AtomicU64,
    payload: [AtomicU64; PAYLOAD_WORDS],
}

/// Cache line that the receiver writes. It takes 128 bytes because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ReceiverLine {
    /// Number of messages that were read, modulo 2^32.
    credit: AtomicU32,
    attention: AtomicU32,
}

/// State of the connection, which is rarely written.
#[derive(Debug, Default)]
#[repr(align(128))]
struct State(AtomicU32);

/// A ring from a sender to a receiver.
#[derive(Debug)]
pub struct Ring {
    cells: [Cell; CELLS as usize],
    line: ReceiverLine,
    state: State,
}

/// The writing end; there is exactly one.
#[derive(Debug)]
pub struct Sender<'r> {
    ring: &'r Ring,
    next: u32,
    credit: u32,
}

/// The reading end; there is exactly one.
#[derive(Debug)]
pub struct Receiver<'r> {
    ring: &'r Ring,
    next: u32,
}

/// Why a message cannot be sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The message is longer than [`MAX_BYTES`], or its header says so.
    TooLong,
    /// The receiver has not read enough yet.
    Full,
    /// The connection has ended.
    Ended,
    /// The receiver sleeps, and nothing here could wake it.
    Asleep,
}

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The first `length` bytes of the message, followed by zeros or leftovers.
    pub payload: [u64; PAYLOAD_WORDS],
    /// Length in bytes.
    pub length: usize,
    /// The posted tag.
    pub tag: u64,
}

impl Default for Ring {
    fn default() -> Self {
        Ring {
            cells: std::array::from_fn(|_| Cell::default()),
            line: ReceiverLine::default(),
            state: State::default(),
        }
    }
}

impl Ring {
    /// Resets the ring, and returns both ends.
    pub fn ends(&mut self) -> (Sender<'_>, Receiver<'_>) {
        *self = Ring::default();
        let ring = &*self;
        (Sender { ring, next: 0, credit: 0 }, Receiver { ring, next: 0 })
    }

    #[inline]
    fn cell(&self, position: u32) -> &Cell {
        &self.cells[(position % CELLS) as usize]
    }

    #[inline]
    fn is_alive(&self) -> bool {
        self.state.0.load(Ordering::Relaxed) == ALIVE
    }
}

impl Sender<'_> {
    /// Copies the message into its cell, and publishes it.
    ///
    /// # Errors
    /// Nothing was posted.
    #[inline]
    pub fn post(&mut self, bytes: &[u8], tag: u64) -> Result<(), Refused> {
        if bytes.len() > MAX_BYTES {
            return Err(Refused::TooLong);
        }
        if !self.ring.is_alive() {
            return Err(Refused::Ended);
        }
        if self.next.wrapping_sub(self.credit) >= CELLS {
            self.reload_credit()?;
        }
        let cell = self.ring.cell(self.next);
        let (words, rest) = bytes.as_chunks::<8>();
        for (place, word) in cell.payload.iter().zip(words) {
            place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            cell.payload[words.len()].store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        cell.tag.store(tag, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
        cell.head.store((bytes.len() as u64) << 32 | u64::from(self.next), Ordering::Release);
        fence(Ordering::SeqCst);
        if self.ring.line.attention.load(Ordering::Relaxed) == AWAKE { Ok(()) } else { Err(Refused::Asleep) }
    }

    #[cold]
    fn reload_credit(&mut self) -> Result<(), Refused> {
        self.credit = self.ring.line.credit.load(Ordering::Acquire);
        if self.next.wrapping_sub(self.credit) >= CELLS { Err(Refused::Full) } else { Ok(()) }
    }
}

impl Receiver<'_> {
    /// Polls once: returns the next message, if it has arrived.
    ///
    /// # Errors
    /// The connection has ended, or the cell's contents cannot be a message.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Message>, Refused> {
        let cell = self.ring.cell(self.next);
        let head = cell.head.load(Ordering::Acquire);
        if head as u32 != self.next.wrapping_add(1) {
            return if self.ring.is_alive() { Ok(None) } else { Err(Refused::Ended) };
        }
        let length = (head >> 32) as usize;
        if length > MAX_BYTES {
            return Err(Refused::TooLong);
        }
        let mut payload = [0; PAYLOAD_WORDS];
        for (word, place) in payload.iter_mut().zip(&cell.payload).take(length.div_ceil(8)) {
            *word = place.load(Ordering::Relaxed);
        }
        let tag = cell.tag.load(Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
        if self.next.is_multiple_of(CREDIT_EVERY) {
            self.ring.line.credit.store(self.next, Ordering::Release);
        }
        Ok(Some(Message { payload, length, tag }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_with_their_length_and_tag() {
        let mut ring = Ring::default();
        let (mut sender, mut receiver) = ring.ends();
        for lap in 0..3 * u64::from(CELLS) {
            let bytes = lap.to_ne_bytes().repeat(6);
            let length = lap as usize % (MAX_BYTES + 1);
            sender.post(&bytes[..length], lap).expect("there is room");
            let message = receiver.poll().expect("is alive").expect("has come");
            assert_eq!((message.length, message.tag), (length, lap));
            let came: Vec<u8> = message.payload.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(came[..length], bytes[..length]);
            assert_eq!(receiver.poll(), Ok(None));
        }
    }

    #[test]
    fn a_full_ring_refuses_until_its_cells_were_given_back() {
        let mut ring = Ring::default();
        let (mut sender, mut receiver) = ring.ends();
        for tag in 0..u64::from(CELLS) {
            sender.post(&[], tag).expect("there is room");
        }
        assert_eq!(sender.post(&[], 0), Err(Refused::Full));
        for tag in 0..u64::from(CREDIT_EVERY) {
            assert_eq!(sender.post(&[], 0), Err(Refused::Full));
            assert_eq!(receiver.poll().expect("is alive").expect("has come").tag, tag);
        }
        assert_eq!(sender.post(&[], 0), Ok(()));
    }

    #[test]
    fn what_cannot_be_is_refused_by_both_sides() {
        let mut ring = Ring::default();
        let (mut sender, mut receiver) = ring.ends();
        assert_eq!(sender.post(&[0; MAX_BYTES + 1], 0), Err(Refused::TooLong));
        sender.ring.cells[0].head.store(((MAX_BYTES as u64 + 1) << 32) | 1, Ordering::Relaxed);
        assert_eq!(receiver.poll(), Err(Refused::TooLong));
        sender.ring.cells[0].head.store(0, Ordering::Relaxed);
        sender.ring.line.attention.store(AWAKE + 1, Ordering::Relaxed);
        assert_eq!(sender.post(&[], 0), Err(Refused::Asleep));
        sender.ring.state.0.store(ALIVE + 1, Ordering::Relaxed);
        assert_eq!(sender.post(&[], 0), Err(Refused::Ended));
        receiver.poll().expect("came before").expect("the end");
        assert_eq!(receiver.poll(), Err(Refused::Ended));
    }
}
