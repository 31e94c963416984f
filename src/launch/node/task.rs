//! What a node is told to start, and what it answers when it cannot.

use std::{
    env,
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt,
    time::{Duration, Instant},
};

use rustix::event::PollFlags;

use super::session::gone;
use crate::{
    Bind, LaunchError,
    descriptors::Descriptors,
    link::{
        trunk::{Over, Trunk},
        wire::{self, NotStarted, Task, ToNode, ToRoot},
    },
    output::MAX_LINE,
    ranks::{Pipes, Work},
    signals::Signals,
    wait::ready,
};

/// How long the root may take to hear our refusal.
const LAST_WAIT: Duration = Duration::from_secs(10);

pub(super) fn await_task(trunk: &mut Trunk, signals: &Signals) -> Result<Task, String> {
    let mut scratch = vec![0; MAX_LINE];
    loop {
        let fds = [signals.pending(), trunk.fd()].map(|fd| (fd, PollFlags::IN));
        ready(fds.into_iter(), None).map_err(|error| format!("waiting for the task: {error}"))?;
        if signals.take_next().is_some_and(|signal| signal != libc::SIGCHLD) {
            return Err("told to end before there was anything to start".into());
        }
        trunk.receive(&mut scratch).map_err(gone)?;
        match trunk.next().map_err(gone)? {
            Some(ToNode::Task(task)) if fits(&task) => return Ok(task),
            Some(_) => return Err(gone(Over::Unfitting("no task that makes sense"))),
            None => {}
        }
    }
}

fn fits(task: &Task) -> bool {
    task.size <= udeck_boot::MAX_RANKS
        && task.count > 0
        && task.first.checked_add(task.count).is_some_and(|end| end <= task.size)
}

/// What can go wrong before there is a rank.
pub(super) fn prepare(task: &Task) -> Result<Descriptors, NotStarted> {
    let directory = OsString::from_vec(task.directory.clone());
    env::set_current_dir(directory)
        .map_err(|error| NotStarted::Directory { errno: error.raw_os_error().unwrap_or_default() })?;
    Descriptors::raise(task.count, task.tag_output, 0).map_err(refusal)
}

pub(super) fn work(task: Task) -> Work {
    Work {
        program: OsString::from_vec(task.program),
        args: task.args.into_iter().map(OsString::from_vec).collect(),
        env: task
            .env
            .into_iter()
            .map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)))
            .collect(),
        bind: match task.bind {
            wire::Bind::Auto => Bind::Auto,
            wire::Bind::Core => Bind::Core,
            wire::Bind::None => Bind::None,
        },
        output: if task.tag_output { Pipes::Own } else { Pipes::Shared },
        first: task.first,
        count: task.count,
        size: task.size,
    }
}

pub(crate) fn refusal(error: LaunchError) -> NotStarted {
    let number = |source: &io::Error| source.raw_os_error().unwrap_or_default();
    match error {
        LaunchError::NotFound { .. } => NotStarted::NotFound,
        LaunchError::NotExecutable { source, .. } => NotStarted::NotExecutable { errno: number(&source) },
        LaunchError::Spawn { rank, source, .. } => NotStarted::Spawn { rank, errno: number(&source) },
        LaunchError::TooFewDescriptors { ranks, needed, limit } => {
            NotStarted::TooFewDescriptors { ranks, needed, limit }
        }
        other => NotStarted::Other { what: other.to_string() },
    }
}

/// Tells the root, and waits until it has heard.
pub(super) fn refuse(mut trunk: Trunk, signals: &Signals, why: NotStarted) -> Result<(), String> {
    let until = Instant::now() + LAST_WAIT;
    let mut scratch = [0; 4096];
    trunk.send(&ToRoot::NotStarted(why)).map_err(|error| error.to_string())?;
    while Instant::now() < until {
        if trunk.flush().is_err() {
            break;
        }
        let fds = [(signals.pending(), PollFlags::IN), (trunk.fd(), trunk.interest())];
        let _ = ready(fds.into_iter(), Some(until));
        let told_to_end = signals.take_next().is_some_and(|signal| signal != libc::SIGCHLD);
        if told_to_end || trunk.receive(&mut scratch).is_err() {
            break;
        }
    }
    Ok(())
}
