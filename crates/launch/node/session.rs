//! A node's part of a job: one loop over its ranks, their pipes, and the connection to the root.
//!
//! Nothing blocks but the loop's own poll. If the root does not take the ranks' output, they are not read, and
//! in the end wait, as for a slow reader on one host.

use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{event::PollFlags, process::Signal};
use udeck_boot::serve::stopped_reading;
use udeck_sys::JobClock;

use super::{
    boot::{Boot, Own, ReadOutcome},
    job_spec::{await_start, prepare, refusal, refuse, work},
    report_error,
};
use crate::{
    End, LaunchError,
    cgroup::Cgroup,
    control::{
        framed_stream::{ControlError, FramedStream},
        wire::{JobSpec, MAX_PIECE, MAX_SAMPLES, Sink, ToNode, ToRoot, WireEnd},
    },
    orphans::Orphans,
    output::{Gather, MAX_LINE},
    ranks::{Pipes, Ranks, Setting, Wires},
    signals::{Signals, abandoned},
    wait::ready,
    watch::wait_sampler::WaitSampler,
};

/// Upper bound of unsent bytes to the root, before ranks are not read any more.
const HIGH_WATER: usize = 1 << 20;

/// Maximum number of reads from a rank that has ended: more than a socket or a pipe holds.
const LAST_READS: usize = 64;

/// How long the root may take to close the connection after our goodbye.
const LAST_WAIT: Duration = Duration::from_secs(10);

struct Session {
    control: FramedStream,
    own: Own,
    first: u32,
    /// The clock of this host's ranks.
    clock: JobClock,
    ranks: Ranks,
    sampler: WaitSampler,
    boots: Vec<Boot>,
    outputs: Gather,
    input: Option<RankInput>,
    phase: SessionPhase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionPhase {
    Running,
    /// All ranks have ended; their output is being sent.
    Finishing,
    SaidGoodbye {
        until: Instant,
    },
}

/// Rank 0's standard input.
struct RankInput {
    pipe: OwnedFd,
    pending: VecDeque<u8>,
    at_end: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    Signals,
    Control,
    Boot(usize),
    Output(usize),
    Input,
}

/// The node has failed, and has written why: after its ranks were killed, and before its connection ended. The
/// root therefore has the text when it notices the end.
pub(super) struct ErrorReported;

fn reported(why: &str) -> ErrorReported {
    report_error(why);
    ErrorReported
}

/// Blocks until this host's part of the job is over. No process of it runs afterwards, also after an error.
pub(super) fn run(
    mut control: FramedStream,
    spec: JobSpec,
    secret: [u8; 32],
    address: IpAddr,
    cgroup: Option<&Cgroup>,
) -> Result<(), ErrorReported> {
    let in_words = |error: LaunchError| reported(&error.to_string());
    let system = LaunchError::system::<io::Error>;
    let signals = Signals::take().map_err(system("taking over signals")).map_err(in_words)?;
    await_start(&mut control, &signals).map_err(|why| reported(&why))?;
    let descriptors = match prepare(&spec) {
        Ok(descriptors) => descriptors,
        Err(why) => return refuse(control, &signals, why).map_err(|why| reported(&why)),
    };
    let orphans = Orphans::adopt(cgroup).map_err(system("becoming the subreaper")).map_err(in_words)?;
    let (mask, first, key) = (signals.before(), spec.first, spec.key);
    let pipes = Pipes::all(spec.output);
    let setting = Setting { mask, descriptors: descriptors.before(), cgroup, pipes, relay_input: true };
    let clock = match JobClock::new() {
        Ok(clock) => clock,
        Err(error) => {
            let why = refusal(system("making the job's clock")(error));
            return refuse(control, &signals, why).map_err(|why| reported(&why));
        }
    };
    let (ranks, wires) = match Ranks::start(&work(spec), &setting, &clock) {
        Ok(started) => started,
        Err(error) => return refuse(control, &signals, refusal(error)).map_err(|why| reported(&why)),
    };
    let session = Session::new(control, Own { secret, key, address }, first, clock, ranks, wires);
    let mut session = session.map_err(|why| reported(&why))?;
    let result = session.until_the_end(&signals, &orphans).map_err(|why| {
        session.ranks.signal(Signal::KILL);
        reported(&why)
    });
    drop(session);
    // The ranks are gone; this ends the processes that they left.
    orphans.end();
    result
}

pub(super) fn root_gone(error: ControlError) -> String {
    format!("the root is gone: {error}")
}

impl Session {
    fn new(
        mut control: FramedStream,
        own: Own,
        first: u32,
        clock: JobClock,
        ranks: Ranks,
        wires: Wires,
    ) -> Result<Session, String> {
        let input = wires.input.map(|pipe| RankInput { pipe, pending: VecDeque::new(), at_end: false });
        if let Some(input) = &input {
            rustix::io::ioctl_fionbio(&input.pipe, true).map_err(|error| error.to_string())?;
        }
        control.send(&ToRoot::Started).map_err(|error| error.to_string())?;
        Ok(Session {
            control,
            own,
            first,
            clock,
            ranks,
            sampler: WaitSampler::default(),
            boots: (first..).zip(wires.boot).map(|(rank, stream)| Boot::new(rank, stream)).collect(),
            outputs: Gather::new(wires.output),
            input,
            phase: SessionPhase::Running,
        })
    }

