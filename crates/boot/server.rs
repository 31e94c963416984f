//! The rules of the name service, without any I/O.
//!
//! [`Server`] takes `(now, rank, request)` and returns [`Action`]s. It has no socket, clock or thread, never
//! blocks, and trusts no rank. A request that must wait is kept in a list until it can be answered: by the
//! awaited value, by the news that it can never come, or by its deadline, for which the driver calls
//! [`Server::tick`] at [`Server::next_deadline`].

mod agreement;
mod store;

use std::{
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use udeck_auth::{HostKey, Master, RankKey, SealedTicket};

use self::{
    agreement::Agreements,
    store::{Store, Table},
};
use crate::wire::{
    Call, Event, FromServer, Maker, Record, Reply, Request, RequestError, VERSION, Vote, Welcome,
};
use crate::{Host, Placement};

pub use self::store::Limits;

/// Upper bound of a wait: it keeps the arithmetic of deadlines from overflowing.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Maximum length of a rank's reason to abort, in characters.
const MAX_WHY: usize = 300;

/// Facts about a job that the server needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// The welcome for every rank; its `rank` and `key` are filled in for each.
    welcome: Welcome,
    master: Master,
    /// Processors by host: see [`Welcome::cpus`]. Empty if unknown.
    cpus: Vec<u32>,
    /// See [`Config::served_by`].
    server: Option<u32>,
    /// Bounds of what the ranks may store.
    pub limits: Limits,
    /// How long a closed connection waits for [`Server::ended`] to say how its rank ended, before the others
    /// are told merely that it closed. Zero if nobody watches the ranks.
    pub patience: Duration,
}

impl Config {
    /// Makes a job of `size` ranks on this host, with a fresh secret, whose ranks nobody watches.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new(size: u32) -> io::Result<Config> {
        let (mut secret, mut job) = ([0; 32], [0; 8]);
        getrandom::fill(&mut secret)?;
        getrandom::fill(&mut job)?;
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let welcome = Welcome {
            rank: 0,
            size,
            secret,
            job: u64::from_le_bytes(job),
            placement: Placement::blocks(vec![Host { name, ranks: size }]),
            address: None,
            key: RankKey::BLANK,
            cpus: 0,
        };
        let master = Master::draw()?;
        let (cpus, server, limits) = (Vec::new(), None, Limits::default());
        Ok(Config { welcome, master, cpus, server, limits, patience: Duration::ZERO })
    }

    /// Places the job on several hosts, whose ranks add up to its size; `address` is this host's own.
    #[must_use]
    pub fn on(self, hosts: Vec<Host>, address: Option<IpAddr>) -> Config {
        self.placed(Placement::blocks(hosts), address)
    }

    /// Does as [`Config::on`], with any placement.
    #[must_use]
    pub fn placed(mut self, placement: Placement, address: Option<IpAddr>) -> Config {
        self.welcome.placement = placement;
        self.welcome.address = address;
        self
    }

    /// Sets the number of processors that the ranks of each host may use, all together.
    #[must_use]
    pub fn with_cpus(mut self, of_hosts: Vec<u32>) -> Config {
        self.cpus = of_hosts;
        self
    }

    /// Sets the rank whose process runs the service. It ends last: it learns of the others' ends after its own
    /// goodbye, too.
    #[must_use]
    pub fn served_by(mut self, rank: u32) -> Config {
        self.server = Some(rank);
        self
    }

    /// Returns the number that names the job.
    pub fn job(&self) -> u64 {
        self.welcome.job
    }

    /// Returns the number of processors of a rank's host; 0 if unknown.
    fn cpus_of(&self, rank: u32) -> u32 {
        let host = self.welcome.placement.host_of(rank);
        host.and_then(|host| self.cpus.get(host)).copied().unwrap_or(0)
    }

    /// Returns the placement of the ranks.
    pub fn placement(&self) -> &Placement {
        &self.welcome.placement
    }

    /// Returns the job's secret, to be sent to other hosts.
    pub fn secret(&self) -> [u8; 32] {
        self.welcome.secret
    }

    /// Returns the key of the host whose ranks begin with `first`, to be sent to that host: the keys of its
    /// ranks follow from it.
    pub fn host_key(&self, first: u32) -> HostKey {
        self.master.host(first)
    }

    fn rank_keys(&self) -> Vec<RankKey> {
        let placement = &self.welcome.placement;
        let first = |host| placement.ranks_of(host).next().unwrap_or(0);
        let keys: Vec<_> = (0..placement.hosts().len()).map(|host| self.master.host(first(host))).collect();
        (0u32..).zip(placement.by_rank()).map(|(rank, host)| keys[*host as usize].rank(rank)).collect()
    }

    /// Returns the number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.welcome.size
    }
}

