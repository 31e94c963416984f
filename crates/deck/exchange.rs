//! Orders in which every rank of a group can exchange with every other without deadlock.
//!
//! A post may have to wait for its receiver: with a synchronous protocol always, with any other protocol when it
//! runs out of buffers. If all ranks post first and retrieve afterwards, they may all wait for ever. Each
//! function here returns one rank's part of a schedule that cannot deadlock: its messages can be put into one
//! global order that every rank follows. The functions neither block nor communicate; ranks that use the same
//! function with the same `n` get matching schedules.
//!
//! | order | steps of a rank | use |
//! |---|---|---|
//! | [`tournament`] | n − 1 | the usual choice: any n, nobody idles (but one per round if n is odd) |
//! | [`hypercube`] | n − 1 | powers of two: partners by exclusive or, near ones first |
//! | [`triangle`] | 2 (n − 1) | the DECK/VIA thesis's rule, kept to compare: one message per step |
//!
//! An order names the peer of each step, but a mailbox returns messages of any rank: use one mailbox per peer.
//!
//! ```
//! # use udeck_deck as udeck;
//! use udeck::exchange::{Action, tournament};
//!
//! let (rank, size) = (0, 4);
//! for step in tournament(rank, size) {
//!     match step.action {
//!         Action::PostThenRetrieve => println!("post to {0}, then retrieve from {0}", step.peer),
//!         Action::RetrieveThenPost => println!("retrieve from {0}, then post to {0}", step.peer),
//!         Action::Post => println!("post to {}", step.peer),
//!         Action::Retrieve => println!("retrieve from {}", step.peer),
//!     }
//! }
//! ```

/// One step of a rank: a peer, and the action with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The other rank.
    pub peer: usize,
    /// Action of this rank; the peer's matching step does the opposite.
    pub action: Action,
}

/// Action of a rank in a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Post to the peer; nothing comes back in this step.
    Post,
    /// Retrieve from the peer; nothing goes out in this step.
    Retrieve,
    /// Post to the peer, then retrieve from it.
    PostThenRetrieve,
    /// Retrieve from the peer, then post to it.
    RetrieveThenPost,
}

/// Perfect rounds: in round r every rank meets another one, the lower rank posting first.
///
/// The circle method for a 1-factorization of the complete graph: with m = n − 1 for even n and m = n for
/// odd, ranks i and j below m meet in round (i + j) mod m. A rank that would meet itself meets rank m
/// instead; for odd n there is no rank m, so that rank pauses. n − 1 rounds for even n, n for odd; every rank
/// has n − 1 steps.
///
/// # Panics
/// If `rank` is not below `n`.
pub fn tournament(rank: usize, n: usize) -> impl Iterator<Item = Step> + Clone {
    assert_member(rank, n);
    let circle = if n.is_multiple_of(2) { n - 1 } else { n };
    (0..circle).filter_map(move |round| {
        let peer = match (round + circle - rank) % circle {
            _ if rank == circle => hub_partner(round, circle),
            itself if itself == rank => circle,
            other => other,
        };
        (peer < n).then(|| Step { peer, action: lower_posts_first(rank, peer) })
    })
}

/// Partners by exclusive or with 1, 2, … n − 1, the lower rank posting first. `None` unless `n` is a power of
/// two.
///
/// The first round pairs neighbours, rounds up to 2^d − 1 stay within a d-dimensional subcube.
///
/// # Panics
/// If `rank` is not below `n`.
pub fn hypercube(rank: usize, n: usize) -> Option<impl Iterator<Item = Step> + Clone> {
    assert_member(rank, n);
    n.is_power_of_two().then(|| {
        (1..n).map(move |mask| {
            let peer = rank ^ mask;
            Step { peer, action: lower_posts_first(rank, peer) }
        })
    })
}

