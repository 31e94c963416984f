//! A sequence: its operations, their order, and their journal.

use std::time::Duration;

use udeck_sim::Fabric;
use udeck_sim::trace::Happening;
use udeck_via::{Caps, Cq, Error, Reliability, State, Vi};

use crate::book::Connection;
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::fleet::{Actor, Station, launch, weather};

/// Number of the last operations that a failure prints.
const LAST: usize = 25;
/// Virtual time after which nothing is under way, except on stalled links.
pub const LONG: Duration = Duration::from_secs(1);

/// Journal of operations and their results, which is printed when the sequence fails.
#[derive(Default)]
pub struct Journal(Vec<String>);

impl Journal {
    pub fn into_lines(mut self) -> Vec<String> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let from = self.0.len().saturating_sub(LAST);
            eprintln!("the last of {} operations:", self.0.len());
            self.0[from..].iter().enumerate().for_each(|(at, line)| eprintln!("  {}: {line}", from + at));
        }
    }
}

/// A sequence under way.
pub struct Play<'a> {
    pub fabric: &'a Fabric,
    pub coverage: &'a mut Coverage,
    pub dice: Dice,
    pub journal: Journal,
    pub stations: Vec<Station>,
    pub actors: Vec<Actor>,
    pub connections: Vec<Connection>,
    /// Links on which nothing arrives at the moment.
    pub stalled: Vec<(usize, usize)>,
    /// Handles of windows that no longer exist.
    pub stale: Vec<udeck_via::RemoteBuffer>,
    pub step: u64,
    pub descriptors: u32,
    may_die: bool,
}

#[derive(Clone, Copy)]
enum StepKind {
    PostReceive,
    Send,
    Write,
    Read,
    Reap,
    Poll,
    Advance,
    Connect,
    Meet,
    Disconnect,
    Replace,
    Revoke,
    Mistake,
    Refusal,
    Fault,
}

/// Weights of the steps, in about a hundred. Most are the steps of a sensible program.
const WEIGHTS: [(usize, StepKind); 15] = [
    (12, StepKind::PostReceive),
    (36, StepKind::Send),
    (8, StepKind::Write),
    (6, StepKind::Read),
    (14, StepKind::Reap),
    (8, StepKind::Poll),
    (5, StepKind::Advance),
    (12, StepKind::Connect),
    (3, StepKind::Meet),
    (3, StepKind::Disconnect),
    (1, StepKind::Replace),
    (1, StepKind::Revoke),
    (3, StepKind::Mistake),
    (2, StepKind::Refusal),
    (2, StepKind::Fault),
];

/// Plays the sequence of the fabric's seed to the end. Returns its journal.
///
/// # Panics
/// Panics if a promise is broken.
pub fn sequence(fabric: &Fabric, coverage: &mut Coverage) -> Vec<String> {
    coverage.begin();
    fabric.record_trace();
    let mut play = Play::new(fabric, coverage);
    for _ in 0..play.dice.between(30, 100) {
        play.step += 1;
        play.operation();
    }
    play.count_faults();
    play.finish()
}

impl<'a> Play<'a> {
    fn new(fabric: &'a Fabric, coverage: &'a mut Coverage) -> Self {
        let mut dice = Dice::new(fabric.seed());
        let (stations, actors) = launch(fabric, &mut dice);
        let may_die = dice.percent(25);
        let mut play = Play {
            fabric,
            coverage,
            dice,
            journal: Journal::default(),
            stations,
            actors,
            connections: Vec::new(),
            stalled: Vec::new(),
            stale: Vec::new(),
            step: 0,
            descriptors: 0,
            may_die,
        };
        let stations = play.stations.len();
        for link in (0..stations).flat_map(|from| (0..stations).map(move |to| (from, to))) {
            let weather = weather(&mut play.dice);
            play.set_link(link, weather);
        }
        play
    }

    fn operation(&mut self) {
        match self.dice.weighted(&WEIGHTS) {
            StepKind::PostReceive => self.post_receive(),
            StepKind::Send => self.send(),
            StepKind::Write if self.caps().has(Caps::RDMA_WRITE) => self.write(),
            StepKind::Read if self.caps().has(Caps::RDMA_READ) => self.read(),
            StepKind::Write | StepKind::Read => self.send(),
            StepKind::Reap => {
                let who = self.dice.below(self.actors.len());
                self.reap_one(who);
            }
            StepKind::Poll => self.poll(),
            StepKind::Advance => {
                let time = Duration::from_micros(self.dice.below(3000) as u64);
                self.note(format!("advance by {time:?}"));
                self.fabric.advance(time);
            }
            StepKind::Connect => self.connect_somebody(),
            StepKind::Meet => self.meet_somebody(),
            StepKind::Disconnect => self.disconnect_somebody(),
            StepKind::Replace => self.replace(),
            StepKind::Revoke => self.revoke(),
            StepKind::Mistake => self.mistake(),
            StepKind::Refusal => self.refusal(),
            StepKind::Fault => self.fault(),
        }
    }

    // ---- common parts of all moves ----

    pub fn note(&mut self, what: String) {
        self.journal.0.push(what);
    }

