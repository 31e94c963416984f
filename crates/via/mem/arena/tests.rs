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

/// An arena, and a reference that has a second owner as long as the arena's memory lives.
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
        assert!(size <= LINE.max(len.div_ceil(LINE) * LINE * 3 / 2), "{len}: {size} wastes more than half");
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

/// Many more small blocks than one table has entries take all of the memory, and give it back.
#[test]
fn small_blocks_have_no_bound_but_the_memory() {
    const LINES: usize = 1 << 17;
    let arena = arena(LINES);
    let mut blocks: Vec<_> = std::iter::from_fn(|| arena.block(LINE, Fill::Keep).ok()).collect();
    assert_eq!(blocks.len(), LINES);
    let offsets: std::collections::BTreeSet<_> = blocks.iter().map(Block::offset).collect();
    assert_eq!(offsets.len(), LINES, "none overlaps another");
    let error = arena.block(1, Fill::Keep).unwrap_err().to_string();
    assert!(error.contains("bytes are in use"), "{error}");
    // The free lines are adjacent only in part now.
    blocks.truncate(LINES / 2);
    let longer: Vec<_> = std::iter::from_fn(|| arena.block(3 * LINE, Fill::Keep).ok()).collect();
    assert!(longer.len() > LINES / 8, "{}", longer.len());
    drop((blocks, longer));
    assert_eq!(arena.usage().used, 0);
    arena.block(LINES * LINE, Fill::Keep).expect("one large block in the place of many");
}

#[test]
fn a_full_table_says_so_and_recovers() {
    let mut spans = Spans::new(u32::MAX);
    let mut all: Vec<_> = std::iter::from_fn(|| spans.allocate(4096)).collect();
    assert!(all.len() > 30_000, "{}", all.len());
    assert!(spans.full_table().is_some());
    spans.free(all.pop().expect("there are many"));
    assert!(spans.full_table().is_none() && spans.allocate(4096).is_some());
    let mut spans = Spans::new(128);
    let whole = spans.allocate(128).expect("there is room");
    assert!(spans.allocate(1).is_none() && spans.full_table().is_none(), "there are no lines left");
    spans.free(whole);
    assert!(spans.allocate(128).is_some());
}

proptest! {
    /// Blocks never overlap, whatever the order of allocation and release, and the counts balance.
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
