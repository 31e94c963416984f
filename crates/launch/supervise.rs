//! The watch over a running job: one loop that sleeps until a signal, a death, a node's message or a time
//! limit.

mod aborts;
mod serving;
mod watchdog;

use std::{
    io,
    net::IpAddr,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::PollFlags,
    pipe::{PipeFlags, pipe_with},
    process::Signal,
};
use udeck_boot::{
    Ranks as RankList,
    serve::{Connection, Reporter, Service},
    server::Config,
};
use udeck_sys::{JobClock, stderr_line};

use self::{
    aborts::{Abort, Aborts},
    serving::Serving,
    watchdog::Watchdog,
};
use crate::{
    End, Job, LaunchError, OnFailure, Outcome, RankFailure, Stop,
    cgroup::Cgroup,
    descriptors::Descriptors,
    hosts::{self, Share},
    input::{self, TerminalInput},
    left_trace,
    orphans::Orphans,
    outcome::SignalName,
    output::{MAX_LINE, Output},
    print::{self, Printers, Stream},
    ranks::{Ranks, Setting, Wires},
    remote::{self, Joined, PollSource, RankEvent, Remotes},
    signals::{Signals, abandoned},
    wait::ready,
    watch::{status::StatusSocket, wait_sampler::WaitSampler},
};

/// Time from asking the ranks to end to killing them.
const GRACE: Duration = Duration::from_secs(2);

/// Time from killing the ranks to giving up on them.
const STUCK: Duration = Duration::from_secs(10);

/// How long the other ranks' events of a closed connection wait for the news of how its rank ended. Only a rank
/// that closes its connection and lives on causes such a wait: the news of an end comes at once, or when the
/// machine lets this process run.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn run(job: &Job, shares: &[Share], cgroup: Option<&Cgroup>) -> Result<Outcome, LaunchError> {
    let system = LaunchError::system::<io::Error>;
    let address = address(job, shares)?;
    // The drops run in the opposite order: no process of the job is left when the signals are restored.
    let signals =
        Signals::take_also(&[libc::SIGTSTP, libc::SIGQUIT]).map_err(system("taking over signals"))?;
    let (pipes, descriptors, shortage) = Descriptors::with_pipes(job.tag_output, shares)?;
    let orphans = Orphans::adopt(cgroup).map_err(system("becoming the subreaper"))?;
    let setting = Setting {
        mask: signals.before(),
        descriptors: descriptors.before(),
        cgroup,
        pipes,
        relay_input: input::is_needed(),
    };
    let (printers, drain) = print::start(job.tag_output).map_err(system("starting the output's threads"))?;
    job.explanation().iter().chain(&shortage).for_each(|words| printers.message(words));
    let outcome = conduct(job, shares, address, &setting, &signals, &orphans, printers);
    // After an error, too: a job that was never complete may have agents left.
    orphans.end();
    // Last, because our reader may be slow. A user who has ended the job wants to see it end.
    let stop = outcome.as_ref().map(|outcome| outcome.stop.clone());
    let hurried = !matches!(stop, Ok(None | Some(Stop::Failure)));
    let interrupted = drain.finish(&signals, hurried).map_err(system("waiting for the output's reader"))?;
    let mut outcome = outcome?;
    outcome.stop = outcome.stop.or(interrupted.map(Stop::Signal));
    // Behind all that the ranks wrote, and all messages about them.
    let size = shares.iter().map(|share| share.count).sum();
    if let Some(words) = outcome.summary(size) {
        stderr_line(format_args!("deckrun: {words}"));
    }
    match drain.failure() {
        // No rank has noticed the error.
        Some(error) if outcome.code() == 0 => Err(system("writing the ranks' output")(error.into())),
        _ => Ok(outcome),
    }
}

