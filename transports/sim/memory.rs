//! Outbox and landing arena: heap memory, shared by the arena that hands it out and those who read lent buffers.

#![allow(unsafe_code, reason = "memory that the NIC at the other end reads or writes")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use udeck_via::mem::{Arena, Backing, LentSlice, PrivateCopy};

const ALIGN: usize = 64;
/// Alignment that the system's allocator has by default. Only with it, the allocator takes fresh pages from the
/// kernel, which are zero already, instead of clearing a whole arena of which a test uses one page.
const CHEAP_ALIGN: usize = 16;
const REMEDY: &str = "post less at a time, drop received messages sooner, or raise DECK_ARENA";

/// Zeroed memory at a 64-byte aligned address.
#[derive(Debug)]
pub struct Memory {
    allocation: NonNull<u8>,
    layout: Layout,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an allocation of our own; arenas, windows and loans decide who may access which bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(len: usize) -> Arc<Self> {
        let layout =
            Layout::from_size_align(len + ALIGN, CHEAP_ALIGN).expect("an arena fits the address space");
        // SAFETY: the layout is not empty.
        let Some(allocation) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        // SAFETY: aligning moves by less than `ALIGN`, which the allocation has in excess.
        let base = unsafe { allocation.add(allocation.align_offset(ALIGN)) };
        Arc::new(Memory { allocation, layout, base, len })
    }

    /// Returns the address of a piece.
    pub fn at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the allocation, just checked.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and freed here only.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) };
    }
}

struct BackingMemory(Arc<Memory>);

// SAFETY: `Memory` is valid, 64-byte aligned and zeroed for `len` bytes while an `Arc` lives; inside the fabric only
// RDMA accesses it, in landing memory, of which the arena makes no slices.
unsafe impl Backing for BackingMemory {
    fn base(&self) -> NonNull<u8> {
        self.0.base
    }
    fn len(&self) -> usize {
        self.0.len
    }
    fn commit(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }
}

/// Makes the outbox: messages are sent from it.
pub fn outbox(memory: &Arc<Memory>) -> Arc<Arena> {
    Arc::new(Arena::new("outbox", REMEDY, false, Box::new(BackingMemory(memory.clone()))))
}

/// Makes the landing arena: peers write it.
pub fn landing(memory: &Arc<Memory>) -> Arc<Arena> {
    Arc::new(Arena::new("landing", REMEDY, true, Box::new(BackingMemory(memory.clone()))))
}

/// Copies pieces of `from`, one after another, to `offset` of `to`. Returns `false`, and copies nothing, when a
/// piece or the target lies outside.
pub fn write_remote(from: &Memory, pieces: &[(u64, usize)], to: &Memory, offset: u64) -> bool {
    let total = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.1));
    let target = total.and_then(|total| to.at(offset, total));
    let sources: Option<Vec<_>> =
        pieces.iter().map(|&(offset, len)| Some((from.at(offset, len)?, len))).collect();
    let (Some(mut target), Some(sources)) = (target, sources) else { return false };
    for (source, len) in sources {
        // SAFETY: both checked above; different allocations. The source belongs to blocks that the caller holds, the
        // target to a window, of which nobody has a slice: it is read by racy copies only.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), len);
            target = target.add(len);
        }
    }
    true
}

/// Copies `from` to `offset` of `to`. Returns `false`, and copies nothing, when the target lies outside.
pub fn write_copy(from: &LentSlice, to: &Memory, offset: u64) -> bool {
    let Some(target) = to.at(offset, from.len()) else { return false };
    // SAFETY: checked above; a private copy is another allocation than the target, which is a window's, of which
    // nobody has a slice: it is read by racy copies only.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), target.as_ptr(), from.len()) };
    true
}

/// Copies `len` bytes at `offset` of exposed memory; `None` when they lie outside.
pub fn snapshot(from: &Memory, offset: u64, len: usize) -> Option<LentSlice> {
    let at = from.at(offset, len)?;
    // SAFETY: inside the allocation, just checked; the bytes belong to a window, which its program may be writing at
    // this moment, or to a block that nobody writes.
    Some(unsafe { PrivateCopy::take(&[(at, len)]) })
}

