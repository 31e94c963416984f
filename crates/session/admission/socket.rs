//! Set-up of the admission's sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, bind, connect, getsockname, listen, sockopt};
use udeck_sys::{above_stdio, tcp_socket};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Upper bound of callers that wait to be let in; the kernel may allow fewer.
const BACKLOG: i32 = 4096;

/// Makes a listening socket. Returns its address, too.
///
/// # Errors
/// Errors of the kernel: no such interface, the port is taken.
pub(super) fn listen_at(at: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = tcp_socket(at)?;
    if at.port() != 0 {
        // Connections of an earlier process may still be in TIME_WAIT there.
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

/// Makes a socket that is being connected. It is writable when it is connected, or when that has failed.
///
/// # Errors
/// Errors of the kernel, if the connection fails at once.
pub(super) fn connect_to(to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = tcp_socket(to)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Accepts the next caller, if there is one. Returns its address, too.
///
/// # Errors
/// Errors of the kernel, out of descriptors among them.
pub(super) fn accept_from(listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    match acceptfrom_with(listener, FLAGS) {
        Ok((socket, from)) => {
            let socket = above_stdio(io::Result::Ok(socket))?;
            Ok(from.and_then(|from| SocketAddr::try_from(from).ok()).map(|at| (socket, at)))
        }
        Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sets up a connected socket: small messages leave at once; a host that is silent for `detect` is found to be dead while
/// nothing is in flight.
///
/// # Errors
/// Errors of the kernel.
pub fn prepare(socket: BorrowedFd<'_>, detect: Duration) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    let (idle, probes) = keep_alive(detect);
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(socket, probes)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Seconds of silence before the first probe, and number of probes, one second apart, that may go unanswered. Together these
/// last no longer than `detect`, and there are only as many probes as leave room for lost ones.
fn keep_alive(detect: Duration) -> (u64, u32) {
    let seconds = detect.as_secs().clamp(2, 3600);
    let idle = (seconds / 3).max(1);
    (idle, (seconds - idle) as u32)
}

/// Makes closing the socket a reset: nothing lingers in the kernel.
pub fn reset_when_closed(socket: BorrowedFd<'_>) {
    // If the call fails, the end is an ordinary one, which does no harm.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
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
