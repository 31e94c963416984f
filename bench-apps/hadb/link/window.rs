//! Reliable messages over datagrams, in order, as a state machine without I/O: one direction's window and the other's acknowledgements.
//!
//! ```text
//!  datagram   ┌──────────┬──────────┬──────┬─────────────────────┐
//!             │ seq: u64 │ ack: u64 │ kind │ up to 8 KiB of data │
//!             └──────────┴──────────┴──────┴─────────────────────┘
//! ```
//!
//! `ack` is the next sequence number that is expected. Each datagram acknowledges; a datagram that only acknowledges is sent if
//! no other one was sent before the next wait. At most [`WINDOW`] datagrams are unacknowledged. If acknowledgements do not come
//! in time, all unacknowledged datagrams are sent again: datagrams that arrive out of order are dropped.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const HEADER: usize = 17;
/// Bytes of data in a datagram.
const PIECE: usize = 8 << 10;
/// Largest number of unacknowledged datagrams: a socket's buffer has room for them, as Linux counts it.
const WINDOW: usize = 8;
/// Time until the first repetition; each further one waits twice as long as the last, up to `MAX_DOUBLINGS`.
const FIRST_REPEAT: Duration = Duration::from_millis(20);
const MAX_DOUBLINGS: u32 = 4;

/// Kinds of datagrams.
const MORE: u8 = 0;
const LAST: u8 = 1;
const NOTHING: u8 = 2;

#[derive(Debug, Default)]
pub struct Window {
    /// Sequence number of the first datagram in `flight`.
    first: u64,
    /// Datagrams that were sent and not acknowledged.
    flight: VecDeque<Vec<u8>>,
    waiting: VecDeque<Vec<u8>>,
    /// Time at which `flight` was last sent, and number of repetitions.
    sent: Option<Instant>,
    repeats: u32,
    /// Time since which an overdue acknowledgement has not come.
    since: Option<Instant>,
    /// Sequence number that is expected next.
    wanted: u64,
    partial: Vec<u8>,
    owes: bool,
}

impl Window {
    /// Queues a message, given in consecutive `parts`.
    pub fn push(&mut self, parts: &[&[u8]]) {
        let mut left: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = parts.iter().flat_map(|part| part.chunks(PIECE));
        let mut piece: &[u8] = &[];
        loop {
            let len = left.min(PIECE);
            let mut datagram = Vec::with_capacity(HEADER + len);
            datagram.resize(HEADER, 0);
            while datagram.len() < HEADER + len {
                if piece.is_empty() {
                    piece = bytes.next().unwrap_or_default();
                }
                let (now, later) = piece.split_at(piece.len().min(HEADER + len - datagram.len()));
                datagram.extend_from_slice(now);
                piece = later;
            }
            left -= len;
            datagram[16] = if left == 0 { LAST } else { MORE };
            self.waiting.push_back(datagram);
            if left == 0 {
                return;
            }
        }
    }

    /// Passes each datagram that is due to `send`, and whether it was sent before.
    pub fn transmit(&mut self, now: Instant, mut send: impl FnMut(&[u8], bool)) {
        let ack = self.wanted;
        if self.repeat_at().is_some_and(|at| at <= now) {
            for datagram in &mut self.flight {
                datagram[8..16].copy_from_slice(&ack.to_le_bytes());
                send(datagram, true);
            }
            self.sent = Some(now);
            self.repeats = (self.repeats + 1).min(MAX_DOUBLINGS);
            self.owes = false;
        }
        while self.flight.len() < WINDOW {
            let Some(mut datagram) = self.waiting.pop_front() else { break };
            let seq = self.first + self.flight.len() as u64;
            datagram[..8].copy_from_slice(&seq.to_le_bytes());
            datagram[8..16].copy_from_slice(&ack.to_le_bytes());
            send(&datagram, false);
            self.flight.push_back(datagram);
            self.owes = false;
            self.sent.get_or_insert(now);
            self.since.get_or_insert(now);
        }
    }

    /// Makes a datagram that only acknowledges.
    pub fn acknowledgement(&mut self) -> [u8; HEADER] {
        self.owes = false;
        let mut datagram = [0; HEADER];
        datagram[8..16].copy_from_slice(&self.wanted.to_le_bytes());
        datagram[16] = NOTHING;
        datagram
    }

