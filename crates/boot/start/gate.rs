//! Proxy of the name service: moves its bytes between local sockets and the sealed connections to rank 0, on
//! one thread.
//!
//! At rank 0 the service has one local socket for each rank, as deckrun's has; the gate has their other ends.
//! It accepts connections, and ties a connection to its rank's socket when it has proved that it is of the job.
//! At another rank the gate has one connection, to rank 0, and one local socket, to the rank's
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
    time::Duration,
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, EventData, EventFlags},
    },
    io::Errno,
    net::{RecvFlags, recv},
};
use udeck_sys::{Deadline, above_stdio, descriptor_advice, is_shortage, stderr_line};

use super::{line::Line, secure::Secure};
use crate::detect_silence;

/// How long a connection may take to prove itself.
const GREETING: Duration = Duration::from_secs(60);
/// Maximum number of connections that are proving themselves; others wait in the kernel's queue.
const MOST_GREETINGS: usize = 64;
/// Time that each of them has at least. After it, a connection makes room for another one if all places are
/// taken.
const PLACE: Duration = Duration::from_secs(1);
/// How long to wait for the other side's end of a connection.
const LINGER: Duration = Duration::from_secs(5);
/// How long to pause when no connection can be accepted.
const PAUSE: Duration = Duration::from_millis(1);
/// Interval between checks of time limits.
const LOOK: Duration = Duration::from_millis(250);
const EVENTS: usize = 64;
/// Flag in an event's token for a listener. Other tokens are twice the line's number, plus 1 for its local
/// socket.
const LISTENER: u64 = 1 << 63;

/// The accepting part of rank 0's gate.
pub(crate) struct Door {
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

pub(crate) struct Gate {
    poller: OwnedFd,
    lines: HashMap<u64, Line>,
    next: u64,
    door: Option<Door>,
    detect: Duration,
    /// The failure of a stranger has been reported.
    has_complained: bool,
    /// The lack of descriptors has been reported.
    is_short: bool,
}

impl Gate {
    /// Makes the gate of rank 0.
    pub fn of_root(door: Door, detect: Duration) -> io::Result<Gate> {
        let gate = Gate::new(Some(door), detect)?;
        for (nth, listener) in (0u64..).zip(gate.door.iter().flat_map(|door| &door.listeners)) {
            listener.set_nonblocking(true)?;
            epoll::add(&gate.poller, listener, EventData::new_u64(LISTENER + nth), EventFlags::IN)?;
        }
        Ok(gate)
    }

    /// Makes the gate of another rank, whose connection to rank 0 is proven.
    pub fn of_rank(
        remote: TcpStream,
        secure: Secure,
        local: UnixStream,
        detect: Duration,
    ) -> io::Result<Gate> {
        let mut gate = Gate::new(None, detect)?;
        gate.add(Line::tied(remote, secure, local)?)?;
        Ok(gate)
    }

    fn new(door: Option<Door>, detect: Duration) -> io::Result<Gate> {
        let poller = above_stdio(epoll::create(epoll::CreateFlags::CLOEXEC))?;
        Ok(Gate {
            poller,
            lines: HashMap::new(),
            next: 0,
            door,
            detect,
            has_complained: false,
            is_short: false,
        })
    }

    /// Runs until every connection has ended, and no further rank is expected.
    pub fn run(mut self) -> io::Result<()> {
        let mut looked = Deadline::after(LOOK);
        // A job of one rank expects no connections.
        self.close_door();
        while !self.lines.is_empty() || self.door.is_some() {
            for token in self.wait(looked)? {
                if token >= LISTENER {
                    self.accept((token - LISTENER) as usize);
                } else {
                    self.turn(token >> 1);
                }
            }
            if looked.passed() {
                looked = Deadline::after(LOOK);
                self.look();
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
    fn look(&mut self) {
        let late: Vec<u64> =
            self.lines.iter().filter(|(_, line)| line.is_late()).map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| self.end(number));
        self.close_door();
    }

    /// Stops accepting when all ranks have come or are too late, or when the service has ended: its sockets
    /// show that.
    fn close_door(&mut self) {
        let Some(door) = &self.door else { return };
        let is_awaited = |local: &UnixStream| {
            // The service sends nothing before the rank has sent a request: a readable socket has ended.
            let peeked = recv(local, &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK);
            !matches!(peeked, Ok((0, _)))
        };
        if door.until.passed() || !door.locals.iter().flatten().any(is_awaited) {
            // The service sees the end of those sockets: these ranks are lost.
            self.door = None;
        }
    }

    fn accept(&mut self, listener: usize) {
        if !self.make_place() {
            return std::thread::sleep(PAUSE); // one of them proves itself, or has had its time
        }
        let Some(door) = &self.door else { return };
        let accepted = above_stdio(door.listeners[listener].accept().map(|(stream, _)| stream));
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) if is_shortage(&error) => return self.short(&error),
            Err(_) => return,
        };
        let mut nonce = [0; 32];
        if getrandom::fill(&mut nonce).is_err() {
            return;
        }
        let secure = Secure::root(door.locals.len() as u32, door.secret, nonce);
        let added = Line::greeting(stream, secure, GREETING).and_then(|line| self.add(line));
        if let Err(error) = added {
            stderr_line(format_args!(
                "udeck: a connection to this job's name service was not accepted: {error}"
            ));
        }
    }

