//! Processes of this host's ranks: started, signalled, reaped.

#![allow(unsafe_code, reason = "pre_exec")]

use std::{
    collections::HashMap,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    pipe::{PipeFlags, pipe_with},
    process::{
        Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group,
        set_parent_process_death_signal, setrlimit, setsid, waitid,
    },
    thread::{CpuSet, sched_setaffinity},
};
use udeck_boot::{
    ENV_BIND, ENV_BOOT_FD, ENV_CLOCK_FD, ENV_CPUS, ENV_RANK, ENV_SIZE, ENV_WAITS_FD, waits::Page,
};
use udeck_sys::JobClock;

use crate::{
    Bind, End, LaunchError,
    cgroup::Cgroup,
    control::wire::{OutputForm, Sink},
    orphans::{count_check, dead_child},
    output::{OutputPipe, form},
    signals::Mask,
};

/// How long to wait for killed ranks when a start has failed.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The ranks to start on this host.
pub(crate) struct Work {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) bind: Bind,
    /// The first of this host's ranks; the others follow it.
    pub(crate) first: u32,
    /// Number of this host's ranks.
    pub(crate) count: u32,
    /// Number of the job's ranks.
    pub(crate) size: u32,
}

/// Output of the ranks: each writes to pipes of its own, or to this process's standard output and error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pipes {
    pub(crate) form: OutputForm,
    /// Whether this process reads the output: standard output, and standard error.
    piped: [bool; 2],
}

impl Pipes {
    /// Sends all output through pipes.
    pub(crate) fn all(form: OutputForm) -> Pipes {
        Pipes { form, piped: [true; 2] }
    }

    /// Chooses the pipes of the ranks that share a host with the root, in a job of `size` ranks. A terminal
    /// gets no pipe, unless lines are to be tagged. A rank that is alone gets none either: no other rank's
    /// output can come in between.
    pub(crate) fn of_root(tagged: bool, size: u32) -> Pipes {
        let (form, terminals) = form::of_this_process(tagged);
        Pipes { form, piped: terminals.map(|terminal| tagged || size > 1 && !terminal) }
    }

    /// Removes the pipes of ranks on this host.
    pub(crate) fn inherited(self) -> Pipes {
        Pipes { piped: [false; 2], ..self }
    }

    /// Returns the number of pipes of each rank.
    pub(crate) fn each(self) -> u32 {
        if self.are_joined() { 1 } else { self.piped.map(u32::from).iter().sum() }
    }

    fn are_joined(self) -> bool {
        self.form.joined && self.piped == [true; 2]
    }
}

/// The processes of the ranks. Each leads a process group of its own. Dropping this kills and reaps the running
/// ones.
#[derive(Default)]
pub(crate) struct Ranks {
    first: u32,
    /// Process numbers, from the first rank on; `None` once the rank has been reaped.
    pids: Vec<Option<Pid>>,
    /// Pages in which the ranks publish their long waits, from the first rank on.
    pages: Vec<Page>,
    /// Ranks of the processes that are not reaped yet.
    alive: HashMap<Pid, u32>,
}

/// Parent's ends of the ranks' connections.
#[derive(Default)]
pub(crate) struct Wires {
    /// Sockets of the name service, from the first rank on.
    pub(crate) boot: Vec<UnixStream>,
    /// Pipes that the ranks write to, unless they write to this process's output themselves.
    pub(crate) output: Vec<OutputPipe>,
    /// Writing end of rank 0's standard input, if it is relayed.
    pub(crate) input: Option<OwnedFd>,
}

/// Settings for starting ranks that the job itself does not have.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) mask: Mask,
    pub(crate) descriptors: Rlimit,
    /// The cgroup into which the ranks are put.
    pub(crate) cgroup: Option<&'a Cgroup>,
    pub(crate) pipes: Pipes,
    /// Whether this process relays rank 0's input.
    pub(crate) relay_input: bool,
}

impl Ranks {
    /// Starts all ranks, or none: after an error those that had started are ended again. Their deadlines use
    /// `clock`.
    pub(crate) fn start(
        work: &Work,
        setting: &Setting,
        clock: &JobClock,
    ) -> Result<(Ranks, Wires), LaunchError> {
        let cpus = cpus(work);
        let (mut ranks, mut wires) = (Ranks::default(), Wires::default());
        ranks.first = work.first;
        for (index, rank) in (0..).zip(work.first..work.first + work.count) {
            let cpu = cpus.get(index % cpus.len().max(1)).copied();
            let (page, waits) =
                Page::new().map_err(LaunchError::system("making a page for what a rank waits for"))?;
            let place = Place { rank, cpu, waits };
            let started = start(work, setting, clock, place, &mut wires);
            let pid = started.map_err(|source| explain(work, rank, source))?;
            ranks.pids.push(Some(pid));
            ranks.pages.push(page);
            ranks.alive.insert(pid, rank);
        }
        Ok((ranks, wires))
    }