fn conduct(
    job: &Job,
    shares: &[Share],
    address: Option<IpAddr>,
    setting: &Setting,
    signals: &Signals,
    orphans: &Orphans,
    printers: Printers,
) -> Result<Outcome, LaunchError> {
    let system = LaunchError::system::<io::Error>;
    let size = shares.iter().map(|share| share.count).sum();
    let mut config = Config::new(size).map_err(system("making the job's secret"))?;
    config.patience = PATIENCE;
    let (number, teller) = (config.job(), printers.clone());
    let joined = Remotes::join(job, shares, address, &config, setting, signals, &printers)?;
    let mut remotes = match joined {
        Joined::All(remotes) => remotes,
        Joined::Interrupted(signal) => {
            printers.message(&format!("{} before all hosts were there", SignalName(signal)));
            return Ok(Outcome { stop: Some(Stop::Signal(signal)), ..Outcome::default() });
        }
    };
    let clock = Arc::new(JobClock::new().map_err(system("making the job's clock"))?);
    // Without the socket other deckruns cannot ask; a signal still can.
    let status = StatusSocket::open().ok();
    let started = Instant::now();
    let (ranks, wires) = match shares.iter().find(|share| share.here) {
        Some(share) => Ranks::start(&job.work(share, size), setting, &clock)?,
        None => (Ranks::default(), Wires::default()),
    };
    let config = config.on(hosts::for_ranks(shares), address);
    let service = Service::over(config, connections(shares, wires.boot), Box::new(remotes.node_sender()));
    let mut service = service.map_err(system("setting up the name service"))?;
    service.set_clock(Arc::clone(&clock));
    let deserted = printers.clone();
    service.on_desertion(move |rank, how| {
        deserted
            .message(&format!("rank {rank} {how}: the others take it for lost (World::finish says goodbye)"));
    });
    let aborts = Aborts::new().map_err(system("setting up the name service"))?;
    service.on_abort(aborts.listener());
    let reporter = service.reporter();
    let serving = Serving::start(|| service.run()).map_err(system("starting the name service"))?;
    let output = Output::start(wires.output, printers.clone());
    let output = output.map_err(system("starting the output's thread"))?;
    let mut rank_0 = wires.input;
    if remotes.has_rank_0() {
        let (theirs, ours) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|e| system("making a pipe for the input")(e.into()))?;
        remotes.feed(theirs);
        rank_0 = Some(ours);
    }
    let input =
        rank_0.map(TerminalInput::start).transpose().map_err(system("starting the input's thread"))?;

    let supervisor = Supervisor {
        job,
        printers,
        output: &output,
        ranks,
        remotes,
        reporter,
        serving: &serving,
        aborts,
        clock: &clock,
        watchdog: Watchdog::new(job.watchdog, shares, started),
        sampler: WaitSampler::default(),
        status,
        deadline: job.timeout.and_then(|limit| started.checked_add(limit)),
        phase: JobPhase::Running,
        given_up: false,
        outcome: Outcome::default(),
    };
    let outcome = supervisor.until_the_end(signals, orphans);
    orphans.end();
    output.last_call();
    drop(input);
    let mut outcome = outcome?;
    if job.on_failure == OnFailure::Survive {
        outcome.survive(size);
    }
    // Every rank has been reported ended, and so every connection is closed.
    serving.join().map_err(system("serving names"))?;
    left_trace::gather(job, shares, number, &teller, signals);
    Ok(outcome)
}

/// Returns the address by which other hosts reach this one; `None` if there are no other hosts and no interface
/// was asked for.
fn address(job: &Job, shares: &[Share]) -> Result<Option<IpAddr>, LaunchError> {
    let others: Vec<_> = shares.iter().filter(|share| !share.here).map(|share| share.host.as_str()).collect();
    if others.is_empty() && job.interface.is_none() {
        return Ok(None);
    }
    remote::choose_address(job.interface.as_deref(), &others, &job.agent, job.start_limit).map(Some)
}

/// Returns the connections to all ranks, in rank order.
fn connections(shares: &[Share], here: Vec<std::os::unix::net::UnixStream>) -> Vec<Connection> {
    let mut here = here.into_iter().map(Connection::Socket);
    let mut all = Vec::new();
    for share in shares {
        let count = share.count as usize;
        match share.here {
            true => all.extend(here.by_ref().take(count)),
            false => all.extend((0..count).map(|_| Connection::Relayed)),
        }
    }
    all
}

