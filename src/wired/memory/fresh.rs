//! Anonymous memory for a NIC that is alone in its process.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use udeck_via::Arena;
use udeck_via::mem::Backing;

const REMEDY: &str = "post less at a time, drop received messages sooner, or raise DECK_ARENA";

/// A mapping of zeros, which takes memory as it is written.
pub struct Anonymous {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping of our own; who may touch which bytes is the business of the arena and the windows.
unsafe impl Send for Anonymous {}
// SAFETY: as above.
unsafe impl Sync for Anonymous {}

// SAFETY: mapped, page-aligned and zeroed by the kernel until dropped; only this process sees it, and of landing memory
// the arena makes no slices.
unsafe impl Backing for Anonymous {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
    /// Private memory is taken on first use.
    fn commit(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }
}

impl Anonymous {
    pub fn new(len: usize) -> io::Result<Box<Self>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let at =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let base = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Box::new(Anonymous { base, len }))
    }

    /// Where it begins.
    pub fn start(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the arena, which goes with its last block, has owned it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

pub fn outbox(limit: usize) -> io::Result<Arc<Arena>> {
    Ok(Arc::new(Arena::new("outbox", REMEDY, false, Anonymous::new(limit)?)))
}

pub fn landing(limit: usize) -> io::Result<Arc<Arena>> {
    Ok(Arc::new(Arena::new("landing", REMEDY, true, Anonymous::new(limit)?)))
}
