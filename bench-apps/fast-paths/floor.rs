//! The floor: what 8 bytes cost between two processors if nothing is done but what a message needs. How far the library is
//! from it, `deckperf peers` measures in the same rounds, and `cargo xtask counts` counts in instructions.
//!
//! It is a ring of cells as the library's shared memory has, and a message there has all that one of the library has on its
//! way:
//!
//! * its length and a tag, which the receiver checks and returns,
//! * a look at whether the connection lives, on both sides,
//! * credit: the receiver says every 16th time which cells may be written again,
//! * the receiver may sleep: after a message the sender fences and looks whether it has to be woken.
//!
//! What the library adds is what this has not: a message that is moved into the library and out of it, many connections that
//! are served alike, protocols, ranks that die, and an order that holds whatever else the connection carries.
//!
//! Two threads stand for two processes: the lines travel between the same two processors, and what is shared consists of
//! atomics, so all of it is safe code.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Of a message, at most.
pub const MAX_BYTES: usize = PAYLOAD_WORDS * 8;

const PAYLOAD_WORDS: usize = 6;
/// A power of two.
const CELLS: u32 = 128;
/// The receiver gives cells back in portions.
const CREDIT_EVERY: u32 = 16;

/// The receiver looks by itself.
const AWAKE: u32 = 0;
/// What a connection is until it ends.
const ALIVE: u32 = 0;

/// One message, one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    /// Low half: position + 1 of the message that lies here. High half: its length.
    head: AtomicU64,
    tag: AtomicU64,
    payload: [AtomicU64; PAYLOAD_WORDS],
}

/// What the receiver writes. 128 bytes because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ReceiverLine {
    /// How many messages were read, modulo 2^32.
    credit: AtomicU32,
    attention: AtomicU32,
}

/// What hardly anybody writes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct State(AtomicU32);

/// One way from a sender to a receiver.
#[derive(Debug)]
pub struct Ring {
    cells: [Cell; CELLS as usize],
    line: ReceiverLine,
    state: State,
}

/// The writing end; exactly one.
#[derive(Debug)]
pub struct Sender<'r> {
    ring: &'r Ring,
    next: u32,
    credit: u32,
}

/// The reading end; exactly one.
#[derive(Debug)]
pub struct Receiver<'r> {
    ring: &'r Ring,
    next: u32,
}

/// Why a message cannot travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is longer than [`MAX_BYTES`], or says so.
    TooLong,
    /// The receiver has not read enough yet.
    Full,
    /// The connection has ended.
    Ended,
    /// The receiver sleeps, and nobody here could wake it.
    Asleep,
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its first `length` bytes, and zeros or leftovers behind them.
    pub payload: [u64; PAYLOAD_WORDS],
    /// In bytes.
    pub length: usize,
    /// As it was posted.
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
    /// Both ends of a fresh ring.
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
    /// One look: the next message, if it has come.
    ///
    /// # Errors
    /// The connection has ended, or the message cannot be one.
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
