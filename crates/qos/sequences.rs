//! Sequences of entries at equal distances in a cyclic table, so that any demand fits that needs no more entries
//! than are free.
//!
//! A *sequence* has a power of two of entries, `len / entries` apart. If entries are numbered by their bits in
//! reverse, those of a sequence are a block of neighbours: E(i, j) of Alfaro's thesis is the block of `2^(6-i)`
//! numbers from `j`. So the table is a buddy system. Allocation takes the smallest free block that is large enough,
//! and a release moves sequences, which keeps at most one free block of each size. Then the sizes of the free blocks
//! are the binary digits of the number of free entries. The largest is at least any power of two that is not above
//! that number, so a demand of that size fits.

use std::collections::BTreeMap;

/// Identifier of a sequence, valid as long as it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// Block of numbers. Its entries are these numbers with their bits reversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// First number: j of E(i, j).
    pub start: usize,
    /// Number of entries: `2^(6-i)` in a table of 64.
    pub entries: usize,
}

impl Block {
    /// Returns the other half of the block that is twice as large.
    fn buddy(self) -> Self {
        Self { start: self.start ^ self.entries, ..self }
    }

    fn has(self, number: usize) -> bool {
        (self.start..self.start + self.entries).contains(&number)
    }
}

/// Move of a sequence to another block. It keeps its distance; its first entry is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The moved sequence.
    pub sequence: SequenceId,
    /// Block before the move.
    pub from: Block,
    /// Block after the move.
    pub to: Block,
}

/// Owners of a table's entries.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// Owner of each number (not entry).
    owners: Vec<Option<SequenceId>>,
    blocks: BTreeMap<SequenceId, Block>,
    next: u64,
    defragments: bool,
}

impl Sequences {
    /// Makes a table of `len` free entries.
    ///
    /// # Panics
    /// If `len` is not a power of two.
    pub fn new(len: usize) -> Self {
        assert!(len.is_power_of_two(), "a table of {len} entries");
        Self { owners: vec![None; len], blocks: BTreeMap::new(), next: 0, defragments: true }
    }

