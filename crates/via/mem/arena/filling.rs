//! Blocks for messages that a peer has announced: memory is taken for the bytes that have come, not for the announced length.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::{Arena, ArenaInner, Block, Commit, LARGEST_CLASS, class_of};
use crate::error::{Error, Result};

/// A block that is filled as bytes come. Its address space is reserved, and counts as used; memory is taken from the kernel
/// for the parts that are asked for, in chunks of 2 MiB, without the arena's lock. There is no slice of bytes without memory,
/// because their use could end the process by a signal. All fillings of an arena are at most half of it: peers that announce
/// much, or whose messages are not taken, leave the other half to this process's own messages.
#[derive(Debug)]
pub struct Filling {
    block: Block,
    /// Bytes at the front that have memory, of the block's capacity.
    ready: usize,
}

impl Arena {
    /// Reserves room for `len` bytes, as [`Arena::block`] does. Memory that it has not yet is taken later.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`] as for [`Arena::block`], and when half of the arena is reserved.
    ///
    /// # Panics
    /// On a landing arena.
    #[inline]
    pub fn reserve(&self, len: usize) -> Result<Filling> {
        assert!(!self.inner().peers_write, "landing memory has no private blocks");
        let arriving = self.inner().reserve_arrival(len)?;
        let block =
            self.obtain(len, Commit::Later, false).inspect_err(|_| self.inner().release_arrival(arriving))?;
        let mut filling = Filling { ready: block.capacity(), block };
        // A block of a class has its memory; any other is large, or new.
        if filling.block.record().class.is_none() {
            filling.ready = 0;
            filling.update_ready();
        }
        Ok(filling)
    }
}

impl Filling {
    /// Length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "room is asked for something")]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Bytes at the front that have memory, of the length.
    #[inline]
    pub fn ready(&self) -> usize {
        self.ready.min(self.len())
    }

    /// Address of the first byte. Only bytes that are ready, or were taken by [`Filling::take`], may be used.
    #[inline]
    pub fn base(&mut self) -> NonNull<u8> {
        self.block.base()
    }

    /// The bytes that are ready.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the block owns that, it has memory, and it is initialised, as `Block::bytes` says. Whoever writes by way
        // of `base` has no slice meanwhile.
        unsafe { std::slice::from_raw_parts(self.block.base().as_ptr(), self.ready()) }
    }

    /// The bytes that are ready, for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and we have the block exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.block.base().as_ptr(), self.ready()) }
    }

    /// The block's offset in the arena.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.block.offset()
    }

    /// Makes the first `upto` bytes ready, and maybe more.
    ///
    /// # Errors
    /// Errors of the kernel.
    ///
    /// # Panics
    /// When `upto` is beyond the length.
    #[inline]
    pub fn grow(&mut self, upto: usize) -> Result {
        if upto <= self.ready { Ok(()) } else { self.grow_further(upto) }
    }

    #[cold]
    fn grow_further(&mut self, upto: usize) -> Result {
        self.take(self.ready, upto)?;
        self.update_ready();
        Ok(())
    }

    /// Takes memory for `[from, to)`, anywhere in the block.
    ///
    /// # Errors
    /// Errors of the kernel.
    ///
    /// # Panics
    /// When `to` is beyond the length.
    pub fn take(&mut self, from: usize, to: usize) -> Result {
        assert!(from <= to && to <= self.len(), "{from} to {to} of {} bytes", self.len());
        if to <= self.ready {
            return Ok(());
        }
        let (start, end) = self.block.record().range();
        // Memory of the block beyond its length is taken with its end, so that the block can be kept for reuse.
        let to = if to == self.len() { end } else { start + to };
        self.inner().commit_memory(start + from, to)
    }

    /// Updates the number of bytes that have memory.
    fn update_ready(&mut self) {
        let (start, end) = self.block.record().range();
        self.ready = self.inner().committed_from(start + self.ready, end) - start;
        let len = self.len();
        if start + self.ready == end && len <= LARGEST_CLASS {
            self.block.record_mut().class = Some(class_of(len));
        }
    }

    fn inner(&self) -> &ArenaInner {
        // SAFETY: the arena's memory goes with its last block at the earliest, and this is one.
        unsafe { self.block.record().inner.as_ref() }
    }
}

impl Drop for Filling {
    #[inline]
    fn drop(&mut self) {
        self.inner().release_arrival(self.len());
    }
}

impl ArenaInner {
    /// Counts `len` bytes as reserved for arrivals.
    #[inline]
    fn reserve_arrival(&self, len: usize) -> Result<usize> {
        let before = self.arriving.fetch_add(len, Ordering::Relaxed);
        if before.saturating_add(len) <= self.backing.len() / 2 {
            return Ok(len);
        }
        self.release_arrival(len);
        Err(self.no_half(len, before))
    }

    #[cold]
    fn no_half(&self, asked: usize, used: usize) -> Error {
        let limit = self.backing.len() / 2;
        let full = format!("{used} of {limit} bytes, half of the arena, are reserved for arriving messages");
        Error::NoMemory { asked, used, limit, arena: self.name, full, remedy: self.remedy }
    }

