//! Simulation of servers, spares and their clients without processes: any message under way may be the next to arrive, and servers
//! and spares may die at any moment, with any part of their messages still to arrive, or none. In every case, each acknowledged
//! change must be in the remaining tables, exactly once; or, if the last server with all data has died, the clients are told. No
//! answer may speak of two servers before the second one has all data.

use crate::client::{Call, Session, Step};
use crate::copy::Limits;
use crate::message::{Body, Op, Outgoing};
use crate::node::Node;
use crate::oracle::Oracle;
use crate::ranks::{SERVERS, Servers};
use crate::row::{BLOBS_OF_A_CLIENT, Key, Table, contents};
use crate::verdict::{Dump, Verdict};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

type Bytes = Arc<[u8]>;
/// Messages under way from one rank to another.
type Way = VecDeque<(Body, Option<Bytes>)>;
/// Upper bound of a run's steps, far more than any run here takes: a transaction that waits for ever ends a
/// test.
const STEPS: usize = 100_000;

/// Bounds of copies here: a copy of few rows takes many messages.
const LIMITS: Limits = Limits { rows: 2, entries: 1, pieces: 2, records: 2, bytes: 20 };
/// The text by which clients are told that data are lost.
const LOST: &str = "the data are lost";

/// Death of a server or spare: which, and when.
#[derive(Clone, Copy, Debug)]
struct Crash {
    /// Number of the victim: the servers, then the spares.
    victim: usize,
    /// Number of events before the death, of all or since the death before.
    after: usize,
    /// Number of messages on each way from the server that still arrive.
    survive: usize,
}

struct Client {
    session: Session<Bytes>,
    oracle: Oracle,
    current: Option<Call<Bytes>>,
    todo: VecDeque<Call<Bytes>>,
    /// Whether the client was told that data are lost.
    is_told: bool,
}

/// A possible next event.
#[derive(Clone, Copy)]
enum Event {
    Arrival(usize, usize),
    /// The first rank learns that the second one has died.
    News(usize, usize),
}

struct Simulation {
    servers: Servers,
    /// Living servers and spares.
    nodes: BTreeMap<usize, Node<Bytes>>,
    clients: Vec<Client>,
    /// Messages under way, by sender and receiver.
    ways: BTreeMap<(usize, usize), Way>,
    crashes: VecDeque<Crash>,
    /// Ranks that have not learned of a death, and whose.
    uninformed: Vec<(usize, usize)>,
    steps: usize,
    /// Value of `steps` at the last death.
    died: usize,
    /// Views in which spares have become servers: their `Join` has arrived.
    joins: BTreeSet<u32>,
    /// Number of messages between the ranks, in all.
    messages: u64,
}

impl Simulation {
    fn new(calls: Vec<Vec<Call<Bytes>>>, spares: usize, crashes: &[Crash]) -> Self {
        let servers = Servers::of_job(SERVERS + calls.len() + spares, spares);
        let client = |(place, todo): (usize, Vec<Call<Bytes>>)| Client {
            session: Session::new(place % 2, servers.all().collect()),
            oracle: Oracle::default(),
            current: None,
            todo: todo.into(),
            is_told: false,
        };
        let mut new = Simulation {
            servers,
            nodes: servers.all().map(|rank| (rank, Node::new(rank, servers, LIMITS))).collect(),
            clients: calls.into_iter().enumerate().map(client).collect(),
            ways: BTreeMap::new(),
            crashes: crashes.to_vec().into(),
            uninformed: Vec::new(),
            steps: 0,
            died: 0,
            joins: BTreeSet::new(),
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
            self.send(place + SERVERS, vec![message]);
        }
    }

    fn send(&mut self, from: usize, messages: Vec<Outgoing<Bytes>>) {
        for Outgoing { to, body, blob } in messages {
            self.messages += 1;
            if !self.servers.has(to) || self.nodes.contains_key(&to) {
                self.ways.entry((from, to)).or_default().push_back((body, blob));
            }
        }
    }

    fn die(&mut self, crash: Crash) {
        self.died = self.steps;
        let Some(victim) = self.servers.all().nth(crash.victim) else { return };
        if self.nodes.remove(&victim).is_none() {
            return;
        }
        self.ways.retain(|(_, to), _| *to != victim);
        for ((from, _), way) in &mut self.ways {
            if *from == victim {
                way.truncate(crash.survive);
            }
        }
        self.uninformed.retain(|(rank, _)| *rank != victim);
        let others = self.servers.clients().chain(self.nodes.keys().copied());
        self.uninformed.extend(others.map(|rank| (rank, victim)));
    }

