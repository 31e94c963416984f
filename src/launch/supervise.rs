//! Watches over a running job: one loop that sleeps until a signal, a death or a time limit.

use std::{
    io::{self, Write},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use udeck_boot::{
    Ranks as RankList,
    serve::{Reporter, Service},
    server::Config,
};

use crate::{
    End, Failure, Job, LaunchError, OnFailure, Outcome, Stop,
    descriptors::Descriptors,
    input::{self, Input},
    orphans::Orphans,
    outcome::SignalName,
    output::Output,
    ranks::{Ranks, Setting},
    signals::Signals,
};

/// From asking the ranks to end to killing them.
const GRACE: Duration = Duration::from_secs(2);

/// From killing the ranks to giving up on them.
const STUCK: Duration = Duration::from_secs(10);

/// How long the other ranks' news of a closed connection waits for the word on how its rank ended.
const PATIENCE: Duration = Duration::from_millis(100);

pub(crate) fn run(job: &Job) -> Result<Outcome, LaunchError> {
    let system = LaunchError::system::<io::Error>;
    // In this order, so that they are put back in the other: nothing of the job is left when the signals come back.
    let signals = Signals::take().map_err(system("taking over signals"))?;
    let descriptors = Descriptors::for_job(job)?;
    let orphans = Orphans::adopt().map_err(system("becoming the subreaper"))?;

    let setting = Setting {
        mask: signals.before(),
        descriptors: descriptors.before(),
        relay_input: input::is_needed(),
    };
    let started = Instant::now();
    let (ranks, wires) = Ranks::start(job, &setting)?;
    let mut config = Config::new(job.ranks).map_err(system("making the job's secret"))?;
    config.patience = PATIENCE;
    let service = Service::new(config, wires.boot).map_err(system("setting up the name service"))?;
    let reporter = service.reporter();
    let serving = thread::Builder::new().name("deckrun-boot".into()).spawn(|| service.run());
    let serving = serving.map_err(system("starting the name service"))?;
    let output = Output::start(wires.output).map_err(system("starting the output's thread"))?;
    let input = wires.input.map(Input::start).transpose().map_err(system("starting the input's thread"))?;

    let watch = Watch {
        job,
        ranks,
        reporter,
        deadline: job.timeout.and_then(|limit| started.checked_add(limit)),
        phase: Phase::Running,
        outcome: Outcome::default(),
    };
    let outcome = watch.until_the_end(&signals, &orphans);
    orphans.end();
    drop(input);
    output.finish();
    let outcome = outcome?;
    // Every rank has been reported ended, so every connection is closed.
    match serving.join() {
        Ok(served) => served.map_err(system("serving names"))?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    Ok(outcome)
}

struct Watch<'a> {
    job: &'a Job,
    ranks: Ranks,
    reporter: Reporter,
    deadline: Option<Instant>,
    phase: Phase,
    outcome: Outcome,
}

#[derive(Clone, Copy)]
enum Phase {
    Running,
    /// The ranks have been asked to end.
    Ending {
        kill_at: Instant,
    },
    Killed {
        give_up_at: Instant,
    },
}

impl Watch<'_> {
    fn until_the_end(mut self, signals: &Signals, orphans: &Orphans) -> Result<Outcome, LaunchError> {
        while !self.ranks.running().is_empty() {
            let due = match self.phase {
                Phase::Running => self.deadline,
                Phase::Ending { kill_at } => Some(kill_at),
                Phase::Killed { give_up_at } => Some(give_up_at),
            };
            match signals.next(due) {
                None | Some(libc::SIGCHLD) => {}
                Some(signal) => self.interrupted(signal),
            }
            self.note_the_dead();
            orphans.reap(|pid| self.ranks.contains(pid));
            if due.is_some_and(|due| due <= Instant::now()) {
                self.time_is_up()?;
            }
        }
        Ok(self.outcome)
    }

    fn note_the_dead(&mut self) {
        let mut ended = self.ranks.reap();
        // When one look finds several, a crash is more likely the cause than an exit code.
        ended.sort_by_key(|(_, end)| !matches!(end, End::Killed(_)));
        for (rank, end) in ended {
            let how =
                if end.is_failure() { end.to_string() } else { format!("{end} without saying goodbye") };
            self.reporter.report_ended(rank, &how);
            if end.is_failure() && !self.is_our_doing(end) {
                self.failed(rank, end);
            }
        }
    }

    /// Once the job is being ended, only a crash is worth a word.
    fn is_our_doing(&self, end: End) -> bool {
        let asked = match (&self.outcome.stop, end) {
            (None, _) => return false,
            (Some(Stop::Signal(sent)), End::Killed(signal)) => signal == *sent,
            (Some(_), End::Killed(_)) => false,
            (Some(_), End::Exited(_)) => true,
        };
        asked || matches!(end, End::Killed(libc::SIGTERM | libc::SIGKILL))
    }

    fn failed(&mut self, rank: u32, end: End) {
        self.outcome.failures.push(Failure { rank, end });
        let others = self.ranks.running();
        if self.outcome.stop.is_none() && self.job.on_failure == OnFailure::Abort && !others.is_empty() {
            say(&format!("rank {rank} {end}; ending {}", RankList(&others)));
            self.stop(Stop::Failure, Signal::TERM);
        } else {
            say(&format!("rank {rank} {end}"));
        }
    }

    fn interrupted(&mut self, signal: i32) {
        let running = self.ranks.running();
        let name = SignalName(signal);
        match (self.phase, Signal::from_named_raw(signal)) {
            (Phase::Running, Some(passed_on)) => {
                let grace = GRACE.as_secs();
                say(&format!(
                    "{name}: passed on to {}; killed in {grace} s, or at once by another",
                    RankList(&running)
                ));
                self.stop(Stop::Signal(signal), passed_on);
            }
            (Phase::Ending { .. }, _) | (Phase::Running, None) => {
                say(&format!("{name} again: killing {}", RankList(&running)));
                self.kill();
            }
            (Phase::Killed { .. }, _) => {}
        }
    }

    fn time_is_up(&mut self) -> Result<(), LaunchError> {
        let running = self.ranks.running();
        if running.is_empty() {
            return Ok(());
        }
        match self.phase {
            Phase::Running => {
                let limit = self.job.timeout.unwrap_or_default();
                say(&format!(
                    "timeout after {limit:?}: {} still running; ending the job",
                    RankList(&running)
                ));
                self.stop(Stop::Timeout { running }, Signal::TERM);
            }
            Phase::Ending { .. } => {
                say(&format!("{} did not end when asked: killing", RankList(&running)));
                self.kill();
            }
            Phase::Killed { .. } => return Err(LaunchError::Unkillable { ranks: running }),
        }
        Ok(())
    }

    fn stop(&mut self, why: Stop, ask: Signal) {
        self.outcome.stop = Some(why);
        self.phase = Phase::Ending { kill_at: Instant::now() + GRACE };
        self.ranks.signal(ask);
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed { give_up_at: Instant::now() + STUCK };
        self.ranks.signal(Signal::KILL);
    }
}

/// In one write, so that what ranks say at the same time does not get into the line.
fn say(what: &str) {
    // A standard error that is closed has nobody to tell.
    let _ = io::stderr().write_all(format!("deckrun: {what}\n").as_bytes());
}
