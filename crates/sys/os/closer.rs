//! Closing of descriptors that a peer may have made slow to close.
//!
//! The last close of a file takes as long as its kind likes, and a peer chooses the kind of the file that it passes: a TCP
//! socket with `SO_LINGER` waits for its own peer, a file of a user's file system waits for that user's program. Closing a
//! Unix socket also closes the descriptors that lie unread in it. This must not happen on a thread for which others wait.
//!
//! So a descriptor that a peer passed is a [`PassedFd`] until it has been found to be a segment, and a Unix socket over which
//! peers may pass some is an [`Endpoint`]. When dropped, both are closed at once where that is known to be quick (a segment;
//! a socket in which nothing lies). Otherwise they are closed on threads of their own, which are started on first need and
//! end when there is nothing more to do. Linger is switched off there first.
//!
//! Bound: the number of waiting descriptors has none here, because a drop cannot be refused. A listener stops accepting peers
//! while the closer [is behind](is_behind). A peer has a few descriptors here for each connection that was accepted.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_socket_passcred};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketFlags, accept_with,
    recvmsg, shutdown,
};

use crate::memory::segment::{self, Mapping, PeerAccess};
use crate::{os::process, os::thread};

/// Number of descriptors waiting to be closed from which on [`is_behind`] returns true.
pub const MOST_WAITING: usize = 256;
/// Upper bound of the closer's threads. One thread would do, if none of its closes ever took long.
const MOST_THREADS: usize = 8;
/// Upper bound of the descriptors in one datagram (`SCM_MAX_FD`).
const MOST_CARRIED: usize = 253;

const UNTIL_DROPPED: &str = "it is there until this is dropped";

static WORK: Mutex<Work> = Mutex::new(Work { waiting: VecDeque::new(), threads: 0 });

struct Work {
    waiting: VecDeque<SlowClose>,
    threads: usize,
}

enum SlowClose {
    Descriptor(OwnedFd),
    Socket(OwnedFd),
}

/// Whether so many descriptors wait to be closed that no more should be let in. If no thread could be started for them
/// before, one is started now: a listener asks again and again, and nothing else may be closed meanwhile.
pub fn is_behind() -> bool {
    let mut work = WORK.lock();
    let is_behind = work.waiting.len() >= MOST_WAITING;
    if work.threads == 0 && !work.waiting.is_empty() {
        work.threads = 1;
        drop(work);
        start();
    }
    is_behind
}

/// A descriptor of any kind that a peer passed.
#[derive(Debug)]
pub struct PassedFd(Option<OwnedFd>);

impl PassedFd {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        PassedFd(Some(fd))
    }

    /// Moves it to a descriptor of 3 or higher, if one is left ([`crate::above_stdio`]).
    pub(crate) fn above_stdio(self) -> Self {
        match self.as_fd().as_raw_fd() {
            0..3 => self.as_fd().try_clone_to_owned().map_or(self, PassedFd::new),
            _ => self,
        }
    }

    /// Checks that it is a segment as [`segment::adopt`] wants it. Returns its length in bytes.
    ///
    /// # Errors
    /// Those of [`segment::adopt`].
    pub fn check(&self, len: RangeInclusive<usize>, peers: PeerAccess) -> io::Result<usize> {
        segment::check(self.as_fd(), len, peers)
    }

    /// Checks it as [`PassedFd::check`] does. Returns its mapping, and the descriptor, which can be closed on any thread.
    ///
    /// # Errors
    /// Those of [`segment::adopt`].
    pub fn adopt(mut self, len: RangeInclusive<usize>, peers: PeerAccess) -> io::Result<(OwnedFd, Mapping)> {
        let mapping = segment::adopt(self.as_fd(), len, peers)?;
        Ok((self.0.take().expect(UNTIL_DROPPED), mapping))
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect(UNTIL_DROPPED).as_fd()
    }
}

impl Drop for PassedFd {
    fn drop(&mut self) {
        // In a forked child this is not the last descriptor of the file, and there are no closer threads.
        if let Some(fd) = self.0.take().filter(|_| !process::is_forked()) {
            close_on_thread(SlowClose::Descriptor(fd));
        }
    }
}

/// A Unix socket (connected, or listening) over which peers may pass descriptors. Dropping it ends the connection, although
/// duplicates exist. Drop it after its duplicates, whose close would be the last one otherwise.
#[derive(Debug)]
pub struct Endpoint(Option<OwnedFd>);