/// The DECK/VIA thesis's rule (figures 7.9 to 7.12): rank k walks row k, then column k of the n × n matrix.
///
/// Element (row, column) stands for one message between those two ranks. Above the diagonal, where column >
/// row, the walker posts; below it, it retrieves; the diagonal is skipped. Hence a step is one message in one
/// direction: along the rows all messages go from lower ranks to higher ones, along the columns back. (The
/// thesis's macro, `i > j` posts, and its example have opposite signs. This function fixes one of them, since
/// both ends must take the same.)
///
/// # Panics
/// If `rank` is not below `n`.
pub fn triangle(rank: usize, n: usize) -> impl Iterator<Item = Step> + Clone {
    assert_member(rank, n);
    let row = (0..n).map(move |column| (rank, column, column));
    let column = (0..n).map(move |row| (row, rank, row));
    row.chain(column).filter(|(row, column, _)| row != column).map(|(row, column, peer)| {
        let action = if column > row { Action::Post } else { Action::Retrieve };
        Step { peer, action }
    })
}

/// The partner of rank m: the rank that would meet itself, since twice its rank is the round (modulo m, which
/// is odd).
fn hub_partner(round: usize, circle: usize) -> usize {
    round * circle.div_ceil(2) % circle
}

fn lower_posts_first(rank: usize, peer: usize) -> Action {
    if rank < peer { Action::PostThenRetrieve } else { Action::RetrieveThenPost }
}

