//! The guard process between a job and its user: a `kill -9` of deckrun leaves nothing behind, on any host.
//!
//! ```text
//!   deckrun, the guard ──► the watcher ──► rank 0, rank 1, ... ──► what they start
//! ```
//!
//! The user starts the *guard*, and knows its process number. The guard forks the *watcher*, which does
//! everything else, and waits for it. Both adopt orphans (`PR_SET_CHILD_SUBREAPER`): whichever is killed, the
//! other one inherits its children and ends them. When the guard dies, the kernel sends the watcher a signal
//! (`PR_SET_PDEATHSIG`), and the watcher kills ranks, orphans and agents. When the watcher dies, its ranks die
//! with it, and the guard ends the processes that they leave. The guard passes its signals on to the watcher
//! (`signals.rs`). Asked to stop (Ctrl-Z), the watcher stops the ranks and then itself, and the guard stops
//! after it, so that a shell sees a stopped job only when the job has stopped.
//!
//! Only a process without other threads can fork and go on. In any other process [`run`] forks nothing and
//! watches itself; a `kill -9` of that process takes the ranks with it, but not the processes that they had
//! started. Killing guard and watcher at the same time has the same effect: the watcher is named `deck-job`, so
//! that `killall deckrun` finds the guard only.

#![allow(unsafe_code, reason = "processes and signals, for which rustix has no safe call")]

mod report;

use std::{
    fs,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    panic::{self, AssertUnwindSafe},
};

use rustix::{
    event::PollFlags,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, waitid},
};

use crate::{
    End,
    cgroup::Cgroup,
    orphans::Orphans,
    signals::{Signals, abandoned, relay},
    wait::ready,
};

pub(crate) use self::report::{decoded, encoded};

/// The watcher's name, of at most 15 bytes.
const NAME: &std::ffi::CStr = c"deck-job";

/// The watcher's exit code after a panic, which the watcher itself has reported.
const PANICKED: i32 = 101;

/// Runs `body`, which watches over a job, under a guard, and returns its result. `Err` says how the watcher
/// ended instead. In both cases no process of the job runs afterwards.
///
/// `body` may run in a child, as a copy of this process at this moment: its changes of memory are lost. Its
/// argument is the cgroup for its ranks, if there is one.
pub(crate) fn run(body: impl FnOnce(Option<&Cgroup>) -> Vec<u8>) -> io::Result<Result<Vec<u8>, End>> {
    // The guard makes the cgroup, because guard and watcher both must be able to kill and remove it. The one
    // that lives longer does.
    let cgroup = Cgroup::make().ok();
    let cgroup = cgroup.as_ref();
    if !is_alone() {
        return Ok(Ok(body(cgroup)));
    }
    // Signals are taken before the fork, so that none is lost in between.
    let signals = Signals::take_also(&[libc::SIGQUIT, libc::SIGTSTP])?;
    let orphans = Orphans::adopt(cgroup)?;
    let (report, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    io::stdout().flush()?;
    let guard = getpid();
    // SAFETY: there is no other thread, so the child finds memory and locks as this thread left them.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop((signals, report));
            watch(guard, ours, cgroup, body)
        }
        pid => {
            drop(ours);
            let pid = Pid::from_raw(pid).expect("a process's number");
            let ended = run_guard(pid, report, &signals);
            // If the watcher ended by itself there are no orphans.
            orphans.end();
            ended
        }
    }
}

fn is_alone() -> bool {
    fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// Runs the watcher, in the child.
fn watch(
    guard: Pid,
    report: OwnedFd,
    cgroup: Option<&Cgroup>,
    body: impl FnOnce(Option<&Cgroup>) -> Vec<u8>,
) -> ! {
    // SAFETY: system calls on numbers, and on a name that is a C string.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, abandoned());
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
    }
    let mut code = 0;
    // If the guard had died before the `prctl` above, no signal would tell us.
    if getppid() == Some(guard) {
        // A panic must not unwind into a caller that the parent, too, is in the middle of.
        match panic::catch_unwind(AssertUnwindSafe(|| body(cgroup))) {
            // A failed write means that the guard is gone.
            Ok(said) => drop(fs::File::from(report).write_all(&said)),
            Err(_) => code = PANICKED,
        }
        let _ = io::stdout().flush();
    }
    // If the guard is gone, nobody else removes the cgroup.
    cgroup.iter().for_each(|cgroup| cgroup.remove());
    // SAFETY: ends the process without running what the parent, too, would run at its exit.
    unsafe { libc::_exit(code) }
}

/// Runs the guard, in the parent.
fn run_guard(watcher: Pid, report: OwnedFd, signals: &Signals) -> io::Result<Result<Vec<u8>, End>> {
    let (mut said, mut passed_on, mut open, mut stopping) = (Vec::new(), None, true, false);
    rustix::io::ioctl_fionbio(&report, true)?;
    let mut report = fs::File::from(report);
    loop {
        let status = waitid(WaitId::Pid(watcher), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
        // Read after `waitid`: all output of an ended watcher is there.
        if open {
            open = is_open(report.read_to_end(&mut said));
        }
        if let Some(status) = status {
            return Ok(match End::new(&status) {
                End::Exited(0) if !said.is_empty() => Ok(said),
                // The watcher had not yet installed its handler for the passed-on signal, or had removed it.
                End::Killed(signal) if signal == relay() => Err(End::Killed(passed_on.unwrap_or(signal))),
                end => Err(end),
            });
        }
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if stopping && waitid(WaitId::Pid(watcher), stopped)?.is_some() {
            stopping = false;
            signals.suspend();
            // SIGCONT may have been sent to this process alone.
            let _ = kill_process(watcher, Signal::CONT);
            continue;
        }
        let news =
            [Some((signals.pending(), PollFlags::IN)), open.then_some((report.as_fd(), PollFlags::IN))];
        ready(news.into_iter().flatten(), None)?;
        while let Some(sent) = signals.take_sent() {
            if sent.number != libc::SIGCHLD {
                stopping |= sent.number == libc::SIGTSTP;
                passed_on = Some(sent.number);
                sent.pass_on(watcher);
            }
        }
    }
}

/// Tells whether the pipe that was read has a writer left.
fn is_open(read: io::Result<usize>) -> bool {
    read.is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted))
}