    /// Number of free entries.
    pub fn free(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// Number of entries of the table.
    #[expect(clippy::len_without_is_empty, reason = "a table has at least one entry")]
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Allocates `entries` entries at equal distances. Returns `None` if fewer are free, or if the number is no
    /// power of two up to the table's length.
    pub fn allocate(&mut self, entries: usize) -> Option<SequenceId> {
        if !entries.is_power_of_two() {
            return None;
        }
        let free = self.free_blocks().into_iter().filter(|block| block.entries >= entries);
        let best = free.min_by_key(|block| (block.entries, block.start))?;
        let id = SequenceId(self.next);
        self.next += 1;
        self.put(id, Block { start: best.start, entries });
        Some(id)
    }

    /// Frees a sequence's entries, and returns the sequences that had to move for it. An unknown sequence changes
    /// nothing.
    pub fn release(&mut self, id: SequenceId) -> Vec<Move> {
        let Some(freed) = self.blocks.remove(&id) else { return Vec::new() };
        self.fill(freed, None);
        let mut moves = Vec::new();
        let mut number = freed.start;
        while self.defragments {
            let blocks = self.free_blocks();
            let Some(own) = blocks.iter().copied().find(|block| block.has(number)) else { break };
            let twin = blocks.into_iter().find(|other| other.entries == own.entries && *other != own);
            let Some(twin) = twin else { break };
            // Either half could be emptied; the one with fewer sequences is.
            let (emptied, filled) = if self.inside(own.buddy()).len() < self.inside(twin.buddy()).len() {
                (own.buddy(), twin)
            } else {
                (twin.buddy(), own)
            };
            moves.extend(self.shift(emptied, filled));
            number = emptied.start;
        }
        moves
    }

    /// Returns the block of a sequence.
    pub fn block(&self, id: SequenceId) -> Option<Block> {
        self.blocks.get(&id).copied()
    }

    /// Returns the entries of a sequence, in ascending order.
    pub fn entries(&self, id: SequenceId) -> Vec<usize> {
        self.block(id).map(|block| self.entries_of(block)).unwrap_or_default()
    }

    /// Returns the free entries, in ascending order.
    pub fn free_entries(&self) -> Vec<usize> {
        let free = self.free_blocks().into_iter().flat_map(|block| self.entries_of(block));
        let mut free: Vec<_> = free.collect();
        free.sort_unstable();
        free
    }

    /// Distance between the entries of a sequence with this many.
    pub fn distance(&self, entries: usize) -> usize {
        self.len() / entries.clamp(1, self.len())
    }

    fn entries_of(&self, block: Block) -> Vec<usize> {
        let bits = self.len().trailing_zeros();
        let mut entries: Vec<_> =
            (block.start..block.start + block.entries).map(|number| reversed(number, bits)).collect();
        entries.sort_unstable();
        entries
    }

    /// Returns the largest free blocks that are aligned to their size.
    fn free_blocks(&self) -> Vec<Block> {
        let (mut blocks, mut start) = (Vec::new(), 0);
        while start < self.len() {
            if self.owners[start].is_some() {
                start += 1;
                continue;
            }
            let mut entries = 1;
            while start % (2 * entries) == 0
                && self
                    .owners
                    .get(start..start + 2 * entries)
                    .is_some_and(|part| part.iter().all(Option::is_none))
            {
                entries *= 2;
            }
            blocks.push(Block { start, entries });
            start += entries;
        }
        blocks
    }

    fn inside(&self, block: Block) -> Vec<SequenceId> {
        self.blocks.iter().filter(|(_, other)| block.has(other.start)).map(|(id, _)| *id).collect()
    }

    /// Moves all sequences of one block to another block, which is free.
    fn shift(&mut self, from: Block, to: Block) -> Vec<Move> {
        let ids = self.inside(from);
        self.fill(from, None);
        let moved = ids.into_iter().map(|sequence| {
            let old = self.blocks[&sequence];
            let new = Block { start: old.start - from.start + to.start, ..old };
            self.put(sequence, new);
            Move { sequence, from: old, to: new }
        });
        moved.collect()
    }

    fn put(&mut self, id: SequenceId, block: Block) {
        self.fill(block, Some(id));
        self.blocks.insert(id, block);
    }

    fn fill(&mut self, block: Block, owner: Option<SequenceId>) {
        self.owners[block.start..block.start + block.entries].fill(owner);
    }
}

fn reversed(number: usize, bits: u32) -> usize {
    if bits == 0 { 0 } else { number.reverse_bits() >> (usize::BITS - bits) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::{entries_at_distance, min_entries};
    use proptest::{collection::vec, prelude::*};

    /// Numbers of the thesis, checked by an independent program.
    #[test]
    fn the_golden_requests_fit_in_their_places() {
        let mut sequences = Sequences::new(64);
        let blocks = [45, 8, 53, 61, 60, 55, 24, 3, 9].map(|distance| {
            let id = sequences.allocate(entries_at_distance(distance)).expect("it fits");
            let block = sequences.block(id).expect("it is there");
            (6 - block.entries.trailing_zeros(), block.start)
        });
        let expected = [(5, 0), (3, 8), (5, 2), (5, 4), (5, 6), (5, 16), (4, 20), (1, 32), (3, 24)];
        assert_eq!(blocks, expected);
        assert_eq!(sequences.free_entries(), [18, 50]);
    }

    #[test]
    fn entries_for_a_distance() {
        let fewest = [
            (64, 1),
            (32, 2),
            (22, 3),
            (16, 4),
            (13, 5),
            (11, 6),
            (10, 7),
            (8, 8),
            (7, 10),
            (6, 11),
            (5, 13),
            (4, 16),
            (3, 22),
            (2, 32),
        ];
        for (distance, entries) in fewest {
            assert_eq!(min_entries(distance), entries, "{distance}");
            assert_eq!(entries_at_distance(distance), entries.next_power_of_two(), "{distance}");
        }
    }

    /// The rows are those of table 3.2: distances, the distance as which they are treated, and the entries beyond the fewest.
    #[test]
    fn table_3_2() {
        let rows = [
            (2..=2, 2, 0),
            (3..=3, 2, 10),
            (4..=4, 4, 0),
            (5..=5, 4, 3),
            (6..=6, 4, 5),
            (7..=7, 4, 6),
            (8..=9, 8, 0),
            (10..=10, 8, 1),
            (11..=12, 8, 2),
            (13..=15, 8, 3),
            (16..=21, 16, 0),
            (22..=31, 16, 1),
            (32..=63, 32, 0),
            (64..=64, 64, 0),
        ];
        for (distances, treated_as, beyond) in rows {
            for distance in distances {
                let entries = entries_at_distance(distance);
                let own = (64 / entries, entries - min_entries(distance));
                assert_eq!(own, (treated_as, beyond), "{distance}");
            }
        }
    }

    /// Fills tables with requests until they are full. Returns the mean number of entries per table beyond the
    /// fewest for their distances.
    fn waste(distances: &[usize]) -> f64 {
        const TABLES: u32 = 5000;
        let mut state = 1u64;
        let mut wasted = 0;
        for _ in 0..TABLES {
            let mut sequences = Sequences::new(64);
            while sequences.free() > 0 {
                // The generator is Knuth's MMIX generator; its upper bits are good enough.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let distance = distances[(state >> 33) as usize % distances.len()];
                let entries = entries_at_distance(distance);
                if sequences.allocate(entries).is_some() {
                    wasted += entries - min_entries(distance);
                }
            }
        }
        wasted as f64 / f64::from(TABLES)
    }

    /// The thesis gives 8.78 if all distances are equally frequent, 5.68 if their frequency is proportional to them.
    /// A request that does not fit is discarded, and another one drawn (§3.5.3). This gives 8.9 and 5.7 here.
    #[test]
    fn the_mean_waste_is_about_the_published_one() {
        let uniform: Vec<_> = (2..=64).collect();
        let proportional: Vec<_> =
            uniform.iter().flat_map(|&distance| std::iter::repeat_n(distance, distance)).collect();
        let waste = [waste(&uniform), waste(&proportional)];
        assert!((waste[0] - 8.78).abs() < 0.3 && (waste[1] - 5.68).abs() < 0.2, "{waste:?}");
    }

    /// An operation of a history: the allocation of `2^n` entries, or the release of a sequence.
    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u32),
        Release(prop::sample::Index),
    }

