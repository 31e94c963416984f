//! Proxy of the name service: moves its bytes between local sockets and the sealed connections to rank 0, on
//! one thread.
//!
//! At rank 0 the service has one local socket for each rank, as deckrun's has; the proxy has their other ends.
//! It accepts connections, and ties a connection to its rank's socket when it has proved that it is of the job.
//! At another rank the proxy has one connection, to rank 0, and one local socket, to the rank's
//! [`Client`](crate::Client). Neither the service nor the client knows that there is a network.
//!
//! If one side takes no more, the other side is not read: each direction holds a bounded number of bytes.

use std::{
    collections::HashMap,
    io,
    mem::MaybeUninit,
    net::{IpAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    os::unix::net::UnixStream,
    sync::mpsc::Sender,
    time::{Duration, Instant},
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, EventData, EventFlags},
    },
    io::Errno,
    net::{RecvFlags, recv},
};
use udeck_auth::SecureStream;
use udeck_sys::{
    Deadline, above_stdio, descriptor_advice, is_shortage, stderr_line,
    unauthenticated::{Bounds, Place},
};

use super::{proxy_conn::ProxyConn, secure};
use crate::detect_silence;

/// Bounds of the connections that are proving themselves; others wait in the kernel's queue.
const GREETINGS: Bounds = Bounds { most: 64, grace: Duration::from_secs(1), limit: Duration::from_secs(60) };
/// How long to wait for the other side's end of a connection.
const LINGER: Duration = Duration::from_secs(5);
/// How long to pause when no connection can be accepted.
const PAUSE: Duration = Duration::from_millis(1);
/// Interval between checks of time limits.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
const EVENTS: usize = 64;
/// Flag in an event's token for a listener. Other tokens are twice the connection's number, plus 1 for its local
/// socket.
const LISTENER: u64 = 1 << 63;

/// The accepting part of rank 0's proxy.
pub(crate) struct Acceptor {
    pub listeners: Vec<TcpListener>,
    /// Local sockets by rank, until the rank has come; rank 0 has none.
    pub locals: Vec<Option<UnixStream>>,
    pub secret: [u8; 32],
    /// Deadline for ranks to come.
    pub until: Deadline,
    /// `elsewhere`: whether a rank runs on another host, by rank. `address`: gets the address of this host by
    /// which such a rank has connected.
    pub elsewhere: Vec<bool>,
    pub address: Sender<IpAddr>,
}

pub(crate) struct Proxy {
    poller: OwnedFd,
    conns: HashMap<u64, ProxyConn>,
    next: u64,
    acceptor: Option<Acceptor>,
    detect: Duration,
    /// The failure of a stranger has been reported.
    has_complained: bool,
    /// The lack of descriptors has been reported.
    is_short: bool,
}

impl Proxy {
    /// Makes the proxy of rank 0.
    pub fn of_root(acceptor: Acceptor, detect: Duration) -> io::Result<Proxy> {
        let proxy = Proxy::new(Some(acceptor), detect)?;
        for (nth, listener) in (0u64..).zip(proxy.acceptor.iter().flat_map(|acceptor| &acceptor.listeners)) {
            listener.set_nonblocking(true)?;
            epoll::add(&proxy.poller, listener, EventData::new_u64(LISTENER + nth), EventFlags::IN)?;
        }
        Ok(proxy)
    }

    /// Makes the proxy of another rank, whose connection to rank 0 is proven.
    pub fn of_rank(
        remote: TcpStream,
        secure: SecureStream,
        local: UnixStream,
        detect: Duration,
    ) -> io::Result<Proxy> {
        let mut proxy = Proxy::new(None, detect)?;
        proxy.add(ProxyConn::proven(remote, secure, local)?)?;
        Ok(proxy)
    }

    fn new(acceptor: Option<Acceptor>, detect: Duration) -> io::Result<Proxy> {
        let poller = above_stdio(epoll::create(epoll::CreateFlags::CLOEXEC))?;
        Ok(Proxy {
            poller,
            conns: HashMap::new(),
            next: 0,
            acceptor,
            detect,
            has_complained: false,
            is_short: false,
        })
    }

