//! Group operations of traces: which messages each member posts and retrieves.
//!
//! | op | operation | messages |
//! |---|---|---|
//! | 0 | broadcast | binomial tree from the root |
//! | 1 | reduce | the same tree, towards the root |
//! | 2 | all-reduce | recursive doubling; members beyond a power of two hand theirs to a partner, and get the result from it |
//! | 3 | gather | each member to the root |
//! | 4 | scatter | the root to each member |
//! | 5 | all-gather | ring: each member passes on the block that it got last |
//! | 6 | barrier | dissemination, as in the library |
//! | 7 | all-to-all | the library's tournament; both of a pair post at once |
//!
//! A trace has no root: it is the member that sends in a broadcast or scatter, and that receives in a reduce or gather.

use super::flits;
use crate::program::Op;
use udeck::{
    barrier_plan::{BarrierStep, Plan},
    exchange,
};

/// Kind of a group operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table of the module describes them")]
pub enum Kind {
    Broadcast,
    Reduce,
    AllReduce,
    Gather,
    Scatter,
    AllGather,
    Barrier,
    AllToAll,
}

impl Kind {
    /// Kinds in the order of their numbers in a trace.
    pub const ALL: [Self; 8] = [
        Self::Broadcast,
        Self::Reduce,
        Self::AllReduce,
        Self::Gather,
        Self::Scatter,
        Self::AllGather,
        Self::Barrier,
        Self::AllToAll,
    ];

    /// Number of messages of an operation of this many members.
    pub(super) fn messages(self, members: u64) -> u64 {
        let others = members.saturating_sub(1);
        match self {
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter => others,
            Self::AllReduce => {
                let rounds = members.checked_ilog2().unwrap_or(0);
                let core = 1 << rounds;
                core * u64::from(rounds) + 2 * members.saturating_sub(core)
            }
            Self::Barrier => members * u64::from(members.next_power_of_two().ilog2()),
            Self::AllGather | Self::AllToAll => members * others,
        }
    }
}

/// A group operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Kind of the operation.
    pub kind: Kind,
    /// Index of its communicator.
    pub communicator: u32,
    /// Bytes that each member sends and receives. In an all-to-all: bytes for each other member and 0, or bytes for all of
    /// them and 1.
    pub bytes: Vec<(u64, u64)>,
    /// Index of each member's part; `None` until it was read.
    pub parts: Vec<Option<u32>>,
}

impl Operation {
    /// Returns the member that is the root. Without bytes, or without a root, it is the first one.
    pub(super) fn root(&self) -> Result<usize, String> {
        let is_root = |bytes: &(u64, u64)| match self.kind {
            Kind::Broadcast | Kind::Scatter => bytes.0 > 0,
            Kind::Reduce | Kind::Gather => bytes.1 > 0,
            _ => false,
        };
        let mut roots = (0..).zip(&self.bytes).filter(|(_, bytes)| is_root(bytes)).map(|(member, _)| member);
        let root = roots.next().unwrap_or(0);
        match roots.next() {
            None => Ok(root),
            Some(other) => Err(format!(
                "both member {root} and member {other} of its communicator are the root by their bytes: in a broadcast or scatter \
                 only the root sends, and in a reduce or gather only the root receives"
            )),
        }
    }

    /// Programs of the members. `flit`: bytes of a flit.
    pub(super) fn programs(&self, flit: u64) -> Vec<Vec<Op>> {
        let root = self.root().unwrap_or(0);
        let most = self.bytes.iter().map(|(send, receive)| *send.max(receive)).max().unwrap_or(0);
        (0..self.bytes.len()).map(|member| self.program(member, root, most, flit)).collect()
    }