    fn until_the_end(&mut self, signals: &Signals, orphans: &Orphans) -> Result<(), String> {
        let mut scratch = vec![0; MAX_LINE];
        // A rank may have ended before the loop began.
        let mut child_ended = true;
        // More messages may have come in one piece with the start. The root is told of the start first: a
        // message may end this session.
        if let Err(error) = self.control.flush().and_then(|()| self.obey_root()) {
            return self.ended_by(error);
        }
        loop {
            if let Err(error) = self.control.flush() {
                return self.ended_by(error);
            }
            let polled = self.wait(signals).map_err(|error| format!("waiting for the ranks: {error}"))?;
            while let Some(signal) = signals.take_next() {
                if signal == abandoned() {
                    return Err("killed".into());
                }
                if signal == libc::SIGCHLD {
                    child_ended = true;
                } else {
                    // The signal is from our agent, or from the kernel when the root died.
                    return Err("told to end".into());
                }
            }
            for item in polled {
                if let Err(error) = self.serve(item, &mut scratch) {
                    return self.ended_by(error);
                }
            }
            self.outputs.tidy();
            let now = Instant::now();
            let mut passed = self.outputs.overdue(now);
            if self.phase == SessionPhase::Finishing {
                passed.extend(self.outputs.close_silent(now));
            }
            passed.into_iter().for_each(|(sink, text)| self.send_output(sink, text));
            if std::mem::take(&mut child_ended) {
                self.record_exits(&mut scratch);
            }
            orphans.reap(|pid| self.ranks.contains(pid));
            match self.phase {
                SessionPhase::Running if self.ranks.are_over() => {
                    orphans.end();
                    self.phase = SessionPhase::Finishing;
                }
                SessionPhase::Finishing if self.outputs.is_empty() => {
                    self.send(&ToRoot::Bye);
                    self.phase = SessionPhase::SaidGoodbye { until: Instant::now() + LAST_WAIT };
                }
                SessionPhase::SaidGoodbye { until } if Instant::now() >= until => return Ok(()),
                _ => {}
            }
        }
    }

    fn ended_by(&self, error: ControlError) -> Result<(), String> {
        match self.phase {
            SessionPhase::SaidGoodbye { .. } => Ok(()),
            _ => Err(root_gone(error)),
        }
    }

    /// Sleeps until an event or a time limit; returns the items that are ready.
    fn wait(&self, signals: &Signals) -> io::Result<Vec<Item>> {
        let now = Instant::now();
        let items = self.items(signals, now);
        let until = match self.phase {
            SessionPhase::Running => self.outputs.due(now),
            // Polls without waiting as long as there is output to send; otherwise waits for the root's credit.
            SessionPhase::Finishing if self.outputs.is_empty() => Some(now),
            SessionPhase::Finishing if items.iter().any(|(item, ..)| matches!(item, Item::Output(_))) => {
                Some(now)
            }
            SessionPhase::Finishing => self.outputs.due(now),
            SessionPhase::SaidGoodbye { until } => Some(until),
        };
        let ready = ready(items.iter().map(|(_, fd, what)| (*fd, *what)), until)?;
        Ok(items
            .into_iter()
            .zip(ready)
            .filter(|(_, is_ready)| *is_ready)
            .map(|((item, ..), _)| item)
            .collect())
    }