    /// Runs until nothing is left to happen; `choose` picks one of the given number of events.
    fn run(&mut self, mut choose: impl FnMut(usize) -> usize) -> Result<(), String> {
        loop {
            while let Some(crash) = self.crashes.front().copied()
                && self.died + crash.after <= self.steps
            {
                self.crashes.pop_front();
                self.die(crash);
            }
            let arrivals = self.ways.iter().filter(|(_, way)| !way.is_empty());
            let mut events: Vec<Event> = arrivals.map(|((from, to), _)| Event::Arrival(*from, *to)).collect();
            events.extend(self.uninformed.iter().map(|(rank, dead)| Event::News(*rank, *dead)));
            if events.is_empty() {
                return Ok(());
            }
            self.steps += 1;
            if self.steps > STEPS {
                return Err("it does not come to an end".to_owned());
            }
            match events[choose(events.len()) % events.len()] {
                Event::Arrival(from, to) => self.arrive(from, to)?,
                Event::News(rank, dead) => self.tell(rank, dead),
            }
        }
    }

    fn arrive(&mut self, from: usize, to: usize) -> Result<(), String> {
        let Some((body, blob)) = self.ways.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        if self.servers.has(to) {
            let Some(node) = self.nodes.get_mut(&to) else { return Ok(()) };
            let was_spare = node.tables().is_none();
            let join = if let Body::Join { view, .. } = body { Some(view) } else { None };
            let out = node.handle(from, body, blob);
            self.joins.extend(join.filter(|_| was_spare && node.tables().is_some()));
            self.send(to, out);
            return Ok(());
        }
        let client = &mut self.clients[to - SERVERS];
        match client.session.handle(from, body, blob) {
            Step::Nothing => {}
            Step::Send(message) => self.send(to, vec![message]),
            Step::Failed(why) if why.contains(LOST) => client.is_told = true,
            Step::Failed(why) => return Err(why),
            Step::Done(answer) => {
                let call = client.current.take().ok_or("an answer to nothing")?;
                client.oracle.note(&call, &answer)?;
                let is_of_two = answer.view > 0 && answer.view.is_multiple_of(2);
                if is_of_two && !self.joins.contains(&answer.view) {
                    return Err(format!("an answer has view {}, and its spare has not joined", answer.view));
                }
                self.begin(to - SERVERS);
            }
        }
        Ok(())
    }

    fn tell(&mut self, rank: usize, dead: usize) {
        self.uninformed.retain(|news| *news != (rank, dead));
        let out = match self.nodes.get_mut(&rank) {
            Some(node) => node.lost(dead),
            None => self.clients[rank - SERVERS].session.server_lost(dead).into_iter().collect(),
        };
        self.send(rank, out);
        let copy = self.nodes.get_mut(&rank).map(Node::begin_copy);
        self.send(rank, copy.unwrap_or_default());
    }

    /// Living servers with all data, and their tables.
    fn dumps(&self) -> Vec<(usize, Dump)> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|(rank, node)| Some((*rank, Dump::of(node.tables()?)))).collect()
    }

    /// Checks that all transactions have ended, and that the tables have exactly the acknowledged changes. If no server is left
    /// that had all data, each client must have been told, or have nothing more to do.
    fn judge(&self) -> Result<(), String> {
        let dumps = self.dumps();
        let is_lost = dumps.is_empty() && !self.nodes.is_empty();
        let is_stuck = |client: &Client| client.current.is_some() && !(is_lost && client.is_told);
        if let Some(stuck) = self.clients.iter().position(is_stuck) {
            return Err(format!("client {stuck} waits for ever: {:?}", self.clients[stuck].current));
        }
        if is_lost {
            return Ok(());
        }
        if self.clients.iter().any(|client| client.is_told) {
            return Err("a client was told that data are lost, and a server has them".to_owned());
        }
        let oracles: Vec<Oracle> = self.clients.iter().map(|client| client.oracle.clone()).collect();
        let findings = Verdict::of(&oracles, &dumps).findings;
        if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
    }
}

