//! Programs of ranks: post, wait for a message, compute. Each operation begins when the one before is done, so the
//! messages that are sent depend on those that have arrived.

use crate::workload::{Actions, Post, Workload};
use std::collections::BTreeMap;
use thiserror::Error;

/// Operation of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Posts a message, and goes on at once.
    Post {
        /// The receiving rank.
        to: u32,
        /// Length of the message in flits; at least 1.
        flits: u32,
    },
    /// Waits for the next message of a rank.
    Retrieve {
        /// The sending rank.
        from: u32,
    },
    /// Computes for this many cycles.
    Compute(u32),
}

/// Why programs are invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadProgram {
    /// There are more ranks than hosts.
    #[error("{ranks} ranks need a host each, and there are {hosts}")]
    Ranks {
        /// Number of ranks.
        ranks: usize,
        /// Number of hosts.
        hosts: usize,
    },
    /// The messages of a pair of ranks do not match.
    #[error("rank {rank} posts {posted} messages to rank {to}, which retrieves {retrieved}")]
    Unmatched {
        /// The rank that posts.
        rank: u32,
        /// The rank that retrieves.
        to: u32,
        /// Number of posted messages.
        posted: u32,
        /// Number of retrieved messages.
        retrieved: u32,
    },
}

/// Programs of ranks, and how far each rank has come.
pub(crate) struct Steps {
    programs: Vec<Vec<Op>>,
    /// Index of the next operation, by rank.
    at: Vec<usize>,
    /// Number of messages that have arrived and were not retrieved, by receiver and sender.
    arrived: BTreeMap<(u32, u32), u32>,
    /// The rank whose message a rank waits for, by rank.
    waits_for: Vec<Option<u32>>,
}

/// Reason why a rank goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Waits for a message.
    Waits,
    /// Computes for this many cycles, at least 1.
    Computes(u32),
    /// Has ended its program.
    Done,
}

impl Steps {
    /// Puts each rank before its first operation.
    pub(crate) fn new(programs: Vec<Vec<Op>>) -> Self {
        let ranks = programs.len();
        Self { programs, at: vec![0; ranks], arrived: BTreeMap::new(), waits_for: vec![None; ranks] }
    }

    /// Takes a rank's operations until it stops. `post` gets the receiver and the flits of each message.
    pub(crate) fn run(&mut self, rank: u32, mut post: impl FnMut(u32, u32)) -> Stop {
        let at = &mut self.at[rank as usize];
        while let Some(op) = self.programs[rank as usize].get(*at) {
            match *op {
                Op::Post { to, flits } => post(to, flits),
                Op::Retrieve { from } => match self.arrived.get_mut(&(rank, from)) {
                    Some(count) if *count > 0 => *count -= 1,
                    _ => {
                        self.waits_for[rank as usize] = Some(from);
                        return Stop::Waits;
                    }
                },
                Op::Compute(cycles) => {
                    *at += 1;
                    return Stop::Computes(cycles.max(1));
                }
            }
            *at += 1;
        }
        Stop::Done
    }

    /// Takes a message that has arrived. Returns whether its receiver waited for it, and goes on.
    pub(crate) fn arrive(&mut self, from: u32, to: u32) -> bool {
        *self.arrived.entry((to, from)).or_default() += 1;
        let has_waited = self.waits_for[to as usize] == Some(from);
        if has_waited {
            self.waits_for[to as usize] = None;
        }
        has_waited
    }
}

/// Programs as a workload: rank n runs on host `places[n]`.
pub struct Programs {
    steps: Steps,
    places: Vec<u32>,
    /// Sender and receiver of messages in flight, by token.
    under_way: Vec<(u32, u32)>,
    ended: Vec<Option<u64>>,
}

impl Programs {
    /// Makes a program for each rank.
    ///
    /// # Errors
    /// There are fewer hosts than ranks, or the posted messages are not those that are retrieved.
    pub fn new(programs: Vec<Vec<Op>>, places: Vec<u32>, hosts: usize) -> Result<Self, BadProgram> {
        let ranks = programs.len();
        if ranks > hosts || places.len() < ranks {
            return Err(BadProgram::Ranks { ranks, hosts: hosts.min(places.len()) });
        }
        let mut pairs: BTreeMap<(u32, u32), (u32, u32)> = BTreeMap::new();
        for (rank, program) in (0u32..).zip(&programs) {
            for op in program {
                match *op {
                    Op::Post { to, .. } => pairs.entry((rank, to)).or_default().0 += 1,
                    Op::Retrieve { from } => pairs.entry((from, rank)).or_default().1 += 1,
                    Op::Compute(_) => {}
                }
            }
        }
        if let Some((&(rank, to), &(posted, retrieved))) = pairs.iter().find(|(_, (a, b))| a != b) {
            return Err(BadProgram::Unmatched { rank, to, posted, retrieved });
        }
        Ok(Self { steps: Steps::new(programs), places, under_way: Vec::new(), ended: vec![None; ranks] })
    }