    /// Runs until every connection has ended, and no further rank is expected.
    pub fn run(mut self) -> io::Result<()> {
        let mut next_check = Deadline::after(CHECK_INTERVAL);
        // A job of one rank expects no connections.
        self.close_acceptor();
        while !self.conns.is_empty() || self.acceptor.is_some() {
            for token in self.wait(next_check)? {
                if token >= LISTENER {
                    self.accept((token - LISTENER) as usize);
                } else {
                    self.turn(token >> 1);
                }
            }
            if next_check.passed() {
                next_check = Deadline::after(CHECK_INTERVAL);
                self.end_late();
            }
        }
        Ok(())
    }

    fn wait(&self, until: Deadline) -> io::Result<Vec<u64>> {
        let left = until.remaining();
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        match epoll::wait(&self.poller, &mut events, Some(&left)) {
            Ok((events, _)) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the connections whose time limit has passed.
    fn end_late(&mut self) {
        let late: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| conn.is_late()).map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| self.end(number));
        self.close_acceptor();
    }

    /// Stops accepting when all ranks have come or are too late, or when the service has ended: its sockets
    /// show that.
    fn close_acceptor(&mut self) {
        let Some(acceptor) = &self.acceptor else { return };
        let is_awaited = |local: &UnixStream| {
            // The service sends nothing before the rank has sent a request: a readable socket has ended.
            let peeked = recv(local, &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK);
            !matches!(peeked, Ok((0, _)))
        };
        if acceptor.until.passed() || !acceptor.locals.iter().flatten().any(is_awaited) {
            // The service sees the end of those sockets: these ranks are lost.
            self.acceptor = None;
        }
    }

    fn accept(&mut self, listener: usize) {
        if !self.make_place() {
            return std::thread::sleep(PAUSE); // one of them proves itself, or has had its time
        }
        let Some(acceptor) = &self.acceptor else { return };
        let accepted = above_stdio(acceptor.listeners[listener].accept().map(|(stream, _)| stream));
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) if is_shortage(&error) => return self.short(&error),
            Err(_) => return,
        };
        let Ok(secure) = secure::root(acceptor.locals.len() as u32, acceptor.secret) else { return };
        let added = ProxyConn::greeting(stream, secure, GREETINGS.limit).and_then(|conn| self.add(conn));
        if let Err(error) = added {
            stderr_line(format_args!(
                "udeck: a connection to this job's name service was not accepted: {error}"
            ));
        }
    }

    /// Tells whether one more connection may be accepted. The oldest unproven one is closed, if necessary: a
    /// silent stranger keeps no place for long.
    fn make_place(&mut self) -> bool {
        let greeting = self.conns.iter().filter(|(_, conn)| conn.local.is_none());
        let greeting = greeting.map(|(&number, conn)| (number, (), conn.since));
        match GREETINGS.admit(greeting, (), Instant::now()) {
            Place::Free => {}
            Place::Evict(number) => self.end(number),
            Place::Full(_) => return false,
        }
        true
    }

    /// Reports the lack of descriptors, once. The connection stays in the kernel's queue, and the listener
    /// readable.
    fn short(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_short, true) {
            stderr_line(format_args!(
                "udeck: ranks wait that connect to this job's name service: {error} ({})",
                descriptor_advice()
            ));
        }
        std::thread::sleep(PAUSE);
    }

    fn add(&mut self, mut conn: ProxyConn) -> io::Result<()> {
        detect_silence(&conn.remote, self.detect)?;
        let number = self.next;
        self.next += 1;
        watch(&self.poller, &conn.remote, number << 1)?;
        if let Some(local) = &conn.local {
            watch(&self.poller, local, number << 1 | 1)?;
        }
        conn.update(&self.poller, number)?;
        self.conns.insert(number, conn);
        Ok(())
    }

    /// Moves a connection's bytes. An error ends this connection, and no other one.
    fn turn(&mut self, number: u64) {
        let goes_on = self.advance(number).unwrap_or_else(|error| {
            stderr_line(format_args!("udeck: a connection to this job's name service is given up: {error}"));
            false
        });
        if !goes_on {
            self.end(number);
        }
    }

    /// Returns `false` when the connection is over.
    fn advance(&mut self, number: u64) -> io::Result<bool> {
        let Some(conn) = self.conns.get_mut(&number) else { return Ok(false) };
        if let Err(why) = conn.turn(LINGER) {
            if conn.local.is_none() && !std::mem::replace(&mut self.has_complained, true) {
                stderr_line(format_args!(
                    "udeck: somebody connected to this job's name service and was refused: {why} (said once)"
                ));
            }
            return Ok(false);
        }
        if conn.local.is_none()
            && let Some(rank) = conn.secure.proven()
            && !self.attach(number, rank)?
        {
            return Ok(false);
        }
        let Some(conn) = self.conns.get_mut(&number).filter(|conn| !conn.is_over()) else { return Ok(false) };
        conn.update(&self.poller, number)?;
        Ok(true)
    }

    /// Ties a connection to the rank that it has proved to be. Returns `false` if that rank has come already,
    /// or is gone again.
    fn attach(&mut self, number: u64, rank: u32) -> io::Result<bool> {
        let (Some(conn), Some(acceptor)) = (self.conns.get_mut(&number), &mut self.acceptor) else {
            return Ok(false);
        };
        let Some(local) = acceptor.locals.get_mut(rank as usize).and_then(Option::take) else {
            stderr_line(format_args!(
                "udeck: a second process says that it is rank {rank} of this job, and was refused"
            ));
            return Ok(false);
        };
        if acceptor.elsewhere.get(rank as usize).is_some_and(|elsewhere| *elsewhere)
            && let Ok(address) = conn.remote.local_addr()
        {
            // The receiver takes one address, and then is gone.
            let _ = acceptor.address.send(address.ip());
        }
        watch(&self.poller, &local, number << 1 | 1)?;
        conn.attach(local)?;
        let goes_on = conn.turn(LINGER).is_ok();
        self.close_acceptor();
        Ok(goes_on)
    }

    fn end(&mut self, number: u64) {
        let Some(conn) = self.conns.remove(&number) else { return };
        let _ = epoll::delete(&self.poller, &conn.remote);
        if let Some(local) = &conn.local {
            let _ = epoll::delete(&self.poller, local);
        }
    }
}