struct Supervisor<'a> {
    job: &'a Job,
    printers: Printers,
    output: &'a Output,
    ranks: Ranks,
    remotes: Remotes,
    reporter: Reporter,
    serving: &'a Serving,
    aborts: Aborts,
    /// The clock of this host's ranks and of the name service.
    clock: &'a JobClock,
    watchdog: Watchdog,
    sampler: WaitSampler,
    status: Option<StatusSocket>,
    deadline: Option<Instant>,
    phase: JobPhase,
    /// Nothing more is expected from the other hosts.
    given_up: bool,
    outcome: Outcome,
}

#[derive(Clone, Copy)]
enum JobPhase {
    Running,
    /// The ranks have been asked to end.
    Ending {
        kill_at: Instant,
    },
    Killed {
        give_up_at: Instant,
    },
}

impl JobPhase {
    fn limit(&mut self) -> Option<&mut Instant> {
        match self {
            JobPhase::Running => None,
            JobPhase::Ending { kill_at } => Some(kill_at),
            JobPhase::Killed { give_up_at } => Some(give_up_at),
        }
    }
}

/// Ranks that ended together, in the same way.
struct Ended {
    ranks: Vec<u32>,
    end: End,
    how: String,
}

impl Supervisor<'_> {
    fn until_the_end(mut self, signals: &Signals, orphans: &Orphans) -> Result<Outcome, LaunchError> {
        let mut scratch = vec![0; MAX_LINE];
        // The loop goes on after the last rank's end: other hosts may still have to send their ranks' output. A
        // rank may have ended before the loop began.
        let mut child_ended = true;
        while !self.is_nobody_left() || !(self.remotes.are_over() || self.given_up) {
            let due = self.due();
            let sources = self.wait(signals, due)?;
            while let Some(signal) = signals.take_next() {
                match signal {
                    libc::SIGCHLD => child_ended = true,
                    libc::SIGTSTP => self.suspend(signals),
                    libc::SIGQUIT => self.watchdog.signalled(),
                    signal => self.interrupted(signal),
                }
            }
            let mut events = Vec::new();
            for source in sources {
                self.remotes.handle(source, &self.reporter, &mut scratch, &mut events)?;
            }
            self.sample(&mut events);
            self.remotes.deliver(&mut events)?;
            if self.serving.has_failed() {
                self.name_service_failed();
            }
            if let Some(abort) = self.aborts.take() {
                self.aborted(abort);
            }
            self.record_exits(std::mem::take(&mut child_ended), events);
            orphans.reap(|pid| self.ranks.contains(pid) || self.remotes.contains(pid));
            // A pause has moved the limit.
            if self.due().is_some_and(|due| due <= Instant::now()) {
                self.time_is_up()?;
            }
        }
        Ok(self.outcome)
    }

    /// Collects the state of all ranks, if it is time or a user has asked, and reports it.
    fn sample(&mut self, events: &mut Vec<RankEvent>) {
        let now = Instant::now();
        if let Some(status) = &self.status {
            self.watchdog.ask(status.accept());
        }
        if let Some(serial) = self.watchdog.begins(now) {
            let asked = self.remotes.sample(serial);
            self.watchdog.begin(self.sampler.sample(&self.ranks), asked, now);
        }
        for event in events.extract_if(.., |event| matches!(event, RankEvent::RankStates { .. })) {
            if let RankEvent::RankStates { host, serial, samples, last } = event {
                self.watchdog.add(host, serial, samples, last);
            }
        }
        let runs = matches!(self.phase, JobPhase::Running);
        for report in self.watchdog.finish(now, runs, &self.remotes.hosts()) {
            self.printers.message(&report);
        }
    }

    /// Tells whether no rank is running, on any host.
    fn is_nobody_left(&self) -> bool {
        self.ranks.are_over() && self.remotes.have_no_ranks()
    }

    /// Returns the ranks that are running, on any host, sorted.
    fn running(&self) -> Vec<u32> {
        let mut running = self.ranks.running();
        running.extend(self.remotes.running());
        running.sort_unstable();
        running
    }

    fn due(&self) -> Option<Instant> {
        match self.phase {
            // After the ranks' end no limit applies to a slow reader of the last output.
            JobPhase::Running if self.is_nobody_left() => None,
            JobPhase::Running => {
                let limits = [self.deadline, self.remotes.start_by(), self.watchdog.due()];
                limits.into_iter().flatten().min()
            }
            JobPhase::Ending { kill_at } => Some(kill_at),
            JobPhase::Killed { give_up_at } => Some(give_up_at),
        }
    }

    /// Sleeps until an event or the time `due`; returns the sources of the nodes that are ready.
    fn wait(&self, signals: &Signals, due: Option<Instant>) -> Result<Vec<PollSource>, LaunchError> {
        let sources = self.remotes.sources();
        let mut own = vec![signals.pending(), self.serving.as_fd(), self.aborts.as_fd()];
        own.extend(self.status.as_ref().map(AsFd::as_fd));
        let all = own.iter().copied().map(|fd| (fd, PollFlags::IN));
        let all = all.chain(sources.iter().map(|(_, fd, what)| (*fd, *what)));
        let ready = ready(all, due).map_err(LaunchError::system("waiting for the ranks"))?;
        let ready = sources.into_iter().zip(&ready[own.len()..]).filter(|(_, is_ready)| **is_ready);
        Ok(ready.map(|((source, ..), _)| source).collect())
    }

    fn record_exits(&mut self, child_ended: bool, events: Vec<RankEvent>) {
        let one = |(rank, end): (u32, End)| Ended { ranks: vec![rank], end, how: end.to_string() };
        let dead = if child_ended { self.ranks.reap() } else { Vec::new() };
        let mut ended: Vec<_> = dead.into_iter().map(one).collect();
        for event in events {
            match event {
                RankEvent::RankStates { .. } => {}
                RankEvent::Ended(rank, end) => ended.push(one((rank, end))),
                RankEvent::Lost { host, ranks, why } if ranks.is_empty() => {
                    self.printers.message(&format!(
                        "host {host} was lost ({why}); what its ranks wrote last may be missing"
                    ));
                }
                RankEvent::Lost { host, ranks, why } => {
                    ended.push(Ended {
                        ranks,
                        end: End::Lost,
                        how: format!("lost with host {host} ({why})"),
                    });
                }
            }
        }
        // If one call finds several, a crash is more likely the cause than an exit code.
        ended.sort_by_key(|Ended { end, .. }| matches!(end, End::Exited(_)));
        for Ended { ranks, end, how } in ended {
            for rank in &ranks {
                match end.is_failure() {
                    true => self.reporter.report_ended(*rank, &how),
                    false => self.reporter.report_exited(*rank, &format!("{how} without saying goodbye")),
                }
            }
            if end.is_failure() && !self.is_expected_end(end) {
                self.failed(&ranks, end, &how);
            }
        }
    }

    /// Tells whether an end needs no message: once the job is being ended, only a crash needs one.
    fn is_expected_end(&self, end: End) -> bool {
        let asked = match (&self.outcome.stop, end) {
            (None, _) => return false,
            (Some(Stop::Signal(sent)), End::Killed(signal)) => signal == *sent,
            (Some(_), End::Killed(_) | End::Lost) => false,
            (Some(_), End::Exited(_)) => true,
        };
        asked || matches!(end, End::Killed(libc::SIGTERM | libc::SIGKILL))
    }

    fn failed(&mut self, ranks: &[u32], end: End, how: &str) {
        self.outcome.failures.extend(ranks.iter().map(|&rank| RankFailure { rank, end }));
        let others = self.running();
        let what = format!("{} {how}", RankList(ranks));
        if self.outcome.stop.is_none() && self.job.on_failure == OnFailure::Abort && !others.is_empty() {
            self.message_behind(ranks, format!("{what}; ending {}", RankList(&others)));
            self.stop(Stop::Failure, Signal::TERM);
        } else {
            self.message_behind(ranks, what);
        }
    }

    /// Writes a message about ranks that have ended, behind their output.
    fn message_behind(&self, ranks: &[u32], what: String) {
        match ranks.first().and_then(|rank| self.remotes.index_of(*rank)) {
            Some(node) => self.printers.message_behind(Stream::Node(node), &what),
            None => self.output.message_behind(ranks, what),
        }
    }

    /// Ends the job for a rank that asks for it, whatever `on_failure` says.
    fn aborted(&mut self, Abort { rank, code, how }: Abort) {
        if self.outcome.stop.is_some() {
            return;
        }
        self.outcome.failures.push(RankFailure { rank, end: End::Exited(i32::from(code)) });
        let mut others = self.running();
        others.retain(|other| *other != rank);
        let ending =
            if others.is_empty() { String::new() } else { format!("; ending {}", RankList(&others)) };
        self.printers.message(&format!("rank {rank} {how}{ending}"));
        self.stop(Stop::Failure, Signal::TERM);
    }

    /// Ends the job after the name service has failed: no rank could find another any more, nor learn of its
    /// end, and some would wait for ever.
    fn name_service_failed(&mut self) {
        let running = self.running();
        if self.outcome.stop.is_none() && !running.is_empty() {
            self.printers.message(&format!("the name service has failed; ending {}", RankList(&running)));
            self.stop(Stop::Failure, Signal::TERM);
        }
    }

    fn interrupted(&mut self, signal: i32) {
        let running = self.running();
        let name = SignalName(signal);
        if running.is_empty() {
            self.outcome.stop.get_or_insert(Stop::Signal(signal));
            self.given_up = true;
            return;
        }
        if signal == abandoned() {
            self.printers.message(&format!("deckrun was killed: killing {}", RankList(&running)));
            self.outcome.stop = Some(Stop::Signal(libc::SIGKILL));
            return self.kill();
        }
        match (self.phase, Signal::from_named_raw(signal)) {
            (JobPhase::Running, Some(passed_on)) => {
                let grace = GRACE.as_secs();
                self.printers.message(&format!(
                    "{name}: passed on to {}; killed in {grace} s, or at once by another",
                    RankList(&running)
                ));
                self.stop(Stop::Signal(signal), passed_on);
            }
            (JobPhase::Ending { .. }, _) | (JobPhase::Running, None) => {
                self.printers.message(&format!("{name} again: killing {}", RankList(&running)));
                self.kill();
            }
            (JobPhase::Killed { .. }, _) => {}
        }
    }

    /// Stops the ranks, on all hosts, and then this process; continues the ranks when this process is
    /// continued. No time limit counts the time between, here or there: the ranks' clock stops before them, and
    /// goes on before them.
    fn suspend(&mut self, signals: &Signals) {
        self.clock.stop();
        self.ranks.signal(Signal::STOP);
        self.remotes.stop();
        let pause = signals.suspend();
        self.clock.resume();
        self.ranks.signal(Signal::CONT);
        self.remotes.go_on(pause);
        self.watchdog.went_on(Instant::now());
        for limit in self.deadline.iter_mut().chain(self.phase.limit()) {
            *limit += pause;
        }
    }

    fn time_is_up(&mut self) -> Result<(), LaunchError> {
        let running = self.running();
        match self.phase {
            // The last rank may just have ended; or the limit was another one, which its owner handles.
            JobPhase::Running if running.is_empty() => {}
            JobPhase::Running => {
                if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    let limit = self.job.timeout.unwrap_or_default();
                    self.printers.message(&format!(
                        "timeout after {limit:?}: {} still running; ending the job",
                        RankList(&running)
                    ));
                    self.stop(Stop::Timeout { running }, Signal::TERM);
                }
            }
            JobPhase::Ending { .. } => {
                if !running.is_empty() {
                    self.printers.message(&format!("{} did not end when asked: killing", RankList(&running)));
                }
                self.kill();
            }
            JobPhase::Killed { .. } if running.is_empty() => self.given_up = true,
            JobPhase::Killed { .. } => return Err(LaunchError::Unkillable { ranks: running }),
        }
        Ok(())
    }

    fn stop(&mut self, why: Stop, ask: Signal) {
        self.outcome.stop = Some(why);
        self.phase = JobPhase::Ending { kill_at: Instant::now() + GRACE };
        self.signal(ask);
    }

    fn kill(&mut self) {
        // A host that is out of reach is noticed within the detection time.
        let give_up_at = Instant::now() + STUCK.max(self.job.detect + GRACE);
        self.phase = JobPhase::Killed { give_up_at };
        self.signal(Signal::KILL);
    }

    fn signal(&mut self, signal: Signal) {
        self.ranks.signal(signal);
        self.remotes.signal(signal.as_raw());
    }
}
