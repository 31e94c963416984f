//! The rules of the name service, without any I/O.
//!
//! [`Server`] takes `(now, rank, request)` and returns [`Action`]s; it has no socket, clock or thread, never blocks, and
//! trusts nothing that a rank says. A request that must wait is kept in a list until something answers it: the thing
//! itself, the news that it can never come, or its deadline, which the driver serves by calling [`Server::tick`] at
//! [`Server::next_deadline`].

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::wire::{
    Call, Event, Failure, FromServer, Host, MAX_LISTED, Record, Reply, Request, VERSION, Welcome,
};

/// A longer wait is cut to this: it keeps the arithmetic of deadlines from overflowing.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A job as the server has to know it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Sent to every rank; its `rank` is filled in for each.
    welcome: Welcome,
    /// What the ranks may store.
    pub limits: Limits,
    /// How long a closed connection waits for [`Server::ended`] to say how its rank ended, before the others are told
    /// merely that it closed. Zero when nobody watches the ranks.
    pub patience: Duration,
}

impl Config {
    /// A job of `size` ranks on this host, with a fresh secret, that nobody watches.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new(size: u32) -> io::Result<Config> {
        let (mut secret, mut job) = ([0; 32], [0; 8]);
        getrandom::fill(&mut secret)?;
        getrandom::fill(&mut job)?;
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let hosts = vec![Host { name, ranks: size }];
        let welcome = Welcome { rank: 0, size, secret, job: u64::from_le_bytes(job), hosts, address: None };
        Ok(Config { welcome, limits: Limits::default(), patience: Duration::ZERO })
    }

    /// The same job on several hosts, whose ranks add up to its size, and this host's own address among them.
    #[must_use]
    pub fn on(mut self, hosts: Vec<Host>, address: Option<IpAddr>) -> Config {
        self.welcome.hosts = hosts;
        self.welcome.address = address;
        self
    }

    /// The job's secret, for whoever brings it to other hosts.
    pub fn secret(&self) -> [u8; 32] {
        self.welcome.secret
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.welcome.size
    }
}

/// What the ranks together may store.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most names, and separately the most keys, of a job.
    pub entries: usize,
    /// The longest name or key, in bytes.
    pub name_len: usize,
    /// The longest value, in bytes.
    pub value_len: usize,
    /// The most requests of one rank that may be waiting.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { entries: 1 << 16, name_len: 255, value_len: 64 << 10, waiting: 256 }
    }
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this to a rank.
    Send {
        /// The rank.
        to: u32,
        /// What.
        message: FromServer,
    },
    /// Close a rank's connection: nothing more will be sent or heard on it.
    Close {
        /// The rank.
        rank: u32,
    },
}

/// The name service of one job.
#[derive(Debug)]
pub struct Server {
    config: Config,
    ranks: Vec<State>,
    names: BTreeMap<String, Record>,
    values: BTreeMap<String, Record>,
    waiting: Vec<Waiting>,
    /// How ranks ended, in the order of the news; replayed to a rank that says hello late.
    history: Vec<Event>,
    actions: Vec<Action>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Has not said hello. A program that never will is no problem: nothing is sent to it.
    Starting,
    Joined,
    /// Its connection has closed; how it ended may still be told, until then.
    Closed {
        until: Instant,
    },
    Done,
    Lost,
}

#[derive(Debug)]
struct Waiting {
    rank: u32,
    id: u64,
    deadline: Instant,
    awaited: Awaited,
}

#[derive(Debug, PartialEq, Eq)]
enum Awaited {
    Entry(Table, String),
    Fence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Names,
    Values,
}