    /// Counts an attempted operation, and writes it down.
    pub fn tried(&mut self, kind: &'static str, details: &str, outcome: &Result<(), Error>) {
        self.coverage.operation(kind, outcome.is_ok());
        match outcome {
            Ok(()) => self.note(format!("{kind} {details}: done")),
            Err(error) => {
                self.coverage.error(error);
                match error {
                    // The time that it has waited is real time, which would not repeat itself.
                    Error::Timeout { what, .. } => self.note(format!("{kind} {details}: {what}: never came")),
                    error => self.note(format!("{kind} {details}: {error}")),
                }
            }
        }
    }

    pub fn caps(&self) -> Caps {
        self.stations[0].nic.caps()
    }

    /// Returns a new number for a descriptor.
    pub fn number(&mut self) -> u32 {
        self.descriptors += 1;
        self.descriptors
    }

    /// Calls a VI, and tracks its state.
    pub fn with_vi<T>(&mut self, who: usize, by: &str, call: impl FnOnce(&mut Vi) -> T) -> T {
        let before = self.actors[who].state();
        let result = call(self.actors[who].vi());
        self.follow(who, before, by);
        result
    }

    /// Tracks the state of a VI that was in `before` and has been called.
    pub fn follow(&mut self, who: usize, before: State, by: &str) {
        let after = self.actors[who].state();
        if after == before {
            return;
        }
        let by = if after == State::Error { "itself" } else { by };
        self.coverage.transition(before, after, by);
        if after == State::Error {
            let lost = self.can_only_be_lost(who, before);
            let book = &mut self.actors[who].book;
            if lost { book.is_lost() } else { book.ends() }
        }
    }

    /// Whether only a loss explains that a connected VI went to the Error state: its peer has not left, and the
    /// next message had a place.
    fn can_only_be_lost(&self, who: usize, before: State) -> bool {
        let Some((connection, side)) = self.actors[who].connection.filter(|_| before == State::Connected)
        else {
            return false;
        };
        let (connection, receives) = (&self.connections[connection], &self.actors[who].book.receives);
        let direction = &connection.directions[1 - side];
        let has_place = match (direction.sent.get(direction.arrived), receives.front()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(sent), Some(receive)) => sent.written || sent.len <= receive.room(),
        };
        connection.ends[1 - side].is_some() && has_place
    }

    /// A random VI that fulfils `wish`.
    pub fn somebody(&mut self, wish: impl Fn(&Actor) -> bool) -> Option<usize> {
        let all: Vec<_> = (0..self.actors.len()).filter(|&who| wish(&self.actors[who])).collect();
        self.dice.pick(&all)
    }

    pub fn cq(&self, who: usize) -> &Cq {
        &self.stations[self.actors[who].home].cq
    }

    pub fn is_stalled(&self, a: usize, b: usize) -> bool {
        self.stalled.contains(&(a, b)) || self.stalled.contains(&(b, a))
    }

    pub fn set_link(&mut self, link: (usize, usize), to: udeck_sim::Link) {
        let (from, into) = (&self.stations[link.0], &self.stations[link.1]);
        if from.alive && into.alive {
            self.stalled.retain(|other| *other != link);
            if to.stalled {
                self.stalled.push(link);
            }
            self.fabric.set_link(&from.name, &into.name, to);
        }
    }

    /// Whether messages of this VI keep their order.
    pub fn ordered(&self, who: usize) -> bool {
        self.actors[who].level != Reliability::Unreliable
    }

    // ---- faults ----

    fn count_faults(&mut self) {
        for event in self.fabric.trace() {
            match event.what {
                Happening::Lost(_) => self.coverage.fault("a frame is lost"),
                Happening::Detected(_) => self.coverage.fault("a frame arrives corrupt, and is noticed"),
                Happening::Duplicated(_) => self.coverage.fault("a frame comes twice"),
                Happening::HeldBack(_) => self.coverage.fault("a frame is held back"),
                Happening::Stalled(_) => self.coverage.fault("a frame waits on a stalled link"),
                Happening::Broken => self.coverage.fault("a connection breaks"),
                _ => {}
            }
        }
    }

    fn fault(&mut self) {
        let stations = self.stations.len();
        let link = (self.dice.below(stations), self.dice.below(stations));
        match self.dice.below(4) {
            0 => {
                self.coverage.fault("a link stalls");
                self.note(format!("link {link:?} stalls"));
                self.set_link(link, udeck_sim::Link { stalled: true, ..Default::default() });
            }
            1 if self.may_die => {
                self.may_die = false;
                let victim = self.dice.below(stations);
                self.coverage.fault("a NIC dies");
                self.note(format!("n{victim} dies"));
                self.stations[victim].alive = false;
                self.stalled.retain(|link| link.0 != victim && link.1 != victim);
                self.fabric.kill(&self.stations[victim].name);
            }
            _ => {
                self.coverage.fault("a link changes");
                let weather = match self.dice.pick(&self.stalled.clone()) {
                    Some(stalled) => (stalled, weather(&mut self.dice)),
                    None => (link, weather(&mut self.dice)),
                };
                self.note(format!("link {:?}: {:?}", weather.0, weather.1));
                self.set_link(weather.0, weather.1);
            }
        }
    }
}
