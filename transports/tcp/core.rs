//! What the objects of a NIC share: its links, its completion queues' stations, its listeners. Lives as long as any of
//! them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_via::transport::{Hello, OnRequest, Port, Queue, Queues, Ready};
use udeck_via::{Error, Result};
use udeck_wired::{Connection, Link, Memory, Settings, Side, Watch, Windows, WiredPort};

use crate::driver::TcpDriver;
use crate::laggards::Laggards;
use crate::poller::{Bell, EventFlags, Poller};
use crate::socket::Socket;
use crate::station::{Seats, Station};

/// A VI's connection.
pub type TcpLink = Link<TcpDriver>;
/// A listener's handler.
pub type Listener = Arc<Mutex<OnRequest>>;

/// Completion queues of one NIC.
pub const STATIONS: usize = 2048;

/// What a descriptor in a poller is: the upper byte of its token; the rest is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Bell,
    Listener,
    Caller(u64),
    Station(u64),
    Link(u64),
}

const KIND: u32 = 56;

impl Token {
    pub fn encode(self) -> u64 {
        let (kind, number) = match self {
            Token::Bell => (0, 0),
            Token::Listener => (1, 0),
            Token::Caller(number) => (2, number),
            Token::Station(number) => (3, number),
            Token::Link(number) => (4, number),
        };
        kind << KIND | number
    }

    /// Of one of ours: they come from the kernel only.
    pub fn decode(token: u64) -> Token {
        let number = token & ((1 << KIND) - 1);
        match token >> KIND {
            0 => Token::Bell,
            1 => Token::Listener,
            2 => Token::Caller(number),
            3 => Token::Station(number),
            _ => Token::Link(number),
        }
    }
}

/// See the module.
pub struct Core {
    pub secret: [u8; 32],
    pub detect: Duration,
    pub memory: Memory,
    pub windows: Arc<Windows>,
    pub max_transfer: usize,
    /// What the helper sleeps on.
    pub control: Arc<Poller>,
    bell: Bell,
    next: AtomicU64,
    links: Mutex<HashMap<u64, Arc<TcpLink>>>,
    pub laggards: Laggards,
    stations: Mutex<HashMap<u64, Weak<Station>>>,
    listeners: Mutex<HashMap<Vec<u8>, Listener>>,
    /// The NIC is closed: what is left is to be sent, and forgotten then.
    closing: AtomicBool,
}

impl Core {
    /// # Errors
    /// The kernel's: no descriptors left.
    pub fn new(
        secret: [u8; 32],
        detect: Duration,
        memory: Memory,
        max_transfer: usize,
    ) -> io::Result<Arc<Self>> {
        let control = Arc::new(Poller::new()?);
        let bell = Bell::new()?;
        control.add(&bell, Token::Bell.encode(), EventFlags::IN)?;
        Ok(Arc::new(Core {
            secret,
            detect,
            memory,
            windows: Windows::new(),
            max_transfer,
            control,
            bell,
            next: AtomicU64::new(0),
            links: Mutex::default(),
            laggards: Laggards::default(),
            stations: Mutex::default(),
            listeners: Mutex::default(),
            closing: AtomicBool::new(false),
        }))
    }

    /// A number that nobody else of this NIC has.
    pub fn fresh(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn link(&self, number: u64) -> Option<Arc<TcpLink>> {
        self.links.lock().get(&number).cloned()
    }

    pub fn links(&self) -> Vec<Arc<TcpLink>> {
        self.links.lock().values().cloned().collect()
    }

    pub fn has_links(&self) -> bool {
        !self.links.lock().is_empty()
    }

    /// A link is over. Called with its lock held: by one who holds it itself.
    pub fn forget_link(&self, number: u64) {
        let link = self.links.lock().remove(&number);
        drop(link); // never the last reference; outside the lock all the same
    }

    pub fn station(&self, number: u64) -> Option<Arc<Station>> {
        self.stations.lock().get(&number).and_then(Weak::upgrade)
    }

    /// # Errors
    /// [`Error::Full`].
    pub fn add_station(&self, number: u64, station: &Weak<Station>) -> Result {
        let mut stations = self.stations.lock();
        if stations.len() == STATIONS {
            let bound = format!("{STATIONS} per NIC");
            return Err(Error::Full { what: "the table of completion queues", bound: bound.into() });
        }
        stations.insert(number, station.clone());
        Ok(())
    }

    pub fn forget_station(&self, number: u64) {
        self.stations.lock().remove(&number);
    }

    pub fn listener(&self, discriminator: &[u8]) -> Option<Listener> {
        self.listeners.lock().get(discriminator).cloned()
    }

    /// # Errors
    /// [`Error::InvalidParameter`] when somebody listens there.
    pub fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result {
        let mut listeners = self.listeners.lock();
        if listeners.contains_key(discriminator) {
            let name = String::from_utf8_lossy(discriminator);
            let what = format!("somebody listens at discriminator {name:?} already");
            return Err(Error::InvalidParameter(what));
        }
        listeners.insert(discriminator.to_vec(), Arc::new(Mutex::new(on_request)));
        Ok(())
    }

    pub fn unlisten(&self, discriminator: &[u8]) {
        let listener = self.listeners.lock().remove(discriminator);
        drop(listener); // may drop what the program put into it: outside the lock
    }

    /// The NIC's last object is gone.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let listeners = std::mem::take(&mut *self.listeners.lock());
        drop(listeners);
        self.rouse();
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Wakes the helper.
    pub fn rouse(&self) {
        self.bell.ring();
    }

    pub fn hush(&self) {
        self.bell.hush();
    }

    /// Makes a port of a socket on which both sides have said hello, and of the places that its queues shall have.
    ///
    /// # Errors
    /// The kernel's: no descriptors left.
    pub fn establish(
        self: &Arc<Self>,
        made: Made<'_>,
        seats: Seats,
        queues: &Queues<'_>,
    ) -> Result<Box<dyn Port>> {
        let number = self.fresh();
        let socket = Arc::new(Socket::new(made.socket, Token::Link(number).encode()));
        let connection = Connection::new(Settings {
            memory: &self.memory,
            windows: &self.windows,
            ours: made.ours,
            theirs: made.theirs,
            side: made.side,
            max_transfer: self.max_transfer,
        });
        let driver = TcpDriver::new(self.clone(), number, socket.clone(), made.peer);
        let link = Link::new(connection, driver);
        self.links.lock().insert(number, link.clone());
        let Seats { send, receive } = seats;
        let context = queues.context;
        let taken = send
            .occupy(Ready { context, queue: Queue::Send }, &link, &socket)
            .and_then(|()| receive.occupy(Ready { context, queue: Queue::Receive }, &link, &socket));
        if let Err(error) = taken {
            self.forget_link(number);
            return Err(Error::os("watching a new connection", error));
        }
        let (send, receive, reporter) = (Arc::new(send), Arc::new(receive), queues.reporter.clone());
        Ok(Box::new(WiredPort::new(link, Watch { send, receive, reporter })))
    }
}

/// A connection that both sides have agreed on.
pub struct Made<'a> {
    pub socket: OwnedFd,
    pub peer: SocketAddr,
    pub ours: &'a Hello,
    pub theirs: &'a Hello,
    pub side: Side,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip() {
        let most = (1 << KIND) - 1;
        for token in [
            Token::Bell,
            Token::Listener,
            Token::Caller(0),
            Token::Caller(most),
            Token::Station(7),
            Token::Link(most),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
