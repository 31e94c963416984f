//! Arenas: registered memory handed out in blocks.
//!
//! Blocks of up to 4 MiB come in size classes and are kept, most recently used first, when they are freed: the
//! usual allocation is a pop from a short list, of memory that is in the cache; of small blocks, one is at hand for each
//! thread without a lock ([`pockets`]). Larger ones go to and from the span allocator (`offset-allocator`) directly. Memory is
//! committed by chunks on first use, without the lock ([`chunks`]), and never given back to the kernel on the fast path. A
//! block for what a peer has announced is address space at first ([`Filling`]).

mod chunks;
mod filling;
mod gather;
mod pockets;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

use offset_allocator::{Allocation, Allocator};
use parking_lot::{Condvar, Mutex};
use udeck_sys::segment::CHUNK;

use crate::error::{Error, Result};
use chunks::Chunk;
pub use filling::Filling;
use pockets::Pockets;

/// Alignment and granularity of blocks: a cache line.
pub(crate) const LINE: usize = 64;
/// Blocks larger than this are not kept for reuse.
const LARGEST_CLASS: usize = 4 << 20;
/// Bytes of the blocks of one class that take turns ([`Fill::KeepInTurn`]): more than the cache of a processor's own has.
const IN_TURN: usize = 2 << 20;
/// Live and kept blocks and the gaps between them, together; the span allocator's table is allocated for this many, and
/// written when the arena is made: 32 bytes each, 1 MiB per arena. Room for whatever a thousand connections can lend at a
/// time would be four times that for each of the ranks on a machine, nearly always for nothing; a program that gets so far
/// waits for receivers instead.
const MAX_BLOCKS: u32 = 1 << 15;
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
    /// The kernel's, when there is none left.
    fn commit(&self, offset: usize, len: usize) -> io::Result<()>;
}

/// What a new block contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zero,
    /// Whatever this process last left there.
    Keep,
    /// As `Keep`, in the block that was used longest ago, so that several take turns. For long messages that a peer reads where they lie: the
    /// peer's cache keeps what it has read for a while, and to write there meanwhile takes twice as long.
    KeepInTurn,
}

/// When a block's memory is taken from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// When the block is made.
    Now,
    /// When somebody asks for it.
    Later,
}

/// A snapshot of an arena's books, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaUse {
    /// In blocks that somebody holds.
    pub used: usize,
    /// Blocks that somebody holds.
    pub blocks: usize,
    /// Taken from the kernel.
    pub committed: usize,
    /// The arena's bound.
    pub limit: usize,
}

/// Registered memory, handed out in [`Block`]s. Blocks may outlive the arena: its memory goes with the last.
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
    pockets: Pockets,
    /// Bytes of what is [reserved](Arena::reserve) for what arrives: at most half of all.
    arriving: AtomicUsize,
    books: Mutex<ArenaState>,
    /// A chunk that somebody took memory for is there, or is not.
    chunk_taken: Condvar,
}

struct ArenaState {
    spans: Allocator<u32>,
    /// Whether the chunks' memory was taken from the kernel.
    chunks: Vec<Chunk>,
    /// Freed blocks by class, most recent last. Boxed: a record's address stays while its block is handed out.
    #[allow(clippy::vec_box, reason = "blocks point at their records")]
    kept: Vec<VecDeque<Box<Record>>>,
    /// Bytes and number of the blocks that somebody holds, and of those that lie in pockets.
    used: usize,
    blocks: usize,
    /// The `Arena` itself is gone.
    closed: bool,
}

/// Private notes on one block. At a stable address while the block lives.
struct Record {
    inner: NonNull<ArenaInner>,
    base: NonNull<u8>,
    offset: u64,
    capacity: usize,
    class: Option<usize>,
    span: Allocation<u32>,
    len: usize,
    notes: [u32; 2],
}

