//! Sleeping on descriptors until a time, and saying something to the user.

use std::{
    io::{self, Write},
    os::fd::BorrowedFd,
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Sleeps until one of these has something to say, or has ended, or it is time.
pub(crate) fn poll_until(fds: Vec<BorrowedFd<'_>>, until: Instant) -> io::Result<()> {
    let fds = fds.into_iter().map(|fd| (fd, PollFlags::IN));
    ready(fds, Some(until)).map(drop)
}

/// As [`poll_until`], with what to wait for on each, and says which are ready, in order.
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

/// In one write, so that what ranks say at the same time does not get into the line.
pub(crate) fn say(what: &str) {
    // A standard error that is closed has nobody to tell.
    let _ = io::stderr().write_all(format!("deckrun: {what}\n").as_bytes());
}