fn assert_member(rank: usize, n: usize) {
    assert!(rank < n, "rank {rank} is not one of {n}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const NODES: usize = 64;

    /// One end of a message in a rank's program.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Call {
        PostTo(usize),
        RetrieveFrom(usize),
    }
    use Call::{PostTo, RetrieveFrom};

    /// State of a run that stopped: the ranks that are stuck, each with its call.
    #[derive(Debug, PartialEq, Eq)]
    struct Deadlock {
        waiting: Vec<(usize, Call)>,
    }

    /// Runs all programs with synchronous posts: one completes only together with the matching retrieve, both
    /// being their ranks' next calls. Returns the messages, as (from, to), in the order of completion.
    ///
    /// Completing a possible message never makes another impossible (each call has one partner only), so the
    /// order tried here decides nothing: a deadlock found is one in every run, and so is success.
    fn run_synchronously(programs: &[Vec<Call>]) -> Result<Vec<(usize, usize)>, Deadlock> {
        let mut at = vec![0; programs.len()];
        let next = |at: &[usize], rank: usize| programs[rank].get(at[rank]).copied();
        let mut messages = Vec::new();
        let mut runnable: Vec<usize> = (0..programs.len()).collect();
        while let Some(rank) = runnable.pop() {
            let (from, to) = match next(&at, rank) {
                Some(PostTo(peer)) => (rank, peer),
                Some(RetrieveFrom(peer)) => (peer, rank),
                None => continue,
            };
            if next(&at, from) == Some(PostTo(to)) && next(&at, to) == Some(RetrieveFrom(from)) {
                at[from] += 1;
                at[to] += 1;
                messages.push((from, to));
                runnable.extend([from, to]);
            }
        }
        let waiting: Vec<_> = (0..programs.len()).filter_map(|rank| Some((rank, next(&at, rank)?))).collect();
        if waiting.is_empty() { Ok(messages) } else { Err(Deadlock { waiting }) }
    }

    fn program(steps: impl Iterator<Item = Step>) -> Vec<Call> {
        let calls = |Step { peer, action }| match action {
            Action::Post => vec![PostTo(peer)],
            Action::Retrieve => vec![RetrieveFrom(peer)],
            Action::PostThenRetrieve => vec![PostTo(peer), RetrieveFrom(peer)],
            Action::RetrieveThenPost => vec![RetrieveFrom(peer), PostTo(peer)],
        };
        steps.flat_map(calls).collect()
    }

    /// Asserts that there is no deadlock, and that every ordered pair of different ranks exchanges exactly
    /// one message.
    fn assert_exchanges_all(n: usize, programs: &[Vec<Call>]) {
        let messages = run_synchronously(programs).unwrap_or_else(|deadlock| panic!("n = {n}: {deadlock:?}"));
        let distinct: BTreeSet<_> = messages.iter().copied().collect();
        assert_eq!(distinct.len(), messages.len(), "n = {n}: a message was sent twice");
        let all = (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to);
        assert_eq!(distinct, all.collect(), "n = {n}");
    }

    #[test]
    fn triangle_exchanges_all_without_deadlock() {
        for n in 1..=NODES {
            assert_exchanges_all(n, &Vec::from_iter((0..n).map(|rank| program(triangle(rank, n)))));
        }
    }

    #[test]
    fn tournament_exchanges_all_without_deadlock() {
        for n in 1..=NODES {
            assert_exchanges_all(n, &Vec::from_iter((0..n).map(|rank| program(tournament(rank, n)))));
        }
    }

    #[test]
    fn hypercube_exchanges_all_without_deadlock_for_powers_of_two_only() {
        for n in 1..=NODES {
            let programs: Option<Vec<_>> = (0..n).map(|rank| hypercube(rank, n).map(program)).collect();
            assert_eq!(programs.is_some(), [1, 2, 4, 8, 16, 32, 64].contains(&n), "n = {n}");
            if let Some(programs) = programs {
                assert_exchanges_all(n, &programs);
            }
        }
    }

    /// Checks that the rounds are perfect: in lock-step, no rank waits for a rank that is busy with another.
    #[test]
    fn tournament_rounds_are_perfect() {
        for n in (2..=NODES).step_by(2) {
            let schedules = Vec::from_iter((0..n).map(|rank| Vec::from_iter(tournament(rank, n))));
            assert!(schedules.iter().all(|steps| steps.len() == n - 1));
            for (rank, steps) in schedules.iter().enumerate() {
                for (round, step) in steps.iter().enumerate() {
                    assert_eq!(schedules[step.peer][round].peer, rank, "n = {n}, round {round}");
                }
            }
        }
        // For an odd n the schedule is that of n + 1, without the steps of the last rank.
        for n in (1..NODES).step_by(2) {
            for rank in 0..n {
                let with_ghost = tournament(rank, n + 1).filter(|step| step.peer != n);
                assert!(tournament(rank, n).eq(with_ghost), "n = {n}, rank {rank}");
            }
        }
    }

    #[test]
    fn triangle_walks_the_row_then_the_column() {
        let step = |peer, action| Step { peer, action };
        use Action::{Post, Retrieve};
        let row = [step(0, Retrieve), step(2, Post), step(3, Post)];
        let column = [step(0, Post), step(2, Retrieve), step(3, Retrieve)];
        assert!(triangle(1, 4).eq(row.into_iter().chain(column)));
    }

    /// Checks that the simulator can find a deadlock: every rank posts to the next on a ring before it
    /// retrieves.
    #[test]
    fn posting_first_round_a_ring_is_found_to_deadlock() {
        for n in 2..=NODES {
            let ring = |rank: usize| vec![PostTo((rank + 1) % n), RetrieveFrom((rank + n - 1) % n)];
            let programs = Vec::from_iter((0..n).map(ring));
            let waiting = (0..n).map(|rank| (rank, PostTo((rank + 1) % n))).collect();
            assert_eq!(run_synchronously(&programs), Err(Deadlock { waiting }), "n = {n}");
        }
    }

    /// Checks that one rank that breaks the ring is enough, and that the simulator sees it.
    #[test]
    fn retrieving_first_at_one_node_of_the_ring_is_found_to_finish() {
        for n in 2..=NODES {
            let ring = |rank: usize| {
                let (post, retrieve) = (PostTo((rank + 1) % n), RetrieveFrom((rank + n - 1) % n));
                if rank == 0 { vec![retrieve, post] } else { vec![post, retrieve] }
            };
            let programs = Vec::from_iter((0..n).map(ring));
            assert_eq!(run_synchronously(&programs).map(|messages| messages.len()), Ok(n));
        }
    }

    /// Checks that a message that nobody takes is a deadlock, not an early end.
    #[test]
    fn an_unmatched_post_is_found_to_deadlock() {
        let waiting = vec![(0, PostTo(1))];
        assert_eq!(run_synchronously(&[vec![PostTo(1)], vec![]]), Err(Deadlock { waiting }));
    }

    #[test]
    #[should_panic(expected = "rank 4 is not one of 4")]
    fn a_node_outside_the_group_is_refused() {
        let _ = tournament(4, 4);
    }
}