    /// Cycle at which each rank was done; `None` for ranks that are not.
    pub fn ended(&self) -> &[Option<u64>] {
        &self.ended
    }

    /// Whether all ranks are done.
    pub fn is_done(&self) -> bool {
        self.ended.iter().all(Option::is_some)
    }

    fn run_rank(&mut self, now: u64, rank: u32, actions: &mut Actions) {
        let Self { steps, places, under_way, ended } = self;
        let stop = steps.run(rank, |to, flits| {
            let token = under_way.len() as u32;
            under_way.push((rank, to));
            let (from, to) = (places[rank as usize], places[to as usize]);
            actions.post(Post { from, to, flits, level: 0, class: 0, token });
        });
        match stop {
            Stop::Waits => {}
            Stop::Computes(cycles) => actions.at(now + u64::from(cycles), rank),
            Stop::Done => _ = ended[rank as usize].get_or_insert(now),
        }
    }
}

impl Workload for Programs {
    fn classes(&self) -> Vec<String> {
        vec!["all".into()]
    }

    fn begin(&mut self, actions: &mut Actions) {
        (0..self.ended.len() as u32).for_each(|rank| actions.at(1, rank));
    }

    fn timer(&mut self, now: u64, rank: u32, actions: &mut Actions) {
        self.run_rank(now, rank, actions);
    }

    fn delivered(&mut self, now: u64, token: u32, actions: &mut Actions) {
        let (from, to) = self.under_way[token as usize];
        if self.steps.arrive(from, to) {
            self.run_rank(now, to, actions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, engine::Engine, topology::tree};

    fn run(programs: Vec<Vec<Op>>) -> Vec<Option<u64>> {
        let network = tree(4, 1).unwrap();
        let workload = Programs::new(programs, (0..4).collect(), 4).unwrap();
        let mut engine = Engine::new(&network, &Config::default(), workload).unwrap();
        assert_eq!(engine.run_dry(1_000_000), Ok(true));
        engine.workload().ended().to_vec()
    }

    #[test]
    fn what_follows_waits_for_what_was_before() {
        // A message of 4 flits needs 2 + 4 + 2 + 4 cycles.
        let ping = vec![Op::Post { to: 1, flits: 4 }, Op::Retrieve { from: 1 }];
        let pong = vec![Op::Retrieve { from: 0 }, Op::Compute(100), Op::Post { to: 0, flits: 4 }];
        assert_eq!(run(vec![ping.clone(), pong.clone()]), [Some(1 + 12 + 100 + 12), Some(1 + 12 + 100)]);
        // A message that comes too early is kept.
        let late = [vec![Op::Compute(1000)], pong].concat();
        assert_eq!(run(vec![ping, late])[0], Some(1 + 1000 + 100 + 12));
    }

    #[test]
    fn a_message_is_retrieved_once() {
        let post = Op::Post { to: 1, flits: 4 };
        let twice = vec![Op::Compute(100), Op::Retrieve { from: 0 }, Op::Retrieve { from: 0 }];
        assert_eq!(run(vec![vec![post, Op::Compute(1000), post], twice])[1], Some(1 + 1000 + 12));
    }

    #[test]
    fn who_waits_for_ever_is_not_through() {
        let both = |peer| vec![Op::Retrieve { from: peer }, Op::Post { to: peer, flits: 1 }];
        assert_eq!(run(vec![both(1), both(0)]), [None, None]);
    }

    #[test]
    fn what_does_not_match_is_refused() {
        let post = vec![Op::Post { to: 1, flits: 4 }];
        let bad =
            |programs, hosts| Programs::new(programs, vec![0, 1], hosts).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            bad(vec![post.clone(), vec![]], 2),
            "rank 0 posts 1 messages to rank 1, which retrieves 0"
        );
        assert_eq!(bad(vec![post, vec![]], 1), "2 ranks need a host each, and there are 1");
    }
}
