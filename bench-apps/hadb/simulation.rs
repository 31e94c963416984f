//! Simulation of both servers and their clients without processes: any message under way may be the next to arrive, and a server
//! may die at any moment, with any part of its messages still to arrive, or none. In every case, each acknowledged change must be
//! in the remaining tables, exactly once.

use crate::client::{Call, Session, Step};
use crate::message::{Body, Op, Outgoing};
use crate::oracle::Oracle;
use crate::row::{BLOBS_OF_A_CLIENT, Key, Table, contents};
use crate::server::Server;
use crate::verdict::{Dump, Verdict};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

type Bytes = Arc<[u8]>;
/// Messages under way from one rank to another.
type Way = VecDeque<(Body, Option<Bytes>)>;
/// Upper bound of a run's steps, far more than any run here takes: a transaction that waits for ever ends a
/// test.
const STEPS: usize = 100_000;

/// Death of a server: which, and when.
#[derive(Clone, Copy, Debug)]
struct Crash {
    victim: usize,
    /// Number of messages that arrive before the death.
    after: usize,
    /// Number of messages on each way from the server that still arrive.
    survive: usize,
}

struct Client {
    session: Session<Bytes>,
    oracle: Oracle,
    current: Option<Call<Bytes>>,
    todo: VecDeque<Call<Bytes>>,
}

/// A possible next event.
#[derive(Clone, Copy)]
enum Event {
    Arrival(usize, usize),
    /// This rank learns that the server has died.
    News(usize),
}

struct Simulation {
    /// The servers; `None`: dead.
    servers: [Option<Server<Bytes>>; 2],
    clients: Vec<Client>,
    /// Messages under way, by sender and receiver.
    ways: BTreeMap<(usize, usize), Way>,
    crash: Option<Crash>,
    /// Ranks that have not learned of the death.
    uninformed: Vec<usize>,
    steps: usize,
    /// Number of messages between the ranks, in all.
    messages: u64,
}

impl Simulation {
    fn new(calls: Vec<Vec<Call<Bytes>>>, crash: Option<Crash>) -> Self {
        let client = |(place, todo): (usize, Vec<Call<Bytes>>)| Client {
            session: Session::new(place % 2),
            oracle: Oracle::default(),
            current: None,
            todo: todo.into(),
        };
        let mut new = Simulation {
            servers: [0, 1].map(|me| Some(Server::new(me))),
            clients: calls.into_iter().enumerate().map(client).collect(),
            ways: BTreeMap::new(),
            crash,
            uninformed: Vec::new(),
            steps: 0,
            messages: 0,
        };
        (0..new.clients.len()).for_each(|place| new.begin(place));
        new
    }

    fn begin(&mut self, place: usize) {
        let client = &mut self.clients[place];
        client.current = client.todo.pop_front();
        if let Some(call) = client.current.clone() {
            let message = client.session.begin(call);
            self.send(place + 2, vec![message]);
        }
    }

    fn send(&mut self, from: usize, messages: Vec<Outgoing<Bytes>>) {
        for Outgoing { to, body, blob } in messages {
            self.messages += 1;
            if to >= 2 || self.servers[to].is_some() {
                self.ways.entry((from, to)).or_default().push_back((body, blob));
            }
        }
    }

    fn die(&mut self, crash: Crash) {
        self.servers[crash.victim] = None;
        self.ways.retain(|(_, to), _| *to != crash.victim);
        for ((from, _), way) in &mut self.ways {
            if *from == crash.victim {
                way.truncate(crash.survive);
            }
        }
        self.uninformed = (0..self.clients.len() + 2).filter(|rank| *rank != crash.victim).collect();
    }