    fn history() -> impl Strategy<Value = Vec<Step>> {
        let allocate = (0u32..=6).prop_map(Step::Allocate);
        let release = any::<prop::sample::Index>().prop_map(Step::Release);
        vec(prop_oneof![3 => allocate, 2 => release], 1..120)
    }

    /// Plays a history against a table that follows the moves. Returns whether each demand was met exactly when
    /// enough entries were free.
    fn play(sequences: &mut Sequences, history: &[Step]) -> Result<bool, TestCaseError> {
        let mut held: BTreeMap<SequenceId, Block> = BTreeMap::new();
        for step in history {
            match step {
                Step::Allocate(exponent) => {
                    let entries = 1 << exponent;
                    let fits = entries <= sequences.free();
                    let id = sequences.allocate(entries);
                    if id.is_some() != fits {
                        return Ok(false);
                    }
                    held.extend(id.map(|id| (id, sequences.block(id).expect("allocated"))));
                }
                Step::Release(index) if !held.is_empty() => {
                    let id = *index.get(&held.keys().copied().collect::<Vec<_>>());
                    held.remove(&id);
                    for change in sequences.release(id) {
                        prop_assert_eq!(held.insert(change.sequence, change.to), Some(change.from));
                    }
                }
                Step::Release(_) => {}
            }
            let mut used = vec![false; sequences.len()];
            for (id, block) in &held {
                prop_assert_eq!(sequences.block(*id), Some(*block));
                let entries = sequences.entries(*id);
                let distance = sequences.distance(entries.len());
                prop_assert!(entries.windows(2).all(|pair| pair[1] - pair[0] == distance));
                for entry in entries {
                    prop_assert!(!std::mem::replace(&mut used[entry], true), "entry {} twice", entry);
                }
            }
            prop_assert_eq!(used.iter().filter(|used| !**used).count(), sequences.free());
        }
        Ok(true)
    }

    proptest! {
        /// The theorem (T4 and T14). `PROPTEST_CASES=100000` plays as many histories.
        #[test]
        fn proptest_what_needs_no_more_than_is_free_fits_after_any_history(
            history in history(),
            demand in vec(0u32..=6, 1..64),
        ) {
            let mut sequences = Sequences::new(64);
            prop_assert!(play(&mut sequences, &history)?, "a demand did not fit where enough was free");
            // A whole set of demands fits, in any order.
            let mut left = sequences.free();
            for entries in demand.into_iter().map(|exponent| 1 << exponent) {
                if entries <= left {
                    prop_assert!(sequences.allocate(entries).is_some(), "{} of {}", entries, left);
                    left -= entries;
                }
            }
        }
    }

    /// The property does not hold for a table that never moves a sequence.
    #[test]
    fn without_moves_the_theorem_does_not_hold() {
        let mut sequences = Sequences { defragments: false, ..Sequences::new(4) };
        let ids: Vec<_> = (0..4).map(|_| sequences.allocate(1).expect("free")).collect();
        sequences.release(ids[0]);
        sequences.release(ids[2]);
        assert_eq!((sequences.free(), sequences.allocate(2)), (2, None));
    }

    #[test]
    fn what_no_table_has_is_refused() {
        let mut sequences = Sequences::new(64);
        for entries in [0, 3, 128, usize::MAX] {
            assert_eq!(sequences.allocate(entries), None, "{entries}");
        }
        let mut one = Sequences::new(1);
        let id = one.allocate(1).expect("free");
        assert_eq!((one.entries(id), one.free()), (vec![0], 0));
        one.release(id);
        assert_eq!(one.release(id), []);
    }
}
