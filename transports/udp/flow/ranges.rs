//! A set of numbers, as ranges. Made for sets of few ranges, whose users bound how many.

use std::collections::VecDeque;
use std::ops::Range;

/// Sorted ranges, none empty, none touching another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(VecDeque<Range<u64>>);

impl Ranges {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn first(&self) -> Option<&Range<u64>> {
        self.0.front()
    }

    pub fn last(&self) -> Option<&Range<u64>> {
        self.0.back()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Range<u64>> {
        self.0.iter()
    }

    pub fn pop_first(&mut self) -> Option<Range<u64>> {
        self.0.pop_front()
    }

    pub fn contains(&self, number: u64) -> bool {
        let after = self.0.partition_point(|range| range.end <= number);
        self.0.get(after).is_some_and(|range| range.start <= number)
    }

    /// Those that share a number with `range`.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let from = self.0.partition_point(|other| other.end <= range.start);
        self.0.range(from..).take_while(move |other| other.start < range.end)
    }

    /// How many ranges there would be after [`Ranges::insert`].
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

    pub fn remove(&mut self, range: Range<u64>) {
        let from = self.0.partition_point(|other| other.end <= range.start);
        let to = self.0.partition_point(|other| other.start < range.end);
        if from >= to || range.is_empty() {
            return;
        }
        let before = self.0[from].start..range.start;
        let after = range.end..self.0[to - 1].end;
        self.0.drain(from..to);
        for rest in [after, before] {
            if !rest.is_empty() {
                self.0.insert(from, rest);
            }
        }
    }

    /// The places of those that `range`, not empty, would melt together with.
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

    fn numbers(ranges: &Ranges) -> BTreeSet<u64> {
        ranges.iter().flat_map(Clone::clone).collect()
    }

    proptest! {
        #[test]
        fn prop_it_is_a_set(steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..12), 0..60), asked in 0u64..80) {
            let (mut ranges, mut oracle) = (Ranges::default(), BTreeSet::new());
            for (insert, start, len) in steps {
                let range = start..start + len;
                if insert {
                    let foreseen = if len == 0 { ranges.len() } else { ranges.len_with(&range) };
                    ranges.insert(range.clone());
                    prop_assert_eq!(ranges.len(), foreseen);
                    oracle.extend(range);
                } else {
                    ranges.remove(range.clone());
                    oracle.retain(|number| !range.contains(number));
                }
                prop_assert_eq!(&numbers(&ranges), &oracle);
                prop_assert!(ranges.iter().all(|range| !range.is_empty()));
                prop_assert!(ranges.0.iter().zip(ranges.0.iter().skip(1)).all(|(a, b)| a.end < b.start));
            }
            prop_assert_eq!(ranges.contains(asked), oracle.contains(&asked));
            let shared = ranges.overlapping(asked..asked + 9).count();
            let expected = ranges.iter().filter(|range| range.start < asked + 9 && range.end > asked).count();
            prop_assert_eq!(shared, expected);
        }
    }
}