impl Endpoint {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Endpoint(Some(fd))
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect(UNTIL_DROPPED).as_fd()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // In a forked child this is not the last descriptor of the socket, and the connection is the parent's.
        if let Some(fd) = self.0.take().filter(|fd| !process::is_forked() && !is_empty_for_good(fd)) {
            close_on_thread(SlowClose::Socket(fd));
        }
    }
}

/// Whether nothing lies in a socket, and nothing can come any more.
fn is_empty_for_good(socket: &OwnedFd) -> bool {
    // From here on nobody can send to it, or connect, and a connected peer finds the end behind the bytes that we have sent.
    let _ = shutdown(socket, Shutdown::Both);
    match next_in(socket) {
        Ok(there) => !there,
        // This is a listener, whose queue holds sockets.
        Err(Errno::NOTCONN) => matches!(accept(socket).map(Endpoint::new), Err(Errno::AGAIN | Errno::INVAL)),
        Err(_) => false,
    }
}

/// Whether a datagram lies in a socket that was shut down. A datagram may have no bytes, as the end has none; but it would
/// come with its sender's identity, for which there is no room here. (There is none elsewhere, either: rustix decodes the
/// identity, and has no process id 0, which is that of a sender in another pid namespace.)
fn next_in(socket: &OwnedFd) -> Result<bool, Errno> {
    set_socket_passcred(socket, true)?;
    let look = || {
        let mut control = RecvAncillaryBuffer::new(&mut []);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let seen = recvmsg(socket, &mut [], &mut control, flags)?;
        Ok(seen.bytes > 0 || seen.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC))
    };
    // A first error may only report that the peer has gone without reading, which is reported once.
    let seen = look().or_else(|error| if error == Errno::CONNRESET { look() } else { Err(error) });
    set_socket_passcred(socket, false)?;
    seen
}

