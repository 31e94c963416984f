//! Search for ranks that wait for each other in a circle.
//!
//! A rank is *free* if it is in no wait, or if a free rank can end one of its waits (a rank with several
//! waiting threads has several). All other ranks are stuck: no rank can move them by itself. Among stuck ranks
//! there mostly is a circle.

use std::collections::HashMap;

use udeck_boot::waits::Wait;

use crate::control::wire::RankSample;

/// The meaning of all ranks' waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finding<'a> {
    /// Each rank waits for the next, and the last for the first.
    Circle(Vec<(u32, &'a Wait, u32)>),
    /// All of these ranks wait, and none of them waits for another in particular that would wait for it.
    Stuck(Vec<u32>),
    /// Other ranks wait for these, which are in no wait themselves.
    AwaitedRanks(Vec<u32>),
    Nothing,
}

pub(crate) fn find(samples: &[RankSample]) -> Finding<'_> {
    let place: HashMap<u32, usize> =
        samples.iter().enumerate().map(|(at, sample)| (sample.rank, at)).collect();
    let free = free(samples, &place);
    let stuck: Vec<usize> = (0..samples.len()).filter(|at| !free[*at]).collect();
    if stuck.is_empty() {
        return awaited(samples, &place);
    }
    match circle(samples, &place, &free, &stuck) {
        Some(circle) => Finding::Circle(circle),
        None => Finding::Stuck(stuck.iter().map(|at| samples[*at].rank).collect()),
    }
}

fn free(samples: &[RankSample], place: &HashMap<u32, usize>) -> Vec<bool> {
    let mut free: Vec<bool> = samples.iter().map(|sample| sample.waits.is_empty()).collect();
    let mut count = free.iter().filter(|free| **free).count();
    loop {
        let before = count;
        for (at, sample) in samples.iter().enumerate() {
            let can_end = |wait: &Wait| {
                wait.open && count > 0
                    || wait.ranks.iter().any(|rank| place.get(rank).is_some_and(|at| free[*at]))
            };
            if !free[at] && sample.waits.iter().any(|published| can_end(&published.wait)) {
                free[at] = true;
                count += 1;
            }
        }
        if count == before {
            return free;
        }
    }
}

/// Finds a circle. Each place is entered once, and the search ends soon with any number of ranks and waits.
fn circle<'a>(
    samples: &'a [RankSample],
    place: &HashMap<u32, usize>,
    free: &[bool],
    stuck: &[usize],
) -> Option<Vec<(u32, &'a Wait, u32)>> {
    let edges: HashMap<usize, Vec<(usize, &Wait)>> = stuck
        .iter()
        .map(|at| {
            let mut all: Vec<(usize, &Wait)> = Vec::new();
            for published in &samples[*at].waits {
                let wait = &published.wait;
                let named = wait.ranks.iter().filter_map(|rank| place.get(rank)).filter(|at| !free[**at]);
                all.extend(named.map(|at| (*at, wait)));
            }
            (*at, all)
        })
        .collect();
    let mut entered = vec![false; samples.len()];
    for start in stuck {
        // The path to here, with the index of the edge to try next at each place.
        let mut way: Vec<(usize, usize)> = vec![(*start, 0)];
        if std::mem::replace(&mut entered[*start], true) {
            continue;
        }
        while let Some((at, edge)) = way.last_mut() {
            let Some((to, _)) = edges[at].get(*edge) else {
                way.pop();
                continue;
            };
            *edge += 1;
            if let Some(first) = way.iter().position(|(at, _)| at == to) {
                let step = |(at, edge): &(usize, usize)| {
                    let (to, wait) = edges[at][*edge - 1];
                    (samples[*at].rank, wait, samples[to].rank)
                };
                return Some(way[first..].iter().map(step).collect());
            }
            if !std::mem::replace(&mut entered[*to], true) {
                way.push((*to, 0));
            }
        }
    }
    None
}

/// Finds the awaited ranks that are in no wait themselves.
fn awaited<'a>(samples: &[RankSample], place: &HashMap<u32, usize>) -> Finding<'a> {
    let named = samples.iter().flat_map(|sample| &sample.waits).flat_map(|published| &published.wait.ranks);
    let idle = |rank: &&u32| place.get(rank).is_some_and(|at| samples[*at].waits.is_empty());
    let mut ranks: Vec<u32> = named.filter(idle).copied().collect();
    ranks.sort_unstable();
    ranks.dedup();
    if ranks.is_empty() { Finding::Nothing } else { Finding::AwaitedRanks(ranks) }
}

#[cfg(test)]
mod tests {
    use udeck_boot::waits::{Call, Published};

    use super::*;
    use crate::control::wire::RankState;

