//! Queue of outgoing frames: headers by value, payload in place.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use udeck_sys::position::Position;
use udeck_via::transport::{Inline, PostedBuffer};

use super::Pieces;
use crate::framed::windows::Inside;
use crate::framed::wire::{self, Frame, HEADER, Header};
use crate::memory::Place;

/// A frame to be sent.
pub(super) struct Out {
    /// Stream offset of the frame's first byte.
    at: u64,
    /// Header and head of the frame.
    lead: [u8; LEAD],
    lead_len: u8,
    body: SmallVec<[Place; 2]>,
    body_len: usize,
    then: Then,
}

const LEAD: usize = HEADER + Inline::CAPACITY;

/// Action when nobody reads a frame's memory any more.
pub(super) enum Then {
    Nothing,
    /// Gives the memory back.
    Held(PostedBuffer),
    /// Notes that the message of this number has left. Its entry among the unacknowledged ends when a receipt has come, too.
    Left(Position),
    /// A peer's read was answered.
    Served(#[allow(dead_code, reason = "held, not read")] Option<Inside>),
    /// A receipt was sent.
    Receipt,
    Words(#[allow(dead_code, reason = "the body lies in it")] Arc<[u8]>),
}

#[derive(Default)]
pub(super) struct Outgoing {
    frames: VecDeque<Out>,
    end: u64,
    /// Stream offset up to which the driver has gathered.
    gathered: Cell<u64>,
    /// Answers and receipts in the queue: the part of it that a peer grows by not reading.
    answers: usize,
}

impl Out {
    /// Makes a frame. `head` (two pieces, at most [`Inline::CAPACITY`] bytes) follows the header.
    #[inline]
    pub fn new(frame: Frame, head: [&[u8]; 2], body: SmallVec<[Place; 2]>, then: Then) -> Self {
        let mut lead = [0; LEAD];
        lead[..HEADER].copy_from_slice(&Header { taken: 0, frame }.encode());
        let mut len = HEADER;
        for piece in head {
            lead[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        }
        let body_len = body.iter().map(|place| place.len()).sum();
        Out { at: 0, lead, lead_len: len as u8, body, body_len, then }
    }

    /// Makes a frame of a header alone.
    pub fn bare(frame: Frame, then: Then) -> Self {
        Out::new(frame, [&[], &[]], SmallVec::new(), then)
    }

    pub fn then(&self) -> &Then {
        &self.then
    }

    pub fn then_mut(&mut self) -> &mut Then {
        &mut self.then
    }

    pub fn into_then(self) -> Then {
        self.then
    }

    /// The frame's header.
    pub fn header(&self) -> &[u8; HEADER] {
        self.lead.first_chunk().expect("a lead is longer")
    }

    /// The bytes between header and body.
    pub fn head(&self) -> &[u8] {
        &self.lead[HEADER..usize::from(self.lead_len)]
    }

    /// The places of the body.
    pub fn body(&self) -> &[Place] {
        &self.body
    }

    fn end(&self) -> u64 {
        self.at + u64::from(self.lead_len) + self.body_len as u64
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        let lead = Place::bytes(&self.lead[..usize::from(self.lead_len)]);
        std::iter::once(lead).chain(self.body.iter().copied())
    }
}

impl Outgoing {
    /// Appends a frame, with `taken` in its header.
    #[inline]
    pub fn push(&mut self, mut out: Out, taken: u32) {
        wire::set_taken(&mut out.lead, taken);
        out.at = self.end;
        self.end = out.end();
        self.answers += usize::from(out.then.is_answer());
        self.frames.push_back(out);
    }

    pub fn start(&self) -> u64 {
        self.frames.front().map_or(self.end, |out| out.at)
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn gathered(&self) -> u64 {
        self.gathered.get()
    }

    pub fn answers(&self) -> usize {
        self.answers
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Out> {
        self.frames.iter_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Out> {
        self.frames.iter()
    }

    pub fn gather<'a>(&'a self, from: u64, limit: usize, pieces: &mut Pieces<'a>) -> usize {
        assert!(from >= self.start() && from <= self.end, "{from} of {}..{}", self.start(), self.end);
        let (mut at, mut left) = (from, limit);
        // A driver that writes as frames come begins with the first one.
        let is_first = self.frames.front().is_some_and(|out| from < out.end());
        let first = if is_first { 0 } else { self.frames.partition_point(|out| out.end() <= from) };
        for out in self.frames.range(first..) {
            if left == 0 || !pieces.has_room() {
                break;
            }
            let taken = pieces.append(out.places(), (at - out.at) as usize, left);
            at += taken as u64;
            left -= taken;
        }
        self.gathered.set(self.gathered.get().max(at));
        (at - from) as usize
    }

    /// Takes the first frame out if it ends before offset `upto`.
    pub fn pop_released(&mut self, upto: u64) -> Option<Then> {
        if self.frames.front()?.end() > upto {
            return None;
        }
        let then = self.frames.pop_front()?.then;
        self.answers -= usize::from(then.is_answer());
        Some(then)
    }
}

impl Then {
    fn is_answer(&self) -> bool {
        matches!(self, Then::Served(_) | Then::Receipt)
    }
}
