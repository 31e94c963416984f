//! Posting by address, without giving the buffer away: for the C interfaces and for those who keep their own
//! books.

use std::ptr::NonNull;

use crate::descriptor::{RawId, ReceiveInto};
use crate::error::{Error, Result};
use crate::vi::Vi;

/// A piece of registered memory by address.
#[derive(Clone, Copy, Debug)]
pub struct RawSegment {
    /// First byte, inside a [`crate::Region`] of the same NIC.
    pub address: NonNull<u8>,
    /// Bytes.
    pub len: usize,
}

// SAFETY: an address and a length; whoever posts them has promised what may be done with the memory, on any thread.
unsafe impl Send for RawSegment {}

impl Vi {
    /// Posts a send of memory that stays the caller's. Reported by [`Vi::send_done`] under `id`.
    ///
    /// # Safety
    /// From now until the send is reported done (or this VI has been dropped and its connection is over) the
    /// segments stay allocated and nobody writes them.
    ///
    /// # Errors
    /// As [`Vi::post_send`]; [`Error::InvalidParameter`] when a segment is not memory of this NIC.
    pub unsafe fn post_send_raw(
        &mut self,
        segments: &[RawSegment],
        immediate: Option<u32>,
        id: u64,
    ) -> Result {
        let arena = self.nic().device().outbox().clone();
        let located: Option<Vec<_>> =
            segments.iter().map(|s| Some((arena.offset_of(s.address, s.len)?, s.len))).collect();
        let Some(located) = located else {
            return Err(Error::InvalidParameter("a raw segment is not registered memory of this NIC".into()));
        };
        self.post_located(&located, immediate, RawId(id))
    }

    /// Posts a receive into memory that stays the caller's. Reported by [`Vi::receive_done`] under `id`.
    ///
    /// # Safety
    /// From now until the receive is reported done (or this VI has been dropped) the segments stay allocated,
    /// and nobody else reads or writes them.
    ///
    /// # Errors
    /// As [`Vi::post_receive`].
    pub unsafe fn post_receive_raw(&mut self, segments: &[RawSegment], id: u64) -> Result {
        self.post_receive_into(ReceiveInto::Raw { segments: segments.to_vec(), id: RawId(id) })
    }
}

/// Copies `from`'s pieces into raw segments, as far as they reach. Returns the bytes that did not fit.
///
/// The segments are valid for writes because [`Vi::post_receive_raw`] was promised so.
pub(crate) fn scatter_raw<'a>(segments: &[RawSegment], from: impl Iterator<Item = &'a [u8]>) -> usize {
    let mut room = segments.iter().copied();
    let mut current = room.next();
    let mut left_over = 0;
    for mut piece in from {
        while !piece.is_empty() {
            let Some(segment) = &mut current else {
                left_over += piece.len();
                break;
            };
            let n = piece.len().min(segment.len);
            // SAFETY: `segment` is writable for `len >= n` bytes and untouched by others until reported done, as
            // `post_receive_raw` was promised; `piece` is a live slice; a receive buffer is no message in flight.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), segment.address.as_ptr(), n);
                segment.address = segment.address.add(n);
            }
            segment.len -= n;
            piece = &piece[n..];
            if segment.len == 0 {
                current = room.next();
            }
        }
    }
    left_over
}
