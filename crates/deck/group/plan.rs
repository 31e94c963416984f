//! Plans of barriers: which rank tells which other ranks, in which order, that it has come.
//!
//! | plan | messages | on the longest way | where |
//! |---|---|---|---|
//! | dissemination | n ⌈log2 n⌉ | ⌈log2 n⌉ | every rank has a processor |
//! | exchange | n (n − 1) | 1 | up to four ranks take turns on processors |
//! | tree | 2 (n − 1) | 2 ⌈log16 n⌉, and 16 to send and to take at each | more than four ranks take turns |
//!
//! Where ranks take turns, a message is cheap and a turn is expensive: a rank should reach the end of the
//! barrier in one turn, having announced itself in the turn before. With dissemination, each round may take a
//! turn of every rank. (Measured on two processors: with 4 ranks, exchange takes 0.8 of a tree's time and 0.9
//! of dissemination's; with 8, 1.05 and 0.7.)
//!
//! Sources: Hensgen, Finkel, Manber, *Two algorithms for barrier synchronization*, 1988 (dissemination); Mellor-Crummey,
//! Scott, *Algorithms for scalable synchronization on shared-memory multiprocessors*, 1991 (trees).

/// The messages of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// In round k every rank tells the one 2^k further on, and hears from the one 2^k before.
    Dissemination,
    /// Every rank tells all others, and hears from them.
    Exchange,
    /// Every rank hears from those below it, tells the one above, hears from it, and tells those below.
    Tree,
}

/// One step of a rank. It names another rank, or a place in a table; a rank takes each step at most once in a
/// barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierStep {
    /// Tells that rank.
    Send(usize),
    /// Hears from that rank.
    Receive(usize),
}

/// Number of ranks up to which ranks exchange with each other.
const FEW: usize = 4;
/// Number of children of a rank in the tree. They need two levels of four, or three of two: the waiter polls
/// eight of them, and one ring of its doorbell finds the others.
const FAN_OUT: usize = 16;

impl Plan {
    /// Chooses the best plan. `take_turns`: there are more ranks than processors.
    pub fn best(size: usize, take_turns: bool) -> Plan {
        match (take_turns, size) {
            (false, _) | (_, ..=2) => Plan::Dissemination,
            (true, ..=FEW) => Plan::Exchange,
            (true, _) => Plan::Tree,
        }
    }

    /// Whether the plan is for ranks that take turns on processors.
    pub fn is_by_turns(self) -> bool {
        self != Plan::Dissemination
    }

    /// The steps of a rank, in their order.
    pub fn steps(self, rank: usize, size: usize) -> Vec<BarrierStep> {
        match self {
            Plan::Dissemination => disseminate(rank, size),
            Plan::Exchange => exchange(rank, size),
            Plan::Tree => climb(rank, size),
        }
    }
}

fn disseminate(rank: usize, size: usize) -> Vec<BarrierStep> {
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
    let rounds = distances.take_while(|distance| *distance < size);
    rounds
        .flat_map(|distance| {
            [
                BarrierStep::Send((rank + distance) % size),
                BarrierStep::Receive((rank + size - distance) % size),
            ]
        })
        .collect()
}

fn exchange(rank: usize, size: usize) -> Vec<BarrierStep> {
    let others = || (1..size).map(|distance| (rank + distance) % size);
    others().map(BarrierStep::Send).chain(others().map(BarrierStep::Receive)).collect()
}

fn climb(rank: usize, size: usize) -> Vec<BarrierStep> {
    let below = || (rank * FAN_OUT + 1..=rank * FAN_OUT + FAN_OUT).take_while(|child| *child < size);
    let above = (rank > 0).then(|| (rank - 1) / FAN_OUT);
    let mut steps: Vec<BarrierStep> = below().map(BarrierStep::Receive).collect();
    steps.extend(
        above.into_iter().flat_map(|parent| [BarrierStep::Send(parent), BarrierStep::Receive(parent)]),
    );
    steps.extend(below().map(BarrierStep::Send));
    steps
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    const PLANS: [Plan; 3] = [Plan::Dissemination, Plan::Exchange, Plan::Tree];
    const SIZES: [usize; 12] = [2, 3, 4, 5, 8, 16, 17, 18, 33, 100, 273, 500];

    /// Sizes of groups that a plan is used for.
    fn sizes(plan: Plan) -> impl Iterator<Item = usize> {
        SIZES.into_iter().filter(move |size| plan != Plan::Exchange || *size <= 2 * FEW)
    }

    /// Runs the plan as far as possible while `absent` does not come. Returns which ranks have passed the
    /// barrier.
    fn play(plan: Plan, size: usize, absent: Option<usize>) -> Vec<bool> {
        let mut todo: Vec<_> = (0..size).map(|rank| plan.steps(rank, size).into_iter().peekable()).collect();
        let mut told = HashSet::new();
        loop {
            let mut moved = false;
            for rank in (0..size).filter(|rank| Some(*rank) != absent) {
                while let Some(step) = todo[rank].peek() {
                    match *step {
                        BarrierStep::Send(peer) => {
                            assert!(told.insert((rank, peer)), "{rank} tells {peer} twice")
                        }
                        BarrierStep::Receive(peer) if !told.contains(&(peer, rank)) => break,
                        BarrierStep::Receive(_) => {}
                    }
                    todo[rank].next();
                    moved = true;
                }
            }
            if !moved {
                return todo.iter_mut().map(|steps| steps.peek().is_none()).collect();
            }
        }
    }

    #[test]
    fn all_come_through_when_all_have_come_and_nobody_before() {
        for plan in PLANS {
            for size in sizes(plan) {
                assert!(play(plan, size, None).iter().all(|through| *through), "{plan:?} of {size}");
                for absent in (0..size).step_by(size.div_ceil(20)) {
                    let through = play(plan, size, Some(absent));
                    assert!(through.iter().all(|through| !through), "{plan:?} of {size} without {absent}");
                }
            }
        }
    }

    #[test]
    fn who_is_told_hears_and_nobody_hears_itself() {
        for plan in PLANS {
            for size in sizes(plan) {
                let (mut tells, mut hears) = (BTreeSet::new(), BTreeSet::new());
                for rank in 0..size {
                    for step in plan.steps(rank, size) {
                        let is_new = match step {
                            BarrierStep::Send(peer) => tells.insert((rank, peer)),
                            BarrierStep::Receive(peer) => hears.insert((peer, rank)),
                        };
                        assert!(is_new, "{plan:?} of {size}, rank {rank}: {step:?} twice");
                    }
                }
                assert_eq!(tells, hears, "{plan:?} of {size}");
                assert!(tells.iter().all(|(from, to)| from != to));
            }
        }
    }
}
