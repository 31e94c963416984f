//! What the objects of a NIC share: its socket and who reads it, its links, its completion queues, its listeners.
//! Lives as long as any of them.
//!
//! # Who reads the socket
//! Whoever looks for something: [`Core::serve`], one thread at a time; who finds another one at it need not. What comes is
//! given to its link there and then, or waits in `strays` if somebody works on that. Who holds a link's lock and looks
//! ([`Core::look_for`]) takes that link's strays first, and leaves what is for others there.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use udeck_session::completion_queue::{CompletionQueues, Sleep};
use udeck_session::{Connection, Link, Listeners, Memory, SessionPort, Settings, Side, Watch, Windows};
use udeck_sys::{job_time, thread};
use udeck_via::auth::Keys;
use udeck_via::transport::{Hello, Port, Queue, Queues, Ready};
use udeck_via::{Budget, Error, Reliability, Result};

use crate::calls::Calls;
use crate::completion_queue::{BesideSocket, Slots};
use crate::door::Door;
use crate::driver::UdpDriver;
use crate::flow::{Flow, Names, Options as FlowOptions};
use crate::icmp::Report;
use crate::incoming::{IncomingRequest, Requests};
use crate::neighbours::{Vigil, ourselves};
use crate::rest::Rest;
use crate::socket::{Room, Socket};
use crate::strays::Strays;
use crate::timers::Timers;
pub use crate::tombs::Tomb;
use crate::tombs::Tombs;
use crate::unreliable::{Dropped, Unreliable};
use crate::versions::Foreigners;
use crate::wire;
use crate::wire::greeting::{MAX_DISCRIMINATOR, Process};

/// A VI's connection.
pub type UdpLink = Link<UdpDriver>;

/// How long who looks waits for another reader: never long, because it may be waited for itself.
const TURN: Duration = Duration::from_micros(50);
/// Batches in a row before who serves looks at what it found.
const BATCHES: usize = 16;

/// See the module.
pub struct Core {
    pub keys: Keys,
    pub detect: Duration,
    pub max_datagram: usize,
    pub dropped: Arc<Dropped>,
    pub memory: Memory,
    pub windows: Arc<Windows>,
    pub max_transfer: usize,
    pub socket: Socket,
    /// Who we are, for peers of this host.
    pub process: Process,
    pub rest: Rest,
    pub timers: Timers,
    pub calls: Calls,
    pub door: Door,
    foreigners: Foreigners,
    room: Mutex<Room>,
    strays: Strays,
    links: RwLock<Links>,
    tombs: Mutex<Tombs>,
    pub completion_queues: CompletionQueues<BesideSocket>,
    pub listeners: Listeners,
    requests: Mutex<Requests>,
    /// The NIC is closed: what is left is to be sent, and forgotten then.
    closing: AtomicBool,
}

