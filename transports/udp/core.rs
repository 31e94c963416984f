//! What the objects of a NIC share: its socket and who reads it, its QUIC endpoint, its peers, its completion queues, its
//! listeners. Lives as long as any of them.
//!
//! # Who reads the socket
//! Whoever looks for something: [`Core::serve`], one thread at a time; who finds another one at it need not. QUIC takes what
//! comes there and then; a link that has something to take is noted, and served by whoever holds no link's lock. Who holds
//! one and looks ([`Core::look_for`]) serves that link, and leaves the others noted.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use parking_lot::{Mutex, RwLock};
use quinn_proto::{
    ClientConfig, ConnectionEvent, ConnectionHandle, DatagramEvent, Endpoint, Incoming, StreamId,
};
use udeck_session::admission::wire::Request;
use udeck_session::completion_queue::{CompletionQueues, Sleep};
use udeck_session::{Connection, Link, Listeners, Memory, SessionPort, Settings, Side, Watch, Windows};
use udeck_sys::{job_time, say, thread};
use udeck_via::auth::Keys;
use udeck_via::transport::{Hello, Port, Queue, Queues, Ready};
use udeck_via::{Error, PollBudget, Reliability, Result};

use crate::completion_queue::{BesideSocket, Slots};
use crate::driver::QuicDriver;
use crate::dropped::Dropped;
use crate::icmp::Report;
use crate::incoming::{IncomingRequest, Requests};
use crate::neighbours::ourselves;
use crate::options::Options;
use crate::peer::{Peer, Standing};
use crate::rest::Rest;
use crate::socket::{Datagram, Room, Socket};
use crate::timers::Timers;
use crate::tls::{self, Grant, Setup};
use crate::unproven::{self, Place, Unproven};
use crate::unreliable::Unreliable;
use crate::wire::Process;

/// Peers by where and who they are.
type ByAddress = HashMap<(SocketAddr, Option<u32>), Arc<Peer>>;

/// A VI's connection.
pub type QuicLink = Link<QuicDriver>;

/// Batches in a row before who serves looks at what it found.
const BATCHES: usize = 16;
/// All connections.
const PEERS: usize = 16_384;
/// Addresses of which refusals are told, once each.
const TOLD: usize = 64;
/// Timers of links have numbers from here on; those of peers lie below.
const LINKS: u64 = 1 << 32;

/// See the module.
pub struct Core {
    pub keys: Keys,
    pub detect: Duration,
    pub dropped: Arc<Dropped>,
    pub memory: Memory,
    pub windows: Arc<Windows>,
    pub max_transfer: usize,
    pub socket: Socket,
    /// Who we are, for peers of this host.
    pub process: Process,
    pub rest: Rest,
    pub timers: Timers,
    pub endpoint: Mutex<Endpoint>,
    client: ClientConfig,
    /// What a peer is granted that has proved who it is.
    grant: Grant,
    /// Whose turn it is to serve: from reading the socket until all are served.
    turn: Mutex<()>,
    room: Mutex<Room>,
    peers: RwLock<HashMap<usize, Arc<Peer>>>,
    /// Those that can be used, by where and who they are.
    by_address: Mutex<ByAddress>,
    links: RwLock<HashMap<u64, Arc<QuicLink>>>,
    /// Links that have something to take.
    ready: Mutex<Vec<Arc<QuicLink>>>,
    ready_count: AtomicUsize,
    pub completion_queues: CompletionQueues<BesideSocket>,
    pub listeners: Listeners,
    requests: Mutex<Requests>,
    told: Mutex<HashSet<IpAddr>>,
    next_link: AtomicU64,
    /// The NIC is closed: what is left is to be sent, and forgotten then.
    closing: AtomicBool,
}