    /// Runs until nothing is left to happen; `choose` picks one of the given number of events.
    fn run(&mut self, mut choose: impl FnMut(usize) -> usize) -> Result<(), String> {
        loop {
            if let Some(crash) = self.crash.take_if(|crash| crash.after <= self.steps) {
                self.die(crash);
            }
            let arrivals = self.ways.iter().filter(|(_, way)| !way.is_empty());
            let mut events: Vec<Event> = arrivals.map(|((from, to), _)| Event::Arrival(*from, *to)).collect();
            events.extend(self.uninformed.iter().map(|rank| Event::News(*rank)));
            if events.is_empty() {
                return Ok(());
            }
            self.steps += 1;
            if self.steps > STEPS {
                return Err("it does not come to an end".to_owned());
            }
            match events[choose(events.len()) % events.len()] {
                Event::Arrival(from, to) => self.arrive(from, to)?,
                Event::News(rank) => self.tell(rank),
            }
        }
    }

    fn arrive(&mut self, from: usize, to: usize) -> Result<(), String> {
        let Some((body, blob)) = self.ways.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        if to < 2 {
            let out = self.servers[to].as_mut().map(|server| server.handle(from, body, blob));
            self.send(to, out.unwrap_or_default());
            return Ok(());
        }
        let client = &mut self.clients[to - 2];
        match client.session.handle(from, body, blob) {
            Step::Nothing => {}
            Step::Send(message) => self.send(to, vec![message]),
            Step::Failed(why) => return Err(why),
            Step::Done(answer) => {
                let call = client.current.take().ok_or("an answer to nothing")?;
                client.oracle.note(&call, &answer)?;
                self.begin(to - 2);
            }
        }
        Ok(())
    }

    fn tell(&mut self, rank: usize) {
        self.uninformed.retain(|other| *other != rank);
        let Some(dead) = self.servers.iter().position(Option::is_none) else { return };
        let out = match rank {
            0 | 1 => self.servers[rank].as_mut().map(Server::take_over).unwrap_or_default(),
            _ => self.clients[rank - 2].session.server_lost(dead).into_iter().collect(),
        };
        self.send(rank, out);
    }

    /// Checks that all transactions have ended, and that the tables have exactly the acknowledged changes.
    fn judge(&self) -> Result<(), String> {
        if let Some(stuck) = self.clients.iter().position(|client| client.current.is_some()) {
            return Err(format!("client {stuck} waits for ever: {:?}", self.clients[stuck].current));
        }
        let oracles: Vec<Oracle> = self.clients.iter().map(|client| client.oracle.clone()).collect();
        let living = self.servers.iter().enumerate();
        let dumps: Vec<(usize, Dump)> =
            living.filter_map(|(rank, server)| Some((rank, Dump::of(server.as_ref()?.tables())))).collect();
        let findings = Verdict::of(&oracles, &dumps).findings;
        if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
    }
}

fn play(calls: Vec<Vec<Call<Bytes>>>, crash: Option<Crash>, choices: &[u16]) -> Result<Simulation, String> {
    let mut simulation = Simulation::new(calls, crash);
    let mut choices = choices.iter().cycle();
    simulation.run(|_| choices.next().map_or(0, |choice| usize::from(*choice)))?;
    simulation.judge()?;
    Ok(simulation)
}

fn tuple(half: u8, index: u32) -> Key {
    Key { table: Table::Tuples, half, index }
}

fn add(key: Key, delta: i64) -> Op {
    Op::Add { key, delta }
}

fn store(place: usize, half: u8, seed: u64) -> Call<Bytes> {
    let key = Key { table: Table::Blobs, half, index: place as u32 * BLOBS_OF_A_CLIENT };
    let mut bytes = vec![0; 20 + seed as usize % 7];
    contents::fill(seed, &mut bytes);
    Call::Run { ops: vec![Op::Store { key, seed }], blob: Some(bytes.into()) }
}

fn tpcb(half: u8, account_half: u8, delta: i64) -> Call<Bytes> {
    let row = |table, half| add(Key { table, half, index: 0 }, delta);
    let ops = vec![
        row(Table::Accounts, account_half),
        row(Table::Tellers, half),
        row(Table::Branches, half),
        Op::Insert { half, delta },
    ];
    Call::Run { ops, blob: None }
}

