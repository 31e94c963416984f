//! A client's process: transactions one after the other, with a check of each answer.

use crate::availability::{Outage, new_death};
use crate::client::{Answer, Call, Session, Step};
use crate::failure::{HadbError, Result};
use crate::link::{Blob, Event, Link};
use crate::message::{Body, Control, Outgoing, Usage};
use crate::options::{Mix, Options};
use crate::oracle::Oracle;
use crate::ranks::{SERVERS, Servers};
use crate::row::contents;
use crate::serve::usage;
use crate::workload::{NextOperation, Workload};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

/// Longest wait for an answer; then the run ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(100);

/// A client's measurements in a mix.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    pub transactions: u64,
    pub micros: u64,
    /// Histogram: response time in nanoseconds, and number of answers with it.
    pub times: Vec<(u64, u64)>,
    pub shortest: u64,
    pub longest: u64,
    pub usage: Usage,
    /// Effects of servers' deaths during the mix.
    pub outages: Vec<Outage>,
    /// Times in microseconds from the last answer before a death to the first one by two servers again.
    pub repairs: Vec<u64>,
}

pub struct Client {
    link: Link,
    session: Session<Blob>,
    workload: Workload,
    pub oracle: Oracle,
    /// Rank of the client's own server, which may be dead.
    home: usize,
    servers: Servers,
    /// Servers and spares that have died.
    pub dead: Vec<usize>,
    /// View of the last answer.
    view: u32,
    /// Time of the last answer before a death, until there are two servers again.
    degraded: Option<Instant>,
    /// Server to be killed as soon as there are two servers again.
    pub second_victim: Option<usize>,
    /// Control messages that arrived while a transaction was under way.
    set_aside: VecDeque<(usize, Control)>,
}

impl Client {
    /// The client with this rank. Clients' ranks follow those of the servers.
    pub fn new(link: Link, rank: usize, servers: Servers, options: &Options) -> Client {
        let place = rank - SERVERS;
        let home = place % SERVERS;
        Client {
            link,
            session: Session::new(home, servers.all().collect()),
            workload: Workload::new(options.seed, place as u32, home as u8, options.remote, options.blobs()),
            oracle: Oracle::default(),
            home,
            servers,
            dead: Vec::new(),
            view: 0,
            degraded: None,
            second_victim: None,
            set_aside: VecDeque::new(),
        }
    }

    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    pub fn into_link(self) -> Link {
        self.link
    }

    /// Runs transactions for `time`, or until all BLOBs are inserted or deleted, and reports the elapsed time now and then.
    pub fn run(&mut self, mix: Mix, time: Duration, mut progress: impl FnMut(Duration)) -> Result<Measured> {
        let mut times = response_times();
        let (before, start) = (usage(&self.link), Instant::now());
        let (mut answered, mut told, mut transactions) = (start, start, 0);
        let (mut outages, mut repairs) = (Vec::new(), Vec::new());
        while start.elapsed() < time {
            let Some(call) = self.call(mix)? else { break };
            let asked = Instant::now();
            let answer = self.transaction(call.clone())?;
            let now = Instant::now();
            self.oracle.note(&call, &answer).map_err(HadbError::Check)?;
            times.saturating_record((now - asked).as_nanos() as u64);
            let before = mem::replace(&mut self.view, answer.view);
            if let Some(death) = new_death(before, answer.view) {
                let (own, micros) = (self.dead.contains(&self.home), (now - answered).as_micros() as u64);
                outages.push(Outage { death, own, micros, halves: call.halves() });
                self.degraded = Some(answered);
            }
            if let Some(since) = self.degraded.take_if(|_| answer.view.is_multiple_of(2)) {
                repairs.push((now - since).as_micros() as u64);
                if let Some(victim) = self.second_victim.take() {
                    self.send_control(victim, Control::Die { after: 0 })?;
                }
            }
            if !self.session.is_guest() {
                self.home = self.session.coordinator();
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
            shortest: times.min(),
            longest: times.max(),
            times: times
                .iter_recorded()
                .map(|step| (step.value_iterated_to(), step.count_at_value()))
                .collect(),
            usage: usage(&self.link).since(&before),
            outages,
            repairs,
        })
    }

    fn call(&mut self, mix: Mix) -> Result<Option<Call<Blob>>> {
        let Some(next) = self.workload.next(mix) else { return Ok(None) };
        Ok(Some(match next {
            NextOperation::Read(key) => Call::Read(key),
            NextOperation::Steps(ops) => Call::Steps(ops),
            NextOperation::Run(ops) => Call::Run { ops, blob: None },
            NextOperation::Store { op, seed, len } => {
                let blob = self.link.blob(len, |bytes| contents::fill(seed, bytes))?;
                Call::Run { ops: vec![op], blob: Some(blob) }
            }
        }))
    }

    fn transaction(&mut self, call: Call<Blob>) -> Result<Answer<Blob>> {
        let request = self.session.begin(call);
        self.link.send(request)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.link.receive(left)? {
                Event::Message { body: Body::Control(Control::Quit), .. } => return Err(HadbError::Stopped),
                Event::Message { from, body: Body::Control(control), .. } => {
                    self.set_aside.push_back((from, control));
                }
                Event::Message { from, body, blob } => match self.session.handle(from, body, blob) {
                    Step::Nothing => {}
                    Step::Send(message) => self.link.send(message)?,
                    Step::Done(answer) => return Ok(answer),
                    Step::Failed(why) => return Err(HadbError::Check(why)),
                },
                Event::Lost(dead) => self.lost(dead)?,
                Event::Idle => {
                    let what = format!("an answer of server {}", self.session.coordinator());
                    return Err(HadbError::Overdue { what, after: PATIENCE });
                }
            }
        }
    }

    fn lost(&mut self, dead: usize) -> Result {
        if !self.servers.has(dead) {
            return Err(HadbError::Lost(dead));
        }
        self.dead.push(dead);
        if self.dead.len() == self.servers.all().count() {
            return Err(HadbError::Lost(dead));
        }
        self.session.server_lost(dead).map_or(Ok(()), |message| self.link.send(message))
    }

    pub fn send_control(&mut self, to: usize, control: Control) -> Result {
        self.link.send(Outgoing { to, body: Body::Control(control), blob: None })
    }

    /// Returns the next control message; `None` when a server has died, or after `limit`.
    pub fn receive_control(&mut self, limit: Duration) -> Result<Option<(usize, Control)>> {
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
                // A dead coordinator's answer, to a transaction that another server has answered since.
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

/// Empty histogram of response times in nanoseconds, from one nanosecond to some minutes.
pub fn response_times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000_000, 3).expect("a range of more than two values")
}