impl Core {
    /// # Errors
    /// The kernel's: no descriptors or random numbers left.
    pub fn new(
        options: &Options,
        memory: Memory,
        max_transfer: usize,
        (socket, address): (Socket, SocketAddr),
    ) -> io::Result<Arc<Self>> {
        let reset_key = options.keys.reset_key(&address.to_string());
        let Setup { endpoint, server, client, grant } = tls::setup(options, &reset_key, socket.holds())?;
        let endpoint = Endpoint::new(Arc::new(endpoint), Some(Arc::new(server)), true, None);
        Ok(Arc::new(Core {
            keys: options.keys.clone(),
            detect: options.detect,
            dropped: options.dropped.clone(),
            memory,
            windows: Windows::new(),
            max_transfer,
            socket,
            process: ourselves(),
            rest: Rest::new()?,
            timers: Timers::new(),
            endpoint: Mutex::new(endpoint),
            client,
            grant,
            turn: Mutex::default(),
            room: Mutex::new(Room::new()),
            peers: RwLock::default(),
            by_address: Mutex::default(),
            links: RwLock::default(),
            ready: Mutex::default(),
            ready_count: AtomicUsize::new(0),
            completion_queues: CompletionQueues::default(),
            listeners: Listeners::new(udeck_session::admission::MAX_DISCRIMINATOR),
            requests: Mutex::default(),
            told: Mutex::default(),
            next_link: AtomicU64::new(LINKS),
            closing: AtomicBool::new(false),
        }))
    }

    // ---- datagrams ----

    /// Gives what has come to whom it is for, and calls who is to be called. Never with a link's lock held. Whether
    /// anything came.
    pub fn serve(self: &Arc<Self>) -> bool {
        match self.turn.try_lock() {
            Some(_turn) => self.serve_in_turn(),
            None => false,
        }
    }

    /// As [`Core::serve`], and whatever somebody else has read by now has reached whom it is for.
    pub fn serve_all(self: &Arc<Self>) {
        let _turn = self.turn.lock();
        self.serve_in_turn();
    }

    fn serve_in_turn(self: &Arc<Self>) -> bool {
        let any = self.read();
        if self.socket.take_trouble() {
            self.take_reports();
        }
        let now = job_time();
        if self.timers.is_due(now) {
            self.call_due(now);
        }
        self.serve_ready();
        // Those that became ready meanwhile.
        if self.ready_count.load(Ordering::Acquire) > 0 {
            self.rest.rouse();
        }
        any
    }

    fn read(self: &Arc<Self>) -> bool {
        let mut any = false;
        for _ in 0..BATCHES {
            let Some(mut room) = self.room.try_lock() else { return any };
            let runs = self.socket.receive(&mut room).len();
            let (touched, full) = (self.take(room.datagrams(runs)), runs == room.runs());
            drop(room);
            any |= runs > 0;
            // What answers it goes with its acknowledgement.
            self.serve_ready();
            touched.iter().for_each(Peer::flush);
            if !full {
                break;
            }
        }
        any
    }