fn steps(halves: [u8; 4], delta: i64) -> Call<Bytes> {
    Call::Steps((0..4).map(|at| add(tuple(halves[at as usize], at), delta)).collect())
}

/// One transaction of each kind, by a client of server 0, with its number of messages.
fn flows() -> Vec<(Call<Bytes>, u64)> {
    vec![
        (Call::Read(tuple(0, 1)), 2),
        (Call::Read(tuple(1, 1)), 6),
        (steps([0; 4], 5), 12),
        (steps([0, 0, 0, 1], 5), 14),
        (steps([1; 4], 5), 14),
        (tpcb(0, 0, 7), 4),
        (tpcb(0, 1, 7), 6),
        (store(0, 0, 3), 4),
        (store(0, 1, 3), 6),
    ]
}

#[test]
fn flows_take_the_messages_of_the_table() {
    for (call, messages) in flows() {
        let done = play(vec![vec![call.clone()]], None, &[0]).expect("no failure");
        assert_eq!(done.messages, messages, "{call:?}");
    }
}

/// Two clients of different servers change the same rows in the same way, so that one's transaction waits for
/// the other's.
#[test]
fn a_server_may_die_at_any_message_of_any_flow() {
    let mut crashes = 0;
    for (call, _) in flows() {
        let of_the_other = match &call {
            Call::Run { blob: Some(_), .. } => store(1, 1, 9),
            same => same.clone(),
        };
        let calls = vec![vec![call.clone(), call.clone()], vec![of_the_other]];
        let whole = play(calls.clone(), None, &[0, 1, 2]).expect("no failure").steps;
        for (after, victim, survive) in (0..=whole)
            .flat_map(|after| (0..2).flat_map(move |victim| (0..3).map(move |s| (after, victim, s))))
        {
            let crash = Crash { victim, after, survive };
            for choices in [&[0, 1, 2][..], &[0], &[5, 3, 0, 1]] {
                let played = play(calls.clone(), Some(crash), choices);
                assert!(played.is_ok(), "{call:?} {crash:?} {choices:?}: {:?}", played.err());
                crashes += 1;
            }
        }
    }
    assert!(crashes > 500, "{crashes}");
}

fn any_call(place: usize) -> impl Strategy<Value = Call<Bytes>> {
    let key = || (0..2_u8, 0..3_u32).prop_map(|(half, index)| tuple(half, index));
    prop_oneof![
        key().prop_map(Call::Read),
        (prop::array::uniform4(0..2_u8), -9..9_i64).prop_map(|(halves, delta)| steps(halves, delta)),
        (0..2_u8, 0..2_u8, -9..9_i64).prop_map(|(half, account, delta)| tpcb(half, account, delta)),
        (0..2_u8, any::<u16>()).prop_map(move |(half, seed)| store(place, half, u64::from(seed))),
        (0..2_u8).prop_map(move |half| Call::Read(Key {
            table: Table::Blobs,
            half,
            index: place as u32 * BLOBS_OF_A_CLIENT
        })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn prop_nothing_acknowledged_is_lost_or_doubled(
        calls in (
            prop::collection::vec(any_call(0), 1..6),
            prop::collection::vec(any_call(1), 1..6),
            prop::collection::vec(any_call(2), 0..6),
            prop::collection::vec(any_call(3), 0..6),
        ),
        crash in prop::option::weighted(0.8, (0..2_usize, 0..150_usize, 0..4_usize)),
        choices in prop::collection::vec(any::<u16>(), 1..300),
    ) {
        let calls = vec![calls.0, calls.1, calls.2, calls.3];
        let crash = crash.map(|(victim, after, survive)| Crash { victim, after, survive });
        if let Err(why) = play(calls, crash, &choices) {
            prop_assert!(false, "{}", why);
        }
    }
}
