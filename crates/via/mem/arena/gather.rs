//! Copies of posted memory, for a device in front of another one that sends something else in its place.

use std::ptr::NonNull;

use super::{Arena, ArenaInner, Block, Fill};
use crate::error::{Error, Result};

impl Arena {
    /// A block that holds the bytes of `segments` (offset and length) at this moment.
    ///
    /// # Errors
    /// Those of [`Arena::block`]; [`Error::InvalidParameter`] when a segment is no memory that a block can be.
    pub fn gather(&self, segments: &[(u64, usize)]) -> Result<Block> {
        let mut block = self.block(segments.iter().map(|segment| segment.1).sum(), Fill::Keep)?;
        let own = block.offset()..block.offset() + block.capacity() as u64;
        let mut to = block.bytes_mut();
        for &(offset, len) in segments {
            let elsewhere = offset >= own.end || offset.saturating_add(len as u64) <= own.start;
            let from = self.inner().committed_at(offset, len).filter(|_| elsewhere).ok_or_else(|| {
                Error::InvalidParameter(format!("{len} bytes at {offset} are not allocated in this arena"))
            })?;
            let (piece, rest) = to.split_at_mut(len);
            // SAFETY: `committed_at` found `len` readable bytes, and they are not the new block's. Whoever owns them has
            // posted them and does not write there; `copy_in` would allow for one who does.
            unsafe { udeck_sys::copy_in(piece, from) };
            to = rest;
        }
        Ok(block)
    }
}

impl ArenaInner {
    /// The address of `[offset, offset + len)`, if its memory was taken from the kernel.
    fn committed_at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        if end > self.backing.len() {
            return None;
        }
        let state = self.state.lock();
        let committed = state.first_uncommitted(offset, end).is_none();
        // SAFETY: the range lies inside the backing.
        committed.then(|| unsafe { self.backing.base().add(offset) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::arena::LINE;
    use crate::mem::arena::tests::arena;

    #[test]
    fn pieces_are_gathered_in_order() {
        let arena = arena(64);
        let (mut one, mut two) = (arena.block(5, Fill::Zero).unwrap(), arena.block(100, Fill::Zero).unwrap());
        one.bytes_mut().copy_from_slice(b"first");
        two.bytes_mut()[10..16].copy_from_slice(b"second");
        let copy = arena.gather(&[(one.offset(), 5), (two.offset() + 10, 6), (two.offset(), 0)]).unwrap();
        assert_eq!(copy.bytes(), b"firstsecond");
        assert!(arena.gather(&[]).unwrap().is_empty());
    }

    #[test]
    fn what_no_block_can_be_is_refused() {
        let arena = arena(64);
        let freed = arena.block(64, Fill::Zero).unwrap().offset();
        // One segment ends past the arena, one past all numbers, and one is the very memory that the copy gets, because it
        // was freed last.
        for (offset, len) in [(64 * LINE as u64 - 1, 2), (u64::MAX, 2), (freed, 64)] {
            let error = arena.gather(&[(offset, len)]).unwrap_err();
            assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
        }
    }
}
