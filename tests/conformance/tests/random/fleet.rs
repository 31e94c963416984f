//! The NICs and VIs of a sequence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use udeck_sim::{Fabric, Link, Options};
use udeck_via::{
    Caps, Cq, CqHandle, Listener, NetAddress, Nic, Ptag, Reliability, RemoteBuffer, Request, Rights, Vi,
    ViAttributes, Window,
};

use crate::book::Book;
use crate::dice::Dice;
use crate::history::{History, LENGTH, blank};

/// Discriminator at which every station listens.
pub const DOOR: &[u8] = b"door";
/// Private data of an acceptance.
pub const WELCOME: &[u8] = b"welcome";
const ARENA: usize = 256 << 10;

/// A NIC, and the objects that exist once for each.
pub struct Station {
    pub name: String,
    pub nic: Nic,
    pub cq: Cq,
    /// Protection tag of its VIs and their memory.
    pub ptag: Ptag,
    /// Protection tag of memory that its VIs cannot use.
    pub foreign: Ptag,
    pub alive: bool,
    pub desk: Arc<Mutex<Desk>>,
    _listener: Listener,
}

/// Desk where requests are answered: on the fabric's thread, so that time stands still meanwhile.
pub struct Desk {
    pub answer: Answer,
    /// The VI to connect.
    pub vi: Option<Vi>,
    queues: CqHandle,
    /// Private data of the last request.
    pub heard: Vec<u8>,
    pub accepted: Option<udeck_via::Result>,
    /// A request that was left unanswered.
    pub kept: Option<Request>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    Accept,
    Reject,
    Drop,
    Keep,
}

impl Desk {
    fn take(&mut self, request: Request) {
        self.heard = request.private_data().to_vec();
        match self.answer {
            Answer::Accept => {
                let vi = self.vi.as_mut().expect("who is to be connected lies here");
                self.accepted = Some(request.accept(vi, &self.queues, &self.queues, WELCOME));
            }
            Answer::Reject => request.reject("as planned"),
            Answer::Drop => drop(request),
            Answer::Keep => self.kept = Some(request),
        }
    }
}

impl Station {
    fn open(fabric: &Fabric, at: usize) -> Self {
        let name = format!("n{at}");
        let options = Options { arena_limit: ARENA, ..Options::default() };
        let nic = fabric.nic(&name, options).expect("the name is free");
        let cq = Cq::new(&nic).expect("a completion queue");
        let desk = Desk {
            answer: Answer::Drop,
            vi: None,
            queues: cq.handle(),
            heard: Vec::new(),
            accepted: None,
            kept: None,
        };
        let desk = Arc::new(Mutex::new(desk));
        let at_desk = desk.clone();
        let listener = Listener::with_handler(&nic, DOOR, move |request| {
            at_desk.lock().unwrap_or_else(PoisonError::into_inner).take(request);
        });
        let (ptag, foreign) = (nic.ptag(), nic.ptag());
        let _listener = listener.expect("nobody else listens there");
        Station { name, nic, cq, ptag, foreign, alive: true, desk, _listener }
    }

    pub fn address(&self, discriminator: &[u8]) -> NetAddress {
        NetAddress { host: self.nic.attributes().address.clone(), discriminator: discriminator.to_vec() }
    }
}

/// A VI, and the oracle's knowledge about it.
pub struct Actor {
    /// The VI; `None` while it lies on a desk.
    pub vi: Option<Vi>,
    /// Index of its station.
    pub home: usize,
    pub level: Reliability,
    pub book: Book,
    /// Its last connection, and its end of it.
    pub connection: Option<(usize, usize)>,
    /// Its connections and ends, by the batch of its book that was open meanwhile.
    pub connections: BTreeMap<u64, (usize, usize)>,
    /// Window that its peers may write and read.
    pub target: Option<Target>,
}

/// A window, and its possible contents.
pub struct Target {
    pub window: Window,
    pub history: History,
    /// Number of windows before this one.
    pub incarnation: u64,
}

