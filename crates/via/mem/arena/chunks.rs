//! Chunks: an arena's memory is taken from the kernel by [`CHUNK`], on first use, once, and never given back.
//!
//! The kernel may need a millisecond for each chunk, so that is done without the lock: the state says that a thread is taking
//! it, and other threads that need the same chunk wait for that one.

use udeck_sys::segment::CHUNK;

use super::{ArenaInner, ArenaState};
use crate::error::{Error, Result};

/// State of a chunk's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// The chunk has no memory.
    Uncommitted,
    /// A thread is taking memory for it.
    Committing,
    /// The chunk has memory.
    Committed,
}

impl ArenaState {
    /// Index of the first chunk of `[start, end)` without memory.
    pub(super) fn first_uncommitted(&self, start: usize, end: usize) -> Option<usize> {
        (start / CHUNK..end.div_ceil(CHUNK)).find(|&chunk| self.chunks[chunk] != Chunk::Committed)
    }
}

impl ArenaInner {
    /// Takes memory for the chunks of `[start, end)` that have none.
    pub(super) fn commit_memory(&self, start: usize, end: usize) -> Result {
        let mut state = self.state.lock();
        while let Some(chunk) = state.first_uncommitted(start, end) {
            if state.chunks[chunk] == Chunk::Committing {
                // This wait has no deadline, as for a lock: the other thread is inside a system call that ends.
                self.chunk_committed.wait(&mut state);
                continue;
            }
            state.chunks[chunk] = Chunk::Committing;
            drop(state);
            let took = ChunkCommit { inner: self, chunk, becomes: Chunk::Uncommitted }.run();
            took.map_err(|source| Error::os(format!("taking memory for the {} arena", self.name), source))?;
            state = self.state.lock();
        }
        Ok(())
    }

    /// End of the range from `start` on that has memory, at most `end`.
    pub(super) fn committed_from(&self, start: usize, end: usize) -> usize {
        let uncommitted = self.state.lock().first_uncommitted(start, end);
        uncommitted.map_or(end, |chunk| (chunk * CHUNK).max(start))
    }
}

/// Notes what became of a chunk, also after a panic: other threads may wait for it.
struct ChunkCommit<'a> {
    inner: &'a ArenaInner,
    chunk: usize,
    becomes: Chunk,
}

impl ChunkCommit<'_> {
    fn run(mut self) -> std::io::Result<()> {
        let (backing, at) = (&self.inner.backing, self.chunk * CHUNK);
        backing.commit(at, CHUNK.min(backing.len() - at))?;
        self.becomes = Chunk::Committed;
        Ok(())
    }
}

impl Drop for ChunkCommit<'_> {
    fn drop(&mut self) {
        self.inner.state.lock().chunks[self.chunk] = self.becomes;
        self.inner.chunk_committed.notify_all();
    }
}