/// Copies `bytes` to pieces of `to`, one after another. Returns `false`, and copies nothing, when the pieces
/// together have another length, or one lies outside.
pub fn scatter(bytes: &[u8], to: &Memory, pieces: &[(u64, usize)]) -> bool {
    let total = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.1));
    let targets: Option<Vec<_>> =
        pieces.iter().map(|&(offset, len)| Some((to.at(offset, len)?, len))).collect();
    let Some(targets) = targets.filter(|_| total == Some(bytes.len())) else { return false };
    let mut rest = bytes;
    for (target, len) in targets {
        let (piece, later) = rest.split_at(len);
        // SAFETY: inside the allocation, checked above; the target belongs to blocks that the caller owns and nobody
        // else reads or writes (`ViEndpoint::rdma_read`), and `piece` is a private copy: another allocation.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), target.as_ptr(), len) };
        rest = later;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_bounded() {
        for len in [64, 4096, (1 << 20) + 64] {
            let memory = Memory::new(len);
            assert!(memory.base.addr().get().is_multiple_of(ALIGN));
            let outbox = outbox(&memory);
            let block = outbox.block(len / 2, udeck_via::mem::Fill::Keep).unwrap();
            assert!(block.bytes().iter().all(|&byte| byte == 0));
            assert!(memory.at(0, len).is_some() && memory.at(len as u64, 0).is_some());
            assert!(memory.at(1, len).is_none() && memory.at(u64::MAX, 2).is_none());
        }
    }

    #[test]
    fn a_remote_write_outside_copies_nothing() {
        let (from, to) = (Memory::new(128), Memory::new(128));
        outbox(&from).block(128, udeck_via::mem::Fill::Zero).unwrap().bytes_mut().fill(7);
        for (pieces, offset) in [(&[(0, 64), (100, 64)][..], 0), (&[(0, 64)], 65), (&[(0, 64)], u64::MAX)] {
            assert!(!write_remote(&from, pieces, &to, offset));
        }
        let seen = outbox(&to).block(128, udeck_via::mem::Fill::Keep).unwrap();
        assert!(seen.bytes().iter().all(|&byte| byte == 0));
        assert!(write_remote(&from, &[(0, 64), (64, 64)], &to, 0));
        assert!(seen.bytes().iter().all(|&byte| byte == 7));
        let zeros = snapshot(&Memory::new(64), 0, 64).unwrap();
        for offset in [65, 129, u64::MAX] {
            assert!(!write_copy(&zeros, &to, offset));
        }
        assert!(seen.bytes().iter().all(|&byte| byte == 7));
        assert!(write_copy(&zeros, &to, 64));
        assert_eq!(seen.bytes(), [[7; 64], [0; 64]].concat());
    }

    #[test]
    fn bytes_are_scattered_into_what_holds_them_only() {
        let (from, to) = (Memory::new(128), Memory::new(128));
        outbox(&from).block(128, udeck_via::mem::Fill::Zero).unwrap().bytes_mut()[64..].fill(7);
        assert!(snapshot(&from, 65, 64).is_none() && snapshot(&from, u64::MAX, 64).is_none());
        let bytes = snapshot(&from, 64, 64).unwrap();
        for pieces in [&[(0, 32), (100, 32)][..], &[(0, 63)], &[(0, 65)], &[(u64::MAX, 64)]] {
            assert!(!scatter(&bytes, &to, pieces));
        }
        assert!(to_vec(&to).iter().all(|&byte| byte == 0));
        assert!(scatter(&bytes, &to, &[(96, 32), (0, 32)]));
        assert_eq!(to_vec(&to), [[7; 32], [0; 32], [0; 32], [7; 32]].concat());
    }

    fn to_vec(memory: &Arc<Memory>) -> Vec<u8> {
        outbox(memory).block(128, udeck_via::mem::Fill::Keep).unwrap().bytes().to_vec()
    }
}