    fn items<'a>(&'a self, signals: &'a Signals, now: Instant) -> Vec<(Item, BorrowedFd<'a>, PollFlags)> {
        let has_room = self.control.queued() < HIGH_WATER;
        let mut items = vec![
            (Item::Signals, signals.pending(), PollFlags::IN),
            (Item::Control, self.control.fd(), self.control.interest()),
        ];
        for (index, boot) in self.boots.iter().enumerate() {
            let listen = if has_room && boot.may_receive() { PollFlags::IN } else { PollFlags::empty() };
            let speak = if boot.has_more_to_say() { PollFlags::OUT } else { PollFlags::empty() };
            // With neither flag, poll would still report the socket's end, over and over.
            if let Some(stream) = boot.stream().filter(|_| !(listen | speak).is_empty()) {
                items.push((Item::Boot(index), stream.as_fd(), listen | speak));
            }
        }
        if has_room {
            let open = self.outputs.open(now);
            items.extend(open.map(|(index, pipe)| (Item::Output(index), pipe, PollFlags::IN)));
        }
        if let Some(input) = self.input.as_ref().filter(|input| !input.pending.is_empty()) {
            items.push((Item::Input, input.pipe.as_fd(), PollFlags::OUT));
        }
        items
    }

    fn serve(&mut self, item: Item, scratch: &mut [u8]) -> Result<(), ControlError> {
        match item {
            Item::Signals => {}
            Item::Control => self.receive_from_root(scratch)?,
            Item::Boot(index) => {
                self.boots[index].flush();
                self.report_taken(index);
                if self.boots[index].may_receive() {
                    self.receive_from_rank(index, scratch);
                }
            }
            Item::Output(index) => {
                let (sink, text) = self.outputs.read(index, scratch, Instant::now());
                self.send_output(sink, text);
            }
            Item::Input => self.write_input(),
        }
        Ok(())
    }

    fn receive_from_root(&mut self, scratch: &mut [u8]) -> Result<(), ControlError> {
        self.control.receive(scratch)?;
        self.obey_root()
    }

    /// Handles every message that was read.
    fn obey_root(&mut self) -> Result<(), ControlError> {
        while let Some(message) = self.control.next::<ToNode>()? {
            match message {
                ToNode::Start => return Err(ControlError::ProtocolBroken("a second start")),
                ToNode::Boot { rank, bytes } => self.deliver_to_rank(rank, &bytes)?,
                ToNode::BootConsumed { rank, bytes } => {
                    if let Some(boot) = self.boot_of(rank) {
                        boot.consumed(bytes as usize);
                    }
                }
                ToNode::BootEnd { rank } => {
                    if let Some(boot) = self.boot_of(rank) {
                        boot.flush();
                        boot.close();
                    }
                }
                ToNode::Signal { number } => {
                    // The clock stops first and resumes first: no rank may run while its clock counts a pause.
                    match number {
                        libc::SIGSTOP => self.clock.stop(),
                        libc::SIGCONT => self.clock.resume(),
                        _ => {}
                    }
                    if let Some(signal) = Signal::from_named_raw(number) {
                        self.ranks.signal(signal);
                    }
                    // The root stops after its ranks, and continues before them.
                    let _ = match number {
                        libc::SIGSTOP => self.control.detect_death_only(),
                        libc::SIGCONT => self.control.detect_again(),
                        _ => Ok(()),
                    };
                }
                ToNode::SampleRanks { serial } => self.sample(serial),
                ToNode::Written { sink, bytes } => self.outputs.written(sink, bytes as usize),
                ToNode::Unread { sink } => self.outputs.unread(sink),
                ToNode::Input { bytes } => {
                    if let Some(input) = &mut self.input {
                        input.at_end |= bytes.is_empty();
                        input.pending.extend(bytes);
                    }
                    self.write_input();
                }
            }
        }
        Ok(())
    }