    /// Neighbours for the same connection are given to it together.
    fn take<'a>(self: &Arc<Self>, datagrams: impl Iterator<Item = Datagram<'a>>) -> Vec<Arc<Peer>> {
        let now = job_time();
        let mut touched: Vec<Arc<Peer>> = Vec::new();
        let mut run: Option<(ConnectionHandle, Vec<ConnectionEvent>)> = None;
        let mut answer = Vec::new();
        for datagram in datagrams {
            answer.clear();
            let ecn = datagram.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
            let bytes = BytesMut::from(datagram.bytes);
            let event = self.endpoint.lock().handle(now, datagram.from, None, ecn, bytes, &mut answer);
            match event {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => match &mut run {
                    Some((same, events)) if *same == handle => events.push(event),
                    _ => {
                        let before = run.replace((handle, vec![event]));
                        self.give(before, &mut touched);
                    }
                },
                Some(DatagramEvent::NewConnection(incoming)) => {
                    // Before a connection's number can be another one's.
                    self.give(run.take(), &mut touched);
                    self.admit(now, incoming);
                }
                Some(DatagramEvent::Response(transmit)) => {
                    let _ = self.socket.transmit(transmit.destination, &answer[..transmit.size], None, None);
                }
                None => {}
            }
        }
        self.give(run, &mut touched);
        touched
    }

    fn give(
        self: &Arc<Self>,
        run: Option<(ConnectionHandle, Vec<ConnectionEvent>)>,
        touched: &mut Vec<Arc<Peer>>,
    ) {
        let Some((handle, events)) = run else { return };
        let Some(peer) = self.peers.read().get(&handle.0).cloned() else { return };
        peer.take(events);
        if !touched.iter().any(|other| Arc::ptr_eq(other, &peer)) {
            touched.push(peer);
        }
    }

    /// Somebody calls.
    #[cold]
    fn admit(self: &Arc<Self>, now: Instant, incoming: Incoming) {
        let mut answer = Vec::new();
        if !incoming.remote_address_validated() {
            // It shows that it receives there before anything is kept of it.
            if let Ok(transmit) = self.endpoint.lock().retry(incoming, &mut answer) {
                let _ = self.socket.transmit(transmit.destination, &answer[..transmit.size], None, None);
            }
            return;
        }
        let has_place = !self.is_closing() && self.make_place(incoming.remote_address().ip(), now);
        let mut endpoint = self.endpoint.lock();
        if !has_place {
            return endpoint.ignore(incoming);
        }
        match endpoint.accept(incoming, now, &mut answer, None) {
            Ok((handle, quic)) => {
                let peer = Peer::new(self, (handle, quic), None);
                self.peers.write().insert(handle.0, peer.clone());
                drop(endpoint);
                peer.with(|_| {});
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    let _ = self.socket.transmit(transmit.destination, &answer[..transmit.size], None, None);
                }
            }
        }
    }

    /// Whether one more may call that has not proved who it is. Another one is sent away for it, perhaps.
    pub fn make_place(&self, from: IpAddr, now: Instant) -> bool {
        let (unproven, count) = {
            let peers = self.peers.read();
            let unproven = peers.values().filter(|peer| peer.is_unproven());
            let entry =
                |peer: &Arc<Peer>| Unproven { number: peer.handle.0, at: peer.at.ip(), since: peer.since };
            (unproven.map(entry).collect::<Vec<_>>(), peers.len())
        };
        match unproven::place(&unproven, from, now) {
            Place::Free => count < PEERS,
            Place::Of(number) => {
                if let Some(peer) = self.peer_of(number) {
                    peer.dismiss();
                }
                true
            }
            Place::None => false,
        }
    }

    /// What the network says of what was sent, a round of it: whoever wants may go on saying something.
    #[cold]
    fn take_reports(self: &Arc<Self>) {
        let mut budget = PollBudget::once();
        while budget.take() {
            match self.socket.next_report() {
                Some(Some(report)) => self.hear(&report),
                Some(None) => {}
                None => return,
            }
        }
        self.socket.note_trouble();
    }

    /// The connection ids in QUIC packets cannot be known to who is not on their way: who quotes one is believed.
    pub fn hear(self: &Arc<Self>, report: &Report) {
        let there = |peer: &&Arc<Peer>| (peer.at.ip(), peer.at.port()) == (report.to.ip(), report.to.port());
        let peers: Vec<_> = self.peers.read().values().filter(there).cloned().collect();
        peers.iter().for_each(|peer| peer.nobody_there(&report.quote));
    }

    fn serve_ready(&self) {
        if self.ready_count.load(Ordering::Acquire) == 0 {
            return;
        }
        // Those that become ready meanwhile have their turn the next time: otherwise peers that send without end would never
        // let go of the caller.
        let ready = {
            let mut ready = self.ready.lock();
            self.ready_count.store(0, Ordering::Relaxed);
            std::mem::take(&mut *ready)
        };
        for link in ready {
            link.with(|connection, driver| driver.serve(connection));
        }
    }

    /// A link has something to take.
    pub fn note_ready(&self, link: &Arc<QuicLink>) {
        let mut ready = self.ready.lock();
        ready.push(link.clone());
        self.ready_count.store(ready.len(), Ordering::Release);
    }

    /// For who holds the lock of a link: reads the socket, and waits at most `turn` for who reads it now. Whether there may be
    /// something for that link.
    pub fn look_for(self: &Arc<Self>, peer: &Arc<Peer>, stream: StreamId, turn: Duration) -> bool {
        // Who reads at the moment is done soon, and may have read what is looked for here.
        let touched = self.room.try_lock_for(turn).map(|mut room| {
            let runs = self.socket.receive(&mut room).len();
            self.take(room.datagrams(runs))
        });
        let listed = peer.is_listed(stream);
        let is_served = |other: &&Arc<Peer>| listed && Arc::ptr_eq(other, peer);
        touched.iter().flatten().filter(|other| !is_served(other)).for_each(Peer::flush);
        if self.ready_count.load(Ordering::Relaxed) > usize::from(listed) {
            self.rest.rouse();
        }
        listed
    }

    fn call_due(self: &Arc<Self>, now: Instant) {
        for number in self.timers.pop_due(now) {
            if number >= LINKS {
                let link = self.links.read().get(&number).cloned();
                if let Some(link) = link {
                    link.with(|connection, driver| driver.serve(connection));
                }
            } else if let Some(peer) = self.peer_of(number as usize) {
                peer.time(now);
            }
        }
    }

    /// A peer wants to be called at that time.
    pub fn note_due(&self, wanted: Option<Instant>, called: &mut Option<Instant>, number: u64) {
        let Some(wanted) = wanted.filter(|wanted| called.is_none_or(|called| *wanted < called)) else {
            return;
        };
        *called = Some(wanted);
        if self.timers.set(wanted, number) {
            self.rest.earlier();
        }
    }

    /// A link wants to be called at that time.
    pub fn call_link_at(&self, at: Instant, link: u64) {
        if self.timers.set(at, link) {
            self.rest.earlier();
        }
    }

    // ---- peers ----

    fn peer_of(&self, handle: usize) -> Option<Arc<Peer>> {
        self.peers.read().get(&handle).cloned()
    }

    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.read().values().cloned().collect()
    }

    /// The connection with a rank's NIC, or with somebody's of the job: one that stands or comes to stand, or a new one.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: this process cannot prove to that rank who it is; what is no address.
    pub fn peer_at(self: &Arc<Self>, at: SocketAddr, rank: Option<u32>) -> Result<Arc<Peer>> {
        let mut by_address = self.by_address.lock();
        if let Some(peer) = by_address.get(&(at, rank)).filter(|peer| !peer.is_over()) {
            return Ok(peer.clone());
        }
        let pair = self.keys.call(rank).map_err(|error| Error::InvalidParameter(error.to_string()))?;
        let mut endpoint = self.endpoint.lock();
        let made = endpoint.connect(job_time(), self.client.clone(), at, tls::NAME).map_err(|error| {
            Error::os(
                format!("connecting to the process at {at}"),
                io::Error::new(io::ErrorKind::InvalidInput, error),
            )
        })?;
        let peer = Peer::new(self, made, Some(pair));
        self.peers.write().insert(peer.handle.0, peer.clone());
        drop(endpoint);
        by_address.insert((at, rank), peer.clone());
        drop(by_address);
        peer.with(|_| {});
        Ok(peer)
    }

    /// A caller has proved who it is: its connection can be used for the other way, too.
    pub fn note_caller(&self, peer: &Arc<Peer>, rank: Option<u32>) {
        let mut by_address = self.by_address.lock();
        let entry = by_address.entry((peer.at, rank)).or_insert_with(|| peer.clone());
        if entry.is_over() {
            *entry = peer.clone();
        }
    }

    /// What a peer is granted that has proved who it is.
    pub fn grant(&self) -> Grant {
        self.grant
    }

    /// It cannot be used any more.
    pub fn forget_peer_at(&self, peer: &Arc<Peer>, rank: Option<u32>) {
        let mut by_address = self.by_address.lock();
        if by_address.get(&(peer.at, rank)).is_some_and(|known| Arc::ptr_eq(known, peer)) {
            by_address.remove(&(peer.at, rank));
        }
    }

    /// QUIC knows nothing of it any more.
    pub fn forget_peer(&self, peer: &Arc<Peer>) {
        let mut peers = self.peers.write();
        if peers.get(&peer.handle.0).is_some_and(|known| Arc::ptr_eq(known, peer)) {
            peers.remove(&peer.handle.0);
            self.timers.remove(peer.number());
        }
    }

    /// Nobody calls them any more.
    pub fn forget_peers(&self) {
        let peers = (std::mem::take(&mut *self.by_address.lock()), std::mem::take(&mut *self.peers.write()));
        let rest = (std::mem::take(&mut *self.ready.lock()), std::mem::take(&mut *self.requests.lock()));
        drop((peers, rest));
    }

    #[cold]
    pub fn tell_stranger(&self, from: IpAddr, why: &str) {
        let mut told = self.told.lock();
        if told.len() < TOLD && told.insert(from) {
            say!("refused a connection from {from}: {why} (said once per address)");
        }
    }

    // ---- links ----

    pub fn links(&self) -> Vec<Arc<QuicLink>> {
        self.links.read().values().cloned().collect()
    }

    pub fn has_links(&self) -> bool {
        !self.links.read().is_empty()
    }

    /// A link is over. Called with its lock held: by one who holds it itself.
    pub fn forget_link(&self, number: u64) {
        let link = self.links.write().remove(&number);
        self.timers.remove(number);
        drop(link); // never the last reference; outside the lock all the same
    }

    /// A link of a connection that both sides have agreed on.
    pub fn establish(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        stream: StreamId,
        (ours, theirs): (&Hello, &Hello),
        side: Side,
    ) -> Arc<QuicLink> {
        let mut connection = Connection::new(Settings {
            memory: &self.memory,
            windows: &self.windows,
            ours,
            theirs,
            side,
            max_transfer: self.max_transfer,
        });
        let unreliable = (ours.reliability == Reliability::Unreliable).then(|| {
            connection.go_unreliable();
            Box::new(Unreliable::new(self.max_transfer))
        });
        let number = self.next_link.fetch_add(1, Ordering::Relaxed);
        let driver = QuicDriver::new(self.clone(), (number, peer.clone(), stream), unreliable);
        let link = Link::new(connection, driver);
        self.links.write().insert(number, link.clone());
        link
    }

    /// The port of a link, whose queues have these places.
    pub fn port(&self, link: Arc<QuicLink>, slots: Slots, queues: &Queues<'_>) -> Box<dyn Port> {
        // Later ones are told by `fail`.
        if let Some(why) = self.listeners.failure() {
            link.with(|connection, driver| driver.fail(connection, why));
        }
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

    /// Leaves a request to the helper: a listener's handler may do anything.
    pub fn put_request(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        stream: StreamId,
        rank: Option<u32>,
        request: Request,
    ) {
        let request = IncomingRequest::new(self.clone(), peer.clone(), stream, rank, request);
        self.requests.lock().push_back(Box::new(request));
        self.rest.rouse();
    }

    pub fn next_request(&self) -> Option<Box<IncomingRequest>> {
        self.requests.lock().pop_front()
    }

    /// The NIC's last object is gone.
    pub fn shut(&self) {
        self.closing.store(true, Ordering::Release);
        self.listeners.clear();
        self.rest.rouse();
    }

    /// The helper has panicked: nothing of this NIC works any more.
    pub fn fail(self: &Arc<Self>, thread: &str, why: &str) {
        let why = self.listeners.fail(thread, why);
        let requests = std::mem::take(&mut *self.requests.lock());
        thread::attempt(|| drop(requests));
        for link in self.links() {
            thread::attempt(|| link.with(|connection, driver| driver.fail(connection, &why)));
        }
        for peer in self.peers() {
            thread::attempt(|| peer.shut(Standing::Lost(why.clone())));
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}
