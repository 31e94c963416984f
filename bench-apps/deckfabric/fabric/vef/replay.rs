//! A trace as a workload.

use super::{After, FLIT, Record, Start, Trace, flits, names::Names};
use crate::{
    program::{Steps, Stop},
    workload::{Actions, Post, Workload},
};
use std::collections::BTreeMap;

/// A trace as a workload: node n is host n, or the host of its tile.
///
/// Records are messages and, behind them, parts of group operations. A timer's token is the record that begins, or, behind
/// all records, the message that arrives within a host. A message's token is its record, or, behind all messages of the
/// trace, the place in `flights` of a group operation's message.
pub struct Replay {
    trace: Trace,
    /// Picoseconds that a flit needs over a link.
    cycle_ps: u64,
    /// Bytes of a flit.
    flit: u64,
    level: u8,
    /// Host of each node.
    hosts: Vec<u32>,
    /// Cycles of a message between two nodes of a host.
    within: u64,
    followers: Followers,
    /// Group operations under way.
    running: BTreeMap<u32, Running>,
    /// Messages of group operations under way.
    flights: Vec<Flight>,
    /// Free places of `flights`.
    free: Vec<u32>,
    done: usize,
    ended: u64,
}

/// Records that go after each message was sent, after each message has arrived, and after each part is done.
struct Followers {
    sent: Vec<Vec<u32>>,
    received: Vec<Vec<u32>>,
    done: Vec<Vec<u32>>,
}

/// A group operation under way.
struct Running {
    steps: Steps,
    members: Vec<Member>,
    /// Number of members that are not done.
    left: usize,
}

/// A member of a group operation under way.
#[derive(Clone, Copy, Default)]
struct Member {
    /// Whether it has taken its last step.
    has_ended: bool,
    /// Number of its messages that have not left its host.
    unsent: u32,
    /// Cycle at which the last flit of those before has left.
    left: u64,
}

/// A message of a group operation, from one member to another.
#[derive(Clone, Copy)]
struct Flight {
    operation: u32,
    from: u32,
    to: u32,
}

impl Replay {
    /// Makes a replay. `cycle_ps` is the time that a link needs for a flit, in picoseconds; 0 counts as 1.
    pub fn new(trace: Trace, cycle_ps: u64) -> Self {
        let empty = |count| vec![Vec::new(); count];
        let messages = trace.records.len();
        let mut followers =
            Followers { sent: empty(messages), received: empty(messages), done: empty(trace.parts.len()) };
        let records = trace.records.iter().map(|record| record.start);
        for (nth, Start { after, .. }) in
            (0u32..).zip(records.chain(trace.parts.iter().map(|part| part.start)))
        {
            match after {
                After::Begin => {}
                After::Sent(place) => followers.sent[place as usize].push(nth),
                After::Received(place) => followers.received[place as usize].push(nth),
                After::Done(part) => followers.done[part as usize].push(nth),
            }
        }
        Self {
            cycle_ps: cycle_ps.max(1),
            flit: FLIT,
            level: 0,
            hosts: (0..trace.nodes).collect(),
            within: 0,
            followers,
            running: BTreeMap::new(),
            flights: Vec::new(),
            free: Vec::new(),
            done: 0,
            ended: 0,
            trace,
        }
    }

    /// Puts each node on the host of its tile.
    #[must_use]
    pub fn placed(mut self, names: &Names) -> Self {
        self.hosts = names.nodes.iter().map(|(_, tile)| *tile).collect();
        self.within = self.cycles(names.within);
        self
    }

    /// Sends all messages on a service level.
    #[must_use]
    pub fn on_level(self, level: u8) -> Self {
        Self { level, ..self }
    }

    /// Divides messages into flits of this size, in bytes, in place of 64; 0 counts as 1.
    #[must_use]
    pub fn with_flits_of(self, bytes: u64) -> Self {
        Self { flit: bytes.max(1), ..self }
    }

    /// Number of messages that have arrived, and of parts of group operations that are done.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Whether all messages have arrived, and all group operations are done.
    pub fn is_done(&self) -> bool {
        self.done == self.records()
    }

    /// Cycle at which the last record was done.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Number of messages and of parts of group operations.
    fn records(&self) -> usize {
        self.trace.records.len() + self.trace.parts.len()
    }

    fn cycles(&self, clocks: u64) -> u64 {
        let picoseconds = u128::from(clocks) * u128::from(self.trace.clock_ps);
        // No run comes to times beyond this bound.
        u64::try_from(picoseconds.div_ceil(u128::from(self.cycle_ps))).unwrap_or(u64::MAX).min(1 << 60)
    }

    fn start(&self, nth: u32) -> Start {
        let messages = self.trace.records.len();
        match self.trace.records.get(nth as usize) {
            Some(record) => record.start,
            None => self.trace.parts[nth as usize - messages].start,
        }
    }

    fn follow(&self, now: u64, followers: &[u32], actions: &mut Actions) {
        followers.iter().for_each(|nth| actions.at(now + self.cycles(self.start(*nth).clocks), *nth));
    }

    fn finish(&mut self, now: u64) {
        self.done += 1;
        self.ended = self.ended.max(now);
    }

