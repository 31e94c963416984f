//! Chunks: an arena's memory is taken from the kernel by [`CHUNK`], on first use, once, and never given back.
//!
//! The kernel may need a millisecond for each chunk, so that is done without the lock: the books say that a thread is taking
//! it, and other threads that need the same chunk wait for that one.

use udeck_sys::segment::CHUNK;

use super::{ArenaInner, ArenaState};
use crate::error::{Error, Result};

/// State of a chunk's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// The chunk has no memory.
    Untaken,
    /// A thread is taking memory for it.
    BeingTaken,
    /// The chunk has memory.
    Taken,
}

impl ArenaState {
    /// Index of the first chunk of `[start, end)` without memory.
    pub(super) fn first_untaken(&self, start: usize, end: usize) -> Option<usize> {
        (start / CHUNK..end.div_ceil(CHUNK)).find(|&chunk| self.chunks[chunk] != Chunk::Taken)
    }
}

impl ArenaInner {
    /// Takes memory for the chunks of `[start, end)` that have none.
    pub(super) fn take_memory(&self, start: usize, end: usize) -> Result {
        let mut books = self.books.lock();
        while let Some(chunk) = books.first_untaken(start, end) {
            if books.chunks[chunk] == Chunk::BeingTaken {
                // This wait has no deadline, as for a lock: the other thread is inside a system call that ends.
                self.chunk_taken.wait(&mut books);
                continue;
            }
            books.chunks[chunk] = Chunk::BeingTaken;
            drop(books);
            let took = Taking { inner: self, chunk, becomes: Chunk::Untaken }.take();
            took.map_err(|source| Error::os(format!("taking memory for the {} arena", self.name), source))?;
            books = self.books.lock();
        }
        Ok(())
    }

    /// End of the range from `start` on that has memory, at most `end`.
    pub(super) fn taken_from(&self, start: usize, end: usize) -> usize {
        let untaken = self.books.lock().first_untaken(start, end);
        untaken.map_or(end, |chunk| (chunk * CHUNK).max(start))
    }
}

/// Notes what became of a chunk, also after a panic: other threads may wait for it.
struct Taking<'a> {
    inner: &'a ArenaInner,
    chunk: usize,
    becomes: Chunk,
}

impl Taking<'_> {
    fn take(mut self) -> std::io::Result<()> {
        let (backing, at) = (&self.inner.backing, self.chunk * CHUNK);
        backing.commit(at, CHUNK.min(backing.len() - at))?;
        self.becomes = Chunk::Taken;
        Ok(())
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.inner.books.lock().chunks[self.chunk] = self.becomes;
        self.inner.chunk_taken.notify_all();
    }
}