impl Record {
    /// Where it begins and ends in its arena.
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
        let books = ArenaState {
            // A block takes a line at least: no arena needs a table for more. (The allocator keeps two entries free.)
            spans: Allocator::with_max_allocs(lines, lines.saturating_add(2).min(MAX_BLOCKS)),
            chunks: vec![Chunk::Untaken; backing.len().div_ceil(CHUNK)],
            kept: (0..=class_of(LARGEST_CLASS)).map(|_| VecDeque::new()).collect(),
            used: 0,
            blocks: 0,
            closed: false,
        };
        let (pockets, books) = (Pockets::default(), Mutex::new(books));
        let chunk_taken = Condvar::new();
        let arriving = AtomicUsize::new(0);
        let inner = Box::new(ArenaInner {
            name,
            remedy,
            peers_write,
            backing,
            pockets,
            arriving,
            books,
            chunk_taken,
        });
        Arena { inner: NonNull::from(Box::leak(inner)) }
    }

    fn inner(&self) -> &ArenaInner {
        // SAFETY: freed only after this handle is dropped (`closed`).
        unsafe { self.inner.as_ref() }
    }

    /// A block of `len` bytes (its length is set to that).
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the arena, its table of blocks (32,768 with the gaps between them), or the machine has
    /// no room left.
    ///
    /// # Panics
    /// On a landing arena, whose memory has no slices.
    #[inline]
    pub fn block(&self, len: usize, fill: Fill) -> Result<Block> {
        assert!(!self.inner().peers_write, "landing memory has no private blocks");
        let mut block = self.obtain(len, Taken::Now, fill == Fill::KeepInTurn)?;
        if fill == Fill::Zero {
            block.zero();
        }
        Ok(block)
    }

    /// A block that peers may come to write; for [`super::Window`], which never makes a slice of it.
    #[inline]
    pub(super) fn raw(&self, len: usize) -> Result<Block> {
        self.obtain(len, Taken::Now, false)
    }

    #[inline]
    fn obtain(&self, len: usize, taken: Taken, in_turn: bool) -> Result<Block> {
        // The parent gives out the same memory.
        if udeck_sys::process::is_forked() {
            return Err(Error::forked());
        }
        let class = class_of(len);
        let mut record = match self.inner().pockets.take(class) {
            Some(record) => record,
            None => self.inner().out_of_books(self.inner, len, class, taken, in_turn)?,
        };
        record.len = len;
        record.notes = [0; 2];
        Ok(Block { record: NonNull::from(Box::leak(record)) })
    }

    /// Whether the block is one of this arena's: the offset of another's names memory of somebody else here.
    #[inline]
    pub fn owns(&self, block: &Block) -> bool {
        block.record().inner == self.inner
    }

    /// The address of `[offset, offset + len)`, if it lies inside: for devices, which are told of blocks by their offsets.
    pub fn place(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let backing = &self.inner().backing;
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > backing.len() {
            return None;
        }
        // SAFETY: inside, just checked.
        Some(unsafe { backing.base().add(offset) })
    }

    /// Where `[address, address + len)` lies in this arena, if it does.
    pub(super) fn offset_of(&self, address: NonNull<u8>, len: usize) -> Option<u64> {
        let backing = &self.inner().backing;
        let offset = address.addr().get().checked_sub(backing.base().addr().get())?;
        (offset.checked_add(len)? <= backing.len()).then_some(offset as u64)
    }

    /// The books.
    pub fn usage(&self) -> ArenaUse {
        let inner = self.inner();
        let books = inner.books.lock();
        let committed = books.chunks.iter().filter(|chunk| **chunk == Chunk::Taken).count() * CHUNK;
        let (pocketed, bytes) = inner.pockets.contents();
        // Saturating: a block that goes from one pocket to another meanwhile is seen twice.
        let (used, blocks) = (books.used.saturating_sub(bytes), books.blocks.saturating_sub(pocketed));
        ArenaUse { used, blocks, committed, limit: self.limit() }
    }

    /// Bytes that all blocks together may have.
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
        let mut books = self.inner().books.lock();
        books.closed = true;
        self.inner().pockets.close(|record| books.keep(record));
        let last = books.blocks == 0;
        drop(books);
        if last {
            // SAFETY: no block is left, and this was the only handle.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}

impl ArenaInner {
    /// A kept block, or one of fresh memory.
    #[cold]
    fn out_of_books(
        &self,
        this: NonNull<ArenaInner>,
        len: usize,
        class: usize,
        taken: Taken,
        in_turn: bool,
    ) -> Result<Box<Record>> {
        let mut books = self.books.lock();
        let class = (len <= LARGEST_CLASS).then_some(class);
        let kept = class.and_then(|class| {
            let kept = &mut books.kept[class];
            match in_turn {
                true if kept.len() * class_size(class) < IN_TURN => None,
                true => kept.pop_front(),
                false => kept.pop_back(),
            }
        });
        let is_kept = kept.is_some();
        let mut record = match kept {
            Some(record) => record,
            None => self.carve(this, &mut books, len, class)?,
        };
        books.used += record.capacity;
        books.blocks += 1;
        let (start, end) = record.range();
        if is_kept || books.first_untaken(start, end).is_none() {
            return Ok(record);
        }
        // What is kept for reuse has its memory. This has none yet: freed as it is, it goes to the span allocator.
        let class = record.class.take();
        drop(books);
        if taken == Taken::Now {
            if let Err(error) = self.take_memory(start, end) {
                // Not the arena's last block: its handle is in use.
                self.take_back(record);
                // A block that others have their turn before is better than none.
                let mut books = self.books.lock();
                let Some(record) = class.filter(|_| in_turn).and_then(|class| books.kept[class].pop_back())
                else {
                    return Err(error);
                };
                books.used += record.capacity;
                books.blocks += 1;
                return Ok(record);
            }
            record.class = class;
        }
        Ok(record)
    }

    /// A block whose memory may be untaken; gives kept blocks back to the span allocator when there is no room otherwise.
    fn carve(
        &self,
        this: NonNull<ArenaInner>,
        books: &mut ArenaState,
        len: usize,
        class: Option<usize>,
    ) -> Result<Box<Record>> {
        let capacity = class.map_or(len.div_ceil(LINE).saturating_mul(LINE), class_size);
        let Ok(lines) = u32::try_from(capacity / LINE) else { return Err(self.no_memory(books, len)) };
        let span = match books.spans.allocate(lines) {
            Some(span) => span,
            None => {
                self.pockets.empty(|record| books.keep(record));
                books.forget_kept();
                books.spans.allocate(lines).ok_or_else(|| self.no_memory(books, len))?
            }
        };
        let offset = span.offset as usize * LINE;
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

    /// Why there is no block of `len` bytes, although none is kept for reuse.
    fn no_memory(&self, books: &ArenaState, len: usize) -> Error {
        let limit = self.backing.len();
        let has_room = books.used.checked_add(len).is_some_and(|used| used <= limit);
        // That nothing is free where not everything is used is how the span allocator says that its table is full.
        let (full, remedy) = if has_room && books.spans.storage_report().total_free_space == 0 {
            let blocks = books.blocks;
            let full =
                format!("its table of {MAX_BLOCKS} blocks and gaps is full ({blocks} blocks are in use)");
            (full, FEWER_BLOCKS)
        } else {
            (format!("{} of {limit} bytes are in use", books.used), self.remedy)
        };
        Error::NoMemory { asked: len, used: books.used, limit, arena: self.name, full, remedy }
    }

    /// Takes a block back. Returns whether the arena is gone and this was its last block.
    #[cold]
    fn take_back(&self, record: Box<Record>) -> bool {
        let mut books = self.books.lock();
        books.keep(record);
        books.closed && books.blocks == 0
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

/// Classes: 64, 96, 128, 192, 256, 384 … bytes: at most a third is wasted.
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
    fn record(&self) -> &Record {
        // SAFETY: the record lives as long as the block, which owns it.
        unsafe { self.record.as_ref() }
    }

    #[inline]
    fn record_mut(&mut self) -> &mut Record {
        // SAFETY: as above, and `&mut self` makes it exclusive.
        unsafe { self.record.as_mut() }
    }

    /// Bytes that it holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.record().len
    }

    /// Whether it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it could hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.record().capacity
    }

    /// Sets the number of bytes that it holds. Bytes beyond the old length are what this process last left there.
    ///
    /// # Panics
    /// Beyond the capacity.
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

    /// Where it lies in its arena.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.record().offset
    }

    /// The bytes that it holds.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let record = self.record();
        // SAFETY: the block owns `[base, base + capacity)` of its arena, always initialised (zeroed by the
        // kernel, written by us); peers can only read it.
        unsafe { std::slice::from_raw_parts(record.base.as_ptr(), record.len) }
    }

    /// The bytes that it holds.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let record = self.record_mut();
        // SAFETY: as in `bytes`, and exclusive.
        unsafe { std::slice::from_raw_parts_mut(record.base.as_ptr(), record.len) }
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.record().base
    }

    #[inline]
    fn zero(&mut self) {
        let record = self.record_mut();
        if record.len <= LINE {
            // A whole line is a few stores; so many bytes as there are would be a call.
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
        // SAFETY: the block owns its record, made by `Box::leak`.
        let record = unsafe { Box::from_raw(self.record.as_ptr()) };
        let put = match record.class {
            // SAFETY: the arena's memory goes with its last block at the earliest, and this is one until it is put; the
            // reference is to atomics only, so it may outlive them unused.
            Some(class) => unsafe { &(*inner.as_ptr()).pockets }.put(class, record),
            None => Err(record),
        };
        if let Err(record) = put {
            by_the_books(inner, record);
        }
    }
}

