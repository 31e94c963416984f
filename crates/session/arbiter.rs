//! Arbiter of sending: whose turn it is among the connections of a NIC. The [levels](udeck_qos::levels) have shares, and the
//! connections of a level take turns.
//!
//! The arbiter uses neither sockets nor clocks. A driver [adds](Arbiter::add) a link that has something to send, asks for the
//! [next](Arbiter::next) turn when the network below may take more, sends at most what the turn allows, and adds the link again if
//! something is left.

use std::collections::VecDeque;

use udeck_qos::dtable::{DTable, Head};
use udeck_qos::levels::{CREDIT, Levels, TURN};
use udeck_via::ServiceLevel;

/// Upper bound of one turn, in bytes.
pub const TURN_BYTES: usize = TURN as usize * CREDIT;
const LEVELS: usize = ServiceLevel::MAX as usize + 1;

/// Queues of links that wait for a turn, one per service level.
#[derive(Debug)]
pub struct Arbiter {
    levels: Levels,
    table: DTable,
    waiting: [VecDeque<Waiting>; LEVELS],
}

/// A link that waits for its turn, and the credits that it asks for.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    link: u64,
    credits: u16,
}

/// Permission to send: one link's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The link's number, as it was added.
    pub link: u64,
    /// Upper bound of the turn, in bytes.
    pub bytes: usize,
}

impl Arbiter {
    /// Makes an arbiter without links.
    pub fn new(levels: &Levels) -> Self {
        Arbiter { levels: levels.clone(), table: levels.table(), waiting: Default::default() }
    }

    /// The link `link` has `bytes` to send. It is not added again before its turn has come or it was [removed](Arbiter::remove).
    pub fn add(&mut self, link: u64, level: ServiceLevel, bytes: usize) {
        let credits = bytes.div_ceil(CREDIT).clamp(1, TURN.into()) as u16;
        self.waiting[usize::from(self.levels.sent_as(level.get()))].push_back(Waiting { link, credits });
    }

    /// Removes a link that sends nothing any more. (Goes through all links that wait.)
    pub fn remove(&mut self, link: u64) {
        self.waiting.iter_mut().for_each(|level| level.retain(|waiting| waiting.link != link));
    }

    /// Whether no link waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }

    /// The next turn. Its link does not wait any more.
    pub fn next(&mut self) -> Option<Turn> {
        let waiting = &self.waiting;
        let head = |level: u8| {
            waiting[usize::from(level)].front().map_or(Head::Empty, |first| Head::Ready(first.credits))
        };
        let (level, credits) = self.table.next(head)?;
        let Waiting { link, .. } = self.waiting[usize::from(level)].pop_front()?;
        Some(Turn { link, bytes: usize::from(credits) * CREDIT })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn level(level: u8) -> ServiceLevel {
        ServiceLevel::new(level).unwrap()
    }

    #[test]
    fn links_of_a_level_take_turns() {
        let mut arbiter = Arbiter::new(&"1:1,0:1".parse().unwrap());
        assert!(arbiter.next().is_none() && arbiter.is_empty());
        [7, 8, 9].into_iter().for_each(|link| arbiter.add(link, level(1), 100));
        arbiter.remove(8);
        let turns = [(); 3].map(|()| arbiter.next());
        assert_eq!(turns, [Some(Turn { link: 7, bytes: 128 }), Some(Turn { link: 9, bytes: 128 }), None]);
    }

    #[test]
    fn a_turn_is_bounded() {
        let mut arbiter = Arbiter::new(&"0:1".parse().unwrap());
        arbiter.add(1, level(3), 1 << 30);
        assert_eq!(arbiter.next(), Some(Turn { link: 1, bytes: usize::from(TURN) * CREDIT }));
    }

    proptest! {
        /// No link is forgotten, none has a turn without asking, and levels that always have something to send get their shares.
        #[test]
        fn prop_all_that_wait_have_their_turn(sizes in prop::collection::vec((0..6_u64, 1..60_000_usize), 2..40)) {
            let levels: Levels = "5:50,3:30,0:20".parse().unwrap();
            let mut arbiter = Arbiter::new(&levels);
            let mut left: Vec<usize> = vec![0; 6];
            for &(link, bytes) in &sizes {
                if left[link as usize] == 0 {
                    arbiter.add(link, level(link as u8), bytes);
                }
                left[link as usize] += bytes;
            }
            while let Some(Turn { link, bytes }) = arbiter.next() {
                let left = &mut left[link as usize];
                prop_assert!(*left > 0, "link {link} has nothing");
                *left = left.saturating_sub(bytes);
                if *left > 0 {
                    arbiter.add(link, level(link as u8), *left);
                }
            }
            prop_assert!(arbiter.is_empty() && left.iter().all(|left| *left == 0), "{left:?}");
        }

        #[test]
        fn prop_busy_levels_get_their_shares(turns in 5_000..20_000_usize, small in 1..4096_usize) {
            let levels: Levels = "5:50,3:30,0:20".parse().unwrap();
            let mut arbiter = Arbiter::new(&levels);
            let mut sent = [0_usize; LEVELS];
            let sizes = [1 << 20, 0, 0, small, 0, 9000];
            [0, 3, 5].into_iter().for_each(|link| arbiter.add(link, level(link as u8), sizes[link as usize]));
            for _ in 0..turns {
                let Turn { link, bytes } = arbiter.next().unwrap();
                sent[link as usize] += bytes;
                arbiter.add(link, level(link as u8), sizes[link as usize]);
            }
            let all: usize = sent.iter().sum();
            for (of, share) in levels.shares() {
                let got = sent[usize::from(of)] as f64 / all as f64;
                // The tolerance is one cycle of the table.
                prop_assert!((got - share).abs() < 0.02 + 2e6 / all as f64, "level {of}: {got} for {share}");
            }
        }
    }
}
