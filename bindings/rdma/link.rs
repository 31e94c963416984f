//! Frames over a virtual interface: sending them to the peer, and taking those that arrive.

use std::collections::VecDeque;

use udeck_via::mem::Fill;
use udeck_via::transport::{Body, Inline};
use udeck_via::{Arrival, Block, Error, Lent, Nic, Vi};

use crate::frame::{self, Head, Reason};
use crate::memory::Segment;

/// Longest body that fits into a message of the interface below, beside the head.
pub const INLINE: usize = Inline::CAPACITY - frame::HEAD;
/// Most bytes of answers to a peer's reads in one call; the last answer may exceed it by the length of a message.
const ANSWER_BOUND: usize = 64 << 20;

/// Why a frame was not sent.
#[derive(Debug)]
pub enum Stop {
    /// There is no room at the moment.
    Busy,
    /// The frame names memory that may not be touched so, or is wrong itself.
    Bad,
    /// The connection is over.
    Ended(Error),
}

impl From<Error> for Stop {
    #[cold]
    fn from(error: Error) -> Stop {
        match error {
            Error::Full { .. } | Error::NoMemory { .. } => Stop::Busy,
            other => Stop::Ended(other),
        }
    }
}

/// Sends a frame with a short body.
///
/// # Errors
/// See [`Stop`]; without an interface there is no room.
pub fn send(vi: &mut Option<Vi>, head: Head, body: &[u8]) -> Result<(), Stop> {
    let vi = vi.as_mut().ok_or(Stop::Busy)?;
    Ok(vi.send_inline(Some(0), &head.bytes(), body)?)
}

/// Sends a frame whose body is `prefix` and `len` bytes, which `fill` copies. `fill` returns whether the bytes may be read.
///
/// # Errors
/// As [`send`].
pub fn send_filled(
    vi: &mut Option<Vi>,
    nic: &Nic,
    head: Head,
    prefix: &[u8],
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> bool,
) -> Result<(), Stop> {
    let all = prefix.len() + len;
    if all <= INLINE {
        let mut body = [0; INLINE];
        body[..prefix.len()].copy_from_slice(prefix);
        if !fill(&mut body[prefix.len()..all]) {
            return Err(Stop::Bad);
        }
        return send(vi, head, &body[..all]);
    }
    let mut block = block(nic, all)?;
    let (first, rest) = block.bytes_mut().split_at_mut(prefix.len());
    first.copy_from_slice(prefix);
    if !fill(rest) {
        return Err(Stop::Bad);
    }
    let vi = vi.as_mut().ok_or(Stop::Busy)?;
    vi.hand_off(Some(0), &head.bytes(), block).map_err(|(error, _)| error.into())
}

fn block(nic: &Nic, len: usize) -> Result<Block, Stop> {
    let outbox = nic.outbox();
    // Reclaims first, so that the same few blocks are used again and stay in the caches.
    nic.reclaim_recent();
    outbox.block(len, Fill::Keep).or_else(|_| {
        nic.reclaim();
        outbox.block(len, Fill::Keep).map_err(|_| Stop::Busy)
    })
}

/// Tells the peer that an error ends the connection, if there is room for the frame. Otherwise the peer sees an orderly end:
/// nobody waits here for a peer that takes nothing.
pub fn say_broken(vi: &mut Option<Vi>, reason: Reason) {
    let head = Head::plain(frame::BROKEN);
    if let Err(Stop::Busy) = send(vi, head, &reason.bytes())
        && let Some(below) = vi
    {
        below.reclaim();
        let _ = send(vi, head, &reason.bytes());
    }
}

/// Unanswered reads of the peer, oldest first; `None`: a read that is refused.
#[derive(Default)]
pub struct Answers(VecDeque<Option<Segment>>);

impl Answers {
    /// Number of unanswered reads.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets all reads, because the connection is over.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a read; `None`: it is refused. `false`: the peer has more than `most` reads in flight, which no queue holds.
    pub fn push(&mut self, from: Option<Segment>, most: usize) -> bool {
        self.0.push_back(from);
        self.0.len() <= most
    }

    /// Sends answers, as far as there is room. `read` copies the bytes, as they are now; `false`: the peer may not read them any more.
    ///
    /// # Errors
    /// As [`send`].
    pub fn send(
        &mut self,
        vi: &mut Option<Vi>,
        nic: &Nic,
        read: impl Fn(Segment, &mut [u8]) -> bool,
    ) -> Result<(), Stop> {
        let head = Head::plain(frame::DATA);
        let mut answered = 0;
        while let Some(from) = self.0.front().copied() {
            // Without this bound a peer that reads as fast as this end copies would keep the thread here.
            if answered >= ANSWER_BOUND {
                return Err(Stop::Busy);
            }
            let sent = from.map(|from| {
                answered += from.len as usize;
                send_filled(vi, nic, head, &frame::data_head(false), from.len as usize, |to| read(from, to))
            });
            if let None | Some(Err(Stop::Bad)) = sent {
                send(vi, head, &frame::data_head(true))?;
            } else if let Some(Err(why)) = sent {
                return Err(why);
            }
            self.0.pop_front();
        }
        Ok(())
    }
}

/// Calls `take` with a frame: its head with the beginning of its body, and the rest of the body. `None`: the arrival is no frame,
/// because no window is exposed to anybody, and a confirmation has no bytes.
pub fn with_frame<R>(arrival: &Arrival, take: impl FnOnce(&[u8], &[&[u8]]) -> R) -> Option<R> {
    match &arrival.body {
        Body::Inline(bytes) => Some(take(bytes.bytes(), &[])),
        Body::Lent(head, lent) => {
            let mut parts: [&[u8]; Lent::MAX_PARTS] = [&[]; Lent::MAX_PARTS];
            for (place, part) in parts.iter_mut().zip(lent.parts()) {
                *place = part;
            }
            Some(take(head.bytes(), &parts))
        }
        Body::Written(_) => None,
    }
}

/// Returns a body in one piece; `whole` stores it if it came in several. (The transport decides how many.)
pub fn flat<'a>(body: &'a [u8], rest: &[&'a [u8]], whole: &'a mut Vec<u8>) -> &'a [u8] {
    let mut parts = std::iter::once(body).chain(rest.iter().copied()).filter(|part| !part.is_empty());
    match (parts.next(), parts.next()) {
        (one, None) => one.unwrap_or(&[]),
        _ => {
            *whole = [&[body], rest].concat().concat();
            whole
        }
    }
}