    #[inline]
    fn release_arrival(&self, len: usize) {
        self.arriving.fetch_sub(len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use crate::mem::arena::{Backing, Fill};
    use udeck_sys::segment::CHUNK;

    /// Address space of the heap, and a count of the chunks that were asked for.
    struct CountingBacking {
        memory: Vec<[u64; 8]>,
        asked: Arc<AtomicUsize>,
        /// Upper bound of chunks that there is memory for.
        most: usize,
    }

    // SAFETY: heap memory of our own; 8-byte alignment suffices for these tests, which ask no more.
    unsafe impl Backing for CountingBacking {
        fn base(&self) -> NonNull<u8> {
            NonNull::from(&self.memory[..]).cast()
        }
        fn len(&self) -> usize {
            self.memory.len() * 64
        }
        fn commit(&self, _: usize, _: usize) -> io::Result<()> {
            thread::yield_now();
            match self.asked.fetch_add(1, Ordering::Relaxed) < self.most {
                true => Ok(()),
                false => Err(io::ErrorKind::OutOfMemory.into()),
            }
        }
    }

    fn arena(chunks: usize, most: usize) -> (Arena, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let memory = vec![[0; 8]; chunks * CHUNK / 64];
        let backing = CountingBacking { memory, asked: asked.clone(), most };
        (Arena::new("test", "free something", false, Box::new(backing)), asked)
    }

    #[test]
    fn memory_is_taken_for_what_has_come() {
        let (arena, asked) = arena(20, 20);
        let mut filling = arena.reserve(10 * CHUNK).unwrap();
        assert_eq!((asked.load(Ordering::Relaxed), filling.ready()), (0, 0));
        assert_eq!(arena.usage().used, 10 * CHUNK, "the arena's bound counts what is reserved");
        filling.grow(1).unwrap();
        assert_eq!((asked.load(Ordering::Relaxed), filling.ready()), (1, CHUNK));
        filling.take(7 * CHUNK - 1, 7 * CHUNK + 1).unwrap();
        assert_eq!((asked.load(Ordering::Relaxed), filling.bytes().len()), (3, CHUNK));
        filling.grow(5 * CHUNK + 1).unwrap();
        assert_eq!((asked.load(Ordering::Relaxed), filling.ready()), (8, 8 * CHUNK));
        drop(filling);
        assert_eq!(arena.usage().used, 0);
        let filling = arena.reserve(10 * CHUNK).unwrap();
        assert_eq!(filling.ready(), 8 * CHUNK, "what was taken stays");
        drop(filling);
        assert_eq!(arena.block(10 * CHUNK, Fill::Keep).unwrap().len(), 10 * CHUNK);
        assert_eq!(asked.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn what_arrives_has_half_of_the_arena() {
        let (arena, _) = arena(8, 8);
        let first = arena.reserve(3 * CHUNK).unwrap();
        let error = arena.reserve(CHUNK + 1).unwrap_err().to_string();
        assert!(error.contains("half of the arena"), "{error}");
        let second = arena.reserve(CHUNK).unwrap();
        assert!(arena.block(4 * CHUNK, Fill::Keep).is_ok(), "the other half is for what is sent");
        drop((first, second));
        assert!(arena.reserve(4 * CHUNK).is_ok());
    }

    #[test]
    fn what_is_kept_for_reuse_has_its_memory() {
        let (arena, asked) = arena(8, 8);
        drop(arena.reserve(100).unwrap());
        let block = arena.block(100, Fill::Keep).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 1, "the reserved one was not kept as if it had memory");
        drop(block);
        assert_eq!(arena.reserve(100).unwrap().ready(), 100);
        // The length is three quarters of the capacity: a full block has memory for all of the capacity.
        let mut filling = arena.reserve(CHUNK + CHUNK / 4).unwrap();
        filling.grow(CHUNK + CHUNK / 4).unwrap();
        let at = filling.base();
        drop(filling);
        let again = arena.block(CHUNK + CHUNK / 2, Fill::Zero).unwrap();
        assert_eq!((again.base(), asked.load(Ordering::Relaxed)), (at, 2));
    }

    #[test]
    fn no_memory_is_an_error_that_passes() {
        let (arena, asked) = arena(8, 1);
        let mut filling = arena.reserve(2 * CHUNK).unwrap();
        filling.grow(CHUNK).unwrap();
        assert!(filling.grow(CHUNK + 1).is_err());
        assert_eq!(filling.bytes().len(), CHUNK);
        let error = arena.block(CHUNK, Fill::Keep).unwrap_err().to_string();
        assert!(error.contains("taking memory for the test arena"), "{error}");
        assert_eq!((arena.usage().blocks, arena.usage().used), (1, 2 * CHUNK));
        drop(filling);
        assert_eq!(arena.usage().used, 0);
        asked.store(0, Ordering::Relaxed);
        arena.reserve(2 * CHUNK).unwrap().grow(CHUNK + 1).unwrap();
    }

    #[test]
    fn threads_that_need_one_chunk_take_it_once() {
        const THREADS: usize = 4;
        // Each thread reserves at most two chunks at a time, and what arrives has half of the arena.
        let chunks = 2 * 2 * THREADS;
        let (arena, asked) = arena(chunks, chunks);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for len in [100, 5000, CHUNK / 4, CHUNK + 7] {
                        arena.reserve(len).unwrap().grow(len).unwrap();
                        arena.block(len, Fill::Zero).unwrap().bytes_mut().fill(1);
                    }
                });
            }
        });
        assert_eq!(asked.load(Ordering::Relaxed) * CHUNK, arena.usage().committed);
    }
}