    /// Program of a member. `most`: the largest number of bytes of any member.
    fn program(&self, member: usize, root: usize, most: u64, flit: u64) -> Vec<Op> {
        let post = |to: usize, bytes: u64| Op::Post { to: to as u32, flits: flits(bytes, flit) };
        let size = self.bytes.len();
        let tree = Tree { root, place: (member + size - root) % size, size };
        let others = || (1..size).map(|distance| (member + distance) % size);
        match self.kind {
            Kind::Broadcast => {
                let children = tree.children().map(|child| post(child, most));
                tree.parent().map(retrieve).into_iter().chain(children).collect()
            }
            Kind::Reduce => {
                let children = tree.children().map(retrieve);
                let mut program: Vec<Op> = children.collect();
                program.reverse();
                program.extend(tree.parent().map(|parent| post(parent, most)));
                program
            }
            Kind::AllReduce => double(member, size, flits(most, flit)),
            Kind::Gather if member == root => others().map(retrieve).collect(),
            Kind::Gather => vec![post(root, self.bytes[member].0)],
            Kind::Scatter if member == root => others().map(|to| post(to, self.bytes[to].1)).collect(),
            Kind::Scatter => vec![retrieve(root)],
            Kind::AllGather => (0..size - 1)
                .flat_map(|round| {
                    let block = (member + size - round) % size;
                    [post((member + 1) % size, self.bytes[block].0), retrieve((member + size - 1) % size)]
                })
                .collect(),
            Kind::Barrier => Plan::Dissemination
                .steps(member, size)
                .into_iter()
                .map(|step| match step {
                    BarrierStep::Send(to) => post(to, 0),
                    BarrierStep::Receive(from) => retrieve(from),
                })
                .collect(),
            Kind::AllToAll => {
                let block =
                    |(send, is_for_all): (u64, u64)| if is_for_all == 1 { send / size as u64 } else { send };
                let steps = exchange::tournament(member, size);
                steps
                    .flat_map(|step| [post(step.peer, block(self.bytes[member])), retrieve(step.peer)])
                    .collect()
            }
        }
    }
}

fn retrieve(from: usize) -> Op {
    Op::Retrieve { from: from as u32 }
}

/// A place in a binomial tree: places count from the root on, and the children of place v are v + 2^k for each 2^k below
/// v's lowest bit.
struct Tree {
    root: usize,
    place: usize,
    size: usize,
}

impl Tree {
    fn member(&self, place: usize) -> usize {
        (place + self.root) % self.size
    }

    fn parent(&self) -> Option<usize> {
        (self.place != 0).then(|| self.member(self.place & (self.place - 1)))
    }

    /// Children, the largest subtree first.
    fn children(&self) -> impl Iterator<Item = usize> {
        let reach = match self.place {
            0 => self.size.next_power_of_two(),
            place => 1 << place.trailing_zeros(),
        };
        let steps =
            std::iter::successors(Some(reach / 2), |step| Some(step / 2)).take_while(|step| *step > 0);
        steps.map(|step| self.place + step).filter(|child| *child < self.size).map(|child| self.member(child))
    }
}

