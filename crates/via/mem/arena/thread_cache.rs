//! Thread caches: small blocks at hand, so that making and freeing one takes no lock.
//!
//! An arena has [`CACHES`] of them, and a thread uses one, always the same. A thread cache has room for one block of each small
//! class; a second freed block goes to the arena's list, under its lock. So at most [`CACHES`] × 2,304 bytes lie here,
//! whatever the threads do. Caches belong to the arena and not to the threads: nothing is to be given back when a thread
//! ends, and an arena that runs dry empties all of them ([`ThreadCaches::empty`]), also those of threads that sleep. Threads
//! beyond the number of caches share one; that costs them their advantage and nothing else.
//!
//! # Memory ordering
//! A place is one word: null, a record, or [`CLOSED`]. The thread that takes the record out of it, by a swap that gives it to
//! no other, owns it: [`ThreadCaches::put`] is a Release, every removal an Acquire, so accesses of the block's last owner happen
//! before those of the next one. No two words are read together. The closed state is in the place itself: a returning block
//! is either put before [`ThreadCaches::close`] swaps the place, and found there, or finds the place closed and goes to the
//! arena's state, whose lock decides which block is the last. Nothing of the arena is touched after a block was put: the
//! arena may be freed from then on.

use std::cell::Cell;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::{Record, class_size};

/// Number of thread caches of an arena.
const CACHES: usize = 16;
/// Number of classes that have a place in a thread cache: the first ones, up to 768 bytes.
const CLASSES: usize = 8;

/// The word of a place when the arena is closed. It differs from every record, because records are aligned.
const CLOSED: *mut Record = std::ptr::without_provenance_mut(1);

/// One cache line of places. It has atomics only, without padding, so a place may be freed while a reference to it is held.
#[repr(align(64))]
#[derive(Default)]
struct ThreadCache([AtomicPtr<Record>; CLASSES]);

const _: () = assert!(size_of::<ThreadCache>() == CLASSES * size_of::<AtomicPtr<Record>>());

/// The thread caches of one arena.
#[derive(Default)]
pub(super) struct ThreadCaches([ThreadCache; CACHES]);

/// Index of the calling thread's cache.
#[inline]
fn mine() -> usize {
    thread_local! {
        /// This thread's number, plus one.
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    }
    let number = NUMBER.get();
    if number != 0 {
        return number % CACHES;
    }
    number_this(&NUMBER) % CACHES
}

#[cold]
fn number_this(place: &'static std::thread::LocalKey<Cell<usize>>) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
    place.set(number);
    number
}

impl ThreadCaches {
    /// Takes the block of `class` out of this thread's cache, if there is one.
    #[inline]
    pub fn take(&self, class: usize) -> Option<Box<Record>> {
        let place = self.0[mine()].0.get(class)?;
        // A load comes first, so that an empty place is not written.
        if place.load(Ordering::Relaxed).is_null() {
            return None;
        }
        taken(place.swap(null_mut(), Ordering::Acquire))
    }

    /// Puts a block of `class` into this thread's cache, unless the place is full or the arena is closed. Once the block was
    /// put, the arena, and `self` with it, may be gone.
    #[inline]
    pub fn put(&self, class: usize, record: Box<Record>) -> Result<(), Box<Record>> {
        let Some(place) = self.0[mine()].0.get(class) else { return Err(record) };
        if !place.load(Ordering::Relaxed).is_null() {
            return Err(record);
        }
        let record = Box::into_raw(record);
        match place.compare_exchange(null_mut(), record, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            // SAFETY: the record was not put anywhere, so the box is still ours.
            Err(_) => Err(unsafe { Box::from_raw(record) }),
        }
    }

    /// Takes all blocks out.
    pub fn empty(&self, mut to: impl FnMut(Box<Record>)) {
        self.places().for_each(|(_, place)| {
            if !place.load(Ordering::Relaxed).is_null() {
                taken(place.swap(null_mut(), Ordering::Acquire)).into_iter().for_each(&mut to);
            }
        });
    }

