//! Chunks: an arena's memory is taken from the kernel by [`CHUNK`], on first use, once, and never given back.
//!
//! The kernel may need a millisecond for each, so that is done without the lock: the books say who is at it, and whoever
//! needs the same chunk waits for him.

use udeck_sys::segment::CHUNK;

use super::{ArenaInner, ArenaState};
use crate::error::{Error, Result};

/// Whether a chunk has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// No.
    Untaken,
    /// Somebody is taking it.
    BeingTaken,
    /// Yes.
    Taken,
}

impl ArenaState {
    /// The first chunk of `[start, end)` without memory.
    pub(super) fn first_untaken(&self, start: usize, end: usize) -> Option<usize> {
        (start / CHUNK..end.div_ceil(CHUNK)).find(|&chunk| self.chunks[chunk] != Chunk::Taken)
    }
}

impl ArenaInner {
    /// Takes memory for `[start, end)`, as far as it has none.
    pub(super) fn take_memory(&self, start: usize, end: usize) -> Result {
        let mut books = self.books.lock();
        while let Some(chunk) = books.first_untaken(start, end) {
            if books.chunks[chunk] == Chunk::BeingTaken {
                // As for a lock: the other thread is inside a system call that ends.
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

    /// The end of what has memory from `start` on, at most `end`.
    pub(super) fn taken_from(&self, start: usize, end: usize) -> usize {
        let untaken = self.books.lock().first_untaken(start, end);
        untaken.map_or(end, |chunk| (chunk * CHUNK).max(start))
    }
}

/// Says in the books what became of a chunk, also after a panic: others may wait for that.
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
