//! Bounds for unauthenticated callers: how many are kept, how long, and which of them is evicted for another one.
//!
//! Anybody may call, so each listener keeps a bounded number of callers that have proved nothing. While there is a free
//! place, nobody is refused: all ranks of a host may call at once. When there is none, a newcomer evicts the oldest caller
//! of the source that has most places: at once, if that source has more places than the newcomer's source would have then,
//! and otherwise after [`Bounds::grace`]. If the newcomer's own source has as many, the caller is one of its own. So no
//! source takes a place of another one that has no more places than it has itself.
//!
//! A listener that does not tell sources apart has one source, `()`. Each listener keeps its callers itself, and ends
//! those that take longer than [`Bounds::limit`].

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Bounds of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Upper bound of the unauthenticated callers that are kept.
    pub most: usize,
    /// How long a caller is safe from eviction by one whose source has no smaller share.
    pub grace: Duration,
    /// How long a caller may take to authenticate itself.
    pub limit: Duration,
}

/// Decision about a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<N> {
    /// The newcomer takes a free place.
    Free,
    /// The newcomer takes the place of the caller with this number.
    Evict(N),
    /// The newcomer waits, or calls again. From this time on a place is taken from another caller, if none comes free.
    Full(Instant),
}

impl Bounds {
    /// Decides on a newcomer of this source. `callers` has the number, the source and the arrival of each caller.
    pub fn admit<N: Copy, S: Copy + Eq + Hash>(
        &self,
        callers: impl IntoIterator<Item = (N, S, Instant)>,
        source: S,
        now: Instant,
    ) -> Place<N> {
        let callers: Vec<_> = callers.into_iter().collect();
        if callers.len() < self.most {
            return Place::Free;
        }
        let mut shares = HashMap::<S, usize>::new();
        callers.iter().for_each(|(_, of, _)| *shares.entry(*of).or_default() += 1);
        let share = |of| shares.get(&of).copied().unwrap_or(0);
        let victim = callers.iter().min_by_key(|(_, of, since)| (Reverse(share(*of)), *of != source, *since));
        let Some(&(number, of, since)) = victim else { return Place::Full(now + self.grace) };
        let (is_greedy, fair) = (share(of) > share(source) + 1, since + self.grace);
        if is_greedy || fair <= now { Place::Evict(number) } else { Place::Full(fair) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(1);
    const BOUNDS: Bounds = Bounds { most: 64, grace: GRACE, limit: Duration::from_secs(5) };

    fn all_of(source: impl Fn(usize) -> usize, since: Instant) -> Vec<(usize, usize, Instant)> {
        (0..BOUNDS.most).map(|number| (number, source(number), since)).collect()
    }

    fn admit(all: &[(usize, usize, Instant)], source: usize, now: Instant) -> Place<usize> {
        BOUNDS.admit(all.iter().copied(), source, now)
    }

    #[test]
    fn nobody_is_refused_or_driven_out_while_a_place_is_free() {
        let now = Instant::now();
        let mut one_host = all_of(|_| 1, now);
        one_host.pop();
        assert_eq!(admit(&one_host, 1, now + BOUNDS.limit), Place::Free);
        assert_eq!(admit(&one_host, 2, now + BOUNDS.limit), Place::Free);
    }

    #[test]
    fn who_holds_all_places_makes_place_for_another_source_at_once() {
        let now = Instant::now();
        let mut all = all_of(|_| 1, now + Duration::from_millis(1));
        all[5].2 = now;
        assert_eq!(admit(&all, 2, now), Place::Evict(5), "the one that has had most time");
        // Newcomers of the same source wait until the oldest caller has had a fair time.
        assert_eq!(admit(&all, 1, now), Place::Full(now + GRACE));
        assert_eq!(admit(&all, 1, now + GRACE), Place::Evict(5));
    }

    #[test]
    fn sources_come_to_equal_shares_and_do_not_drive_each_other_out() {
        let now = Instant::now();
        let mut all = all_of(|_| 1, now);
        let mut moved = 0;
        while let Place::Evict(number) = admit(&all, 2, now) {
            all[number].1 = 2;
            moved += 1;
            assert!(moved <= BOUNDS.most, "it never ends");
        }
        assert_eq!(moved, BOUNDS.most / 2);
        assert_eq!(admit(&all, 1, now), Place::Full(now + GRACE));
        let of_its_own = all.iter().position(|(_, source, _)| *source == 1).unwrap();
        all.iter_mut().filter(|(_, source, _)| *source == 1).for_each(|one| one.2 += GRACE);
        assert_eq!(admit(&all, 1, now + GRACE), Place::Full(now + 2 * GRACE), "not one of the other source");
        assert_eq!(admit(&all, 1, now + 2 * GRACE), Place::Evict(of_its_own));
        let each_its_own = all_of(|number| number, now);
        assert_eq!(admit(&each_its_own, 200, now), Place::Full(now + GRACE));
        assert!(matches!(admit(&each_its_own, 200, now + GRACE), Place::Evict(_)));
    }

    #[test]
    fn a_listener_without_a_place_to_give_evicts_nobody() {
        let now = Instant::now();
        assert_eq!(
            Bounds { most: 0, ..BOUNDS }.admit([(); 0].map(|()| (0, (), now)), (), now),
            Place::Full(now + GRACE)
        );
    }
}
