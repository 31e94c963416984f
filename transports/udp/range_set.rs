//! A set of numbers, as sorted ranges. It is for few ranges: its users bound their number.

use std::collections::VecDeque;
use std::ops::Range;

/// Sorted ranges; none is empty, none touches another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(VecDeque<Range<u64>>);

impl RangeSet {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn first(&self) -> Option<&Range<u64>> {
        self.0.front()
    }

    /// Number of ranges that there would be after [`RangeSet::insert`].
    pub fn len_with(&self, range: &Range<u64>) -> usize {
        let (from, to) = self.touching(range);
        self.0.len() + 1 - (to - from)
    }

    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (from, to) = self.touching(&range);
        if from == to {
            self.0.insert(from, range);
            return;
        }
        self.0[from] = self.0[from].start.min(range.start)..self.0[to - 1].end.max(range.end);
        self.0.drain(from + 1..to);
    }

    /// Indices of the ranges that `range` would merge with. `range` is not empty.
    fn touching(&self, range: &Range<u64>) -> (usize, usize) {
        let from = self.0.partition_point(|other| other.end < range.start);
        let to = self.0.partition_point(|other| other.start <= range.end);
        (from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn prop_it_is_a_set(steps in prop::collection::vec((0u64..60, 0u64..12), 0..60)) {
            let (mut ranges, mut oracle) = (RangeSet::default(), BTreeSet::new());
            for (start, len) in steps {
                let range = start..start + len;
                let foreseen = if len == 0 { ranges.len() } else { ranges.len_with(&range) };
                ranges.insert(range.clone());
                prop_assert_eq!(ranges.len(), foreseen);
                oracle.extend(range);
                let numbers: BTreeSet<u64> = ranges.0.iter().flat_map(Clone::clone).collect();
                prop_assert_eq!(&numbers, &oracle);
                prop_assert!(ranges.0.iter().all(|range| !range.is_empty()));
                prop_assert!(ranges.0.iter().zip(ranges.0.iter().skip(1)).all(|(a, b)| a.end < b.start));
            }
        }
    }
}
