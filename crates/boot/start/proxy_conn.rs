//! One connection of a [`Proxy`](super::proxy::Proxy): sealed bytes from the network go to a local socket, and
//! back.

use std::{
    collections::VecDeque,
    io,
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use rustix::{
    event::epoll::{self, EventData, EventFlags},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown},
};
use udeck_auth::SecureStream;
use udeck_sys::Deadline;

use super::secure::{Broken, MAX_FRAME};

/// Upper bound of the bytes that one direction holds; with more, its source is not read.
const BOUND: usize = 256 << 10;
/// Maximum number of bytes in one read; what is read from the local side fits into one frame.
const READ: usize = MAX_FRAME;
/// Maximum number of reads in a row, before other connections have their turn.
const TURNS: usize = 16;

pub(super) struct ProxyConn {
    pub remote: TcpStream,
    pub secure: SecureStream,
    /// The rank's local socket; `None` until the connection has proved itself.
    pub local: Option<UnixStream>,
    pub since: Instant,
    to_local: VecDeque<u8>,
    /// The network side sends nothing more.
    remote_ended: bool,
    local_ended: bool,
    /// The network side has been told that nothing more comes.
    remote_told: bool,
    /// Deadline for the connection to be proven, or to end.
    until: Option<Deadline>,
    /// Events for which the sockets are watched: remote, local.
    watched: [EventFlags; 2],
}

impl ProxyConn {
    /// Makes a connection whose other side has to prove itself within `limit`.
    pub fn greeting(remote: TcpStream, secure: SecureStream, limit: Duration) -> io::Result<ProxyConn> {
        remote.set_nonblocking(true)?;
        remote.set_nodelay(true)?;
        Ok(ProxyConn {
            remote,
            secure,
            local: None,
            since: Instant::now(),
            to_local: VecDeque::new(),
            remote_ended: false,
            local_ended: false,
            remote_told: false,
            until: Some(Deadline::after(limit)),
            watched: [EventFlags::IN; 2],
        })
    }

    /// Makes a connection whose other side is proven.
    pub fn proven(remote: TcpStream, secure: SecureStream, local: UnixStream) -> io::Result<ProxyConn> {
        let mut conn = ProxyConn::greeting(remote, secure, Duration::ZERO)?;
        conn.attach(local)?;
        Ok(conn)
    }

    pub fn attach(&mut self, local: UnixStream) -> io::Result<()> {
        local.set_nonblocking(true)?;
        (self.local, self.until) = (Some(local), None);
        Ok(())
    }

    pub fn is_late(&self) -> bool {
        self.until.is_some_and(Deadline::passed)
    }

    /// Tells whether both directions have ended, and no bytes are left.
    pub fn is_over(&self) -> bool {
        let all_given = self.remote_ended && self.to_local.is_empty();
        all_given && (self.local_ended || self.local.is_none()) && self.secure.unsent().is_empty()
    }

    /// Moves bytes in both directions. After an error the connection is over.
    pub fn turn(&mut self, linger: Duration) -> Result<(), String> {
        for _ in 0..TURNS {
            let came = self.read_remote().inspect_err(|_| {
                // The last unsent bytes may be the version that this side speaks.
                let _ = self.write_remote();
            })?;
            self.write_local();
            let went = self.read_local();
            self.write_remote()?;
            if !came && !went {
                break;
            }
        }
        self.pass_on_ends(linger);
        Ok(())
    }

    fn read_remote(&mut self) -> Result<bool, String> {
        if self.remote_ended || self.to_local.len() >= BOUND {
            return Ok(false);
        }
        let mut scratch = [0; READ];
        match recv(&self.remote, &mut scratch[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.remote_ended = true,
            Ok((length, _)) => {
                let wrong = |why| Broken::from(why).to_string();
                self.secure.receive(&scratch[..length]).map_err(wrong)?;
                while let Some(plain) = self.secure.next_frame().map_err(wrong)? {
                    self.to_local.extend(plain);
                }
                return Ok(true);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(false)
    }

    fn write_local(&mut self) {
        let Some(local) = &self.local else { return };
        while !self.to_local.is_empty() {
            match send(local, self.to_local.as_slices().0, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.to_local.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The local side takes nothing any more; its end is seen where it is read.
                Err(_) => self.to_local.clear(),
            }
        }
    }

    fn read_local(&mut self) -> bool {
        let Some(local) = &self.local else { return false };
        if self.local_ended || self.secure.unsent().len() >= BOUND {
            return false;
        }
        let mut scratch = [0; READ];
        match recv(local, &mut scratch[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => false,
            Ok((0, _)) | Err(_) => {
                self.local_ended = true;
                false
            }
            Ok((length, _)) => {
                self.secure.send(&scratch[..length]);
                true
            }
        }
    }

    fn write_remote(&mut self) -> Result<(), String> {
        match self.secure.write_to(&mut self.remote) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Passes the end of one side on to the other, after its last bytes.
    fn pass_on_ends(&mut self, linger: Duration) {
        if self.remote_ended
            && self.to_local.is_empty()
            && let Some(local) = &self.local
        {
            let _ = shutdown(local, Shutdown::Write);
        }
        if self.local_ended && self.secure.unsent().is_empty() && !self.remote_told {
            let _ = shutdown(&self.remote, Shutdown::Write);
            (self.remote_told, self.until) = (true, Some(Deadline::after(linger)));
        }
    }

    /// Watches the sockets for the events that the connection can handle.
    pub fn update(&mut self, poller: &OwnedFd, number: u64) -> io::Result<()> {
        let when = |wanted: bool, flag| if wanted { flag } else { EventFlags::empty() };
        let (has_outgoing, has_more) = (!self.secure.unsent().is_empty(), !self.to_local.is_empty());
        let remote = when(!self.remote_ended && self.to_local.len() < BOUND, EventFlags::IN)
            | when(has_outgoing, EventFlags::OUT);
        set(poller, &self.remote, &mut self.watched[0], remote, number << 1)?;
        let Some(local_socket) = &self.local else { return Ok(()) };
        let local = when(!self.local_ended && self.secure.unsent().len() < BOUND, EventFlags::IN)
            | when(has_more, EventFlags::OUT);
        set(poller, local_socket, &mut self.watched[1], local, number << 1 | 1)
    }
}

fn set(
    poller: &OwnedFd,
    socket: impl AsFd,
    watched: &mut EventFlags,
    wanted: EventFlags,
    token: u64,
) -> io::Result<()> {
    // epoll would report the end of a socket that is watched for no event, again and again.
    match (watched.is_empty(), wanted.is_empty()) {
        _ if *watched == wanted => {}
        (true, _) => epoll::add(poller, socket, EventData::new_u64(token), wanted)?,
        (_, true) => epoll::delete(poller, socket)?,
        _ => epoll::modify(poller, socket, EventData::new_u64(token), wanted)?,
    }
    *watched = wanted;
    Ok(())
}