/// Action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a message to a rank.
    Send {
        /// The rank.
        to: u32,
        /// The message.
        message: FromServer,
    },
    /// Close a rank's connection: nothing more is sent or received on it.
    Close {
        /// The rank.
        rank: u32,
    },
}

/// The name service of one job.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct Server {
    config: Config,
    ranks: Vec<State>,
    /// Whether a rank has ever said hello, by rank.
    joined: Vec<bool>,
    /// Keys by which the ranks prove themselves, by rank.
    keys: Vec<RankKey>,
    store: Store,
    waiting: Vec<Waiting>,
    /// Ranks whose connections have closed, and whose ends may still be reported.
    closed: Vec<u32>,
    /// Ends of ranks, in the order of the news; sent to a rank that says hello late.
    history: Vec<Event>,
    agreements: Agreements,
    actions: Vec<Action>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The rank has not said hello. A program that never will is no problem: nothing is sent to it.
    Starting,
    Joined,
    /// The rank's connection has closed; how it ended may still be reported, until `until`.
    Closed {
        until: Instant,
    },
    Done,
    Lost,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Waiting {
    rank: u32,
    id: u64,
    deadline: Instant,
    awaited: Awaited,
}

#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Clone))]
enum Awaited {
    Entry(Table, String, Maker),
    Fence,
    Exit(u32),
    Agreement(Vote),
}

impl Server {
    /// Makes a server to which no rank has spoken yet.
    pub fn new(config: Config) -> Server {
        Server {
            ranks: vec![State::Starting; config.welcome.size as usize],
            joined: vec![false; config.welcome.size as usize],
            store: Store::new(config.limits, config.welcome.size),
            keys: config.rank_keys(),
            config,
            waiting: Vec::new(),
            closed: Vec::new(),
            history: Vec::new(),
            agreements: Agreements::default(),
            actions: Vec::new(),
        }
    }

    /// Handles a request that came on the connection of `rank`.
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

    /// Handles the end of the connection of `rank`.
    pub fn disconnected(&mut self, now: Instant, rank: u32) -> Vec<Action> {
        match self.state(rank) {
            Some(State::Starting) if self.config.patience.is_zero() => {
                self.lose(rank, "never joined the job")
            }
            Some(State::Joined) if self.config.patience.is_zero() => {
                self.lose(rank, "closed its connection without saying goodbye");
            }
            Some(State::Starting | State::Joined) => {
                let until = now + self.config.patience;
                self.ranks[rank as usize] = State::Closed { until };
                self.closed.push(rank);
                self.waiting.retain(|w| w.rank != rank);
                // The end of the rank is about to be reported.
                for waiting in self.waiting.iter_mut().filter(|w| w.awaited == Awaited::Exit(rank)) {
                    waiting.deadline = until + self.config.patience;
                }
                self.actions.push(Action::Close { rank });
                self.decide();
            }
            Some(State::Done) => self.actions.push(Action::Close { rank }),
            Some(State::Closed { .. } | State::Lost) | None => {}
        }
        std::mem::take(&mut self.actions)
    }

    /// Handles the report of the end of `rank`: "killed by SIGSEGV". It is no news if the rank had said
    /// goodbye.
    pub fn ended(&mut self, rank: u32, how: &str) -> Vec<Action> {
        match self.state(rank) {
            Some(State::Starting | State::Joined | State::Closed { .. }) => self.lose(rank, how),
            Some(State::Done) => self.actions.push(Action::Close { rank }),
            Some(State::Lost) | None => {}
        }
        std::mem::take(&mut self.actions)
    }

