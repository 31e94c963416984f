//! Messages on the unreliable queue pair (UC): those of an unreliable VI, and its RDMA writes. This queue pair lies
//! beside the reliable one. It sends each message once, gets no acknowledgement, and drops messages that find no
//! place. The reliable queue pair carries the control frames and the reads of offers.
//!
//! Messages are numbered from 0 in the order in which they leave. Everything that takes a receive buffer has a
//! number, so that at most [`MESSAGES`] buffers are ever needed. A number is *over* when its message was taken or
//! missed, and `taken` tells how many are over in a row. The queue pair keeps the order: a message that comes shows
//! that everything before it came or never will. Nothing shows that for the last messages, so a side that waits says
//! how many have *left* ([`Frame::Left`](crate::wire::Frame::Left)), and messages that have not come a while after
//! that are missed (RFC 3758 does the same). The end is sent behind this report, and waits for the same.
//!
//! An RDMA write's immediate data are its pieces' numbers; the program's immediate data follow in a frame. So both
//! sides know which piece was lost, and a write with a lost piece never completes.
//!
//! A long message travels as an offer on this queue pair. Its bytes are read by the reliable queue pair, and are not
//! lost then.

mod recv;
mod send;

use std::collections::VecDeque;

use super::MESSAGES;
use super::send_queue::{Access, OnCompletion, Posted};
use crate::wire::Violation;

const _: () = assert!(MESSAGES <= u64::BITS);

/// State of the messages on the unreliable queue pair.
#[derive(Default)]
pub(super) struct Unreliable {
    // The sender's side.
    /// Requests that the device has, oldest first.
    in_flight: VecDeque<UnreliableRequest>,
    next_token: u32,
    /// Number below which messages were given to the device. Messages below `gone` have left, and the peer has been
    /// told so of those below `reported`.
    left: u32,
    gone: u32,
    reported: u32,
    /// The peer is to be told when all messages have left.
    owes_left_report: bool,
    /// Bitmap of the pieces among the numbers that are not over, from the first such number on. Below, the number of
    /// pieces of the write that is leaving.
    pieces: u64,
    written: u32,

    // The receiver's side.
    /// Number below which messages are over. Below, a bitmap of those from there on that are over.
    base: u32,
    over: u64,
    /// Number below which messages have come or never will. Of those below `peer_sent` the peer says that they have left.
    next: u32,
    peer_sent: u32,
    /// Number of consecutive pieces that came last, and their bytes.
    run: (u32, usize),
    /// Numbers of the items in the receive queue.
    numbers: VecDeque<u32>,
    /// The peer's end, which waits for the messages sent before it.
    held_end: Option<Option<String>>,
    /// Our end was sent: no message is taken any more.
    abandoned: bool,
    missed: u64,
}

struct UnreliableRequest {
    token: u32,
    on_completion: OnCompletion,
    /// Number below which messages have left once this request is complete.
    upto: u32,
}

/// Returns how far `number` is ahead of `of`; `None` if it is not. Two numbers of our own are at most as far apart
/// as there may be messages or requests in flight. A number that a peer sends may be any: it is used only if it is
/// less than [`MESSAGES`] ahead of the messages that are over.
fn ahead(number: u32, of: u32) -> Option<u32> {
    Some(number.wrapping_sub(of)).filter(|distance| *distance <= u32::MAX / 2)
}

fn violation<T>(words: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(words.into()))
}

impl std::fmt::Debug for Unreliable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unreliable")
            .field("sent", &(self.left, self.gone, self.reported, self.in_flight.len()))
            .field("came", &(self.base, self.next, self.peer_sent, self.numbers.len()))
            .field("held_end", &self.held_end)
            .finish_non_exhaustive()
    }
}

impl Unreliable {
    /// Marks a number as over. `base` advances over consecutive ones, so that the peer knows which they are.
    fn is_over(&mut self, number: u32) {
        let Some(at) = ahead(number, self.base).filter(|at| *at < MESSAGES) else { return };
        self.over |= 1 << at;
        let row = self.over.trailing_ones();
        self.over = self.over.checked_shr(row).unwrap_or(0);
        self.base = self.base.wrapping_add(row);
    }

    /// Marks all numbers below `number` that have not come as missed.
    fn miss_below(&mut self, number: u32) {
        while self.next != number {
            self.is_over(self.next);
            self.next = self.next.wrapping_add(1);
            self.missed += 1;
        }
    }
}

impl Posted {
    /// Lower bound of the numbers that the post takes on the unreliable queue pair.
    fn numbers(&self) -> u32 {
        match self {
            Posted::Frame { .. } | Posted::Offer { .. } => 1,
            Posted::Access(Access { immediate: Some(_), .. }) => WRITE_NUMBERS,
            Posted::Access(Access { immediate: None, .. }) | Posted::End { .. } => 0,
        }
    }
}

/// Lower bound of the numbers that a write with immediate data takes: one for a piece, and one for the frame that
/// ends the write.
pub(super) const WRITE_NUMBERS: u32 = 2;
