//! Anonymous memory for a NIC that is alone in its process.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use udeck_via::Arena;
use udeck_via::mem::Backing;

const REMEDY: &str = "post less at a time, drop received messages sooner, or raise DECK_ARENA";

/// An anonymous mapping of zeros, which takes memory as it is written.
pub struct Anonymous {
    memory: MmapRaw,
    base: NonNull<u8>,
}

// SAFETY: the mapping is our own; the arena and the windows decide which thread may touch which bytes.
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
        self.memory.len()
    }
    /// Private memory is taken on first use.
    fn commit(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }
}

impl Anonymous {
    pub fn new(len: usize) -> io::Result<Box<Self>> {
        // Reserves address space only: an arena is larger than what is written of it.
        let memory = MmapRaw::from(MmapOptions::new().len(len).no_reserve_swap().map_anon()?);
        let base = NonNull::new(memory.as_mut_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Box::new(Anonymous { memory, base }))
    }

    /// First byte of the mapping.
    pub fn start(&self) -> NonNull<u8> {
        self.base
    }
}

pub fn outbox(limit: usize) -> io::Result<Arc<Arena>> {
    Ok(Arc::new(Arena::new("outbox", REMEDY, false, Anonymous::new(limit)?)))
}

pub fn landing(limit: usize) -> io::Result<Arc<Arena>> {
    Ok(Arc::new(Arena::new("landing", REMEDY, true, Anonymous::new(limit)?)))
}

#[cfg(test)]
mod tests {
    use udeck_via::mem::Fill;

    use super::*;

    #[test]
    fn memory_that_is_short_names_the_setting_that_bounds_it() {
        let error = outbox(1 << 20).unwrap().block(2 << 20, Fill::Keep).unwrap_err().to_string();
        assert!(error.contains("DECK_ARENA") && !error.contains("NIC"), "{error}");
    }
}
