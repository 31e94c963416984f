//! The spec of a node: read, checked, and refused if the node cannot start it.

use std::{
    env,
    ffi::OsString,
    io,
    os::{fd::AsFd, unix::ffi::OsStringExt},
    time::{Duration, Instant},
};

use rustix::{event::PollFlags, io::Errno};
use udeck_boot::wire::{MAX_FRAME, decode_payload};

use super::session::root_gone;
use crate::{
    Bind, LaunchError,
    control::{
        framed_stream::{ControlError, FramedStream},
        wire::{self, JobSpec, NotStarted, ToNode, ToRoot},
    },
    descriptors::Descriptors,
    output::MAX_LINE,
    ranks::{Pipes, Work},
    signals::Signals,
    wait::ready,
};

/// How long the root may take to read our refusal.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// Reads the secret, a line of 64 hexadecimal digits, and behind it the spec, both from the root by way of our
/// standard input. Returns `None` if the input has another form.
pub(super) fn read(deadline: Instant) -> Result<Option<([u8; 32], JobSpec)>, String> {
    let mut line = [0; 65];
    let mut header = [0; 4];
    if !(fill(&mut line, deadline)? && line[64] == b'\n' && fill(&mut header, deadline)?) {
        return Ok(None);
    }
    let mut secret = [0; 32];
    for (byte, digits) in secret.iter_mut().zip(line.chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).ok();
        let Some(value) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
            return Ok(None);
        };
        *byte = value;
    }
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_FRAME {
        return Ok(None);
    }
    let mut payload = vec![0; length];
    if !fill(&mut payload, deadline)? {
        return Ok(None);
    }
    Ok(decode_payload(&payload).ok().filter(fits).map(|spec| (secret, spec)))
}

/// Returns `false` if the input ends before `bytes` is full.
fn fill(mut bytes: &mut [u8], deadline: Instant) -> Result<bool, String> {
    let input = io::stdin();
    while !bytes.is_empty() {
        let polled = ready(std::iter::once((input.as_fd(), PollFlags::IN)), Some(deadline));
        let is_ready = polled.map_err(|error| format!("waiting for the spec: {error}"))?[0];
        if !is_ready && Instant::now() >= deadline {
            return Err("the agent has not passed on the spec, which comes over its standard input".into());
        }
        if is_ready {
            match rustix::io::read(&input, &mut *bytes) {
                Ok(0) => return Ok(false),
                Ok(length) => bytes = &mut bytes[length..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(format!("reading the spec: {error}")),
            }
        }
    }
    Ok(true)
}

/// Blocks until the root's message that the ranks are to start. Messages that came behind it stay in `control`.
pub(super) fn await_start(control: &mut FramedStream, signals: &Signals) -> Result<(), String> {
    let mut scratch = vec![0; MAX_LINE];
    loop {
        // The message may have come with the root's proof.
        match control.next().map_err(root_gone)? {
            Some(ToNode::Start) => return Ok(()),
            Some(_) => return Err(root_gone(ControlError::ProtocolBroken("something before the start"))),
            None => {}
        }
        let fds = [signals.pending(), control.fd()].map(|fd| (fd, PollFlags::IN));
        ready(fds.into_iter(), None).map_err(|error| format!("waiting for the start: {error}"))?;
        if signals.take_next().is_some_and(|signal| signal != libc::SIGCHLD) {
            return Err("told to end before there was anything to start".into());
        }
        control.receive(&mut scratch).map_err(root_gone)?;
    }
}

fn fits(spec: &JobSpec) -> bool {
    spec.size <= udeck_boot::MAX_RANKS
        && spec.count > 0
        && spec.first.checked_add(spec.count).is_some_and(|end| end <= spec.size)
}

/// Does the preparations that can fail before there is a rank.
pub(super) fn prepare(spec: &JobSpec) -> Result<Descriptors, NotStarted> {
    let directory = OsString::from_vec(spec.directory.clone());
    env::set_current_dir(directory)
        .map_err(|error| NotStarted::Directory { errno: error.raw_os_error().unwrap_or_default() })?;
    Descriptors::raise(spec.count, Pipes::all(spec.output).each(), 0).map_err(refusal)
}

pub(super) fn work(spec: JobSpec) -> Work {
    Work {
        program: OsString::from_vec(spec.program),
        args: spec.args.into_iter().map(OsString::from_vec).collect(),
        env: spec
            .env
            .into_iter()
            .map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)))
            .collect(),
        bind: match spec.bind {
            wire::WireBind::Auto => Bind::Auto,
            wire::WireBind::Core => Bind::Core,
            wire::WireBind::None => Bind::None,
        },
        first: spec.first,
        count: spec.count,
        size: spec.size,
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

/// Sends the refusal to the root, and waits until the root has read it.
pub(super) fn refuse(mut control: FramedStream, signals: &Signals, why: NotStarted) -> Result<(), String> {
    let until = Instant::now() + LAST_WAIT;
    let mut scratch = [0; 4096];
    control.send(&ToRoot::NotStarted(why)).map_err(|error| error.to_string())?;
    while Instant::now() < until {
        if control.flush().is_err() {
            break;
        }
        let fds = [(signals.pending(), PollFlags::IN), (control.fd(), control.interest())];
        let _ = ready(fds.into_iter(), Some(until));
        let told_to_end = signals.take_next().is_some_and(|signal| signal != libc::SIGCHLD);
        if told_to_end || control.receive(&mut scratch).is_err() {
            break;
        }
    }
    Ok(())
}