    /// Reports the state of the ranks here.
    fn sample(&mut self, serial: u32) {
        let mut samples = self.sampler.sample(&self.ranks);
        loop {
            let rest = samples.split_off(samples.len().min(MAX_SAMPLES));
            let last = rest.is_empty();
            self.send(&ToRoot::RankStates { serial, samples, last });
            if last {
                return;
            }
            samples = rest;
        }
    }

    fn boot_of(&mut self, rank: u32) -> Option<&mut Boot> {
        self.boots.get_mut(rank.checked_sub(self.first)? as usize)
    }

    fn deliver_to_rank(&mut self, rank: u32, bytes: &[u8]) -> Result<(), ControlError> {
        let own = self.own;
        let Some(boot) = self.boot_of(rank) else {
            return Err(ControlError::ProtocolBroken("words for a rank not its own"));
        };
        boot.take(bytes, &own)?;
        if !boot.flush() {
            self.send(&ToRoot::BootEnd { rank, why: Some(stopped_reading()) });
        }
        self.report_taken((rank - self.first) as usize);
        Ok(())
    }

    /// Reports to the root the bytes that a rank has taken.
    fn report_taken(&mut self, index: usize) {
        let rank = self.boots[index].rank;
        if let Some(bytes) = self.boots[index].taken() {
            self.send(&ToRoot::BootTaken { rank, bytes: bytes as u32 });
        }
    }

    /// Reads once from a rank. Returns `false` if there was nothing.
    fn receive_from_rank(&mut self, index: usize, scratch: &mut [u8]) -> bool {
        let rank = self.boots[index].rank;
        match self.boots[index].receive(scratch) {
            ReadOutcome::Nothing => return false,
            ReadOutcome::Bytes(length) => {
                self.send(&ToRoot::Boot { rank, bytes: scratch[..length].to_vec() })
            }
            ReadOutcome::End => self.send(&ToRoot::BootEnd { rank, why: None }),
        }
        true
    }

    fn send_output(&mut self, sink: Sink, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.send(&ToRoot::Output { sink, bytes });
        }
    }

    fn write_input(&mut self) {
        let Some(input) = &mut self.input else { return };
        let mut taken = 0;
        let mut is_read = true;
        while !input.pending.is_empty() && is_read {
            match rustix::io::write(&input.pipe, input.pending.as_slices().0) {
                Ok(written) => {
                    drop(input.pending.drain(..written));
                    taken += written;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => is_read = false,
            }
        }
        let done = !is_read || (input.at_end && input.pending.is_empty());
        if taken > 0 {
            self.send(&ToRoot::Taken { bytes: taken as u32 });
        }
        if !is_read {
            self.send(&ToRoot::InputEnd);
        }
        if done {
            self.input = None;
        }
    }

    fn record_exits(&mut self, scratch: &mut [u8]) {
        for (rank, end) in self.ranks.reap() {
            // The rank's last messages are read first: one may have been its goodbye. Bounded, because a
            // process that the rank left behind may hold its socket and pipes and go on writing.
            let index = (rank - self.first) as usize;
            for _ in 0..LAST_READS {
                if !self.receive_from_rank(index, scratch) {
                    break;
                }
            }
            let last = self.outputs.read_last_of(rank, scratch, LAST_READS, Instant::now());
            last.into_iter().for_each(|(sink, text)| self.send_output(sink, text));
            let how = match end {
                End::Exited(code) => WireEnd::Exited(code),
                End::Killed(signal) => WireEnd::Killed(signal),
                // Only a root reports ranks as lost.
                End::Lost => WireEnd::Killed(libc::SIGKILL),
            };
            self.send(&ToRoot::Ended { rank, how });
        }
    }

    fn send(&mut self, message: &ToRoot) {
        const { assert!(MAX_LINE <= MAX_PIECE) };
        // All messages are shorter than a frame may be: a piece of output is the data of one read, and its
        // lines' tags.
        let _ = self.control.send(message);
    }
}