    fn wait(ranks: &[u32], open: bool) -> Published {
        let wait = Wait { call: Call::Post, name: "a".into(), ranks: ranks.to_vec(), open };
        Published { wait, for_ms: 1000 }
    }

    /// Makes the data of ranks from 0 on, each with its waits.
    fn samples(all: &[&[Published]]) -> Vec<RankSample> {
        let sample = |(rank, waits): (u32, &&[Published])| RankSample {
            rank,
            state: RankState::Sleeps,
            idle_ms: 1000,
            waits: waits.to_vec(),
        };
        (0u32..).zip(all).map(sample).collect()
    }

    fn found(all: &[&[Published]]) -> Vec<(u32, u32)> {
        match find(&samples(all)) {
            Finding::Circle(circle) => circle.iter().map(|(rank, _, next)| (*rank, *next)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn circles_of_one_two_three_and_five_are_found() {
        for size in [1, 2, 3, 5] {
            let waits: Vec<_> = (0..size).map(|rank| [wait(&[(rank + 1) % size], false)]).collect();
            let all: Vec<&[Published]> = waits.iter().map(|waits| &waits[..]).collect();
            assert_eq!(found(&all), (0..size).map(|rank| (rank, (rank + 1) % size)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_circle_is_found_behind_a_chain_and_beside_ranks_that_run() {
        let all: [&[_]; 5] =
            [&[wait(&[1], false)], &[wait(&[2], false)], &[wait(&[3], false)], &[wait(&[1], false)], &[]];
        assert_eq!(found(&all), [(1, 2), (2, 3), (3, 1)]);
    }

    #[test]
    fn who_is_awaited_in_the_end_is_named() {
        let all: [&[_]; 3] = [&[wait(&[1], false)], &[wait(&[2], false)], &[]];
        assert_eq!(find(&samples(&all)), Finding::AwaitedRanks(vec![2]));
    }

    #[test]
    fn where_anybody_may_end_a_wait_one_rank_that_runs_is_enough() {
        let both: [&[_]; 2] = [&[wait(&[1], true)], &[wait(&[0], true)]];
        assert_eq!(found(&both), [(0, 1), (1, 0)]);
        let beside: [&[_]; 3] = [&[wait(&[1], true)], &[wait(&[0], true)], &[]];
        assert_eq!(find(&samples(&beside)), Finding::Nothing);
    }

    #[test]
    fn all_may_be_stuck_without_a_circle() {
        let all: [&[_]; 2] = [&[wait(&[], true)], &[wait(&[], true)]];
        assert_eq!(find(&samples(&all)), Finding::Stuck(vec![0, 1]));
        // The awaited rank has ended.
        let gone: [&[_]; 1] = [&[wait(&[7], false)]];
        assert_eq!(find(&samples(&gone)), Finding::Stuck(vec![0]));
    }

    #[test]
    fn of_several_threads_one_that_can_go_on_is_enough() {
        let all: [&[_]; 3] = [&[wait(&[1], false), wait(&[2], false)], &[wait(&[0], false)], &[]];
        assert_eq!(find(&samples(&all)), Finding::AwaitedRanks(vec![2]));
        let both: [&[_]; 2] = [&[wait(&[0], false), wait(&[1], false)], &[wait(&[0], false)]];
        assert_eq!(found(&both), [(0, 0)]);
    }

    #[test]
    fn nobody_or_nobody_who_waits_is_nothing() {
        assert_eq!(find(&[]), Finding::Nothing);
        assert_eq!(find(&samples(&[&[], &[]])), Finding::Nothing);
    }

    #[test]
    fn a_long_chain_ends_and_so_does_everybody_waiting_for_everybody() {
        const MANY: u32 = 2000;
        let ring: Vec<_> = (0..MANY).map(|rank| [wait(&[(rank + 1) % MANY], false)]).collect();
        let ring: Vec<&[Published]> = ring.iter().map(|waits| &waits[..]).collect();
        assert_eq!(found(&ring).len(), MANY as usize);
        let chain: Vec<_> = (0..MANY).map(|rank| [wait(&[rank + 1], false)]).collect();
        let mut chain: Vec<&[Published]> = chain.iter().map(|waits| &waits[..]).collect();
        chain.push(&[]);
        assert_eq!(find(&samples(&chain)), Finding::AwaitedRanks(vec![MANY]));
        let others: Vec<u32> = (0..32).collect();
        let dense: Vec<_> = (0..MANY).map(|_| [wait(&others, true)]).collect();
        let dense: Vec<&[Published]> = dense.iter().map(|waits| &waits[..]).collect();
        assert!(!found(&dense).is_empty());
    }
}
