//! Arenas: registered memory handed out in blocks.
//!
//! Blocks of up to 4 MiB come in size classes. Freed ones are kept, most recently used first: the usual allocation is a pop
//! from a short list, of memory that is in the cache; of small blocks, one is at hand for each thread without a lock
//! ([`thread_cache`]). Larger ones go to and from the span allocator ([`spans`]) directly. Memory is committed by chunks on first
//! use, without the lock ([`chunks`]), and never given back to the kernel on the fast path. A block for a message that a peer
//! has announced is address space at first ([`Filling`]).

mod block;
mod chunks;
mod filling;
mod gather;
mod spans;
mod thread_cache;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

use parking_lot::{Condvar, Mutex};
use udeck_sys::segment::CHUNK;

use crate::error::{Error, Result};
pub use block::Block;
use chunks::Chunk;
pub use filling::Filling;
use spans::{Span, Spans};
use thread_cache::ThreadCaches;

/// Alignment and granularity of blocks: a cache line.
pub(crate) const LINE: usize = 64;
/// Largest block that is kept for reuse, in bytes.
const LARGEST_CLASS: usize = 4 << 20;
/// Bytes of the blocks of one class that take turns ([`Fill::KeepInTurn`]): more than a processor's own cache has.
const IN_TURN: usize = 2 << 20;
const FEWER_BLOCKS: &str = "make fewer and larger blocks, or drop some sooner";

/// The memory behind an arena.
///
/// # Safety
/// `base` is valid for reads and writes of `len` bytes, 64-byte aligned, zero-initialised, for as long as the
/// object lives; nobody else in this process writes there.
#[allow(clippy::len_without_is_empty, reason = "an arena without memory is not made")]
pub unsafe trait Backing: Send + Sync {
    /// Start of the memory.
    fn base(&self) -> NonNull<u8>;
    /// Bytes of address space.
    fn len(&self) -> usize;
    /// Takes memory for a range, before its first use. No two calls are for the same bytes, unless one fails.
    ///
    /// # Errors
    /// Errors of the kernel, when there is none left.
    fn commit(&self, offset: usize, len: usize) -> io::Result<()>;
}

/// Content of a new block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zero,
    /// Bytes that this process left there last.
    Keep,
    /// The same as `Keep`, in the block that was used longest ago, so that several blocks take turns. This is for long
    /// messages that a peer reads in place: the peer's cache keeps the bytes that it has read for a while, and a write there
    /// meanwhile takes twice as long.
    KeepInTurn,
}

/// Time at which a block's memory is taken from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    /// When the block is made.
    Now,
    /// When the block's holder asks for it.
    Later,
}

/// Usage of an arena at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaUse {
    /// Bytes of blocks that are held.
    pub used: usize,
    /// Number of blocks that are held.
    pub blocks: usize,
    /// Bytes taken from the kernel.
    pub committed: usize,
    /// The arena's bound in bytes.
    pub limit: usize,
}

/// Registered memory, handed out in [`Block`]s. Blocks may outlive the arena: its memory is freed with the last.
pub struct Arena {
    inner: NonNull<ArenaInner>,
}

// SAFETY: `ArenaInner`'s mutable state is behind a mutex; its backing is `Send + Sync`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

struct ArenaInner {
    name: &'static str,
    remedy: &'static str,
    peers_write: bool,
    backing: Box<dyn Backing>,
    thread_caches: ThreadCaches,
    /// Bytes that are [reserved](Arena::reserve) for arrivals: at most half of the arena.
    arriving: AtomicUsize,
    state: Mutex<ArenaState>,
    /// Signalled when an attempt to take memory for a chunk has ended.
    chunk_committed: Condvar,
}

struct ArenaState {
    spans: Spans,
    /// State of each chunk's memory.
    chunks: Vec<Chunk>,
    /// Freed blocks by class, most recent last. Boxed: a record's address stays while its block is handed out.
    #[allow(clippy::vec_box, reason = "blocks point at their records")]
    kept: Vec<VecDeque<Box<Record>>>,
    /// Bytes (`used`) and number (`blocks`) of the blocks that are held or lie in thread caches.
    used: usize,
    blocks: usize,
    /// Whether the `Arena` itself is gone.
    closed: bool,
}

/// Private record of one block, at a stable address while the block lives.
struct Record {
    inner: NonNull<ArenaInner>,
    base: NonNull<u8>,
    offset: u64,
    capacity: usize,
    class: Option<usize>,
    span: Span,
    len: usize,
    notes: [u32; 2],
}

impl Record {
    /// Start and end of the block in its arena.
    fn range(&self) -> (usize, usize) {
        (self.offset as usize, self.offset as usize + self.capacity)
    }
}