    /// Sends a message from a node to another one. Returns whether both are on one host, where it takes no link.
    fn send(&self, now: u64, (from, to): (u32, u32), flits: u32, token: u32, actions: &mut Actions) -> bool {
        let (from, to) = (self.hosts[from as usize], self.hosts[to as usize]);
        if from == to {
            actions.at(now + self.within, self.records() as u32 + token);
        } else {
            actions.post(Post { from, to, flits, level: self.level, class: 0, token });
        }
        from == to
    }

    /// Begins a member's part of a group operation.
    fn begin_part(&mut self, now: u64, part: usize, actions: &mut Actions) {
        let part = self.trace.parts[part];
        let operation = &self.trace.operations[part.operation as usize];
        let begin = || {
            let (steps, left) = (Steps::new(operation.programs(self.flit)), operation.parts.len());
            Running { steps, members: vec![Member::default(); left], left }
        };
        self.running.entry(part.operation).or_insert_with(begin);
        self.advance(now, part.operation, part.member, actions);
    }

    /// Takes a member's steps in a group operation as far as possible.
    fn advance(&mut self, now: u64, operation: u32, member: u32, actions: &mut Actions) {
        let Some(running) = self.running.get_mut(&operation) else { return };
        let mut posts = Vec::new();
        let stop = running.steps.run(member, |to, flits| posts.push((to, flits)));
        let mut unsent = 0;
        for (to, flits) in posts {
            let communicator = self.trace.operations[operation as usize].communicator;
            let members = &self.trace.communicators[communicator as usize];
            let nodes = (members[member as usize], members[to as usize]);
            let token = self.fly(Flight { operation, from: member, to });
            let is_within = self.send(now, nodes, flits, token, actions);
            unsent += u32::from(!is_within);
        }
        let change = |member: &mut Member| {
            member.unsent += unsent;
            member.has_ended = stop == Stop::Done;
        };
        self.change_member(now, (operation, member), change, actions);
    }

    /// Changes a member of a group operation, and ends its part if it has taken its last step and sent all of its messages.
    fn change_member(
        &mut self,
        now: u64,
        (operation, member): (u32, u32),
        change: impl FnOnce(&mut Member),
        actions: &mut Actions,
    ) {
        let Some(running) = self.running.get_mut(&operation) else { return };
        let state = &mut running.members[member as usize];
        change(state);
        if !state.has_ended || state.unsent > 0 {
            return;
        }
        let end = now.max(state.left);
        running.left -= 1;
        if running.left == 0 {
            self.running.remove(&operation);
        }
        self.finish(end);
        let part = self.trace.operations[operation as usize].parts[member as usize];
        let followers = part.map_or(&[][..], |part| &self.followers.done[part as usize]);
        self.follow(end, followers, actions);
    }

    /// Takes a token for a message of a group operation.
    fn fly(&mut self, flight: Flight) -> u32 {
        let place = self.free.pop().unwrap_or(self.flights.len() as u32);
        match self.flights.get_mut(place as usize) {
            Some(free) => *free = flight,
            None => self.flights.push(flight),
        }
        self.trace.records.len() as u32 + place
    }
}

impl Workload for Replay {
    fn classes(&self) -> Vec<String> {
        vec!["trace".into()]
    }

    fn begin(&mut self, actions: &mut Actions) {
        let begin = (0..self.records() as u32).filter(|nth| self.start(*nth).after == After::Begin);
        let begin: Vec<_> = begin.collect();
        self.follow(0, &begin, actions);
    }

    fn timer(&mut self, now: u64, token: u32, actions: &mut Actions) {
        if token as usize >= self.records() {
            self.delivered(now, token - self.records() as u32, actions);
            return;
        }
        match self.trace.records.get(token as usize) {
            Some(&Record { from, to, bytes, .. }) => {
                if self.send(now, (from, to), flits(bytes, self.flit), token, actions) {
                    self.sent(now, token, actions);
                }
            }
            None => self.begin_part(now, token as usize - self.trace.records.len(), actions),
        }
    }

    fn sent(&mut self, left: u64, token: u32, actions: &mut Actions) {
        if let Some(followers) = self.followers.sent.get(token as usize) {
            self.follow(left, followers, actions);
            return;
        }
        let place = token - self.trace.records.len() as u32;
        let Flight { operation, from, .. } = self.flights[place as usize];
        let change = |member: &mut Member| {
            member.unsent -= 1;
            member.left = member.left.max(left);
        };
        self.change_member(left, (operation, from), change, actions);
    }

    fn delivered(&mut self, now: u64, token: u32, actions: &mut Actions) {
        if let Some(followers) = self.followers.received.get(token as usize) {
            self.follow(now, followers, actions);
            self.finish(now);
            return;
        }
        let place = token - self.trace.records.len() as u32;
        let Flight { operation, from, to } = self.flights[place as usize];
        self.free.push(place);
        let has_waited =
            self.running.get_mut(&operation).is_some_and(|running| running.steps.arrive(from, to));
        if has_waited {
            self.advance(now, operation, to, actions);
        }
    }
}
