//! Sleeping on descriptors until a time.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Bytes that a pipe takes without blocking when it is ready for writing (pipe(7)).
const PIPE_BUF: usize = 4096;

/// Sleeps until one of these descriptors has its event or has ended, or until `until`. Returns for each whether
/// it is ready, in order.
pub(crate) fn ready<'a>(
    fds: impl Iterator<Item = (BorrowedFd<'a>, PollFlags)>,
    until: Option<Instant>,
) -> io::Result<Vec<bool>> {
    let mut fds: Vec<_> = fds.map(|(fd, what)| PollFd::from_borrowed_fd(fd, what)).collect();
    let limit = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
    });
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) => Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Writes a line to standard error, in one write, unless nobody takes it within `limit`. Only for a process
/// that is alone in writing to its standard error.
pub(crate) fn message_within(limit: Duration, what: &str) {
    let mut line = format!("deckrun: {what}\n").into_bytes();
    // A pipe that is ready takes this length at once.
    line.truncate(PIPE_BUF);
    let error = io::stderr();
    let polled = ready(std::iter::once((error.as_fd(), PollFlags::OUT)), Some(Instant::now() + limit));
    if polled.is_ok_and(|ready| ready[0]) {
        let _ = rustix::io::write(&error, &line);
    }
}