fn accept(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

fn close_on_thread(slow: SlowClose) {
    let mut work = WORK.lock();
    work.waiting.push_back(slow);
    if work.threads == MOST_THREADS {
        return;
    }
    work.threads += 1;
    drop(work);
    start();
}

/// Starts a thread, which is counted already. Without one the descriptors go on waiting: until something else is to be
/// closed, or until the next call of [`is_behind`].
fn start() {
    if thread::spawn("closer", run, |_| WORK.lock().threads -= 1).is_err() {
        WORK.lock().threads -= 1;
    }
}

fn run() {
    loop {
        let mut work = WORK.lock();
        let Some(slow) = work.waiting.pop_front() else {
            work.threads -= 1;
            return;
        };
        drop(work);
        match slow {
            SlowClose::Descriptor(fd) => close(fd),
            SlowClose::Socket(socket) => close_socket(socket),
        }
    }
}

/// Closes a descriptor. This may take long.
fn close(fd: OwnedFd) {
    let _ = set_socket_linger(&fd, None); // most are no sockets
    drop(fd);
}

/// Closes the descriptors that lie in a socket first, each by itself, then the socket.
fn close_socket(socket: OwnedFd) {
    while let Ok(unmet) = accept(&socket) {
        let _ = shutdown(&unmet, Shutdown::Both);
        empty(&unmet);
    }
    empty(&socket);
}

/// Closes the descriptors of unread datagrams. The loop ends, because nobody can send to the socket any more.
fn empty(socket: &OwnedFd) {
    while next_in(socket).is_ok_and(|there| there) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_CARRIED))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        if recvmsg(socket, &mut [], &mut control, flags).is_err() {
            return;
        }
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = part {
                passed.for_each(close);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;
    use crate::os::socket;

    /// Bound of a wait that hangs only on failure.
    const LONG: Duration = Duration::from_secs(60);

    /// A socket whose last close waits as long as its other end (the second) lives and does not read.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 65536]).is_ok() {}
        set_socket_linger(&socket, Some(LONG * 60)).unwrap();
        (socket, other)
    }

    /// Runs `act` on a thread; the receiver gets a message when it is over, while the sockets that it closes cannot be closed
    /// yet.
    fn is_over_at_once(act: impl FnOnce() + Send + 'static) -> Receiver<()> {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            act();
            tell.send(()).unwrap();
        });
        told
    }

    fn send_with(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_CARRIED))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    /// Waits until the socket is closed: its other end then reads the end, or a reset.
    fn is_closed(other: TcpStream) {
        use std::io::Read;
        other.set_read_timeout(Some(LONG)).unwrap();
        let mut other = other;
        while other.read(&mut [0; 65536]).expect("it is closed, or reset") > 0 {}
    }

    #[test]
    fn what_was_passed_is_closed_apart() {
        let (a, b) = socket::pair().unwrap();
        let (slow, other) = lingering();
        send_with(&a, b"take this", &[slow.as_fd()]);
        drop(slow);
        let socket::Received::Datagram { fds, .. } = socket::receive(b.as_fd(), &mut [0; 64]).unwrap() else {
            panic!("no datagram")
        };
        is_over_at_once(move || drop(fds)).recv_timeout(LONG).expect("the drop returns");
        is_closed(other);
    }

    #[test]
    fn what_lies_unread_in_a_socket_is_closed_apart() {
        // The cases: as many descriptors as one datagram read takes, more, and some with no bytes behind an empty datagram.
        for (bytes, many, before) in [(&b"x"[..], 1, false), (b"x", 40, false), (b"", 1, true)] {
            let (a, b) = socket::pair().unwrap();
            let (slow, other) = lingering();
            if before {
                send_with(&a, b"", &[]);
            }
            send_with(&a, bytes, &vec![slow.as_fd(); many]);
            drop(slow);
            let b = Endpoint::new(b);
            is_over_at_once(move || drop(b)).recv_timeout(LONG).expect("the drop returns");
            is_closed(other);
            drop(a);
        }
    }

    #[test]
    fn what_lies_in_the_queue_of_a_listener_is_closed_apart() {
        let name = format!("udeck-test-closer-{}", std::process::id());
        let listener = socket::listen_at(name.as_bytes()).unwrap();
        let caller = socket::connect_to(name.as_bytes()).unwrap();
        let (slow, other) = lingering();
        send_with(&caller, b"before anybody knows who calls", &[slow.as_fd()]);
        drop(slow);
        is_over_at_once(move || drop(listener)).recv_timeout(LONG).expect("the drop returns");
        is_closed(other);
    }

    #[test]
    fn sockets_in_which_nothing_lies_are_closed_at_once() {
        for unread in [false, true] {
            let (a, b) = socket::pair().unwrap();
            if unread {
                send_with(&a, b"", &[]);
            }
            assert_ne!(is_empty_for_good(&b), unread);
            assert!(socket::send(a.as_fd(), b"too late", &[]).is_err());
        }
        let name = format!("udeck-test-idle-{}", std::process::id());
        let listener = socket::listen_at(name.as_bytes()).unwrap();
        assert!(is_empty_for_good(listener.0.as_ref().unwrap()));
        let refused = socket::connect_to(name.as_bytes()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    /// The duplicate stands for one of a forked child, or of a close that takes long.
    #[test]
    fn an_endpoint_that_is_dropped_has_ended_although_there_are_duplicates() {
        let (a, b) = socket::pair().unwrap();
        let duplicate = rustix::io::dup(&b).unwrap();
        assert!(socket::send(b.as_fd(), b"last", &[]).unwrap());
        drop(Endpoint::new(b));
        let mut space = [0; 64];
        let last = socket::receive(a.as_fd(), &mut space).unwrap();
        assert!(matches!(last, socket::Received::Datagram { len: 4, .. }), "{last:?}");
        let end = socket::receive(a.as_fd(), &mut space).unwrap();
        assert!(matches!(end, socket::Received::Closed), "{end:?}");
        drop(duplicate);
    }

    #[test]
    fn what_waits_for_a_thread_gets_one_when_somebody_asks() {
        // These descriptors wait as if no thread could be started when they were to be closed.
        let (a, b) = socket::pair().unwrap();
        let lasting = (0..MOST_WAITING).map(|_| SlowClose::Descriptor(rustix::io::dup(&b).unwrap()));
        WORK.lock().waiting.extend(lasting);
        drop(b);
        let deadline = std::time::Instant::now() + LONG;
        while is_behind() || !WORK.lock().waiting.is_empty() {
            assert!(std::time::Instant::now() < deadline, "nobody closes them");
            std::thread::yield_now();
        }
        drop(a);
    }

    #[test]
    fn datagrams_with_more_than_there_is_room_for_stay_where_they_are() {
        let (a, b) = socket::pair().unwrap();
        let (slow, other) = lingering();
        send_with(&a, b"many", &[slow.as_fd(); 9]);
        drop(slow);
        let b = Endpoint::new(b);
        for _ in 0..2 {
            let socket::Received::Datagram { truncated: true, .. } =
                socket::receive(b.as_fd(), &mut [0; 64]).unwrap()
            else {
                panic!("it is not cut")
            };
        }
        is_over_at_once(move || drop(b)).recv_timeout(LONG).expect("the drop returns");
        is_closed(other);
    }
}
