//! Sockets: how they are set up, and who watches them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, acceptfrom_with, bind, connect, getsockname, listen, socket_with,
    sockopt,
};

use crate::poller::{EventFlags, Poller};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Callers that wait to be let in; the kernel may allow fewer.
const BACKLOG: i32 = 4096;
/// What a socket is watched for while nothing of ours waits for room in it.
pub const INCOMING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// A listening socket, and where it is.
///
/// # Errors
/// The kernel's: no such interface, the port is taken.
pub fn listen_at(at: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = new(at)?;
    if at.port() != 0 {
        // Connections of a former process may still be in TIME_WAIT there.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &at)?;
    listen(&socket, BACKLOG)?;
    let at = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, at))
}

/// A socket that is being connected: writable when it is, or when that has failed.
///
/// # Errors
/// The kernel's, if it knows at once.
pub fn connect_to(to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new(to)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn new(at: SocketAddr) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::STREAM, FLAGS, None)?)
}

/// The next caller, if there is one, and where it calls from.
///
/// # Errors
/// The kernel's, out of descriptors among them.
pub fn accept_from(listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    match acceptfrom_with(listener, FLAGS) {
        Ok((socket, from)) => {
            Ok(from.and_then(|from| SocketAddr::try_from(from).ok()).map(|at| (socket, at)))
        }
        Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sets up a connected socket: small messages go at once; a host that is silent for `detect` is found to be dead while
/// nothing is under way (`pulse` finds it otherwise).
///
/// # Errors
/// The kernel's.
pub fn prepare(socket: BorrowedFd<'_>, detect: Duration) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    let (idle, probes) = keep_alive(detect);
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(socket, probes)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Seconds of silence before the first probe, and how many probes, a second apart, may go unanswered: together no longer
/// than `detect`, and as few probes as leave room for lost ones.
fn keep_alive(detect: Duration) -> (u64, u32) {
    let seconds = detect.as_secs().clamp(2, 3600);
    let idle = (seconds / 3).max(1);
    (idle, (seconds - idle) as u32)
}

/// Lets the socket's end be a reset: nothing lingers in the kernel.
pub fn reset_when_closed(socket: BorrowedFd<'_>) {
    // Otherwise the end is an ordinary one, which is no harm.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// A connected socket, and the pollers that watch it. The pollers change from thread to thread; the socket stays open,
/// and its number its own, as long as somebody may still take it out of a poller.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    token: u64,
    watch: Mutex<Watch>,
}

#[derive(Debug)]
struct Watch {
    by: Vec<Arc<Poller>>,
    events: EventFlags,
    /// Nothing more comes of it, and nobody shall watch it.
    over: bool,
}

impl Socket {
    /// Pollers will name it `token`.
    pub fn new(fd: OwnedFd, token: u64) -> Self {
        Socket { fd, token, watch: Mutex::new(Watch { by: Vec::new(), events: INCOMING, over: false }) }
    }

    /// # Errors
    /// The kernel's.
    pub fn watch_by(&self, poller: &Arc<Poller>) -> io::Result<()> {
        let mut watch = self.watch.lock();
        if watch.over || watch.by.iter().any(|by| Arc::ptr_eq(by, poller)) {
            return Ok(());
        }
        poller.add(&self.fd, self.token, watch.events)?;
        watch.by.push(poller.clone());
        Ok(())
    }

    /// By this poller, and by no other any more.
    ///
    /// # Errors
    /// The kernel's: then it stays as it was.
    pub fn hand_to(&self, poller: &Arc<Poller>) -> io::Result<()> {
        self.watch_by(poller)?;
        let mut watch = self.watch.lock();
        let (kept, others) =
            std::mem::take(&mut watch.by).into_iter().partition(|by| Arc::ptr_eq(by, poller));
        watch.by = kept;
        others.iter().for_each(|other| other.remove(&self.fd));
        Ok(())
    }

    /// What it is watched for.
    pub fn want(&self, events: EventFlags) {
        let mut watch = self.watch.lock();
        if watch.events != events {
            watch.events = events;
            watch.by.iter().for_each(|poller| poller.set(&self.fd, self.token, events));
        }
    }

    /// By nobody any more.
    pub fn unwatch(&self) {
        let mut watch = self.watch.lock();
        watch.over = true;
        std::mem::take(&mut watch.by).iter().for_each(|poller| poller.remove(&self.fd));
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_fit_into_the_time_of_detection() {
        for seconds in 0..100 {
            let (idle, probes) = keep_alive(Duration::from_secs(seconds));
            assert!(idle >= 1 && probes >= 1);
            assert_eq!(idle + u64::from(probes), seconds.max(2));
        }
        assert!(keep_alive(Duration::MAX).1 < 10_000);
    }
}