fn play(
    calls: Vec<Vec<Call<Bytes>>>,
    spares: usize,
    crashes: &[Crash],
    choices: &[u16],
) -> Result<Simulation, String> {
    let mut simulation = Simulation::new(calls, spares, crashes);
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

/// The BLOB of a client in this half.
fn blob(place: usize, half: u8) -> Key {
    Key { table: Table::Blobs, half, index: place as u32 * BLOBS_OF_A_CLIENT }
}

fn change(op: Op) -> Call<Bytes> {
    let bytes = match op {
        Op::Create { seed, .. } | Op::Store { seed, .. } => {
            let mut bytes = vec![0; 20 + seed as usize % 7];
            contents::fill(seed, &mut bytes);
            Some(bytes.into())
        }
        _ => None,
    };
    Call::Run { ops: vec![op], blob: bytes }
}

/// The operations of BLOBs in their order, with a read after each of them.
fn life_of_a_blob(place: usize, half: u8) -> Vec<Call<Bytes>> {
    let key = blob(place, half);
    let ops = [Op::Create { key, seed: 3 }, Op::Store { key, seed: 4 }, Op::Delete { key }];
    ops.into_iter().flat_map(|op| [change(op), Call::Read(key)]).collect()
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
        (change(Op::Create { key: blob(0, 0), seed: 3 }), 4),
        (change(Op::Create { key: blob(0, 1), seed: 3 }), 6),
    ]
}

#[test]
fn flows_take_the_messages_of_the_table() {
    for (call, messages) in flows() {
        let done = play(vec![vec![call.clone()]], 0, &[], &[0]).expect("no failure");
        assert_eq!(done.messages, messages, "{call:?}");
    }
    let lives =
        [0, 1].map(|half| play(vec![life_of_a_blob(0, half)], 0, &[], &[0]).expect("no failure").messages);
    assert_eq!(lives, [3 * (4 + 2), 3 * (6 + 6)], "create, store and delete; and a read of each");
}

/// Two clients of different servers change the same rows in the same way, so that one's transaction waits for
/// the other's.
#[test]
fn a_server_may_die_at_any_message_of_any_flow() {
    let mut crashes = 0;
    let changes = |call: &Call<Bytes>| !matches!(call, Call::Run { blob: Some(_), .. });
    let twice = |(call, _): (Call<Bytes>, u64)| vec![vec![call.clone(), call.clone()], vec![call]];
    let lives = [0, 1].map(|half| vec![life_of_a_blob(0, half), life_of_a_blob(1, half)]);
    for calls in flows().into_iter().filter(|(call, _)| changes(call)).map(twice).chain(lives) {
        let whole = play(calls.clone(), 0, &[], &[0, 1, 2]).expect("no failure").steps;
        for (after, victim, survive) in (0..=whole)
            .flat_map(|after| (0..2).flat_map(move |victim| (0..3).map(move |s| (after, victim, s))))
        {
            let crash = Crash { victim, after, survive };
            for choices in [&[0, 1, 2][..], &[0], &[5, 3, 0, 1]] {
                let played = play(calls.clone(), 0, &[crash], choices);
                assert!(played.is_ok(), "{calls:?} {crash:?} {choices:?}: {:?}", played.err());
                crashes += 1;
            }
        }
    }
    assert!(crashes > 500, "{crashes}");
}

/// A client of the dead server does not wait until the rows of the copy are listed.
#[test]
fn the_answers_of_a_take_over_come_before_the_copy() {
    let mut node = Node::<Bytes>::new(0, Servers::of_job(4, 1), LIMITS);
    let Call::Run { ops, .. } = tpcb(0, 1, 7) else { panic!("all in one message") };
    let asked = node.handle(2, Body::Run { seq: 1, ops }, None);
    assert!(matches!(&asked[..], [Outgoing { to: 1, body: Body::Prepare { .. }, .. }]), "{asked:?}");
    let answers = node.lost(1);
    assert!(matches!(&answers[..], [Outgoing { to: 2, body: Body::Committed { .. }, .. }]), "{answers:?}");
    let copy = node.begin_copy();
    let is_piece = |message: &Outgoing<Bytes>| message.to == 3 && matches!(message.body, Body::Piece(_));
    assert!(!copy.is_empty() && copy.iter().all(is_piece), "{copy:?}");
}

/// Transactions of two clients of different servers, with rows, histories and BLOBs of both halves.
fn some_of_all() -> Vec<Vec<Call<Bytes>>> {
    [0, 1]
        .map(|place| {
            let half = place as u8;
            let mut calls = vec![tpcb(half, 1 - half, 7), steps([0, 1, 1, 0], 5)];
            let key = blob(place, 1 - half);
            calls.extend([
                change(Op::Create { key, seed: 3 }),
                Call::Read(key),
                change(Op::Store { key, seed: 4 }),
                Call::Read(key),
            ]);
            calls.extend([tpcb(half, half, 2), Call::Read(tuple(half, 1))]);
            calls
        })
        .into()
}

