//! Queue of outgoing frames: headers by value, payload in place.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use udeck_sys::position::Position;
use udeck_via::transport::{Inline, PostedBuffer};

use super::Pieces;
use crate::framed::windows::WindowAccess;
use crate::framed::wire::{self, Frame, HEADER, Header};
use crate::memory::Place;

/// A frame to be sent.
pub(super) struct OutFrame {
    /// Stream offset of the frame's first byte.
    at: u64,
    /// Header and head of the frame.
    lead: [u8; LEAD],
    lead_len: u8,
    body: SmallVec<[Place; 2]>,
    body_len: usize,
    on_release: OnRelease,
}

const LEAD: usize = HEADER + Inline::CAPACITY;

/// Action when nobody reads a frame's memory any more.
pub(super) enum OnRelease {
    Nothing,
    /// Gives the memory back.
    Held(PostedBuffer),
    /// Notes that the message of this number has left. Its entry among the unacknowledged ends when a receipt has come, too.
    Left(Position),
    /// A peer's read was answered.
    Served(#[allow(dead_code, reason = "held, not read")] Option<WindowAccess>),
    /// A receipt was sent.
    Receipt,
    Words(#[allow(dead_code, reason = "the body lies in it")] Arc<[u8]>),
}

#[derive(Default)]
pub(super) struct Outgoing {
    frames: VecDeque<OutFrame>,
    end: u64,
    /// Stream offset up to which the driver has gathered.
    gathered: Cell<u64>,
    /// Answers and receipts in the queue: the part of it that a peer grows by not reading.
    answers: usize,
}

impl OutFrame {
    /// Makes a frame. `head` (two pieces, at most [`Inline::CAPACITY`] bytes) follows the header.
    #[inline]
    pub fn new(frame: Frame, head: [&[u8]; 2], body: SmallVec<[Place; 2]>, on_release: OnRelease) -> Self {
        let mut lead = [0; LEAD];
        lead[..HEADER].copy_from_slice(&Header { taken: 0, frame }.encode());
        let mut len = HEADER;
        for piece in head {
            lead[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        }
        let body_len = body.iter().map(|place| place.len()).sum();
        OutFrame { at: 0, lead, lead_len: len as u8, body, body_len, on_release }
    }

    /// Makes a frame of a header alone.
    pub fn bare(frame: Frame, on_release: OnRelease) -> Self {
        OutFrame::new(frame, [&[], &[]], SmallVec::new(), on_release)
    }

    pub fn on_release(&self) -> &OnRelease {
        &self.on_release
    }

    pub fn on_release_mut(&mut self) -> &mut OnRelease {
        &mut self.on_release
    }

    pub fn into_on_release(self) -> OnRelease {
        self.on_release
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
    pub fn push(&mut self, mut out: OutFrame, taken: u32) {
        wire::set_taken(&mut out.lead, taken);
        out.at = self.end;
        self.end = out.end();
        self.answers += usize::from(out.on_release.is_answer());
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

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut OutFrame> {
        self.frames.iter_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &OutFrame> {
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
    pub fn pop_released(&mut self, upto: u64) -> Option<OnRelease> {
        if self.frames.front()?.end() > upto {
            return None;
        }
        let on_release = self.frames.pop_front()?.on_release;
        self.answers -= usize::from(on_release.is_answer());
        Some(on_release)
    }
}

impl OnRelease {
    fn is_answer(&self) -> bool {
        matches!(self, OnRelease::Served(_) | OnRelease::Receipt)
    }
}