    /// Takes all blocks out, and lets none in again. No thread takes from here any more.
    pub fn close(&self, mut to: impl FnMut(Box<Record>)) {
        self.places().for_each(|(_, place)| {
            taken(place.swap(CLOSED, Ordering::Acquire)).into_iter().for_each(&mut to);
        });
    }

    /// Number of blocks in the thread caches, and their bytes.
    pub fn contents(&self) -> (usize, usize) {
        let full = self.places().filter(|(_, place)| {
            let record = place.load(Ordering::Relaxed);
            !record.is_null() && record != CLOSED
        });
        full.fold((0, 0), |(blocks, bytes), (class, _)| (blocks + 1, bytes + class_size(class)))
    }

    fn places(&self) -> impl Iterator<Item = (usize, &AtomicPtr<Record>)> {
        self.0.iter().flat_map(|cache| cache.0.iter().enumerate())
    }
}

/// The record that was swapped out of a place, if there was one.
#[inline]
fn taken(record: *mut Record) -> Option<Box<Record>> {
    let record = NonNull::new(record).filter(|record| record.as_ptr() != CLOSED)?;
    // SAFETY: `put` made it of a box, and the swap that took it out of its place gave it to us alone.
    Some(unsafe { Box::from_raw(record.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use crate::mem::arena::tests::arena;
    use crate::mem::arena::{Block, Fill, LINE};

    #[test]
    fn a_dry_arena_empties_the_pockets_of_others() {
        let arena = arena(4);
        let (freed, done) = (&Barrier::new(2), &Barrier::new(2));
        thread::scope(|scope| {
            let arena = &arena;
            scope.spawn(move || {
                let blocks: Vec<Block> = (0..2).map(|_| arena.block(1, Fill::Keep).unwrap()).collect();
                drop(blocks); // one into this thread's cache, one into the list
                freed.wait();
                done.wait(); // the thread lives on, and does nothing
            });
            freed.wait();
            assert_eq!(arena.usage().blocks, 0, "what lies in a thread cache is nobody's");
            let all = arena.block(4 * LINE, Fill::Keep).expect("the whole arena");
            assert_eq!((arena.usage().used, arena.usage().blocks), (4 * LINE, 1));
            let error = arena.block(1, Fill::Keep).unwrap_err().to_string();
            assert!(error.contains("256 of 256 bytes are in use"), "{error}");
            drop(all);
            done.wait();
        });
        assert_eq!(arena.usage().used, 0);
    }

    /// Blocks return while the arena is dropped: the last of them frees its memory, once. (Miri and the sanitizers see more
    /// here than the count does.)
    #[test]
    fn blocks_come_home_while_the_arena_goes() {
        for _ in 0..500 {
            let (arena, alive) = crate::mem::arena::tests::counted_arena(64);
            let blocks: Vec<Block> = (0..4).map(|_| arena.block(1, Fill::Keep).unwrap()).collect();
            let start = &Barrier::new(blocks.len() + 1);
            thread::scope(|scope| {
                for block in blocks {
                    scope.spawn(move || {
                        start.wait();
                        drop(block);
                    });
                }
                start.wait();
                drop(arena);
            });
            assert_eq!(std::sync::Arc::strong_count(&alive), 1, "its memory is still there");
        }
    }

    #[test]
    fn threads_hand_blocks_on_without_losing_any() {
        let arena = arena(256);
        thread::scope(|scope| {
            for thread in 0..4u8 {
                let arena = &arena;
                scope.spawn(move || {
                    for round in 0..2000u32 {
                        let mut block = arena.block(1 + round as usize % 200, Fill::Keep).unwrap();
                        block.bytes_mut().fill(thread);
                        assert!(block.bytes().iter().all(|&byte| byte == thread), "two have the same block");
                    }
                });
            }
        });
        let usage = arena.usage();
        assert_eq!((usage.used, usage.blocks), (0, 0));
        arena.block(256 * LINE, Fill::Keep).expect("all of it is there again");
    }
}
