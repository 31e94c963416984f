//! Bytes between a rank and a PMI service: over the descriptor that the launcher left open, or over TCP. Every
//! wait ends at its deadline, and no call here raises a signal.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::OwnedFd,
    sync::mpsc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read, write},
    net::{RecvFlags, SendFlags, recv, send},
};
use udeck_sys::{Deadline, tcp_connect, thread};

use super::wire::Inbox;
use crate::start::pmix::is_mpi_initialized;

/// Bytes that a writable pipe takes without blocking.
const PIPE_ROOM: usize = 4096;

/// Reasons why bytes could not be moved.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::start) enum Broken {
    /// The deadline passed; `torn` if a part of a request was sent.
    Late { torn: bool },
    /// The connection is gone; the reason in words.
    Gone(String),
}

impl Broken {
    fn closed() -> Broken {
        Broken::Gone("the launcher's service has closed the connection".into())
    }
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Broken {
        match error {
            Errno::PIPE | Errno::CONNRESET => Broken::closed(),
            error => Broken::Gone(format!("the connection to the launcher's service fails: {error}")),
        }
    }
}

/// A connection to a PMI service. Dropping it closes the connection.
#[derive(Debug)]
pub(in crate::start) struct Channel {
    fd: OwnedFd,
    /// The descriptor that the launcher left open, of which `fd` is a duplicate: MPI in this process may use
    /// it, too.
    inherited: Option<OwnedFd>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_shared() {
            // MPI closes this descriptor, or has closed it.
            std::mem::forget(self.inherited.take());
        }
    }
}

impl Channel {
    pub(in crate::start) fn new(fd: impl Into<OwnedFd>) -> Channel {
        Channel { fd: fd.into(), inherited: None }
    }

    /// Makes a channel of the descriptor that the launcher left open.
    ///
    /// # Errors
    /// The kernel's: no descriptors are left.
    pub(in crate::start) fn inherited(fd: OwnedFd) -> io::Result<Channel> {
        Ok(Channel { fd: fd.try_clone()?, inherited: Some(fd) })
    }

    /// Tells whether MPI in this process has the connection, too: it says goodbye for the process, or has done
    /// so.
    pub(in crate::start) fn is_shared(&self) -> bool {
        self.inherited.is_some() && is_mpi_initialized()
    }

    /// Connects to `host:port`.
    ///
    /// # Errors
    /// [`Broken::Late`]; or, in words, why the host is not known or does not answer.
    pub(in crate::start) fn connect(address: &str, until: Deadline) -> Result<Channel, Broken> {
        let mut refused = None;
        for address in resolve(address, until)? {
            match tcp_connect(address, until.remaining()) {
                Ok(stream) => {
                    // A request is small, and its answer is awaited. Without the option the connection is only
                    // slower.
                    let _ = stream.set_nodelay(true);
                    return Ok(Channel::new(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut && until.passed() => {
                    return Err(Broken::Late { torn: false });
                }
                Err(error) => refused = Some(format!("{address}: {error}")),
            }
        }
        Err(Broken::Gone(refused.unwrap_or_else(|| "this name has no address".into())))
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// [`Broken`].
    pub(in crate::start) fn send(&self, mut bytes: &[u8], until: Deadline) -> Result<(), Broken> {
        let whole = bytes.len();
        while !bytes.is_empty() {
            match self.send_some(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.wait_for(PollFlags::OUT, until)? => {}
                Err(Errno::AGAIN) => return Err(Broken::Late { torn: bytes.len() < whole }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads once, when there is something to read.
    ///
    /// # Errors
    /// [`Broken`], also when the service ends the connection.
    pub(in crate::start) fn receive(&self, inbox: &mut Inbox, until: Deadline) -> Result<(), Broken> {
        let mut buffer = [0; 2048];
        loop {
            if !self.wait_for(PollFlags::IN, until)? {
                return Err(Broken::Late { torn: false });
            }
            match self.receive_some(&mut buffer) {
                Ok(0) => return Err(Broken::closed()),
                Ok(length) => {
                    inbox.push(&buffer[..length]);
                    return Ok(());
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends without blocking, whatever the descriptor's mode: other programs may share it.
    fn send_some(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            // The descriptor may be a pipe that both ends write and read. It has a reader, this process, and so
            // a write raises no signal.
            Err(Errno::NOTSOCK) if self.is_ready(PollFlags::OUT, Duration::ZERO)? => {
                write(&self.fd, &bytes[..bytes.len().min(PIPE_ROOM)])
            }
            Err(Errno::NOTSOCK) => Err(Errno::AGAIN),
            sent => sent,
        }
    }

    fn receive_some(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
            Err(Errno::NOTSOCK) => read(&self.fd, buffer),
            received => received.map(|(length, _)| length),
        }
    }

    /// Returns `false` if the deadline passed first.
    fn wait_for(&self, what: PollFlags, until: Deadline) -> Result<bool, Errno> {
        loop {
            match self.is_ready(what, until.remaining()) {
                Ok(false) if until.passed() => return Ok(false),
                Ok(false) | Err(Errno::INTR) => {}
                ready => return ready,
            }
        }
    }

    fn is_ready(&self, what: PollFlags, limit: Duration) -> Result<bool, Errno> {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        poll(&mut [PollFd::new(&self.fd, what)], Some(&limit)).map(|ready| ready > 0)
    }
}

/// Returns the addresses of `host:port`. Resolves them on a thread, because the system's resolver knows no
/// deadline; a late thread is left behind.
fn resolve(address: &str, until: Deadline) -> Result<Vec<SocketAddr>, Broken> {
    let (sender, receiver) = mpsc::channel();
    let asked = address.to_owned();
    let resolving = move || {
        let found = asked.to_socket_addrs().map(|found| found.collect::<Vec<_>>());
        let _ = sender.send(found);
    };
    thread::spawn("pmi-names", resolving, |_| {})
        .map_err(|error| Broken::Gone(format!("no thread to look up its address: {error}")))?;
    match receiver.recv_timeout(until.remaining()) {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(Broken::Gone(format!("its address is not found: {error}"))),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(Broken::Late { torn: false }),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(Broken::Gone("looking up its address has failed".into()))
        }
    }
}

#[cfg(test)]
mod tests;