#[test]
fn a_spare_takes_the_place_of_a_server_that_dies_at_any_message() {
    let whole = play(some_of_all(), 1, &[], &[0, 1, 2]).expect("no failure").steps;
    let mut moved = 0;
    for (after, victim, survive) in
        (0..=whole).flat_map(|after| (0..2).flat_map(move |victim| (0..3).map(move |s| (after, victim, s))))
    {
        for choices in [&[0, 1, 2][..], &[0], &[5, 3, 0, 1]] {
            let crash = Crash { victim, after, survive };
            let played = play(some_of_all(), 1, &[crash], choices);
            let played = played.unwrap_or_else(|why| panic!("{crash:?} {choices:?}: {why}"));
            let full: Vec<usize> = played.dumps().iter().map(|(rank, _)| *rank).collect();
            assert_eq!(full, [1 - victim, 4], "{crash:?} {choices:?}");
            moved += played.clients.iter().filter(|client| client.session.coordinator() == 4).count();
        }
    }
    assert!(moved > 100, "clients of the dead server go to the spare: {moved}");
}

/// The second victim is the survivor, or the spare. Only a survivor that dies before the spare has all takes data away.
#[test]
fn a_second_server_may_die_at_any_message_once_the_spare_has_joined() {
    let (mut before, mut later, mut of_spare) = (0, 0, 0);
    for (first, victim) in [0, 9, 20, 33].into_iter().flat_map(|first| [(first, 0), (first, 1)]) {
        let crash = Crash { victim, after: first, survive: 1 };
        for choices in [&[0, 1, 2][..], &[5, 3, 0, 1]] {
            let whole = play(some_of_all(), 1, &[crash], choices).expect("no failure").steps;
            for (after, second, survive) in (0..=whole - first)
                .flat_map(|after| [1 - victim, 2].map(move |second| (after, second)))
                .flat_map(|(after, second)| [0, 2].map(move |survive| (after, second, survive)))
            {
                let crashes = [crash, Crash { victim: second, after, survive }];
                let played = play(some_of_all(), 1, &crashes, choices);
                let played = played.unwrap_or_else(|why| panic!("{crashes:?} {choices:?}: {why}"));
                match (played.dumps().is_empty(), second) {
                    (true, 2) => panic!("data are lost with the spare: {crashes:?} {choices:?}"),
                    (false, 2) => of_spare += 1,
                    (true, _) => {
                        assert!(played.joins.is_empty(), "{crashes:?} {choices:?}");
                        before += 1;
                    }
                    (false, _) => later += 1,
                }
            }
        }
    }
    assert!(before > 100 && later > 100 && of_spare > 100, "{before} {later} {of_spare}");
}

fn any_call(place: usize) -> impl Strategy<Value = Call<Bytes>> {
    let key = || (0..2_u8, 0..3_u32).prop_map(|(half, index)| tuple(half, index));
    prop_oneof![
        key().prop_map(Call::Read),
        (prop::array::uniform4(0..2_u8), -9..9_i64).prop_map(|(halves, delta)| steps(halves, delta)),
        (0..2_u8, 0..2_u8, -9..9_i64).prop_map(|(half, account, delta)| tpcb(half, account, delta)),
        (0..2_u8, any::<u16>()).prop_map(move |(half, seed)| {
            change(Op::Create { key: blob(place, half), seed: u64::from(seed) })
        }),
        (0..2_u8).prop_map(move |half| change(Op::Delete { key: blob(place, half) })),
        (0..2_u8).prop_map(move |half| Call::Read(blob(place, half))),
    ]
}

/// Makes a client's operations of BLOBs possible: one that is there is updated and not inserted, and only one that is there is
/// deleted.
fn possible(calls: Vec<Call<Bytes>>) -> Vec<Call<Bytes>> {
    let mut present = BTreeSet::new();
    let mut possible = |mut call: Call<Bytes>| {
        if let Call::Run { ops, .. } = &mut call {
            match ops[0] {
                Op::Create { key, seed } if !present.insert(key) => ops[0] = Op::Store { key, seed },
                Op::Delete { key } if !present.remove(&key) => return None,
                _ => {}
            }
        }
        Some(call)
    };
    calls.into_iter().filter_map(&mut possible).collect()
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
        spares in 0..3_usize,
        crashes in prop::collection::vec((0..4_usize, 0..150_usize, 0..4_usize), 0..4),
        choices in prop::collection::vec(any::<u16>(), 1..300),
    ) {
        let calls = [calls.0, calls.1, calls.2, calls.3].map(possible).into();
        // One node lives to the end.
        let crashes = crashes.into_iter().take(1 + spares);
        let crashes: Vec<Crash> =
            crashes.map(|(victim, after, survive)| Crash { victim: victim % (2 + spares), after, survive }).collect();
        if let Err(why) = play(calls, spares, &crashes, &choices) {
            prop_assert!(false, "{}", why);
        }
    }
}
