//! `eager`: a short message travels inside its descriptor; a longer one is copied into the library's memory
//! when it is posted, and out of it when it is retrieved.
//!
//! Nothing is announced. The poster's own memory is free at once. Without hand-off (over a network) the
//! transport gives the receiver a copy of its own anyway, so a longer message is sent from where it lies
//! (`protocol::auto`).

use udeck_via::mem::Fill;
use udeck_via::transport::Inline;
use udeck_via::{Error as ViaError, LentSlice};

use super::MAX_INLINE;
use super::message_block::MessageBlock;
use super::side::{RecvSide, SendSide, is_busy};
use crate::parcel::{Parcel, Stored};
use crate::stats::Counters;
use crate::wire::{self, HEAD_BYTES, Kind};
use crate::world_state::WorldState;

// ---- the poster's side ----

/// Posts a message of at most [`MAX_INLINE`] bytes, and counts it. `false`: there is no room for it, or there
/// is an error, which [`send`] will report.
#[inline(always)]
pub(crate) fn post_short(side: &mut SendSide, bytes: &[u8], tag: u32) -> bool {
    let sent = side.vi.send_short(tag, wire::head(Kind::Eager, 0), bytes);
    if sent {
        let counters = &*side.counters;
        counters.copied(bytes.len());
        counters.posted(bytes.len());
    }
    sent
}

/// Posts messages of `each` bytes that lie one after another in `bytes`, like [`post_short`]. Returns how
/// many were posted.
pub(crate) fn post_short_run(side: &mut SendSide, bytes: &[u8], each: usize) -> usize {
    let sent = side.vi.send_short_run(0, wire::head(Kind::Eager, 0), bytes, each);
    side.counters.copied(sent * each);
    side.counters.posted_run(sent, each);
    sent
}

/// Sends a message of any length. If there is no room, the caller can post it again.
pub(crate) fn send(side: &mut SendSide, message: &MessageBlock) -> Result<(), ViaError> {
    if message.len() > MAX_INLINE {
        return side.send_bounced(message, 0..message.len(), Kind::Eager);
    }
    send_short(side, message.bytes(), message.tag())
}

/// Sends a message of at most [`MAX_INLINE`] bytes, like [`post_short`], and returns the error if it cannot.
pub(crate) fn send_short(side: &mut SendSide, bytes: &[u8], tag: u32) -> Result<(), ViaError> {
    side.vi.send_inline(Some(tag), &wire::head(Kind::Eager, 0), bytes)?;
    side.counters.copied(bytes.len());
    Ok(())
}

/// A short message in the queue: it needs no memory of the library.
#[derive(Clone, Copy)]
pub(crate) struct ShortSend {
    bytes: [u8; MAX_INLINE],
    len: u8,
    tag: u32,
}

impl ShortSend {
    /// Copies `bytes`, at most [`MAX_INLINE`].
    pub fn new(bytes: &[u8], tag: u32) -> Self {
        let mut copy = [0; MAX_INLINE];
        copy[..bytes.len()].copy_from_slice(bytes);
        ShortSend { bytes: copy, len: bytes.len() as u8, tag }
    }

    /// The message's length in bytes.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub fn send(&self, side: &mut SendSide) -> Result<(), ViaError> {
        send_short(side, &self.bytes[..self.len()], self.tag)
    }
}

/// An `eager` message in the queue. While it waits for room, it is not copied again at each try.
pub(crate) struct EagerSend {
    pub block: MessageBlock,
    /// Whether `block` is the copy that is sent.
    is_copy: bool,
}

impl EagerSend {
    pub fn new(block: MessageBlock) -> Self {
        EagerSend { block, is_copy: false }
    }

    /// Bytes that have to be copied into other memory before the message can be sent; 0 if none.
    pub fn next_copy(&self) -> usize {
        if self.is_copy || self.block.len() <= MAX_INLINE { 0 } else { self.block.len() }
    }

    /// The message as a [`ShortSend`], if it is short.
    pub fn shortened(&self) -> Option<ShortSend> {
        let is_short = self.block.len() <= MAX_INLINE;
        is_short.then(|| ShortSend::new(self.block.bytes(), self.block.tag()))
    }

    /// Sends the message. If there is no memory for the copy, and `others_wait` (their memory may be what is
    /// short), the message is sent from where it lies: that memory is the library's already.
    pub fn advance(self, side: &mut SendSide, others_wait: bool) -> Result<(), (ViaError, Self)> {
        if self.block.len() <= MAX_INLINE {
            return send(side, &self.block).map_err(|error| (error, self));
        }
        if self.is_copy {
            let lent = self.block.lend(&mut side.vi, Kind::Eager);
            return lent.map_err(|(error, block)| (error, EagerSend { block, is_copy: true }));
        }
        let mut copy = match side.bounce(self.block.bytes()) {
            Ok(copy) => copy,
            Err(ViaError::NoMemory { .. }) if others_wait => {
                let lent = self.block.lend(&mut side.vi, Kind::Eager);
                return lent.map_err(|(error, block)| (error, EagerSend { block, is_copy: false }));
            }
            Err(error) => return Err((error, self)),
        };
        copy.set_notes([self.block.tag(), 0]);
        side.counters.copied(copy.len());
        match MessageBlock::Own(copy).lend(&mut side.vi, Kind::Eager) {
            Ok(()) => Ok(()),
            Err((error, copy)) if is_busy(&error) => Err((error, EagerSend { block: copy, is_copy: true })),
            // The post that brought the message may still be running, and then gives it back: the original,
            // not the copy.
            Err((error, _)) => Err((error, self)),
        }
    }
}

// ---- the mailbox's side ----

/// Makes a parcel of a short message, which follows its head.
#[inline]
pub(crate) fn receive_short(side: &RecvSide, inline: Inline, tag: u32, counters: &Counters) -> Parcel {
    counters.copied(inline.len() - HEAD_BYTES);
    side.parcel(tag, Stored::Inline(inline))
}

/// Makes a parcel of a longer message, which is copied out of the sender's memory. Without memory for the
/// copy, it stays there.
pub(crate) fn receive(
    side: &RecvSide,
    lent: LentSlice,
    tag: u32,
    world: &WorldState,
    counters: &Counters,
) -> Parcel {
    let stored = match world.allocate(lent.len(), Fill::Keep) {
        Err(_) => Stored::Lent(lent),
        Ok(mut block) => {
            block.bytes_mut().copy_from_slice(&lent);
            counters.copied(lent.len());
            Stored::Owned(block)
        }
    };
    side.parcel(tag, stored)
}
