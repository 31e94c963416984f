//! Messages that travel on the unreliable queue pair: those of an unreliable VI, and its RDMA writes, on a queue pair beside the reliable one (UC), which
//! sends each once, hears of none, and drops what finds no place. The reliable one has the control frames and the reads of
//! what was offered.
//!
//! They are numbered from 0 in the order in which they leave; what takes a receive buffer has a number, so that at most
//! [`MESSAGES`] buffers are ever wanted. There a number is *over* when its message was taken or missed, and `taken` tells how
//! many are, in a row. Such a queue pair keeps the order: what comes says that everything before it came or never will. Of
//! the last that were sent nothing says so; so whoever waits says how many have *left* ([`Frame::Left`](crate::wire::Frame::Left)), and what has not
//! come a while after that is missed (RFC 3758 has the same). The end is told behind it, and waits for the same.
//!
//! An RDMA write's immediate data are its pieces' numbers, those of the program follow in a frame: so both sides know which
//! one was lost, and a write of which a piece was lost never completes.
//!
//! A message that is offered travels so too, as an offer; its bytes are read by the other queue pair, and are not lost then.

mod recv;
mod send;

use std::collections::VecDeque;

use super::MESSAGES;
use super::send_queue::{Access, Posted, Then};
use crate::wire::Violation;

const _: () = assert!(MESSAGES <= u64::BITS);

/// See the module.
#[derive(Default)]
pub(super) struct Unreliable {
    // The sender's side.
    /// Requests that the device has, oldest first.
    flying: VecDeque<InFlight>,
    next_token: u32,
    /// Numbers below were given to the device; those below `gone` have left; of those below `told` the peer knows that.
    left: u32,
    gone: u32,
    told: u32,
    /// The peer is to be told when all have left.
    owes_word: bool,
    /// Of the numbers that are not over, from the first on: those of pieces. And how many the write has that is leaving.
    pieces: u64,
    written: u32,

    // The receiver's side.
    /// Numbers below are over; of those from there on, these are.
    base: u32,
    over: u64,
    /// Numbers below have come or never will; of those below `peer_sent` the peer says that they have left.
    next: u32,
    peer_sent: u32,
    /// Pieces that came last, in a row, and their bytes.
    run: (u32, usize),
    /// Of what lies in the recv_queue.
    numbers: VecDeque<u32>,
    /// The peer's end, which waits for what it sent before.
    held_end: Option<Option<String>>,
    /// Our end was told: nobody takes anything.
    abandoned: bool,
    missed: u64,
}

struct InFlight {
    token: u32,
    then: Then,
    /// Numbers below have left with it.
    upto: u32,
}

/// How far `number` is ahead; `None`: it is not. Of numbers of our own, two are no further apart than there may be messages or
/// requests under way. One that a peer sends may be any: it is used if it is less than [`MESSAGES`] ahead of what is over.
fn ahead(number: u32, of: u32) -> Option<u32> {
    Some(number.wrapping_sub(of)).filter(|distance| *distance <= u32::MAX / 2)
}

fn violation<T>(words: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(words.into()))
}

impl std::fmt::Debug for Unreliable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unreliable")
            .field("sent", &(self.left, self.gone, self.told, self.flying.len()))
            .field("came", &(self.base, self.next, self.peer_sent, self.numbers.len()))
            .field("held_end", &self.held_end)
            .finish_non_exhaustive()
    }
}

impl Unreliable {
    /// Told in a row: so the peer knows which.
    fn is_over(&mut self, number: u32) {
        let Some(at) = ahead(number, self.base).filter(|at| *at < MESSAGES) else { return };
        self.over |= 1 << at;
        let row = self.over.trailing_ones();
        self.over = self.over.checked_shr(row).unwrap_or(0);
        self.base = self.base.wrapping_add(row);
    }

    /// What has not come of those below never will.
    fn miss_below(&mut self, number: u32) {
        while self.next != number {
            self.is_over(self.next);
            self.next = self.next.wrapping_add(1);
            self.missed += 1;
        }
    }
}

impl Posted {
    /// Numbers that it takes at least, where messages travel on the unreliable queue pair.
    fn numbers(&self) -> u32 {
        match self {
            Posted::Frame { .. } | Posted::Offer { .. } => 1,
            Posted::Access(Access { immediate: Some(_), .. }) => WRITE_NUMBERS,
            Posted::Access(Access { immediate: None, .. }) | Posted::End { .. } => 0,
        }
    }
}

/// A piece, and what says that it was all.
pub(super) const WRITE_NUMBERS: u32 = 2;