impl Arena {
    /// An arena over `backing`. `name` and `remedy` are for error texts. `peers_write`: this is landing memory, no
    /// slices of it exist.
    pub fn new(
        name: &'static str,
        remedy: &'static str,
        peers_write: bool,
        backing: Box<dyn Backing>,
    ) -> Self {
        let lines = u32::try_from(backing.len() / LINE).unwrap_or(u32::MAX);
        let state = ArenaState {
            spans: Spans::new(lines),
            chunks: vec![Chunk::Uncommitted; backing.len().div_ceil(CHUNK)],
            kept: (0..=class_of(LARGEST_CLASS)).map(|_| VecDeque::new()).collect(),
            used: 0,
            blocks: 0,
            closed: false,
        };
        let (thread_caches, state) = (ThreadCaches::default(), Mutex::new(state));
        let chunk_committed = Condvar::new();
        let arriving = AtomicUsize::new(0);
        let inner = Box::new(ArenaInner {
            name,
            remedy,
            peers_write,
            backing,
            thread_caches,
            arriving,
            state,
            chunk_committed,
        });
        Arena { inner: NonNull::from(Box::leak(inner)) }
    }

    fn inner(&self) -> &ArenaInner {
        // SAFETY: freed only after this handle is dropped (`closed`).
        unsafe { self.inner.as_ref() }
    }

    /// A block whose length is `len` bytes.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the arena, its table of blocks of more than 128 KiB (32,768 with the gaps between them), or the
    /// machine has no room left.
    ///
    /// # Panics
    /// On a landing arena, whose memory has no slices.
    #[inline]
    pub fn block(&self, len: usize, fill: Fill) -> Result<Block> {
        assert!(!self.inner().peers_write, "landing memory has no private blocks");
        let mut block = self.obtain(len, Commit::Now, fill == Fill::KeepInTurn)?;
        if fill == Fill::Zero {
            block.zero();
        }
        Ok(block)
    }

    /// A block that peers may come to write, for [`super::Window`], which never makes a slice of it.
    #[inline]
    pub(super) fn raw(&self, len: usize) -> Result<Block> {
        self.obtain(len, Commit::Now, false)
    }

    #[inline]
    fn obtain(&self, len: usize, commit: Commit, in_turn: bool) -> Result<Block> {
        // A forked child has no blocks: the parent gives out the same memory.
        if udeck_sys::process::is_forked() {
            return Err(Error::forked());
        }
        let class = class_of(len);
        let mut record = match self.inner().thread_caches.take(class) {
            Some(record) => record,
            None => self.inner().allocate_slow(self.inner, len, class, commit, in_turn)?,
        };
        record.len = len;
        record.notes = [0; 2];
        Ok(Block::new(record))
    }

    /// Whether the block is of this arena. The offset of another arena's block names other memory here.
    #[inline]
    pub fn owns(&self, block: &Block) -> bool {
        block.record().inner == self.inner
    }

    /// The address of `[offset, offset + len)`, if it lies inside: for devices, which know blocks by their offsets.
    pub fn place(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let backing = &self.inner().backing;
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > backing.len() {
            return None;
        }
        // SAFETY: the range is inside, as was just checked.
        Some(unsafe { backing.base().add(offset) })
    }

    /// The offset of `[address, address + len)` in this arena, if it lies inside.
    pub(super) fn offset_of(&self, address: NonNull<u8>, len: usize) -> Option<u64> {
        let backing = &self.inner().backing;
        let offset = address.addr().get().checked_sub(backing.base().addr().get())?;
        (offset.checked_add(len)? <= backing.len()).then_some(offset as u64)
    }

    /// Usage of the arena at this moment.
    pub fn usage(&self) -> ArenaUse {
        let inner = self.inner();
        let state = inner.state.lock();
        let committed = state.chunks.iter().filter(|chunk| **chunk == Chunk::Committed).count() * CHUNK;
        let (cached, bytes) = inner.thread_caches.contents();
        // Saturating: a block that moves from one thread cache to another meanwhile is counted twice.
        let (used, blocks) = (state.used.saturating_sub(bytes), state.blocks.saturating_sub(cached));
        ArenaUse { used, blocks, committed, limit: self.limit() }
    }