impl Core {
    /// # Errors
    /// The kernel's: no descriptors or random numbers left.
    pub fn new(
        options: &crate::Options,
        memory: Memory,
        max_transfer: usize,
        socket: Socket,
    ) -> io::Result<Arc<Self>> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        Ok(Arc::new(Core {
            keys: options.keys.clone(),
            detect: options.detect,
            max_datagram: options.max_datagram,
            dropped: options.dropped.clone(),
            memory,
            windows: Windows::new(),
            max_transfer,
            socket,
            process: ourselves(),
            rest: Rest::new()?,
            timers: Timers::new(),
            calls: Calls::default(),
            door: Door::new(key),
            foreigners: Foreigners::default(),
            room: Mutex::new(Room::new()),
            strays: Strays::default(),
            links: RwLock::default(),
            tombs: Mutex::default(),
            completion_queues: CompletionQueues::default(),
            listeners: Listeners::new(MAX_DISCRIMINATOR),
            requests: Mutex::default(),
            closing: AtomicBool::new(false),
        }))
    }

    // ---- datagrams ----

    /// Gives what has come to whom it is for, and calls who is to be called. Never with a link's lock held. Whether
    /// anything came.
    pub fn serve(self: &Arc<Self>) -> bool {
        let any = self.read();
        self.give_strays();
        if self.socket.take_trouble() {
            self.take_reports();
        }
        let now = job_time();
        if self.timers.is_due(now) {
            self.call_due(now);
        }
        any
    }

    fn read(self: &Arc<Self>) -> bool {
        let Some(mut room) = self.room.try_lock() else { return false };
        let mut any = false;
        for _ in 0..BATCHES {
            let runs = self.socket.receive(&mut room).len();
            if runs == 0 {
                break;
            }
            any = true;
            self.give(room.datagrams(runs));
            if runs < room.runs() {
                break;
            }
        }
        any
    }

    /// Neighbours for the same link are given to it together.
    pub fn give<'a>(self: &Arc<Self>, datagrams: impl Iterator<Item = (SocketAddr, &'a [u8])>) {
        let now = job_time();
        let mut datagrams = datagrams.peekable();
        while let Some((from, datagram)) = datagrams.next() {
            let Some(number) = wire::connection(datagram) else {
                self.foreign(now, from, datagram);
                continue;
            };
            let Some(link) = self.link(number) else {
                self.strange(now, from, datagram);
                continue;
            };
            let next = |next: &(SocketAddr, &[u8])| wire::connection(next.1) == Some(number);
            let given = link.try_with(|connection, driver| {
                for stray in self.strays.take(number) {
                    driver.take(connection, now, &stray);
                }
                driver.take(connection, now, datagram);
                while let Some((_, datagram)) = datagrams.next_if(next) {
                    driver.take(connection, now, datagram);
                }
                driver.answer(connection, now);
            });
            if given.is_none() {
                self.strays.add(number, datagram);
                while let Some((_, datagram)) = datagrams.next_if(next) {
                    self.strays.add(number, datagram);
                }
            }
        }
    }

    /// What the network says of what was sent, a round of it: whoever wants may go on saying something.
    #[cold]
    fn take_reports(&self) {
        let mut budget = Budget::once();
        while budget.take() {
            match self.socket.next_report() {
                Some(Some(report)) => self.hear(&report),
                Some(None) => {}
                None => return,
            }
        }
        self.socket.note_trouble();
    }

    /// The number in a connection's datagrams cannot be known to who is not on their way: who quotes it is believed.
    pub fn hear(&self, report: &Report) {
        match wire::connection(&report.quote) {
            None => {}
            Some(0) => self.calls.hear_report(report),
            Some(theirs) => {
                let link = self.links.read().called(report.to, theirs);
                if let Some(link) = link {
                    link.with(|connection, driver| driver.hear_report(connection, report));
                }
            }
        }
    }

    fn give_strays(&self) {
        self.strays.for_each_link(|number| {
            let Some(link) = self.link(number) else {
                drop(self.strays.take(number));
                return;
            };
            link.with(|connection, driver| {
                let now = job_time();
                for stray in self.strays.take(number) {
                    driver.take(connection, now, &stray);
                }
                driver.answer(connection, now);
            });
        });
    }

    /// As [`Core::serve`], for who holds the lock of the link `number` and gives it what comes by `take`.
    pub fn look_for(self: &Arc<Self>, number: u64, take: &mut dyn FnMut(&[u8])) {
        self.strays.take(number).iter().for_each(|stray| take(stray));
        // Who reads at the moment is done soon, and may have read what is looked for here.
        let Some(mut room) = self.room.try_lock_for(TURN) else { return };
        self.strays.take(number).iter().for_each(|stray| take(stray));
        let runs = self.socket.receive(&mut room).len();
        let mut left = false;
        for (from, datagram) in room.datagrams(runs) {
            match wire::connection(datagram) {
                Some(ours) if ours == number => take(datagram),
                Some(other) if self.link(other).is_some() => {
                    self.strays.add(other, datagram);
                    left = true;
                }
                Some(_) => self.strange(job_time(), from, datagram),
                None => self.foreign(job_time(), from, datagram),
            }
        }
        drop(room);
        if left {
            self.rest.rouse();
        }
    }

    /// A datagram for no link.
    fn strange(self: &Arc<Self>, now: Instant, from: SocketAddr, datagram: &[u8]) {
        let Ok(opened) = wire::open(datagram) else { return };
        match opened.kind {
            wire::Kind::Packet | wire::Kind::Piece => {
                if let Some((peer, answer)) = self.tombs.lock().answer(&opened) {
                    let _ = self.socket.send(peer, &answer);
                }
            }
            wire::Kind::Meet | wire::Kind::Ask | wire::Kind::Withdraw => {
                self.door.hear(self, now, from, &opened)
            }
            wire::Kind::Prove | wire::Kind::Answer => self.calls.hear(self, now, from, &opened),
        }
    }

    /// A datagram of another version, or none of ours.
    #[cold]
    fn foreign(&self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        if let Some(answer) = self.foreigners.answer(now, datagram) {
            let _ = self.socket.send(from, &answer);
        }
    }

    fn call_due(&self, now: Instant) {
        for number in self.timers.pop_due(now) {
            if let Some(link) = self.link(number) {
                link.with(|connection, driver| driver.time(connection, now));
            }
        }
    }

    /// A link wants to be called at that time.
    pub fn call_at(&self, at: Instant, number: u64) {
        if self.timers.set(at, number) {
            self.rest.earlier();
        }
    }

    // ---- links ----

    pub fn link(&self, number: u64) -> Option<Arc<UdpLink>> {
        self.links.read().by_ours.get(&number).cloned()
    }

    pub fn links(&self) -> Vec<Arc<UdpLink>> {
        self.links.read().by_ours.values().cloned().collect()
    }

    #[cfg(test)]
    pub fn numbers(&self) -> Vec<u64> {
        self.links.read().by_ours.keys().copied().collect()
    }

    pub fn has_links(&self) -> bool {
        !self.links.read().by_ours.is_empty()
    }

    /// A link is over. Called with its lock held: by one who holds it itself.
    pub fn forget_link(&self, number: u64, tomb: Tomb) {
        let link = self.links.write().remove(number, tomb.peer, tomb.theirs);
        self.timers.remove(number);
        self.tombs.lock().add(job_time(), number, tomb);
        drop(link); // never the last reference; outside the lock all the same
    }

    /// A number for a connection, that nobody else of this NIC has and nobody can foresee.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn fresh(&self) -> Result<u64> {
        loop {
            let number = getrandom::u64()
                .map_err(|error| Error::os("drawing a connection's number", io::Error::other(error)))?;
            if number != 0 && !self.links.read().by_ours.contains_key(&number) {
                return Ok(number);
            }
        }
    }

    /// A link of a connection that both sides have agreed on. It takes what comes from now on.
    pub fn establish(self: &Arc<Self>, made: &Made<'_>) -> Arc<UdpLink> {
        let mut connection = Connection::new(Settings {
            memory: &self.memory,
            windows: &self.windows,
            ours: made.ours,
            theirs: made.theirs,
            side: made.side,
            max_transfer: self.max_transfer,
        });
        let options = FlowOptions {
            dead_after: self.detect,
            max_datagram: self.max_datagram,
            first_rtt: Some(made.round_trip),
            ..FlowOptions::default()
        };
        let flow = Flow::new(job_time(), made.names, &options);
        let unreliable = (made.ours.reliability == Reliability::Unreliable).then(|| {
            connection.go_unreliable();
            Box::new(Unreliable::new(self.max_transfer))
        });
        let vigil = Vigil::over(self.process, made.process);
        let driver = UdpDriver::new(self.clone(), made.names, made.peer, vigil, flow, unreliable);
        let link = Link::new(connection, driver);
        self.links.write().insert(made.names, made.peer, link.clone());
        // Later ones are told by `fail`.
        if let Some(why) = self.listeners.failure() {
            link.with(|connection, driver| driver.fail(connection, why));
        }
        link
    }

    /// The port of a link, whose queues have these places.
    pub fn port(link: Arc<UdpLink>, slots: Slots, queues: &Queues<'_>) -> Box<dyn Port> {
        let Slots { send, receive } = slots;
        let context = queues.context;
        send.occupy(Ready { context, queue: Queue::Send }, link.clone(), ());
        receive.occupy(Ready { context, queue: Queue::Receive }, link.clone(), ());
        let (send, receive, reporter) = (Arc::new(send), Arc::new(receive), queues.reporter.clone());
        Box::new(SessionPort::new(link, Watch { send, receive, reporter }))
    }

    // ---- completion queues and requests ----

    /// Looks of all owners of completion queues so far, more or less, and whether one sleeps on a word.
    pub fn activity(&self) -> (u64, bool) {
        self.completion_queues.fold((0, false), |(looks, armed), cq| {
            (looks.wrapping_add(cq.looks()), armed || cq.sleeps() == Sleep::Armed)
        })
    }

    /// Leaves a request to the helper: a listener's handler may do anything. The one for which there is no place now.
    pub fn put_request(&self, request: Box<IncomingRequest>) -> Option<Box<IncomingRequest>> {
        let without_place = self.requests.lock().put(request);
        self.rest.rouse();
        without_place
    }

    pub fn next_request(&self) -> Option<Box<IncomingRequest>> {
        self.requests.lock().take()
    }

    /// The NIC's last object is gone.
    pub fn shut(&self) {
        self.closing.store(true, Ordering::Release);
        self.listeners.clear();
        self.rest.rouse();
    }

    /// The helper has panicked: nothing of this NIC works any more.
    pub fn fail(&self, thread: &str, why: &str) {
        let why = self.listeners.fail(thread, why);
        let requests = std::mem::take(&mut *self.requests.lock());
        thread::attempt(|| drop(requests));
        for link in self.links() {
            thread::attempt(|| link.with(|connection, driver| driver.fail(connection, &why)));
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

/// A NIC's links.
#[derive(Default)]
struct Links {
    by_ours: HashMap<u64, Arc<UdpLink>>,
    /// What we call those that peers call so, by where they are: ICMP quotes our datagrams.
    by_theirs: HashMap<(IpAddr, u16, u64), u64>,
}

impl Links {
    fn insert(&mut self, names: Names, peer: SocketAddr, link: Arc<UdpLink>) {
        self.by_ours.insert(names.ours, link);
        self.by_theirs.insert((peer.ip(), peer.port(), names.theirs), names.ours);
    }

    fn remove(&mut self, ours: u64, peer: SocketAddr, theirs: u64) -> Option<Arc<UdpLink>> {
        let key = (peer.ip(), peer.port(), theirs);
        // A peer may give two connections one number: then the later one has it.
        if self.by_theirs.get(&key) == Some(&ours) {
            self.by_theirs.remove(&key);
        }
        self.by_ours.remove(&ours)
    }

    /// The one that is called `theirs` there.
    fn called(&self, peer: SocketAddr, theirs: u64) -> Option<Arc<UdpLink>> {
        let ours = self.by_theirs.get(&(peer.ip(), peer.port(), theirs))?;
        self.by_ours.get(ours).cloned()
    }
}

/// A connection that both sides have agreed on.
pub struct Made<'a> {
    pub names: Names,
    pub peer: SocketAddr,
    /// Whose it is.
    pub process: Process,
    pub ours: &'a Hello,
    pub theirs: &'a Hello,
    pub side: Side,
    pub round_trip: Duration,
}