    /// Tells whether this rank has joined the job and not said goodbye: if it has ended, it ended without one.
    pub fn owes_goodbye(&self, rank: u32) -> bool {
        self.joined.get(rank as usize).is_some_and(|joined| *joined) && self.state(rank) != Some(State::Done)
    }

    /// Answers all requests whose deadline has passed.
    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        if self.next_deadline().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let (missing, not_voted) = (self.missing_at_fence(), self.missing_at_agreement());
        for late in self.take_waiting(|w| w.deadline <= now) {
            let reply = match late.awaited {
                Awaited::Entry(table, ..) => Reply::Failed(self.store.no_such(table)),
                Awaited::Fence => Reply::Failed(RequestError::FenceLate { missing: missing.clone() }),
                Awaited::Agreement(_) => {
                    Reply::Failed(RequestError::FenceLate { missing: not_voted.clone() })
                }
                Awaited::Exit(_) => Reply::Ok,
            };
            self.reply(late.rank, late.id, reply);
        }
        for rank in std::mem::take(&mut self.closed) {
            match self.state(rank) {
                Some(State::Closed { until }) if until <= now => {
                    self.lose(rank, "closed its connection without saying goodbye");
                }
                Some(State::Closed { .. }) => self.closed.push(rank),
                // The end was reported.
                _ => {}
            }
        }
        std::mem::take(&mut self.actions)
    }

    /// Returns the time of the next [`tick`](Server::tick).
    pub fn next_deadline(&self) -> Option<Instant> {
        let closed = self.closed.iter().filter_map(|rank| match self.state(*rank) {
            Some(State::Closed { until }) => Some(until),
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
        self.joined[rank as usize] = true;
        self.reply(
            rank,
            id,
            Reply::Welcome(Welcome {
                rank,
                key: self.keys[rank as usize],
                cpus: self.config.cpus_of(rank),
                ..self.config.welcome.clone()
            }),
        );
        for event in &self.history {
            self.actions.push(Action::Send { to: rank, message: FromServer::Event(event.clone()) });
        }
    }

    fn serve(&mut self, now: Instant, rank: u32, id: u64, call: Call) {
        match call {
            Call::Register { name, value } => self.register(rank, id, name, value),
            Call::Unregister { name } => self.unregister(rank, id, &name),
            Call::Lookup { name, wait, maker } => self.find(now, rank, id, (Table::Names, name), wait, maker),
            Call::Put { key, value } => self.put(rank, id, key, value),
            Call::Get { key, wait, maker } => self.find(now, rank, id, (Table::Values, key), wait, maker),
            Call::Fence { wait } => self.fence(now, rank, id, wait),
            Call::Done => self.done(rank, id),
            Call::Abort { code, why } => {
                self.reply(rank, id, Reply::Ok);
                self.lose(rank, &aborted(code, &why));
            }
            Call::AwaitExit { rank: of, wait } => self.await_exit(now, rank, id, of, wait),
            Call::Agree { round, vote, wait } => {
                if let Some(vote) = self.vote(rank, id, round, vote) {
                    self.wait(now, rank, id, wait, vote);
                    self.decide();
                }
            }
            Call::Cancel { id } => self.waiting.retain(|w| (w.rank, w.id) != (rank, id)),
            Call::Hello { .. } => {}
        }
    }

    fn register(&mut self, rank: u32, id: u64, name: String, value: Vec<u8>) {
        if let Some(taken) = self.store.get(Table::Names, &name) {
            let owner = taken.owner;
            return self.reply(rank, id, Reply::Failed(RequestError::NameTaken { owner }));
        }
        self.store(rank, id, Table::Names, name, value);
    }

    fn put(&mut self, rank: u32, id: u64, key: String, value: Vec<u8>) {
        self.store(rank, id, Table::Values, key, value);
    }

    fn store(&mut self, rank: u32, id: u64, table: Table, name: String, value: Vec<u8>) {
        let record = match self.store.insert(table, name.clone(), Record { owner: rank, value }) {
            Ok(record) => record,
            Err(failure) => return self.reply(rank, id, Reply::Failed(failure)),
        };
        self.reply(rank, id, Reply::Ok);
        for waiting in
            self.take_waiting(|w| matches!(&w.awaited, Awaited::Entry(t, n, _) if *t == table && *n == name))
        {
            self.reply_with(waiting.rank, waiting.id, table, Arc::clone(&record));
        }
    }

    fn unregister(&mut self, rank: u32, id: u64, name: &str) {
        let reply = match self.store.get(Table::Names, name).map(|record| record.owner) {
            Some(owner) if owner == rank => {
                self.store.remove(name);
                Reply::Ok
            }
            Some(owner) => {
                let why = format!("`{name}` belongs to rank {owner}: only that rank can unregister it");
                Reply::Failed(RequestError::Refused { why })
            }
            None => Reply::Failed(self.store.no_such(Table::Names)),
        };
        self.reply(rank, id, reply);
    }

    fn find(
        &mut self,
        now: Instant,
        rank: u32,
        id: u64,
        (table, name): (Table, String),
        wait: Option<Duration>,
        maker: Maker,
    ) {
        if let Some(record) = self.store.get(table, &name) {
            let record = Arc::clone(record);
            return self.reply_with(rank, id, table, record);
        }
        let checked = self.store.check_name(&name).and_then(|()| self.may_come(table, &name, maker));
        match (checked, wait) {
            (Err(failure), _) => self.reply(rank, id, Reply::Failed(failure)),
            (Ok(()), None) => {
                let failure = self.store.no_such(table);
                self.reply(rank, id, Reply::Failed(failure));
            }
            (Ok(()), Some(_)) if self.only_left() == Some(rank) => {
                self.reply(rank, id, Reply::Failed(RequestError::NobodyLeft))
            }
            (Ok(()), Some(wait)) => self.wait(now, rank, id, wait, Awaited::Entry(table, name, maker)),
        }
    }

    /// Fails if no rank will make the name or key any more: the one that had made it, or was to make it, has
    /// ended.
    fn may_come(&self, table: Table, name: &str, maker: Maker) -> Result<(), RequestError> {
        let had_it = self.store.last_owner(table, name).and_then(|owner| self.end_of(owner));
        let ended = had_it.or_else(|| match maker {
            Maker::Rank(owner) => self.end_of(owner),
            Maker::Collective(owner) => {
                let is_lost = |event: &&Event| matches!(event, Event::RankLost { .. });
                // A rank that finished may have done so because of the loss.
                self.history.iter().find(is_lost).or_else(|| self.end_of(owner))
            }
            Maker::Anyone => None,
        });
        ended.map_or(Ok(()), |event| Err(maker_ended(event)))
    }

    /// Returns how a rank ended, if it has.
    fn end_of(&self, rank: u32) -> Option<&Event> {
        self.history.iter().find(|event| rank_of(event) == Some(rank))
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

    fn await_exit(&mut self, now: Instant, rank: u32, id: u64, of: u32, wait: Duration) {
        match self.state(of) {
            Some(State::Starting | State::Joined) if of != rank => {
                self.wait(now, rank, id, wait, Awaited::Exit(of));
            }
            Some(State::Closed { .. }) => {
                self.wait(now, rank, id, 2 * self.config.patience, Awaited::Exit(of));
            }
            _ => self.reply(rank, id, Reply::Ok),
        }
    }

    fn wait(&mut self, now: Instant, rank: u32, id: u64, wait: Duration, awaited: Awaited) {
        let limit = self.config.limits.waiting;
        if self.waiting.iter().filter(|w| w.rank == rank).count() >= limit {
            let what = "the number of waiting requests of a rank".into();
            let failure = RequestError::TooBig { what, limit: limit as u64, got: limit as u64 + 1 };
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

    /// Does the common part of both ends: the rank's names are removed, the others are told, and hopeless waits
    /// fail.
    fn end(&mut self, rank: u32, state: State, event: Event) {
        self.ranks[rank as usize] = state;
        self.store.end(rank);
        for to in 0..self.config.welcome.size {
            if to != rank && self.gets_events(to) {
                self.actions.push(Action::Send { to, message: FromServer::Event(event.clone()) });
            }
        }
        for stuck in self.take_waiting(|w| w.awaited == Awaited::Fence) {
            self.reply(stuck.rank, stuck.id, Reply::Failed(broken_by(&event)));
        }
        let is_lost = state == State::Lost;
        let Server { store, waiting, .. } = self;
        let hopeless = waiting.extract_if(.., |w| match &w.awaited {
            Awaited::Entry(table, name, _) if store.last_owner(*table, name) == Some(rank) => true,
            Awaited::Entry(_, _, Maker::Rank(maker)) => *maker == rank,
            Awaited::Entry(_, _, Maker::Collective(maker)) => *maker == rank || is_lost,
            _ => false,
        });
        for hopeless in hopeless.collect::<Vec<_>>() {
            self.reply(hopeless.rank, hopeless.id, Reply::Failed(maker_ended(&event)));
        }
        for asked in self.take_waiting(|w| w.awaited == Awaited::Exit(rank)) {
            self.reply(asked.rank, asked.id, Reply::Ok);
        }
        self.history.push(event);
        self.decide();
        if let Some(last) = self.only_left() {
            for hopeless in self.take_waiting(|w| w.rank == last) {
                self.reply(hopeless.rank, hopeless.id, Reply::Failed(RequestError::NobodyLeft));
            }
        }
    }

    /// Tells whether a rank is told of the others' ends.
    fn gets_events(&self, rank: u32) -> bool {
        match self.state(rank) {
            Some(State::Joined) => true,
            Some(State::Done) => self.config.server == Some(rank),
            _ => false,
        }
    }

    fn state(&self, rank: u32) -> Option<State> {
        self.ranks.get(rank as usize).copied()
    }

    /// Returns the last rank, if all others have ended. In a job of one rank returns `None`: it may wait for
    /// another of its own threads.
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

    fn take_waiting(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.waiting.extract_if(.., |w| which(w)).collect()
    }

    fn reply(&mut self, to: u32, id: u64, reply: Reply) {
        self.actions.push(Action::Send { to, message: FromServer::Reply { id, reply } });
    }

    /// Answers with a registered or stored record. A rank that learns what another rank has registered may
    /// connect to it, and gets the ticket that proves to the other rank who is calling.
    fn reply_with(&mut self, to: u32, id: u64, table: Table, record: Arc<Record>) {
        let callee = record.owner;
        if let (Table::Names, Some(ours), Some(theirs)) =
            (table, self.keys.get(to as usize), self.keys.get(callee as usize))
        {
            let sealed = SealedTicket::new((to, ours), (callee, theirs));
            self.actions.push(Action::Send { to, message: FromServer::Ticket { callee, sealed } });
        }
        self.reply(to, id, Reply::Record(record));
    }

    fn refuse(&mut self, to: u32, id: u64, why: &str) {
        self.reply(to, id, Reply::Failed(RequestError::Refused { why: why.into() }));
    }
}

/// Returns the text for the end of a rank that has aborted its job.
pub(crate) fn aborted(code: u8, why: &str) -> String {
    let why: String = why.chars().take(MAX_WHY).flat_map(char::escape_debug).collect();
    format!("aborted the job with code {code}{}{why}", if why.is_empty() { "" } else { ": " })
}

fn broken_by(event: &Event) -> RequestError {
    match event {
        Event::RankLost { rank, how } => RequestError::FenceBroken { rank: *rank, how: how.clone() },
        Event::RankDone { rank } => RequestError::FenceBroken { rank: *rank, how: "has said goodbye".into() },
        Event::LauncherGone => RequestError::NobodyLeft,
    }
}

fn maker_ended(event: &Event) -> RequestError {
    match event {
        Event::RankLost { rank, how } => RequestError::MakerEnded { rank: *rank, how: Some(how.clone()) },
        Event::RankDone { rank } => RequestError::MakerEnded { rank: *rank, how: None },
        Event::LauncherGone => RequestError::NobodyLeft,
    }
}

fn rank_of(event: &Event) -> Option<u32> {
    match event {
        Event::RankLost { rank, .. } | Event::RankDone { rank } => Some(*rank),
        Event::LauncherGone => None,
    }
}

#[cfg(test)]
mod tests;
