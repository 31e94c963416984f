//! Which of the last numbers were seen: a window that moves with the largest one, as IPsec's against replay (RFC 4303,
//! section 3.4.3).

/// So many numbers, the largest one included, are told apart; what is older counts as seen.
pub const WINDOW: u64 = 1024;
const WORDS: usize = (WINDOW / 64) as usize;

#[derive(Debug, Default)]
pub struct Seen {
    /// One more than the largest.
    next: u64,
    /// Number `n` is bit `n % WINDOW`.
    bits: [u64; WORDS],
}

impl Seen {
    pub fn knows(&self, number: u64) -> bool {
        if number >= self.next {
            return false;
        }
        let (word, bit) = place(number);
        number + WINDOW < self.next || self.bits[word] & bit != 0
    }

    pub fn note(&mut self, number: u64) {
        if number >= self.next {
            let passed = self.next.max((number + 1).saturating_sub(WINDOW))..number;
            for number in passed {
                let (word, bit) = place(number);
                self.bits[word] &= !bit;
            }
            self.next = number + 1;
        }
        let (word, bit) = place(number);
        self.bits[word] |= bit;
    }
}

fn place(number: u64) -> (usize, u64) {
    ((number % WINDOW / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn prop_it_is_a_window(steps in prop::collection::vec(prop_oneof![0u64..50, 0u64..5000], 1..400)) {
            let (mut seen, mut oracle) = (Seen::default(), BTreeSet::new());
            for number in steps {
                let old = oracle.last().is_some_and(|largest| number + WINDOW <= *largest);
                prop_assert_eq!(seen.knows(number), old || oracle.contains(&number), "{}", number);
                if !old {
                    seen.note(number);
                    oracle.insert(number);
                }
            }
        }
    }
}
