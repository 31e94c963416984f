//! Unix sockets between processes of one host: datagrams in order, passed descriptors, the peer's identity.
//!
//! Addresses are abstract (no file), so nothing is left behind by a killed process.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvmsg, sendmsg, socket_with, socketpair,
};

use crate::above_stdio;
use crate::os::closer::{Endpoint, PassedFd};

/// Upper bound of descriptors in one datagram.
pub const MAX_FDS: usize = 4;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Makes a listening socket under the abstract name `name`.
///
/// # Errors
/// `AddrInUse` when the name is taken; the kernel's otherwise.
pub fn listen_at(name: &[u8]) -> io::Result<Endpoint> {
    let socket = new()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    listen(&socket, 4096)?;
    Ok(Endpoint::new(socket))
}

/// Connects to the abstract name `name`, without waiting.
///
/// # Errors
/// `ConnectionRefused` when there is no listener (any more).
pub fn connect_to(name: &[u8]) -> io::Result<Endpoint> {
    let socket = new()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(Endpoint::new(socket))
}

fn new() -> io::Result<OwnedFd> {
    above_stdio(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None))
}

/// Accepts the next waiting connection, if there is one.
///
/// # Errors
/// Errors of the kernel, out of descriptors among them.
pub fn accept_from(listener: BorrowedFd<'_>) -> io::Result<Option<Endpoint>> {
    match accept_with(listener, FLAGS) {
        Ok(socket) => Ok(Some(Endpoint::new(above_stdio(io::Result::Ok(socket))?))),
        Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A connected pair, for tests.
///
/// # Errors
/// Errors of the kernel.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

/// Identity of the process at the other end: user id and, if it is in our pid namespace, process id.
///
/// # Errors
/// Errors of the kernel.
pub fn peer_identity(socket: BorrowedFd<'_>) -> io::Result<(u32, Option<i32>)> {
    // rustix's `socket_peercred` is not used: its process id is never 0, and the kernel reports 0 for a process outside our
    // pid namespace.
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `credentials`, any bytes are one, and the descriptor is open while borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((credentials.uid, (credentials.pid > 0).then_some(credentials.pid)))
}

/// This process's user id.
pub fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// A descriptor that becomes readable when the process `pid` dies.
///
/// # Errors
/// `ESRCH` when it is dead already; `ENOSYS` on kernels before 5.3.
pub fn death_of(pid: i32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    above_stdio(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()))
}

/// Sends one datagram with descriptors, without waiting. `false`: the peer's buffer is full, try later.
///
/// # Errors
/// `BrokenPipe`/`ConnectionReset` when the peer is gone.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more descriptors than a datagram carries"));
    }
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Result of [`receive`].
#[derive(Debug)]
pub enum Received {
    /// A datagram, cut to the buffer's length (see `truncated`).
    Datagram {
        /// Its length in the buffer, in bytes.
        len: usize,
        /// Whether the datagram is longer than the buffer, or carries more descriptors than [`MAX_FDS`]. It stays in the
        /// socket then: read no more from this socket.
        truncated: bool,
        /// Descriptors that it carried.
        fds: Vec<PassedFd>,
    },
    /// No datagram is there now.
    Nothing,
    /// The peer closed its end, or died.
    Closed,
}

/// Receives one datagram into `buffer`, without waiting.
///
/// Makes two system calls: it peeks at the datagram first. Otherwise the kernel would close the descriptors for which there
/// is no room, here and now, however long that takes ([`crate::os::closer`]).
///
/// # Errors
/// Errors of the kernel; a reset by a dying peer is [`Received::Closed`], not an error. If this process has no room for the
/// descriptors ([`is_shortage`](crate::is_shortage)), the datagram stays in the socket, and can be received later.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let peeked = past_reset(|| recvmsg(socket, &mut parts, &mut control, flags));
    let message = match peeked {
        Ok(message) => message,
        Err(Errno::AGAIN) => return Ok(Received::Nothing),
        Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::Closed),
        Err(error) => return Err(error.into()),
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = part {
            // All descriptors have their closer before one of them is duplicated.
            let passed: Vec<_> = passed.map(PassedFd::new).collect();
            fds.extend(passed.into_iter().map(PassedFd::above_stdio));
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) && fds.len() < MAX_FDS {
        return Err(Errno::MFILE.into());
    }
    let truncated = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if message.bytes == 0 && fds.is_empty() && !truncated {
        return Ok(Received::Closed); // our datagrams are never empty
    }
    if !truncated {
        take_first(socket)?;
    }
    Ok(Received::Datagram { len: message.bytes, truncated, fds })
}