impl Target {
    pub fn new(station: &Station, incarnation: u64) -> Option<Self> {
        let caps = station.nic.caps();
        let rights = Rights { write: caps.has(Caps::RDMA_WRITE), read: caps.has(Caps::RDMA_READ) };
        if !rights.write && !rights.read {
            return None;
        }
        let mut window = station.nic.window_for(LENGTH, station.ptag, rights).expect("a window");
        window.write(0, &blank()).expect("all of it");
        Some(Target { window, history: History::default(), incarnation })
    }

    /// Checks that the window contains only what it may.
    pub fn check(&self, now: u64) {
        let mut found = vec![0; LENGTH];
        self.window.read(0, &mut found).expect("all of it");
        self.history.check(0, &found, now).unwrap_or_else(|why| panic!("{why}"));
    }

    pub fn remote(&self, offset: usize) -> RemoteBuffer {
        RemoteBuffer { offset, ..self.window.remote() }
    }
}

impl Actor {
    fn new(station: &Station, home: usize, context: usize, level: Reliability) -> Self {
        let vi = Some(new_vi(station, context, level));
        let (book, connections, target) = (Book::default(), BTreeMap::new(), Target::new(station, 0));
        Actor { vi, home, level, book, connection: None, connections, target }
    }

    /// Replaces the VI by another one. Its window stays: windows belong to the NIC.
    pub fn replace(&mut self, station: &Station, context: usize) {
        self.vi = Some(new_vi(station, context, self.level));
        (self.book, self.connection) = (Book::default(), None);
        self.connections.clear();
    }

    /// Records that the VI is one end of a connection.
    pub fn joined(&mut self, connection: usize, side: usize) {
        self.connection = Some((connection, side));
        self.connections.insert(self.book.batch(), (connection, side));
    }

    pub fn vi(&mut self) -> &mut Vi {
        self.vi.as_mut().expect("nobody is being connected at the moment")
    }

    pub fn state(&self) -> udeck_via::State {
        self.vi.as_ref().expect("nobody is being connected at the moment").state()
    }
}

fn new_vi(station: &Station, context: usize, reliability: Reliability) -> Vi {
    let caps = station.nic.caps();
    let attributes = ViAttributes {
        reliability,
        enable_rdma_write: caps.has(Caps::RDMA_WRITE),
        enable_rdma_read: caps.has(Caps::RDMA_READ),
        context: context as u64,
        ..ViAttributes::new(station.ptag)
    };
    Vi::new(&station.nic, attributes).expect("the NIC has the level")
}

/// Opens two to four NICs with up to three pairs of VIs, each with one of the available levels.
pub fn launch(fabric: &Fabric, dice: &mut Dice) -> (Vec<Station>, Vec<Actor>) {
    let stations: Vec<_> = (0..dice.between(2, 4)).map(|at| Station::open(fabric, at)).collect();
    let caps = stations[0].nic.caps();
    let levels = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
    let levels: Vec<_> = levels.into_iter().filter(|level| caps.has(level.cap())).collect();
    let mut actors = Vec::new();
    for _ in 0..dice.between(1, 3) {
        let level = dice.pick(&levels).expect("every NIC has some level");
        for _ in 0..2 {
            let home = dice.below(stations.len());
            actors.push(Actor::new(&stations[home], home, actors.len(), level));
        }
    }
    (stations, actors)
}

/// Faults of frames in this sequence: half of the sequences have no fault but delays, so that there is something to disturb.
pub fn weather(dice: &mut Dice) -> Link {
    use std::time::Duration;
    use udeck_sim::When;
    let delay = Duration::from_micros(dice.below(20) as u64)..Duration::from_micros(50);
    let some = |dice: &mut Dice| When::Chance(dice.between(1, 20) as f64 / 100.0);
    match dice.below(4) {
        0 => Link::default(),
        1 => Link { delay, ..Link::default() },
        2 => Link { duplicate: some(dice), reorder: some(dice), delay, ..Link::default() },
        _ => Link {
            lose: When::Chance(dice.between(1, 8) as f64 / 100.0),
            corrupt: When::Chance(dice.below(5) as f64 / 100.0),
            duplicate: some(dice),
            reorder: some(dice),
            delay,
            ..Link::default()
        },
    }
}
