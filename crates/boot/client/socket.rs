//! The client's socket: every wait on it has a deadline, and its bytes raise no signal.

use std::{io, os::unix::net::UnixStream};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use udeck_sys::Deadline;

use crate::wire::Frames;

pub(super) enum SendError {
    /// The deadline passed; `torn` if part of the frame was written.
    Late {
        torn: bool,
    },
    Os(Errno),
}

pub(super) fn send_all(stream: &UnixStream, mut bytes: &[u8], deadline: Deadline) -> Result<(), SendError> {
    let whole = bytes.len();
    while !bytes.is_empty() {
        // NOSIGNAL: a C program may have SIGPIPE at its default, and a launcher's death must not be the rank's.
        match send(stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match wait_for(stream, PollFlags::OUT, Some(deadline)) {
                Ok(true) => {}
                Ok(false) => return Err(SendError::Late { torn: bytes.len() < whole }),
                Err(error) => return Err(SendError::Os(error)),
            },
            Err(error) => return Err(SendError::Os(error)),
        }
    }
    Ok(())
}

/// Reads once. Without a deadline, waits as long as the connection lasts, which [`Client`]'s drop ends.
pub(super) fn receive(
    stream: &UnixStream,
    frames: &mut Frames,
    deadline: Option<Deadline>,
) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        if !wait_for(stream, PollFlags::IN, deadline)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match recv(stream, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
            }
            Ok((read, _)) => {
                frames.push(&buffer[..read]);
                return Ok(());
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns `false` if the deadline passed first.
fn wait_for(stream: &UnixStream, what: PollFlags, deadline: Option<Deadline>) -> Result<bool, Errno> {
    loop {
        let limit = deadline
            .map(Deadline::remaining)
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        match poll(&mut [PollFd::new(stream, what)], limit.as_ref()) {
            Ok(0) if deadline.is_none_or(Deadline::passed) => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}