/// Takes the datagram that was just peeked at. Its descriptors are open here, so this closes none of them for good.
fn take_first(socket: BorrowedFd<'_>) -> io::Result<()> {
    past_reset(|| recv(socket, &mut [0; 1], RecvFlags::DONTWAIT))?;
    Ok(())
}

/// Receives once more after a first error that the peer has gone without reading: the kernel reports it once, before the peer's
/// data.
fn past_reset<R>(mut receive: impl FnMut() -> rustix::io::Result<R>) -> rustix::io::Result<R> {
    receive().or_else(|error| if error == Errno::CONNRESET { receive() } else { Err(error) })
}

/// Whether the other end is closed, even if datagrams lie unread.
///
/// # Errors
/// Errors of the kernel.
pub fn is_hung_up(socket: BorrowedFd<'_>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(fds[0].revents().contains(PollFlags::HUP))
}

/// Waits until something can be read from `fd` (a closed peer counts), at most `limit`. Returns whether it can.
///
/// # Errors
/// Errors of the kernel.
pub fn wait_readable(fd: BorrowedFd<'_>, limit: std::time::Duration) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    match poll(&mut fds, Some(&limit)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn datagrams_carry_descriptors() {
        let (a, b) = pair().unwrap();
        let (mut read, mut write) = std::io::pipe().unwrap();
        assert!(send(a.as_fd(), b"take this", &[write.as_fd()]).unwrap());
        let mut buffer = [0; 64];
        let Received::Datagram { len, truncated: false, mut fds } = receive(b.as_fd(), &mut buffer).unwrap()
        else {
            panic!("no datagram")
        };
        assert_eq!(&buffer[..len], b"take this");
        write.write_all(b"1").unwrap();
        drop(write);
        rustix::io::write(fds.remove(0), b"2").unwrap();
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "12");
        assert!(matches!(receive(b.as_fd(), &mut buffer).unwrap(), Received::Nothing));
        drop(a);
        // A child that another test has just forked may hold the socket until its `exec`.
        let ended = loop {
            match receive(b.as_fd(), &mut buffer).unwrap() {
                Received::Nothing => std::thread::sleep(std::time::Duration::from_millis(1)),
                ended => break ended,
            }
        };
        assert!(matches!(ended, Received::Closed));
    }

    #[test]
    fn the_last_datagrams_of_a_peer_that_went_without_reading_are_received() {
        let (a, b) = pair().unwrap();
        assert!(send(a.as_fd(), b"last", &[]).unwrap() && send(b.as_fd(), b"unread", &[]).unwrap());
        drop(a);
        while !is_hung_up(b.as_fd()).unwrap() {
            std::thread::yield_now();
        }
        let last = receive(b.as_fd(), &mut [0; 8]).unwrap();
        assert!(matches!(last, Received::Datagram { len: 4, .. }), "{last:?}");
        assert!(matches!(receive(b.as_fd(), &mut [0; 8]).unwrap(), Received::Closed));
    }

    #[test]
    fn abstract_names_are_exclusive_and_vanish() {
        let name = format!("udeck-test-{}", std::process::id());
        let listener = listen_at(name.as_bytes()).unwrap();
        assert_eq!(listen_at(name.as_bytes()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let ours = connect_to(name.as_bytes()).unwrap();
        let theirs = accept_from(listener.as_fd()).unwrap().unwrap();
        assert_eq!(peer_identity(theirs.as_fd()).unwrap(), (own_uid(), Some(std::process::id() as i32)));
        drop((listener, ours));
        assert_eq!(connect_to(name.as_bytes()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    /// Environment variable with the name at which the test of another pid namespace listens, in the process that it starts
    /// there.
    const LISTENS_AT: &str = "UDECK_TEST_LISTENS_AT";

    #[test]
    fn a_peer_of_another_pid_namespace_has_a_user_and_no_process() {
        use std::process::Command;
        if let Ok(name) = std::env::var(LISTENS_AT) {
            let there = connect_to(name.as_bytes()).unwrap();
            return assert_eq!(peer_identity(there.as_fd()).unwrap(), (own_uid(), None));
        }
        let ways = [&["-pf"][..], &["-pf", "--user", "--map-current-user"]];
        let may = |way: &&&[&str]| {
            Command::new("unshare").args(**way).arg("true").output().is_ok_and(|ran| ran.status.success())
        };
        let Some(way) = ways.iter().find(may) else {
            return println!("skipped: no pid namespace can be made here");
        };
        let name = format!("udeck-test-namespace-{}", std::process::id());
        let _listener = listen_at(name.as_bytes()).unwrap();
        let test = "os::socket::tests::a_peer_of_another_pid_namespace_has_a_user_and_no_process";
        let mut there = Command::new("unshare");
        there.args(*way).arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
        let ran = there.env(LISTENS_AT, &name).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}
