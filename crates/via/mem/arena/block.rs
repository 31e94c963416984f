//! Blocks: owned pieces of an arena, and their return to it.

use std::fmt;
use std::ptr::NonNull;

use super::{ArenaInner, LINE, Record};

/// A piece of an outbox arena, owned: 64-byte aligned, readable by peers once it is posted, written by us alone.
///
/// A handle of 8 bytes. Freed when dropped.
pub struct Block {
    record: NonNull<Record>,
}

// SAFETY: a block owns its bytes and its record; the arena it returns to is thread-safe.
unsafe impl Send for Block {}
// SAFETY: `&Block` only reads.
unsafe impl Sync for Block {}

impl Block {
    #[inline]
    pub(super) fn new(record: Box<Record>) -> Self {
        Block { record: NonNull::from(Box::leak(record)) }
    }

    #[inline]
    pub(super) fn record(&self) -> &Record {
        // SAFETY: the record lives as long as the block, which owns it.
        unsafe { self.record.as_ref() }
    }

    #[inline]
    pub(super) fn record_mut(&mut self) -> &mut Record {
        // SAFETY: as above, and `&mut self` makes it exclusive.
        unsafe { self.record.as_mut() }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.record().len
    }

    /// Whether the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Upper bound of the length in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.record().capacity
    }

    /// Sets the length in bytes. Bytes beyond the old length are those that this process left there last.
    ///
    /// # Panics
    /// When `len` is beyond the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} beyond the capacity {}", self.capacity());
        self.record_mut().len = len;
    }

    /// Two words for the layer above; zero in a new block. They do not travel.
    #[inline]
    pub fn notes(&self) -> [u32; 2] {
        self.record().notes
    }

    /// Sets [`Block::notes`].
    #[inline]
    pub fn set_notes(&mut self, notes: [u32; 2]) {
        self.record_mut().notes = notes;
    }

    /// The block's offset in its arena.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.record().offset
    }

    /// The block's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let record = self.record();
        // SAFETY: the block owns `[base, base + capacity)` of its arena, always initialised (zeroed by the
        // kernel, written by us); peers can only read it.
        unsafe { std::slice::from_raw_parts(record.base.as_ptr(), record.len) }
    }

    /// The block's bytes.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let record = self.record_mut();
        // SAFETY: as in `bytes`, and exclusive.
        unsafe { std::slice::from_raw_parts_mut(record.base.as_ptr(), record.len) }
    }

    pub(in crate::mem) fn base(&self) -> NonNull<u8> {
        self.record().base
    }

    #[inline]
    pub(super) fn zero(&mut self) {
        let record = self.record_mut();
        if record.len <= LINE {
            // A whole line takes a few stores; the exact length would take a call.
            // SAFETY: as in `bytes_mut`; no block has less than a line.
            unsafe { record.base.cast::<[u8; LINE]>().write([0; LINE]) };
        } else {
            self.bytes_mut().fill(0);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} of {} bytes at {})", self.len(), self.capacity(), self.offset())
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let inner = self.record().inner;
        // SAFETY: the block owns its record, made by [`Block::new`].
        let record = unsafe { Box::from_raw(self.record.as_ptr()) };
        let put = match record.class {
            // SAFETY: the arena's memory goes with its last block at the earliest, and this is one until it is put; the
            // reference is to atomics only, so it may outlive them unused.
            Some(class) => unsafe { &(*inner.as_ptr()).thread_caches }.put(class, record),
            None => Err(record),
        };
        if let Err(record) = put {
            free_slow(inner, record);
        }
    }
}

/// Returns a block that no thread cache takes to its arena.
#[cold]
fn free_slow(inner: NonNull<ArenaInner>, record: Box<Record>) {
    // SAFETY: the arena's memory goes with its last block at the earliest, and this is one.
    let last = unsafe { inner.as_ref() }.take_back(record);
    if last {
        // SAFETY: the arena's handle is gone and no other block is left.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }
}
