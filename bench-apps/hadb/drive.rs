//! A client's process: transactions one after the other, each answer checked.

use crate::client::{Answer, Call, Session, Step};
use crate::failure::{Failure, Result};
use crate::link::{Blob, Event, Link};
use crate::message::{Body, Control, Op, Outgoing, Usage};
use crate::options::{Mix, Options};
use crate::oracle::Oracle;
use crate::row::contents;
use crate::serve::{SERVERS, usage};
use crate::workload::{Next, Workload};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Until an answer that does not come ends the run.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often progress is told.
const TICK: Duration = Duration::from_millis(100);

/// What a client measured in a mix.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    pub transactions: u64,
    pub micros: u64,
    /// Nanoseconds, and how many answers took as long.
    pub times: Vec<(u64, u64)>,
    pub longest: u64,
    pub usage: Usage,
    /// If a server died in it.
    pub outage: Option<Outage>,
}

/// What a client noticed of a server's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// It had been the client's own.
    pub own: bool,
    /// From the last answer of the two servers to the first of the one that was left.
    pub micros: u64,
}

pub struct Client {
    link: Link,
    session: Session<Blob>,
    workload: Workload,
    pub oracle: Oracle,
    home: usize,
    /// Servers that have died.
    pub dead: Vec<usize>,
    /// Whether the last answer was that of the only server left.
    solo: bool,
    /// What others said of the measurement while a transaction was under way.
    set_aside: VecDeque<(usize, Control)>,
}

impl Client {
    /// `rank` has the place behind the servers.
    pub fn new(link: Link, rank: usize, options: &Options) -> Client {
        let place = rank - SERVERS;
        let home = place % SERVERS;
        Client {
            link,
            session: Session::new(home),
            workload: Workload::new(options.seed, place as u32, home as u8, options.remote),
            oracle: Oracle::default(),
            home,
            dead: Vec::new(),
            solo: false,
            set_aside: VecDeque::new(),
        }
    }

    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    pub fn into_link(self) -> Link {
        self.link
    }

    /// Runs transactions for so long, and tells of the time now and then.
    pub fn run(&mut self, mix: Mix, time: Duration, mut progress: impl FnMut(Duration)) -> Result<Measured> {
        let mut times = response_times();
        let (before, start) = (usage(&self.link), Instant::now());
        let (mut outage, mut answered, mut told, mut transactions) = (None, start, start, 0);
        while start.elapsed() < time {
            let call = self.call(mix)?;
            let asked = Instant::now();
            let answer = self.transaction(call.clone())?;
            let now = Instant::now();
            self.oracle.note(&call, &answer).map_err(Failure::Check)?;
            times.saturating_record((now - asked).as_nanos() as u64);
            if answer.solo && !self.solo {
                let own = self.dead.contains(&self.home);
                outage = Some(Outage { own, micros: (now - answered).as_micros() as u64 });
                self.solo = true;
            }
            (answered, transactions) = (now, transactions + 1);
            if now - told >= TICK {
                told = now;
                progress(now - start);
            }
        }
        Ok(Measured {
            transactions,
            micros: start.elapsed().as_micros() as u64,
            longest: times.max(),
            times: times
                .iter_recorded()
                .map(|step| (step.value_iterated_to(), step.count_at_value()))
                .collect(),
            usage: usage(&self.link).since(&before),
            outage,
        })
    }

    fn call(&mut self, mix: Mix) -> Result<Call<Blob>> {
        Ok(match self.workload.next(mix, &self.oracle) {
            Next::Read(key) => Call::Read(key),
            Next::Steps(ops) => Call::Steps(ops),
            Next::Run(ops) => Call::Run { ops, blob: None },
            Next::Store { key, seed, len } => {
                let blob = self.link.blob(len, |bytes| contents::fill(seed, bytes))?;
                Call::Run { ops: vec![Op::Store { key, seed }], blob: Some(blob) }
            }
        })
    }

    fn transaction(&mut self, call: Call<Blob>) -> Result<Answer<Blob>> {
        let request = self.session.begin(call);
        self.link.send(request)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.link.receive(left)? {
                Event::Message { body: Body::Control(Control::Quit), .. } => return Err(Failure::Stopped),
                Event::Message { from, body: Body::Control(control), .. } => {
                    self.set_aside.push_back((from, control));
                }
                Event::Message { from, body, blob } => match self.session.handle(from, body, blob) {
                    Step::Nothing => {}
                    Step::Send(message) => self.link.send(message)?,
                    Step::Done(answer) => return Ok(answer),
                    Step::Failed(why) => return Err(Failure::Check(why)),
                },
                Event::Lost(dead) => self.lost(dead)?,
                Event::Idle => {
                    let what = format!("an answer of server {}", self.session.coordinator());
                    return Err(Failure::Overdue { what, after: PATIENCE });
                }
            }
        }
    }

    fn lost(&mut self, dead: usize) -> Result {
        if dead >= SERVERS {
            return Err(Failure::Lost(dead));
        }
        self.dead.push(dead);
        if self.dead.len() == SERVERS {
            return Err(Failure::Lost(dead));
        }
        self.session.server_lost(dead).map_or(Ok(()), |message| self.link.send(message))
    }

    pub fn say(&mut self, to: usize, control: Control) -> Result {
        self.link.send(Outgoing { to, body: Body::Control(control), blob: None })
    }

    /// What is said next of the measurement; `None` when a server has died, or after `limit`.
    pub fn listen(&mut self, limit: Duration) -> Result<Option<(usize, Control)>> {
        if let Some(said) = self.set_aside.pop_front() {
            return Ok(Some(said));
        }
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.link.receive(left)? {
                Event::Message { from, body: Body::Control(control), .. } => {
                    return Ok(Some((from, control)));
                }
                // The answer of a dead coordinator, to what another one has answered since.
                Event::Message { .. } => {}
                Event::Lost(dead) => {
                    self.lost(dead)?;
                    return Ok(None);
                }
                Event::Idle => return Ok(None),
            }
        }
    }
}

/// Of nanoseconds, from one to some minutes.
pub fn response_times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000_000, 3).expect("a range of more than two values")
}
