//! Descriptor numbers: new descriptors are 3 or higher.
//!
//! A program that has closed its standard input, output or error may still write to it: `printf` would write into the
//! descriptor that gets number 1 next. Each descriptor that outlives the call which opens it therefore passes through
//! [`above_stdio`], or is opened by a foreign library in [`open_above_stdio`]. Duplicates that the standard library makes
//! (`try_clone`) are at 3 or higher by themselves.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::Deadline;

/// Lowest number that is not a standard stream's.
const FIRST: i32 = 3;

/// Time that one call of [`open_above_stdio`] waits for another.
const PATIENCE: Duration = Duration::from_secs(1);

/// Moves an opened file or socket to a descriptor of 3 or higher, if one is left.
///
/// # Errors
/// The error of opening it.
pub fn above_stdio<T, E>(opened: Result<T, E>) -> io::Result<T>
where
    T: AsFd + From<OwnedFd>,
    io::Error: From<E>,
{
    let opened = opened?;
    match opened.as_fd().as_raw_fd() {
        FIRST.. => Ok(opened),
        _ => Ok(opened.as_fd().try_clone_to_owned().map_or(opened, T::from)),
    }
}

/// Makes a [`UnixStream::pair`], moved by [`above_stdio`].
///
/// # Errors
/// Errors of the kernel: no descriptors left.
pub fn stream_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (one, other) = UnixStream::pair()?;
    Ok((above_stdio(io::Result::Ok(one))?, above_stdio(io::Result::Ok(other))?))
}

/// Opens a non-blocking TCP socket for addresses like this one, moved by [`above_stdio`].
///
/// # Errors
/// Errors of the kernel: no descriptors left, no such family.
pub fn tcp_socket(at: SocketAddr) -> io::Result<OwnedFd> {
    const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    above_stdio(socket_with(family, SocketType::STREAM, FLAGS, None))
}

/// Connects as [`TcpStream::connect_timeout`] does. That function's socket has the lowest free number while it connects; this
/// one is a [`tcp_socket`] from the beginning. Waits for `limit` at most.
///
/// # Errors
/// Errors of the kernel, and `TimedOut`.
pub fn tcp_connect(to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = tcp_socket(to)?;
    match connect(&socket, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            await_writable(&socket, Deadline::after(limit))?;
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    ioctl_fionbio(&socket, false)?;
    Ok(TcpStream::from(socket))
}

fn await_writable(socket: &OwnedFd, until: Deadline) -> io::Result<()> {
    loop {
        let left = Timespec::try_from(until.remaining()).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            ready => return ready.map(drop).map_err(io::Error::from),
        }
    }
}

/// Calls a foreign library that opens descriptors. Numbers below 3 are taken by others meanwhile.
pub fn open_above_stdio<T>(open: impl FnOnce() -> T) -> T {
    static ONE: Mutex<()> = Mutex::new(());
    // A call that does not return holds up other callers for [`PATIENCE`] only.
    let _one = ONE.try_lock_for(PATIENCE);
    let null = || File::open("/dev/null").ok().filter(|file| file.as_raw_fd() < FIRST);
    let _taken: Vec<File> = std::iter::from_fn(null).collect();
    open()
}