/// A member's part of recursive doubling.
fn double(member: usize, size: usize, flits: u32) -> Vec<Op> {
    let core = 1 << size.ilog2();
    let post = |peer: usize| Op::Post { to: peer as u32, flits };
    let exchange = |peer: usize| [post(peer), retrieve(peer)];
    if member >= core {
        return exchange(member - core).into();
    }
    let partner = Some(member + core).filter(|partner| *partner < size);
    let masks = std::iter::successors(Some(1), |mask| Some(mask * 2)).take_while(|mask| *mask < core);
    let rounds = masks.flat_map(|mask| exchange(member ^ mask));
    let before = partner.map(retrieve).into_iter();
    before.chain(rounds).chain(partner.map(post)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Steps, Stop};
    use std::collections::VecDeque;

    /// Bytes of each member in an operation with the root 1, as a trace has them.
    fn operation(kind: Kind, size: usize) -> Operation {
        let bytes = |member: usize| match (kind, member == 1 % size) {
            (Kind::Broadcast, true) => (640, 0),
            (Kind::Broadcast, false) => (0, 640),
            (Kind::Reduce, true) => (0, 640),
            (Kind::Reduce, false) => (640, 0),
            (Kind::Gather, true) => (64, 64 * size as u64),
            (Kind::Gather, false) => (64, 0),
            (Kind::Scatter, true) => (64 * size as u64, 64),
            (Kind::Scatter, false) => (0, 64),
            (Kind::AllGather, _) => (64, 64 * size as u64),
            (Kind::Barrier, _) => (0, 0),
            (Kind::AllReduce, _) => (640, 640),
            (Kind::AllToAll, _) => (64, 0),
        };
        Operation { kind, communicator: 0, bytes: (0..size).map(bytes).collect(), parts: vec![None; size] }
    }

    /// Runs the members in turn, the one of `late` after all others have stopped. Returns messages, flits, and who is done
    /// before it began.
    fn play(operation: &Operation, late: usize) -> (usize, u32, Vec<bool>) {
        let size = operation.bytes.len();
        let mut steps = Steps::new(operation.programs(64));
        let (mut under_way, mut posted) = (VecDeque::new(), (0, 0));
        let mut done = vec![false; size];
        let mut before = Vec::new();
        let order = (0..size).filter(|member| *member != late).chain([late]);
        for member in order {
            if member == late {
                before.clone_from(&done);
            }
            let mut ready = vec![member as u32];
            while let Some(member) = ready.pop() {
                let stop = steps.run(member, |to, flits| {
                    posted = (posted.0 + 1, posted.1 + flits);
                    under_way.push_back((member, to));
                });
                done[member as usize] = stop == Stop::Done;
                while ready.is_empty()
                    && let Some((from, to)) = under_way.pop_front()
                {
                    ready.extend(steps.arrive(from, to).then_some(to));
                }
            }
        }
        assert!(done.iter().all(|done| *done), "{operation:?}");
        (posted.0, posted.1, before)
    }

    #[test]
    fn each_operation_ends_and_depends_on_those_whose_data_it_needs() {
        for size in [1, 2, 3, 4, 7, 8, 13] {
            for kind in Kind::ALL {
                for late in 0..size {
                    let (_, _, before) = play(&operation(kind, size), late);
                    let others = || (0..size).filter(|member| *member != late);
                    match kind {
                        // All need all.
                        Kind::AllReduce | Kind::AllGather | Kind::Barrier | Kind::AllToAll => {
                            assert!(others().all(|member| !before[member]), "{kind:?} of {size}")
                        }
                        // All need the root, and the root needs all.
                        Kind::Broadcast | Kind::Scatter if late == 1 % size => {
                            assert!(others().all(|member| !before[member]), "{kind:?} of {size}")
                        }
                        Kind::Reduce | Kind::Gather if size > 1 && late != 1 => {
                            assert!(!before[1], "{kind:?} of {size}")
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    #[test]
    fn messages_and_flits_are_those_of_the_algorithms() {
        let of = |kind: Kind, size| {
            let (messages, flits, _) = play(&operation(kind, size), 0);
            assert_eq!(kind.messages(size as u64), messages as u64, "{kind:?}");
            (messages, flits)
        };
        assert_eq!(of(Kind::Broadcast, 13), (12, 120));
        assert_eq!(of(Kind::Reduce, 13), (12, 120));
        // Eight members double three times; five hand their part over, and get the result.
        assert_eq!(of(Kind::AllReduce, 13), (8 * 3 + 2 * 5, 10 * 34));
        assert_eq!(of(Kind::Gather, 13), (12, 12));
        assert_eq!(of(Kind::Scatter, 13), (12, 12));
        assert_eq!(of(Kind::AllGather, 13), (13 * 12, 13 * 12));
        assert_eq!(of(Kind::Barrier, 13), (13 * 4, 13 * 4));
        assert_eq!(of(Kind::AllToAll, 13), (13 * 12, 13 * 12));
        for kind in Kind::ALL {
            for size in [1, 2, 7, 8] {
                of(kind, size);
            }
        }
        // Bytes for all members together are divided among them.
        let bytes = vec![(13 * 64 * 3, 1); 13];
        assert_eq!(play(&Operation { bytes, ..operation(Kind::AllToAll, 13) }, 0).1, 13 * 12 * 3);
    }
}