    /// Upper bound of the bytes of all blocks together.
    pub fn limit(&self) -> usize {
        self.inner().backing.len()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({}, {:?})", self.inner().name, self.usage())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let mut state = self.inner().state.lock();
        state.closed = true;
        self.inner().thread_caches.close(|record| state.keep(record));
        let last = state.blocks == 0;
        drop(state);
        if last {
            // SAFETY: no block is left, and this was the only handle.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}

impl ArenaInner {
    /// Takes a kept block, or one of fresh memory.
    #[cold]
    fn allocate_slow(
        &self,
        this: NonNull<ArenaInner>,
        len: usize,
        class: usize,
        commit: Commit,
        in_turn: bool,
    ) -> Result<Box<Record>> {
        let mut state = self.state.lock();
        let class = (len <= LARGEST_CLASS).then_some(class);
        let kept = class.and_then(|class| {
            let kept = &mut state.kept[class];
            match in_turn {
                true if kept.len() * class_size(class) < IN_TURN => None,
                true => kept.pop_front(),
                false => kept.pop_back(),
            }
        });
        let is_kept = kept.is_some();
        let mut record = match kept {
            Some(record) => record,
            None => self.carve(this, &mut state, len, class)?,
        };
        state.used += record.capacity;
        state.blocks += 1;
        let (start, end) = record.range();
        if is_kept || state.first_uncommitted(start, end).is_none() {
            return Ok(record);
        }
        // Blocks kept for reuse have their memory. This block has none yet, so it goes to the span allocator if it is freed now.
        let class = record.class.take();
        drop(state);
        if commit == Commit::Now {
            if let Err(error) = self.commit_memory(start, end) {
                // The result is ignored: this is not the arena's last block, because the arena's handle is in use.
                self.take_back(record);
                // A recently used block is better than none.
                let mut state = self.state.lock();
                let Some(record) = class.filter(|_| in_turn).and_then(|class| state.kept[class].pop_back())
                else {
                    return Err(error);
                };
                state.used += record.capacity;
                state.blocks += 1;
                return Ok(record);
            }
            record.class = class;
        }
        Ok(record)
    }

    /// Cuts a block whose memory may be untaken. Gives kept blocks back to the span allocator when there is no room otherwise.
    fn carve(
        &self,
        this: NonNull<ArenaInner>,
        state: &mut ArenaState,
        len: usize,
        class: Option<usize>,
    ) -> Result<Box<Record>> {
        let capacity = class.map_or(len.div_ceil(LINE).saturating_mul(LINE), class_size);
        let Ok(lines) = u32::try_from(capacity / LINE) else { return Err(self.no_memory(state, len)) };
        let span = match state.spans.allocate(lines) {
            Some(span) => span,
            None => {
                self.thread_caches.empty(|record| state.keep(record));
                state.forget_kept();
                state.spans.allocate(lines).ok_or_else(|| self.no_memory(state, len))?
            }
        };
        let offset = span.first as usize * LINE;
        // SAFETY: the span lies inside the backing.
        let base = unsafe { self.backing.base().add(offset) };
        Ok(Box::new(Record {
            inner: this,
            base,
            offset: offset as u64,
            capacity,
            class,
            span,
            len,
            notes: [0; 2],
        }))
    }

    /// The error when there is no block of `len` bytes, although none is kept for reuse.
    fn no_memory(&self, state: &ArenaState, len: usize) -> Error {
        let limit = self.backing.len();
        let has_room = state.used.checked_add(len).is_some_and(|used| used <= limit);
        let (full, remedy) = match state.spans.full_table().filter(|_| has_room) {
            Some(entries) => {
                let blocks = state.blocks;
                let full =
                    format!("its table of {entries} blocks and gaps is full ({blocks} blocks are in use)");
                (full, FEWER_BLOCKS)
            }
            None => (format!("{} of {limit} bytes are in use", state.used), self.remedy),
        };
        Error::NoMemory { asked: len, used: state.used, limit, arena: self.name, full, remedy }
    }

    /// Takes a block back. Returns whether the arena is gone and this was its last block.
    #[cold]
    fn take_back(&self, record: Box<Record>) -> bool {
        let mut state = self.state.lock();
        state.keep(record);
        state.closed && state.blocks == 0
    }
}

impl ArenaState {
    /// Takes a block back.
    fn keep(&mut self, record: Box<Record>) {
        self.used -= record.capacity;
        self.blocks -= 1;
        match record.class {
            Some(class) => self.kept[class].push_back(record),
            None => self.spans.free(record.span),
        }
    }

    fn forget_kept(&mut self) {
        for class in &mut self.kept {
            for record in class.drain(..) {
                self.spans.free(record.span);
            }
        }
    }
}

/// Class of a length. Classes are 64, 96, 128, 192, 256, 384 … bytes: at most a third is wasted.
fn class_of(len: usize) -> usize {
    let lines = len.div_ceil(LINE).max(1);
    let log = lines.ilog2() as usize;
    let power = 1usize << log;
    2 * log + usize::from(lines > power) + usize::from(lines > power + power / 2)
}

fn class_size(class: usize) -> usize {
    let power = 1usize << (class / 2);
    let lines = if class.is_multiple_of(2) { power } else { power + power.div_ceil(2) };
    lines * LINE
}

#[cfg(test)]
pub(crate) mod tests;