    /// Whether an arrived datagram is still unacknowledged.
    pub fn owes(&self) -> bool {
        self.owes
    }

    /// Time at which [`Window::transmit`] must be called again.
    pub fn repeat_at(&self) -> Option<Instant> {
        self.sent.map(|sent| sent + FIRST_REPEAT * 2_u32.pow(self.repeats))
    }

    /// Time since which it has waited for an acknowledgement.
    pub fn waits_since(&self) -> Option<Instant> {
        self.since
    }

    pub fn is_empty(&self) -> bool {
        self.flight.is_empty() && self.waiting.is_empty()
    }

    /// Takes an arrived datagram. Returns the message, if this was its last datagram. `None`: the datagram is
    /// not of this protocol.
    pub fn receive(&mut self, datagram: &[u8], now: Instant) -> Option<Option<Vec<u8>>> {
        let (header, data) = datagram.split_at_checked(HEADER)?;
        let word = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (seq, ack, kind) = (word(0)?, word(8)?, header[16]);
        self.acknowledged(ack, now);
        if kind == NOTHING {
            return Some(None);
        }
        self.owes = true;
        if seq != self.wanted {
            return Some(None);
        }
        self.wanted += 1;
        self.partial.extend_from_slice(data);
        Some((kind == LAST).then(|| std::mem::take(&mut self.partial)))
    }

    fn acknowledged(&mut self, ack: u64, now: Instant) {
        let done = ack.saturating_sub(self.first).min(self.flight.len() as u64);
        if done > 0 {
            self.flight.drain(..done as usize);
            self.first += done;
            self.repeats = 0;
            (self.sent, self.since) =
                if self.flight.is_empty() { (None, None) } else { (Some(now), Some(now)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prop_run(messages: &[Vec<u8>], losses: &[bool]) -> Vec<Vec<u8>> {
        let (mut from, mut to) = (Window::default(), Window::default());
        for message in messages {
            from.push(&[&message[..message.len() / 3], &message[message.len() / 3..]]);
        }
        let (mut now, mut arrived, mut losses) = (Instant::now(), Vec::new(), losses.iter());
        // Each datagram is lost or not, as `losses` says; after its end none is lost.
        let mut lost = || losses.next().copied().unwrap_or(false);
        while !from.is_empty() {
            let mut sent = Vec::new();
            from.transmit(now, |datagram, _| sent.push(datagram.to_vec()));
            for datagram in sent.into_iter().filter(|_| !lost()) {
                arrived.extend(to.receive(&datagram, now).expect("ours"));
            }
            if to.owes() {
                let answer = to.acknowledgement();
                if !lost() {
                    assert_eq!(from.receive(&answer, now), Some(None));
                }
            }
            now += FIRST_REPEAT;
        }
        arrived
    }

    proptest! {
        #[test]
        fn prop_messages_arrive_once_and_in_order_whatever_is_lost(
            lengths in prop::collection::vec(prop_oneof![0..100_usize, 8_000..9_000_usize, 100_000..200_000_usize], 1..12),
            losses in prop::collection::vec(any::<bool>(), 0..100),
        ) {
            let messages: Vec<Vec<u8>> =
                lengths.iter().zip(1..).map(|(len, byte)| (0..*len).map(|at| at as u8 ^ byte).collect()).collect();
            prop_assert_eq!(prop_run(&messages, &losses), messages);
        }
    }

    #[test]
    fn what_is_answered_at_once_needs_no_datagram_for_its_acknowledgement() {
        let (mut one, mut other) = (Window::default(), Window::default());
        let now = Instant::now();
        one.push(&[b"question"]);
        let mut sent = Vec::new();
        one.transmit(now, |datagram, again| sent.push((datagram.to_vec(), again)));
        assert_eq!(other.receive(&sent[0].0, now), Some(Some(b"question".to_vec())));
        assert!(other.owes());
        other.push(&[b"answer"]);
        other.transmit(now, |datagram, _| sent.push((datagram.to_vec(), false)));
        assert!(!other.owes());
        assert_eq!(one.receive(&sent[1].0, now), Some(Some(b"answer".to_vec())));
        assert!(one.is_empty() && one.repeat_at().is_none(), "the answer has acknowledged the question");
    }

    #[test]
    fn other_bytes_are_none_of_ours() {
        assert_eq!(Window::default().receive(&[0; HEADER - 1], Instant::now()), None);
    }
}