    /// Returns the running ranks, with the pages in which they publish their long waits.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u32, Pid, &Page)> + '_ {
        self.pids().map(|(rank, pid)| (rank, pid, &self.pages[(rank - self.first) as usize]))
    }

    /// Returns the ranks that have not been reaped, sorted.
    pub(crate) fn running(&self) -> Vec<u32> {
        self.pids().map(|(rank, _)| rank).collect()
    }

    /// Tells whether all ranks have been reaped.
    pub(crate) fn are_over(&self) -> bool {
        self.alive.is_empty()
    }

    pub(crate) fn contains(&self, pid: Pid) -> bool {
        self.alive.contains_key(&pid)
    }

    /// Sends a signal to every running rank's group.
    pub(crate) fn signal(&self, signal: Signal) {
        for (_, pid) in self.pids() {
            // The rank is not reaped, and so its number is still its own. The call fails for a group that
            // changed its identity (setuid): the kernel forbids it, and rightly.
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Reaps the ranks that have ended, and ends the rest of their groups. To be called when a child has ended.
    /// The cost grows with the number of ended ranks; it grows with the number of all ranks only if a child of
    /// another kind is in the way.
    pub(crate) fn reap(&mut self) -> Vec<(u32, End)> {
        let mut ended = Vec::new();
        while let Some(pid) = dead_child() {
            match self.alive.get(&pid) {
                Some(&rank) => ended.extend(self.reap_one(rank, pid)),
                None => {
                    let all: Vec<_> = self.pids().collect();
                    ended.extend(all.into_iter().filter_map(|(rank, pid)| self.reap_one(rank, pid)));
                    break;
                }
            }
        }
        ended
    }

    fn reap_one(&mut self, rank: u32, pid: Pid) -> Option<(u32, End)> {
        count_check();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // The group is killed before its leader is reaped: until then its number cannot go to another process.
        let status = waitid(WaitId::Pid(pid), options | WaitIdOptions::NOWAIT).ok().flatten()?;
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = waitid(WaitId::Pid(pid), options);
        self.pids[(rank - self.first) as usize] = None;
        self.alive.remove(&pid);
        Some((rank, End::new(&status)))
    }

    fn pids(&self) -> impl Iterator<Item = (u32, Pid)> + '_ {
        (self.first..).zip(&self.pids).filter_map(|(rank, pid)| Some((rank, (*pid)?)))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let limit = Instant::now() + LAST_WAIT;
        loop {
            self.reap();
            if self.running().is_empty() || Instant::now() >= limit {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the processors to bind to, in the order of ranks; empty for no binding.
fn cpus(work: &Work) -> Vec<usize> {
    let usable = udeck_sys::usable_cpus();
    match work.bind {
        Bind::Core => usable,
        Bind::Auto if usable.len() >= work.count as usize => usable,
        Bind::Auto | Bind::None => Vec::new(),
    }
}

/// Returns the number of processors that the ranks share, bound or not. The launcher itself is bound to none.
fn shared_cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A rank with its own processor and page.
struct Place {
    rank: u32,
    cpu: Option<usize>,
    /// The page in which the rank publishes its long waits.
    waits: OwnedFd,
}

fn start(
    work: &Work,
    setting: &Setting,
    clock: &JobClock,
    place: Place,
    wires: &mut Wires,
) -> io::Result<Pid> {
    let Place { rank, cpu, waits } = place;
    let (ours, theirs) = UnixStream::pair()?;
    let (theirs, clock) = (OwnedFd::from(theirs), clock.as_fd().try_clone_to_owned()?);
    let relayed = rank == 0 && setting.relay_input;
    let mut command = Command::new(&work.program);
    command
        .args(&work.args)
        .envs(work.env.iter().map(|(name, value)| (name, value)))
        .env(ENV_BOOT_FD, theirs.as_raw_fd().to_string())
        .env(ENV_CLOCK_FD, clock.as_raw_fd().to_string())
        .env(ENV_WAITS_FD, waits.as_raw_fd().to_string())
        .env(ENV_RANK, rank.to_string())
        .env(ENV_SIZE, work.size.to_string())
        .env(ENV_CPUS, shared_cpus().to_string())
        .stdin(match rank {
            0 if relayed => Stdio::piped(),
            0 => Stdio::inherit(),
            _ => Stdio::null(),
        });
    match cpu {
        Some(cpu) => command.env(ENV_BIND, cpu.to_string()),
        None => command.env_remove(ENV_BIND),
    };
    let outputs = outputs(setting.pipes, rank, work.size == 1, &mut command)?;
    let entry = setting.cgroup.map(Cgroup::entry).transpose()?;
    let of_rank = OfRank { own_session: true, inherited: vec![theirs, clock, waits], cpu, entry };
    prepare_child(&mut command, setting, Signal::KILL, of_rank);
    let mut child = command.spawn()?;
    wires.boot.push(ours);
    wires.output.extend(outputs);
    wires.input = wires.input.take().or(child.stdin.take().map(OwnedFd::from));
    Ok(Pid::from_child(&child))
}

/// Gives a rank the pipes that it writes to. Returns their reading ends.
fn outputs(pipes: Pipes, rank: u32, alone: bool, command: &mut Command) -> io::Result<Vec<OutputPipe>> {
    let Pipes { form, piped } = pipes;
    let source = |pipe, sink| OutputPipe::new(rank, pipe, sink, &form, alone);
    if pipes.are_joined() {
        let (pipe, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        command.stdout(theirs.try_clone()?).stderr(theirs);
        // deckrun's own messages go to standard error, too.
        return Ok(vec![source(pipe, Sink::Stderr)]);
    }
    let mut sources = Vec::new();
    for sink in [Sink::Stdout, Sink::Stderr].into_iter().filter(|sink| piped[*sink as usize]) {
        let (pipe, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        match sink {
            Sink::Stdout => command.stdout(theirs),
            Sink::Stderr => command.stderr(theirs),
        };
        sources.push(source(pipe, sink));
    }
    Ok(sources)
}

/// Settings of a child that is a rank. The command keeps them until it is dropped after the start.
#[derive(Default)]
pub(crate) struct OfRank {
    /// The child gets a session of its own, and no terminal: in the background of deckrun's session, a rank
    /// that read `/dev/tty` would be stopped.
    own_session: bool,
    /// Descriptors for the child: its end of the connection, the job's clock, and its page.
    inherited: Vec<OwnedFd>,
    cpu: Option<usize>,
    /// `cgroup.procs` of the cgroup that the child enters.
    entry: Option<OwnedFd>,
}

/// Prepares the steps that only the child can do, between fork and exec. The child gets `on_our_death` when
/// this process dies.
pub(crate) fn prepare_child(
    command: &mut Command,
    setting: &Setting,
    on_our_death: Signal,
    OfRank { own_session, inherited, cpu, entry }: OfRank,
) {
    let parent = getpid();
    let (mask, descriptors) = (setting.mask, setting.descriptors);
    let cpus = cpu.map(|cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    });
    let in_child = move || {
        set_parent_process_death_signal(Some(on_our_death))?;
        if getppid() != Some(parent) {
            // The launcher died before the line above: nobody would end this child.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if own_session {
            setsid()?;
        }
        if let Some(entry) = &entry {
            // If the write fails, the rank is ended as where there is no cgroup.
            let _ = rustix::io::write(entry, b"0");
        }
        mask.restore()?;
        setrlimit(Resource::Nofile, descriptors)?;
        for fd in &inherited {
            fcntl_setfd(fd, FdFlags::empty())?;
        }
        match &cpus {
            Some(cpus) => Ok(sched_setaffinity(None, cpus)?),
            None => Ok(()),
        }
    };
    // SAFETY: the closure makes system calls only: it allocates nothing and takes no lock, as the child of a fork in a
    // process that may have threads must not.
    unsafe { command.pre_exec(in_child) };
}

fn explain(work: &Work, rank: u32, source: io::Error) -> LaunchError {
    let program: OsString = work.program.clone();
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => LaunchError::NotFound { program },
        Some(libc::EACCES | libc::ENOEXEC) => LaunchError::NotExecutable { program, source },
        _ => LaunchError::Spawn { rank, program, source },
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{getrlimit, kill_process};

    use super::*;
    use crate::orphans::CHECKS;

    const NAME: &str = "ranks::tests::the_end_of_a_rank_costs_no_look_at_the_others";
    /// Set in a process that has no children of other tests.
    const IS_ALONE: &str = "DECKRUN_TEST_IS_ALONE";

    #[test]
    fn the_end_of_a_rank_costs_no_look_at_the_others() {
        if std::env::var_os(IS_ALONE).is_none() {
            let mut alone = Command::new(std::env::current_exe().unwrap());
            let ended = alone.args([NAME, "--exact", "--nocapture"]).env(IS_ALONE, "1").output().unwrap();
            return assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        }
        let work = Work {
            program: "sleep".into(),
            args: vec!["600".into()],
            env: Vec::new(),
            bind: Bind::None,
            first: 0,
            count: 64,
            size: 64,
        };
        let (mask, descriptors) = (Mask::current().unwrap(), getrlimit(Resource::Nofile));
        let setting =
            Setting { mask, descriptors, cgroup: None, pipes: Pipes::default(), relay_input: false };
        let (mut ranks, _wires) = Ranks::start(&work, &setting, &JobClock::new().unwrap()).unwrap();
        kill_process(ranks.pids[40].unwrap(), Signal::KILL).unwrap();
        while dead_child().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        CHECKS.set(0);
        assert_eq!(ranks.reap(), [(40, End::Killed(libc::SIGKILL))]);
        assert!(CHECKS.get() <= 3, "{} checks", CHECKS.get());
        CHECKS.set(0);
        assert_eq!(ranks.reap(), []);
        assert_eq!(CHECKS.get(), 1);
    }
}