    /// Tells whether one more connection may be accepted. The oldest unproven one is closed, if necessary: a
    /// silent stranger keeps no place for long.
    fn make_place(&mut self) -> bool {
        let greeting = self.lines.iter().filter(|(_, line)| line.local.is_none());
        if greeting.clone().count() < MOST_GREETINGS {
            return true;
        }
        let first = greeting.min_by_key(|(number, _)| **number).map(|(number, line)| (*number, line.since));
        let Some((number, _)) = first.filter(|(_, since)| since.elapsed() >= PLACE) else { return false };
        self.end(number);
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

    fn add(&mut self, mut line: Line) -> io::Result<()> {
        detect_silence(&line.remote, self.detect)?;
        let number = self.next;
        self.next += 1;
        watch(&self.poller, &line.remote, number << 1)?;
        if let Some(local) = &line.local {
            watch(&self.poller, local, number << 1 | 1)?;
        }
        line.update(&self.poller, number)?;
        self.lines.insert(number, line);
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
        let Some(line) = self.lines.get_mut(&number) else { return Ok(false) };
        if let Err(why) = line.turn(LINGER) {
            if line.local.is_none() && !std::mem::replace(&mut self.has_complained, true) {
                stderr_line(format_args!(
                    "udeck: somebody connected to this job's name service and was refused: {why} (said once)"
                ));
            }
            return Ok(false);
        }
        if line.local.is_none()
            && let Some(rank) = line.secure.peer()
            && !self.tie(number, rank)?
        {
            return Ok(false);
        }
        let Some(line) = self.lines.get_mut(&number).filter(|line| !line.is_over()) else { return Ok(false) };
        line.update(&self.poller, number)?;
        Ok(true)
    }

    /// Ties a connection to the rank that it has proved to be. Returns `false` if that rank has come already,
    /// or is gone again.
    fn tie(&mut self, number: u64, rank: u32) -> io::Result<bool> {
        let (Some(line), Some(door)) = (self.lines.get_mut(&number), &mut self.door) else {
            return Ok(false);
        };
        let Some(local) = door.locals.get_mut(rank as usize).and_then(Option::take) else {
            stderr_line(format_args!(
                "udeck: a second process says that it is rank {rank} of this job, and was refused"
            ));
            return Ok(false);
        };
        if door.elsewhere.get(rank as usize).is_some_and(|elsewhere| *elsewhere)
            && let Ok(address) = line.remote.local_addr()
        {
            // The receiver takes one address, and then is gone.
            let _ = door.address.send(address.ip());
        }
        watch(&self.poller, &local, number << 1 | 1)?;
        line.tie(local)?;
        let goes_on = line.turn(LINGER).is_ok();
        self.close_door();
        Ok(goes_on)
    }

    fn end(&mut self, number: u64) {
        let Some(line) = self.lines.remove(&number) else { return };
        let _ = epoll::delete(&self.poller, &line.remote);
        if let Some(local) = &line.local {
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
    fn proven() -> (Line, TcpStream, UnixStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut rank, mut root) = (Secure::rank(1, [7; 32], [1; 32]), Secure::root(2, [7; 32], [2; 32]));
        for _ in 0..2 {
            root.receive(&std::mem::take(&mut rank.outgoing), &mut Vec::new()).unwrap();
            rank.receive(&std::mem::take(&mut root.outgoing), &mut Vec::new()).unwrap();
        }
        let (gates, local) = UnixStream::pair().unwrap();
        let there = listener.accept().unwrap().0;
        there.set_read_timeout(Some(LONG)).unwrap();
        (Line::tied(remote, root, gates).unwrap(), there, local)
    }

    /// The test breaks the connection as if the system had no room to watch its socket for another event.
    #[test]
    fn a_connection_that_cannot_be_watched_ends_alone() {
        let mut gate = Gate::new(None, LONG).unwrap();
        let ((broken, its_peer, mut its_rank), (whole, mut peer, mut rank)) = (proven(), proven());
        gate.add(broken).unwrap();
        gate.add(whole).unwrap();
        epoll::delete(&gate.poller, &gate.lines[&0].remote).unwrap();
        let running = std::thread::spawn(move || gate.run());
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