/// A block comes home that no pocket takes.
#[cold]
fn by_the_books(inner: NonNull<ArenaInner>, record: Box<Record>) {
    // SAFETY: the arena's memory goes with its last block at the earliest, and this is one.
    let last = unsafe { inner.as_ref() }.take_back(record);
    if last {
        // SAFETY: the arena's handle is gone and no other block is left.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;
    use proptest::prelude::*;

    struct Heap(Vec<[u64; 8]>, #[allow(dead_code, reason = "counted")] Arc<()>);
    // SAFETY: heap memory of our own; 8-byte alignment suffices for these tests, which ask no more.
    unsafe impl Backing for Heap {
        fn base(&self) -> NonNull<u8> {
            NonNull::from(&self.0[..]).cast()
        }
        fn len(&self) -> usize {
            self.0.len() * LINE
        }
        fn commit(&self, _: usize, _: usize) -> io::Result<()> {
            Ok(())
        }
    }

    pub(crate) fn arena(lines: usize) -> Arena {
        counted_arena(lines).0
    }

    /// An arena, and what is referred to once more as long as its memory lives.
    pub(crate) fn counted_arena(lines: usize) -> (Arena, Arc<()>) {
        let alive = Arc::new(());
        let heap = Heap(vec![[0; 8]; lines], alive.clone());
        (Arena::new("test", "free something", false, Box::new(heap)), alive)
    }

    #[test]
    fn places_lie_inside_or_nowhere() {
        let arena = arena(64);
        let block = arena.block(100, Fill::Zero).unwrap();
        assert_eq!(arena.place(block.offset(), 100), Some(block.base()));
        let len = 64 * LINE;
        assert!(arena.place(0, len).is_some() && arena.place(len as u64, 0).is_some());
        for (offset, len) in [(1, len), (len as u64 + 1, 0), (u64::MAX, 1), (1, usize::MAX)] {
            assert_eq!(arena.place(offset, len), None);
        }
    }

    #[test]
    fn classes_hold_what_they_promise() {
        for len in (0..10_000).chain([1 << 20, (1 << 20) + 1, LARGEST_CLASS]) {
            let class = class_of(len);
            let size = class_size(class);
            assert!(size >= len && size.is_multiple_of(LINE), "{len}: class {class} of {size}");
            assert!(
                size <= LINE.max(len.div_ceil(LINE) * LINE * 3 / 2),
                "{len}: {size} wastes more than half"
            );
        }
    }

    #[test]
    fn blocks_in_turn_come_back_last() {
        let arena = arena((4 << 20) / LINE);
        let turn = |fill| arena.block(IN_TURN / 4, fill).unwrap().offset();
        let first: Vec<_> = (0..4).map(|_| turn(Fill::KeepInTurn)).collect();
        assert!(
            (0..4).all(|one| !first[..one].contains(&first[one])),
            "as many as take turns are made: {first:?}"
        );
        let again: Vec<_> = (0..8).map(|_| turn(Fill::KeepInTurn)).collect();
        assert_eq!(again, [&first[..], &first[..]].concat(), "the one that was used longest ago");
        assert_eq!(turn(Fill::Keep), first[3], "others get the most recent one");
        let held: Vec<_> = (0..8).map(|_| arena.block(IN_TURN / 4, Fill::KeepInTurn).unwrap()).collect();
        assert_eq!(held.len(), 8, "all memory is given out");
    }

    #[test]
    fn blocks_outlive_the_arena() {
        let arena = arena(64);
        let mut block = arena.block(100, Fill::Zero).unwrap();
        drop(arena);
        block.bytes_mut().fill(7);
        assert!(block.bytes().iter().all(|&b| b == 7));
    }

    #[test]
    fn recycled_memory_is_zeroed_when_asked() {
        let arena = arena(64);
        let mut block = arena.block(64, Fill::Zero).unwrap();
        block.bytes_mut().fill(9);
        let offset = block.offset();
        drop(block);
        let kept = arena.block(64, Fill::Keep).unwrap();
        assert_eq!((kept.offset(), kept.bytes()[0]), (offset, 9), "the most recent block comes back first");
        drop(kept);
        assert!(arena.block(64, Fill::Zero).unwrap().bytes().iter().all(|&b| b == 0));
    }

    #[test]
    fn a_full_arena_says_so_and_recovers() {
        let arena = arena(16);
        let error = arena.block(17 * LINE, Fill::Zero).unwrap_err();
        assert!(error.to_string().contains("no room for 1088 bytes in the test arena"), "{error}");
        let small: Vec<_> = std::iter::from_fn(|| arena.block(1, Fill::Zero).ok()).collect();
        assert_eq!(small.len(), 16);
        drop(small);
        assert_eq!(arena.usage().used, 0);
        arena.block(16 * LINE, Fill::Zero).expect("kept blocks make room for a large one");
    }

    #[test]
    fn a_full_table_of_blocks_says_so_and_recovers() {
        let arena = arena(2 * MAX_BLOCKS as usize);
        let mut blocks = Vec::new();
        let error = loop {
            match arena.block(LINE, Fill::Keep) {
                Ok(block) => blocks.push(block),
                Err(error) => break error.to_string(),
            }
        };
        assert!(blocks.len() > MAX_BLOCKS as usize / 2, "{} blocks", blocks.len());
        assert!(arena.usage().used < arena.usage().limit, "there are bytes left");
        assert!(error.contains(&format!("its table of {MAX_BLOCKS} blocks")), "{error}");
        assert!(error.contains(FEWER_BLOCKS) && !error.contains("bytes are in use"), "{error}");
        let beyond = arena.block(2 * blocks.len() * LINE, Fill::Keep).unwrap_err().to_string();
        assert!(beyond.contains("bytes are in use"), "fewer blocks would not help: {beyond}");
        blocks.pop();
        blocks.push(arena.block(LINE, Fill::Keep).expect("room for one again"));
        blocks.clear();
        arena.block(MAX_BLOCKS as usize * LINE, Fill::Keep).expect("one large block in the place of many");
    }

    proptest! {
        /// Blocks never overlap, whatever the order of allocation and release, and the books balance.
        #[test]
        fn prop_blocks_are_disjoint(steps in prop::collection::vec((0usize..5000, any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let arena = arena(2048);
            let mut live: Vec<Block> = Vec::new();
            for (len, free, which) in steps {
                if free && !live.is_empty() {
                    live.swap_remove(which.index(live.len()));
                } else if let Ok(block) = arena.block(len, Fill::Keep) {
                    let range = |b: &Block| b.offset()..b.offset() + b.capacity() as u64;
                    for other in &live {
                        prop_assert!(range(&block).end <= range(other).start || range(other).end <= range(&block).start);
                    }
                    live.push(block);
                }
                let usage = arena.usage();
                prop_assert_eq!(usage.blocks, live.len());
                prop_assert_eq!(usage.used, live.iter().map(Block::capacity).sum::<usize>());
            }
        }
    }
}