impl Server {
    /// A server to whom no rank has spoken yet.
    pub fn new(config: Config) -> Server {
        Server {
            ranks: vec![State::Starting; config.welcome.size as usize],
            config,
            names: BTreeMap::new(),
            values: BTreeMap::new(),
            waiting: Vec::new(),
            history: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// A request came on the connection of `rank`.
    pub fn handle(&mut self, now: Instant, rank: u32, request: Request) -> Vec<Action> {
        let Request { id, call } = request;
        match (self.state(rank), call) {
            (Some(State::Starting), Call::Hello { version }) => self.hello(rank, id, version),
            (Some(State::Starting), _) => self.refuse(rank, id, "the first request must be hello"),
            (Some(State::Joined), Call::Hello { .. }) => {
                self.refuse(rank, id, "this rank has already said hello")
            }
            (Some(State::Joined), call) => self.serve(now, rank, id, call),
            (Some(State::Done), _) => self.refuse(rank, id, "this rank has already said goodbye"),
            (Some(State::Closed { .. } | State::Lost) | None, _) => {}
        }
        std::mem::take(&mut self.actions)
    }

    /// The connection of `rank` ended.
    pub fn disconnected(&mut self, now: Instant, rank: u32) -> Vec<Action> {
        match self.state(rank) {
            Some(State::Starting | State::Joined) if self.config.patience.is_zero() => {
                self.lose(rank, "closed its connection without saying goodbye");
            }
            Some(State::Starting | State::Joined) => {
                self.ranks[rank as usize] = State::Closed { until: now + self.config.patience };
                self.waiting.retain(|w| w.rank != rank);
                self.actions.push(Action::Close { rank });
            }
            Some(State::Done) => self.actions.push(Action::Close { rank }),
            Some(State::Closed { .. } | State::Lost) | None => {}
        }
        std::mem::take(&mut self.actions)
    }

    /// `rank` has ended, and whoever watches it knows how: "killed by SIGSEGV". No news if it had said goodbye.
    pub fn ended(&mut self, rank: u32, how: &str) -> Vec<Action> {
        match self.state(rank) {
            Some(State::Starting | State::Joined | State::Closed { .. }) => self.lose(rank, how),
            Some(State::Done) => self.actions.push(Action::Close { rank }),
            Some(State::Lost) | None => {}
        }
        std::mem::take(&mut self.actions)
    }

    /// Answers everything whose time is up.
    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        let missing = self.missing_at_fence();
        for late in self.take_waiting(|w| w.deadline <= now) {
            let failure = match late.awaited {
                Awaited::Entry(table, _) => self.no_such(table),
                Awaited::Fence => Failure::FenceLate { missing: missing.clone() },
            };
            self.reply(late.rank, late.id, Reply::Failed(failure));
        }
        for rank in 0..self.config.welcome.size {
            if matches!(self.state(rank), Some(State::Closed { until }) if until <= now) {
                self.lose(rank, "closed its connection without saying goodbye");
            }
        }
        std::mem::take(&mut self.actions)
    }

    /// When [`tick`](Server::tick) has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let closed = self.ranks.iter().filter_map(|state| match state {
            State::Closed { until } => Some(*until),
            _ => None,
        });
        self.waiting.iter().map(|w| w.deadline).chain(closed).min()
    }

    fn hello(&mut self, rank: u32, id: u64, version: u16) {
        if version != VERSION {
            let why = format!(
                "the launcher speaks protocol version {VERSION} and this rank {version}: use a deckrun and a µDECK \
                 library of the same release"
            );
            return self.refuse(rank, id, &why);
        }
        self.ranks[rank as usize] = State::Joined;
        self.reply(rank, id, Reply::Welcome(Welcome { rank, ..self.config.welcome.clone() }));
        for event in &self.history {
            self.actions.push(Action::Send { to: rank, message: FromServer::Event(event.clone()) });
        }
    }

    fn serve(&mut self, now: Instant, rank: u32, id: u64, call: Call) {
        match call {
            Call::Register { name, value } => self.register(rank, id, name, value),
            Call::Unregister { name } => self.unregister(rank, id, &name),
            Call::Lookup { name, wait } => self.find(now, rank, id, Table::Names, name, wait),
            Call::Put { key, value } => self.put(rank, id, key, value),
            Call::Get { key, wait } => self.find(now, rank, id, Table::Values, key, wait),
            Call::Fence { wait } => self.fence(now, rank, id, wait),
            Call::Done => self.done(rank, id),
            Call::Hello { .. } => {}
        }
    }

    fn register(&mut self, rank: u32, id: u64, name: String, value: Vec<u8>) {
        if let Some(taken) = self.names.get(&name) {
            let owner = taken.owner;
            return self.reply(rank, id, Reply::Failed(Failure::NameTaken { owner }));
        }
        self.store(rank, id, Table::Names, name, value);
    }

    fn put(&mut self, rank: u32, id: u64, key: String, value: Vec<u8>) {
        self.store(rank, id, Table::Values, key, value);
    }

    fn store(&mut self, rank: u32, id: u64, table: Table, name: String, value: Vec<u8>) {
        if let Some(failure) = self.beyond_limits(table, &name, &value) {
            return self.reply(rank, id, Reply::Failed(failure));
        }
        self.reply(rank, id, Reply::Ok);
        let record = Record { owner: rank, value };
        for waiting in
            self.take_waiting(|w| matches!(&w.awaited, Awaited::Entry(t, n) if *t == table && *n == name))
        {
            self.reply(waiting.rank, waiting.id, Reply::Record(record.clone()));
        }
        self.table_mut(table).insert(name, record);
    }

    fn beyond_limits(&self, table: Table, name: &str, value: &[u8]) -> Option<Failure> {
        let limits = &self.config.limits;
        let too_big = |what: &str, limit: usize, got: usize| {
            (got > limit).then(|| Failure::TooBig { what: what.into(), limit: limit as u64, got: got as u64 })
        };
        if name.is_empty() {
            return Some(Failure::Refused { why: "a name must not be empty".into() });
        }
        let known = self.table(table);
        let entries = known.len() + usize::from(!known.contains_key(name));
        too_big("a name (bytes)", limits.name_len, name.len())
            .or_else(|| too_big("a value (bytes)", limits.value_len, value.len()))
            .or_else(|| too_big("the number of names in a job", limits.entries, entries))
    }

    fn unregister(&mut self, rank: u32, id: u64, name: &str) {
        let reply = match self.names.get(name) {
            Some(record) if record.owner == rank => {
                self.names.remove(name);
                Reply::Ok
            }
            Some(record) => {
                let why =
                    format!("`{name}` belongs to rank {}: only that rank can unregister it", record.owner);
                Reply::Failed(Failure::Refused { why })
            }
            None => Reply::Failed(self.no_such(Table::Names)),
        };
        self.reply(rank, id, reply);
    }

    fn find(&mut self, now: Instant, rank: u32, id: u64, table: Table, name: String, wait: Option<Duration>) {
        if let Some(record) = self.table(table).get(&name) {
            let record = record.clone();
            return self.reply(rank, id, Reply::Record(record));
        }
        match wait {
            None => {
                let failure = self.no_such(table);
                self.reply(rank, id, Reply::Failed(failure));
            }
            Some(_) if self.only_left() == Some(rank) => {
                self.reply(rank, id, Reply::Failed(Failure::NobodyLeft))
            }
            Some(wait) => self.wait(now, rank, id, wait, Awaited::Entry(table, name)),
        }
    }

    fn fence(&mut self, now: Instant, rank: u32, id: u64, wait: Duration) {
        if let Some(ended) = self.history.first() {
            let failure = broken_by(ended);
            return self.reply(rank, id, Reply::Failed(failure));
        }
        if self.waiting.iter().any(|w| w.rank == rank && w.awaited == Awaited::Fence) {
            return self.refuse(rank, id, "another thread of this rank is already in a fence");
        }
        self.wait(now, rank, id, wait, Awaited::Fence);
        if self.missing_at_fence().is_empty() {
            for arrived in self.take_waiting(|w| w.awaited == Awaited::Fence) {
                self.reply(arrived.rank, arrived.id, Reply::Ok);
            }
        }
    }

    fn wait(&mut self, now: Instant, rank: u32, id: u64, wait: Duration, awaited: Awaited) {
        let limit = self.config.limits.waiting;
        if self.waiting.iter().filter(|w| w.rank == rank).count() >= limit {
            let what = "the number of waiting requests of a rank".into();
            let failure = Failure::TooBig { what, limit: limit as u64, got: limit as u64 + 1 };
            return self.reply(rank, id, Reply::Failed(failure));
        }
        self.waiting.push(Waiting { rank, id, deadline: now + wait.min(LONGEST_WAIT), awaited });
    }

    fn done(&mut self, rank: u32, id: u64) {
        for own in self.take_waiting(|w| w.rank == rank) {
            self.refuse(own.rank, own.id, "this rank has said goodbye meanwhile");
        }
        self.reply(rank, id, Reply::Ok);
        self.end(rank, State::Done, Event::RankDone { rank });
    }

    fn lose(&mut self, rank: u32, how: &str) {
        self.waiting.retain(|w| w.rank != rank);
        self.actions.push(Action::Close { rank });
        self.end(rank, State::Lost, Event::RankLost { rank, how: how.into() });
    }

    /// What both ways to end have in common: the names go, the others hear of it, and hopeless waits fail.
    fn end(&mut self, rank: u32, state: State, event: Event) {
        self.ranks[rank as usize] = state;
        self.names.retain(|_, record| record.owner != rank);
        for to in 0..self.config.welcome.size {
            if self.state(to) == Some(State::Joined) {
                self.actions.push(Action::Send { to, message: FromServer::Event(event.clone()) });
            }
        }
        for stuck in self.take_waiting(|w| w.awaited == Awaited::Fence) {
            self.reply(stuck.rank, stuck.id, Reply::Failed(broken_by(&event)));
        }
        self.history.push(event);
        if let Some(last) = self.only_left() {
            for hopeless in self.take_waiting(|w| w.rank == last) {
                self.reply(hopeless.rank, hopeless.id, Reply::Failed(Failure::NobodyLeft));
            }
        }
    }

    fn state(&self, rank: u32) -> Option<State> {
        self.ranks.get(rank as usize).copied()
    }

    /// The one rank that others have left alone. Not that of a job of one, which was never anything else: what it waits
    /// for is for another thread of its own to do.
    fn only_left(&self) -> Option<u32> {
        if self.ranks.len() == 1 {
            return None;
        }
        let mut left =
            (0u32..).zip(&self.ranks).filter(|(_, state)| !matches!(state, State::Done | State::Lost));
        match (left.next(), left.next()) {
            (Some((rank, _)), None) => Some(rank),
            _ => None,
        }
    }

    fn missing_at_fence(&self) -> Vec<u32> {
        let mut missing = vec![true; self.ranks.len()];
        for arrived in self.waiting.iter().filter(|w| w.awaited == Awaited::Fence) {
            missing[arrived.rank as usize] = false;
        }
        (0u32..).zip(missing).filter_map(|(rank, missing)| missing.then_some(rank)).collect()
    }

    fn no_such(&self, table: Table) -> Failure {
        let table = self.table(table);
        Failure::NoSuch {
            existing: table.keys().take(MAX_LISTED).cloned().collect(),
            total: table.len() as u64,
        }
    }

    fn take_waiting(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.waiting.extract_if(.., |w| which(w)).collect()
    }

    fn table(&self, table: Table) -> &BTreeMap<String, Record> {
        match table {
            Table::Names => &self.names,
            Table::Values => &self.values,
        }
    }

    fn table_mut(&mut self, table: Table) -> &mut BTreeMap<String, Record> {
        match table {
            Table::Names => &mut self.names,
            Table::Values => &mut self.values,
        }
    }

    fn reply(&mut self, to: u32, id: u64, reply: Reply) {
        self.actions.push(Action::Send { to, message: FromServer::Reply { id, reply } });
    }

    fn refuse(&mut self, to: u32, id: u64, why: &str) {
        self.reply(to, id, Reply::Failed(Failure::Refused { why: why.into() }));
    }
}

fn broken_by(event: &Event) -> Failure {
    match event {
        Event::RankLost { rank, how } => Failure::FenceBroken { rank: *rank, how: how.clone() },
        Event::RankDone { rank } => Failure::FenceBroken { rank: *rank, how: "has said goodbye".into() },
        Event::LauncherGone => Failure::NobodyLeft,
    }
}

#[cfg(test)]
mod tests;