fn watch(poller: &OwnedFd, socket: impl AsFd, token: u64) -> io::Result<()> {
    Ok(epoll::add(poller, socket, EventData::new_u64(token), EventFlags::IN)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Returns a proven connection, the other end of its network socket, and that of its local one.
    fn proven() -> (ProxyConn, TcpStream, UnixStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut rank, mut root) = (secure::rank(1, [7; 32]).unwrap(), secure::root(2, [7; 32]).unwrap());
        let pass = |from: &mut SecureStream, to: &mut SecureStream| {
            let mut bytes = Vec::new();
            from.write_to(&mut bytes).unwrap();
            to.receive(&bytes).unwrap();
        };
        pass(&mut rank, &mut root);
        pass(&mut root, &mut rank);
        pass(&mut rank, &mut root);
        let (proxies, local) = UnixStream::pair().unwrap();
        let there = listener.accept().unwrap().0;
        there.set_read_timeout(Some(LONG)).unwrap();
        (ProxyConn::proven(remote, root, proxies).unwrap(), there, local)
    }

    /// The test breaks the connection as if the system had no room to watch its socket for another event.
    #[test]
    fn a_connection_that_cannot_be_watched_ends_alone() {
        let mut proxy = Proxy::new(None, LONG).unwrap();
        let ((broken, its_peer, mut its_rank), (whole, mut peer, mut rank)) = (proven(), proven());
        proxy.add(broken).unwrap();
        proxy.add(whole).unwrap();
        epoll::delete(&proxy.poller, &proxy.conns[&0].remote).unwrap();
        let running = std::thread::spawn(move || proxy.run());
        drop(its_peer);
        its_rank.write_all(b"x").unwrap();
        its_rank.set_read_timeout(Some(LONG)).unwrap();
        // Reset, if it had not taken the byte.
        assert!(!matches!(its_rank.read(&mut [0; 8]), Ok(1..)), "it has ended");
        rank.write_all(b"and the others?").unwrap();
        assert!(peer.read(&mut [0; 64]).unwrap() > 0, "the others go on");
        drop((peer, rank));
        running.join().unwrap().unwrap();
    }
}
