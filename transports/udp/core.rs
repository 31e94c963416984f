//! Shared state of a NIC's objects: the socket, the QUIC endpoint, the peers, the completion queues, the listeners.
//! It lives as long as any of them.
//!
//! # Who reads the socket
//! Any thread that polls calls [`Core::progress`]. One thread at a time does the work; another one returns at once. QUIC processes
//! each datagram immediately. A link whose stream became readable goes on the ready list, and is driven by a thread that holds no
//! link's lock. A thread that holds a link's lock calls [`Core::poll_for`]: it drives that link, and leaves the others on the list.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quinn_proto::{
    ClientConfig, ConnectionEvent, ConnectionHandle, DatagramEvent, Endpoint, Incoming, ServerConfig,
    StreamId,
};
use smallvec::{SmallVec, smallvec};
use udeck_session::admission::wire::Request;
use udeck_session::completion_queue::{CompletionQueues, Sleep};
use udeck_session::{
    Connection, Link, Listeners, Memory, Ordered, SendOrder, SessionEndpoint, Settings, Side, Watch, Windows,
};
use udeck_sys::unauthenticated::Place;
use udeck_sys::{job_time, say, thread};
use udeck_via::auth::Keys;
use udeck_via::transport::{Hello, Queue, Queues, Ready, ViEndpoint};
use udeck_via::{Error, PollBudget, Reliability, Result};

use crate::buffer_pool::BufferPool;
use crate::completion_queue::{Slots, SocketBackend};
use crate::driver::StreamDriver;
use crate::dropped::Dropped;
use crate::icmp::PortUnreachable;
use crate::incoming::{IncomingRequest, Requests};
use crate::liveness::local_process;
use crate::options::Options;
use crate::peer::{ConnectionStatus, Peer};
use crate::peer_table::PeerTable;
use crate::send_meter::SendMeter;
use crate::socket::{Datagram, ReceiveBuffers, Socket};
use crate::socket_wait::SocketWait;
use crate::timers::Timers;
use crate::tls::{self, ByPath, TlsSetup, TransportLimits};
use crate::unauthenticated;
use crate::unreliable::Unreliable;
use crate::wire::Process;

/// Connections that a batch of datagrams is for, and below, packets for one of them. A short message needs one of
/// each, without an allocation.
type Peers = SmallVec<[Arc<Peer>; 2]>;
type Events = SmallVec<[ConnectionEvent; 1]>;

/// A VI's connection.
pub type ViLink = Link<StreamDriver>;

/// Upper bound of batches that are received in a row.
const MAX_BATCHES: usize = 16;
/// Upper bound of a NIC's QUIC connections.
const MAX_PEERS: usize = 16_384;
/// Upper bound of the addresses whose refused calls are reported, once each.
const MAX_REPORTED: usize = 64;
/// First number of a link's timer. A peer's timer has the number of its connection handle.
const FIRST_LINK_TIMER: u64 = 1 << 32;

/// Shared state of a NIC's objects.
pub struct Core {
    pub keys: Keys,
    pub detect: Duration,
    pub dropped: Arc<Dropped>,
    pub memory: Memory,
    pub windows: Arc<Windows>,
    pub max_transfer: usize,
    pub socket: Socket,
    /// Address of the socket.
    pub address: SocketAddr,
    /// Identity of this process, for peers on this host.
    pub process: Process,
    pub socket_wait: SocketWait,
    pub timers: Timers,
    pub endpoint: Mutex<Endpoint>,
    server: ByPath<Arc<ServerConfig>>,
    client: ByPath<ClientConfig>,
    /// Limits of an authenticated peer.
    proven_limits: TransportLimits,
    /// Held from reading the socket until all ready links are driven.
    progress_lock: Mutex<()>,
    receive_buffers: Mutex<ReceiveBuffers>,
    pub peers: PeerTable<Peer>,
    links: RwLock<HashMap<u64, Arc<ViLink>>>,
    /// Send order of the service levels; `None` where levels have no shares.
    pub send_order: Option<SendOrder<SendMeter>>,
    /// Links whose streams have news.
    ready: Mutex<Vec<Arc<ViLink>>>,
    ready_count: AtomicUsize,
    pub completion_queues: CompletionQueues<SocketBackend>,
    pub listeners: Listeners,
    requests: Mutex<Requests>,
    reported: Mutex<HashSet<IpAddr>>,
    next_link: AtomicU64,
    /// The NIC is closed. Its links still send their remaining data.
    closing: AtomicBool,
}

impl Core {
    /// # Errors
    /// The kernel's error: no descriptors or random numbers left.
    pub fn new(
        options: &Options,
        memory: Memory,
        max_transfer: usize,
        (socket, address): (Socket, SocketAddr),
    ) -> io::Result<Arc<Self>> {
        let reset_key = options.keys.reset_key(&address.to_string());
        let TlsSetup { endpoint, server, client, proven_limits } =
            tls::setup(options, &reset_key, socket.receive_capacity())?;
        let default = server.get(address, address).clone();
        let endpoint = Endpoint::new(Arc::new(endpoint), Some(default), true, None);
        Ok(Arc::new(Core {
            keys: options.keys.clone(),
            detect: options.detect,
            dropped: options.dropped.clone(),
            memory,
            windows: Windows::new(),
            max_transfer,
            socket,
            address,
            process: local_process(),
            socket_wait: SocketWait::new()?,
            timers: Timers::new(),
            endpoint: Mutex::new(endpoint),
            server,
            client,
            proven_limits,
            progress_lock: Mutex::default(),
            receive_buffers: Mutex::new(ReceiveBuffers::new()),
            peers: PeerTable::default(),
            links: RwLock::default(),
            send_order: options.levels.as_ref().map(|levels| SendOrder::new(levels, options.in_flight)),
            ready: Mutex::default(),
            ready_count: AtomicUsize::new(0),
            completion_queues: CompletionQueues::default(),
            listeners: Listeners::new(udeck_session::admission::MAX_DISCRIMINATOR),
            requests: Mutex::default(),
            reported: Mutex::default(),
            next_link: AtomicU64::new(FIRST_LINK_TIMER),
            closing: AtomicBool::new(false),
        }))
    }

    // ---- datagrams ----

    /// Receives datagrams, drives ready links and fires timers. The caller holds no link's lock. Returns whether
    /// datagrams were received; `false` also if another thread does the work.
    pub fn progress(self: &Arc<Self>) -> bool {
        match self.progress_lock.try_lock() {
            Some(_guard) => self.progress_locked(),
            None => false,
        }
    }

    /// Does [`Core::progress`], but waits for its turn: datagrams that another thread has received by now are
    /// processed on return.
    pub fn progress_all(self: &Arc<Self>) {
        let _guard = self.progress_lock.lock();
        self.progress_locked();
    }

    fn progress_locked(self: &Arc<Self>) -> bool {
        let any = self.read();
        if self.socket.take_error_pending() {
            self.read_icmp();
        }
        let now = job_time();
        if self.timers.is_due(now) {
            self.fire_timers(now);
        }
        self.drive_ready();
        // The helper drives links that became ready meanwhile.
        if self.ready_count.load(Ordering::Acquire) > 0 {
            self.socket_wait.wake_helper();
        }
        any
    }

    fn read(self: &Arc<Self>) -> bool {
        let mut any = false;
        for _ in 0..MAX_BATCHES {
            let Some(mut buffers) = self.receive_buffers.try_lock() else { return any };
            let messages = self.socket.receive(&mut buffers).len();
            if messages == 0 {
                return any;
            }
            let touched = self.on_datagrams(job_time(), buffers.datagrams(messages));
            let full = messages == buffers.batch_size();
            drop(buffers);
            any = true;
            // Links are driven before the packets are sent, so that the acknowledgement travels with the answer.
            self.drive_ready();
            touched.iter().for_each(Peer::flush);
            if !full {
                break;
            }
        }
        any
    }

    /// Processes datagrams. Consecutive datagrams of one connection are dispatched together.
    fn on_datagrams<'a>(
        self: &Arc<Self>,
        now: Instant,
        (datagrams, pool): (impl Iterator<Item = Datagram<'a>>, &mut BufferPool),
    ) -> Peers {
        let mut touched = Peers::new();
        let mut run: Option<(ConnectionHandle, Events)> = None;
        let mut answer = Vec::new();
        for datagram in datagrams {
            answer.clear();
            let ecn = datagram.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
            let bytes = pool.copy_of(datagram.bytes);
            let event = self.endpoint.lock().handle(now, datagram.from, None, ecn, bytes, &mut answer);
            match event {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => match &mut run {
                    Some((same, events)) if *same == handle => events.push(event),
                    _ => {
                        let before = run.replace((handle, smallvec![event]));
                        self.dispatch(before, &mut touched);
                    }
                },
                Some(DatagramEvent::NewConnection(incoming)) => {
                    // The events are dispatched before their handle can be reused for another connection.
                    self.dispatch(run.take(), &mut touched);
                    self.on_new_connection(now, incoming);
                }
                Some(DatagramEvent::Response(transmit)) => {
                    let _ = self.socket.transmit(transmit.destination, &answer[..transmit.size], None, None);
                }
                None => {}
            }
        }
        self.dispatch(run, &mut touched);
        touched
    }

    fn dispatch(self: &Arc<Self>, run: Option<(ConnectionHandle, Events)>, touched: &mut Peers) {
        let Some((handle, events)) = run else { return };
        let Some(peer) = self.peers.get(handle.0) else { return };
        peer.on_events(events);
        if !touched.iter().any(|other| Arc::ptr_eq(other, &peer)) {
            touched.push(peer);
        }
    }

    /// Handles a connection that a peer opens.
    #[cold]
    fn on_new_connection(self: &Arc<Self>, now: Instant, incoming: Incoming) {
        let mut answer = Vec::new();
        if !incoming.remote_address_validated() {
            // Address validation: no state is kept before the peer has returned the token.
            if let Ok(transmit) = self.endpoint.lock().retry(incoming, &mut answer) {
                let _ = self.socket.transmit(transmit.destination, &answer[..transmit.size], None, None);
            }
            return;
        }
        let has_room = !self.is_closing() && self.make_room(incoming.remote_address().ip(), now);
        let mut endpoint = self.endpoint.lock();
        if !has_room {
            return endpoint.ignore(incoming);
        }
        let config = self.server.get(self.address, incoming.remote_address()).clone();
        match endpoint.accept(incoming, now, &mut answer, Some(config)) {
            Ok((handle, quic)) => {
                let peer = Peer::new(self, (handle, quic), None);
                self.peers.insert(&peer);
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

    /// Makes room for one more unauthenticated peer, perhaps by evicting another one. Returns whether there is room.
    pub fn make_room(&self, from: IpAddr, now: Instant) -> bool {
        let callers = self.peers.unauthenticated();
        match unauthenticated::BOUNDS.admit(callers, unauthenticated::source(from), now) {
            Place::Free => self.peers.len() < MAX_PEERS,
            Place::Evict(number) => {
                if let Some(peer) = self.peers.get(number) {
                    peer.evict();
                }
                true
            }
            Place::Full(_) => false,
        }
    }

    /// Periodic check: gives back buffers that nobody uses.
    pub fn check_buffers(&self) {
        if let Some(mut buffers) = self.receive_buffers.try_lock() {
            buffers.check();
        }
    }

    /// Reads a bounded number of ICMP messages: anybody can send more of them.
    #[cold]
    fn read_icmp(self: &Arc<Self>) {
        let mut budget = PollBudget::once();
        while budget.take() {
            match self.socket.next_icmp() {
                Some(Some(report)) => self.on_port_unreachable(&report),
                Some(None) => {}
                None => return,
            }
        }
        self.socket.set_error_pending();
    }

    /// Handles an ICMP port unreachable message. It counts if it quotes a connection id, which an attacker off the
    /// path does not know.
    pub fn on_port_unreachable(self: &Arc<Self>, report: &PortUnreachable) {
        let peers = self.peers.at(report.to);
        peers.iter().for_each(|peer| peer.on_port_unreachable(&report.quote));
    }

    fn drive_ready(&self) {
        if self.ready_count.load(Ordering::Acquire) == 0 {
            return;
        }
        // Links that become ready meanwhile are driven the next time, so that peers that send without end do not
        // keep the caller here.
        let ready = {
            let mut ready = self.ready.lock();
            self.ready_count.store(0, Ordering::Relaxed);
            std::mem::take(&mut *ready)
        };
        for link in ready {
            link.with(|connection, driver| driver.drive(connection));
        }
    }

    /// Removes a link from the ready list: its driver runs without it.
    fn remove_ready(&self, link: &Arc<ViLink>) {
        let mut ready = self.ready.lock();
        // The link is usually the last one, or the only one.
        if let Some(at) = ready.iter().rposition(|other| Arc::ptr_eq(other, link)) {
            ready.swap_remove(at);
        }
        self.ready_count.store(ready.len(), Ordering::Release);
    }

    /// Puts a link on the ready list.
    pub fn push_ready(&self, link: &Arc<ViLink>) {
        let mut ready = self.ready.lock();
        ready.push(link.clone());
        self.ready_count.store(ready.len(), Ordering::Release);
    }

    /// Receives datagrams, for a thread that holds the lock of a link. Waits at most `timeout` for another thread
    /// that receives now. Returns whether that link was ready; the caller drives it.
    pub fn poll_for(self: &Arc<Self>, peer: &Arc<Peer>, stream: StreamId, timeout: Duration) -> bool {
        // The other thread's receive is short, and it may receive the datagram that this thread waits for.
        let now = job_time();
        let touched = self.receive_buffers.try_lock_for(timeout).and_then(|mut buffers| {
            let messages = self.socket.receive(&mut buffers).len();
            (messages > 0).then(|| self.on_datagrams(now, buffers.datagrams(messages)))
        });
        if self.timers.is_due(now) {
            self.fire_peer_timers(now);
        }
        let link = peer.ready_link(stream);
        if let Some(link) = &link {
            self.remove_ready(link);
        }
        let is_driven = |other: &&Arc<Peer>| link.is_some() && Arc::ptr_eq(other, peer);
        touched.iter().flatten().filter(|other| !is_driven(other)).for_each(Peer::flush);
        if self.ready_count.load(Ordering::Relaxed) > 0 {
            self.socket_wait.wake_helper();
        }
        link.is_some()
    }

    fn fire_timers(self: &Arc<Self>, now: Instant) {
        for number in self.timers.pop_due(now) {
            if number >= FIRST_LINK_TIMER {
                let link = self.links.read().get(&number).cloned();
                if let Some(link) = link {
                    link.with(|connection, driver| driver.drive(connection));
                }
            } else if let Some(peer) = self.peers.get(number as usize) {
                peer.on_timeout(now);
            }
        }
    }

    /// Fires the timers of connections, pacing among them, for a thread that holds a link's lock. Timers of links
    /// are left to the helper.
    #[cold]
    fn fire_peer_timers(self: &Arc<Self>, now: Instant) {
        for number in self.timers.pop_due(now) {
            if number >= FIRST_LINK_TIMER {
                self.timers.set(now, number);
                self.socket_wait.wake_helper();
            } else if let Some(peer) = self.peers.get(number as usize) {
                peer.on_timeout(now);
            }
        }
    }

    /// Arms a peer's timer, unless it is armed for an earlier time.
    pub fn set_peer_timer(&self, wanted: Option<Instant>, armed: &mut Option<Instant>, number: u64) {
        let Some(wanted) = wanted.filter(|wanted| armed.is_none_or(|armed| *wanted < armed)) else {
            return;
        };
        *armed = Some(wanted);
        if self.timers.set(wanted, number) {
            self.socket_wait.on_earlier_deadline();
        }
    }

    /// Arms a link's timer.
    pub fn set_link_timer(&self, at: Instant, link: u64) {
        if self.timers.set(at, link) {
            self.socket_wait.on_earlier_deadline();
        }
    }

    // ---- peers ----

    /// Returns the connection with the NIC of `rank` (`None`: of any process of the job) at this address, an
    /// existing or a new one.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: this process has no ticket for that rank. An error of the system for an invalid address.
    pub fn peer_for(self: &Arc<Self>, at: SocketAddr, rank: Option<u32>) -> Result<Arc<Peer>> {
        let (peer, is_new) = self.peers.usable_or_open(at, rank, || self.open_connection(at, rank))?;
        if is_new {
            peer.with(|_| {});
        }
        Ok(peer)
    }

    fn open_connection(self: &Arc<Self>, at: SocketAddr, rank: Option<u32>) -> Result<Arc<Peer>> {
        let pair = self.keys.call(rank).map_err(|error| Error::InvalidParameter(error.to_string()))?;
        let mut endpoint = self.endpoint.lock();
        let made = endpoint
            .connect(job_time(), self.client.get(self.address, at).clone(), at, tls::NAME)
            .map_err(|error| {
                Error::os(
                    format!("connecting to the process at {at}"),
                    io::Error::new(io::ErrorKind::InvalidInput, error),
                )
            })?;
        let peer = Peer::new(self, made, Some(pair));
        self.peers.insert(&peer);
        Ok(peer)
    }

    /// Limits of an authenticated peer.
    pub fn proven_limits(&self) -> TransportLimits {
        self.proven_limits
    }

    /// Removes a connection that the endpoint has forgotten.
    pub fn remove_peer(&self, peer: &Arc<Peer>) {
        if self.peers.remove(peer) {
            self.timers.remove(peer.number());
        }
    }

    /// Forgets all connections, at the end of the NIC.
    pub fn clear_peers(&self) {
        self.peers.clear();
        let rest = (std::mem::take(&mut *self.ready.lock()), std::mem::take(&mut *self.requests.lock()));
        drop(rest);
    }

    #[cold]
    pub fn report_refused(&self, from: IpAddr, why: &str) {
        let mut reported = self.reported.lock();
        if reported.len() < MAX_REPORTED && reported.insert(from) {
            say!("refused a connection from {from}: {why} (reported once per address)");
        }
    }

    // ---- links ----

    pub fn links(&self) -> Vec<Arc<ViLink>> {
        self.links.read().values().cloned().collect()
    }

    pub fn has_links(&self) -> bool {
        !self.links.read().is_empty()
    }

    /// Removes a link that has ended. The caller holds its lock, and a reference of its own.
    pub fn remove_link(&self, number: u64) {
        if let Some(order) = &self.send_order {
            order.remove(number);
        }
        let link = self.links.write().remove(&number);
        self.timers.remove(number);
        drop(link); // never the last reference; outside the lock all the same
        self.end_order();
    }

    /// Stops the thread of the send order once no link will send any more.
    fn end_order(&self) {
        if let Some(order) = self.send_order.as_ref().filter(|_| self.is_closing() && !self.has_links()) {
            order.stop();
        }
    }

    /// Makes the link of a VI's connection on which both sides have agreed.
    pub fn new_link(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        stream: StreamId,
        (ours, theirs): (&Hello, &Hello),
        side: Side,
    ) -> Arc<ViLink> {
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
        let driver = StreamDriver::new(self.clone(), (number, peer.clone(), stream), unreliable);
        let link = Link::new(connection, driver);
        self.links.write().insert(number, link.clone());
        link
    }

    /// Makes the endpoint of a link; `slots` are its places in completion queues.
    pub fn vi_endpoint(&self, link: Arc<ViLink>, slots: Slots, queues: &Queues<'_>) -> Box<dyn ViEndpoint> {
        // Links that are made later are failed by `fail`.
        if let Some(why) = self.listeners.failure() {
            link.with(|connection, driver| driver.fail(connection, why));
        }
        link.with(|_, driver| driver.order_by(queues.level));
        let Slots { send, receive } = slots;
        let context = queues.context;
        send.occupy(Ready { context, queue: Queue::Send }, link.clone(), ());
        receive.occupy(Ready { context, queue: Queue::Receive }, link.clone(), ());
        let (send, receive, reporter) = (Arc::new(send), Arc::new(receive), queues.reporter.clone());
        Box::new(SessionEndpoint::new(link, Watch { send, receive, reporter }))
    }

    // ---- completion queues and requests ----

    /// Returns the number of polls of all completion queues so far, approximately, and whether one of them is armed.
    pub fn activity(&self) -> (u64, bool) {
        self.completion_queues.fold((0, false), |(looks, armed), cq| {
            (looks.wrapping_add(cq.poll_count()), armed || cq.sleeps() == Sleep::Armed)
        })
    }

    /// Queues a request for the helper thread, because a listener's handler may block.
    pub fn push_request(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        stream: StreamId,
        rank: Option<u32>,
        request: Request,
    ) {
        let request = IncomingRequest::new(self.clone(), peer.clone(), stream, rank, request);
        self.requests.lock().push_back(Box::new(request));
        self.socket_wait.wake_helper();
    }

    pub fn pop_request(&self) -> Option<Box<IncomingRequest>> {
        self.requests.lock().pop_front()
    }

    /// Closes the NIC: its last object was dropped.
    pub fn shut(&self) {
        self.closing.store(true, Ordering::Release);
        self.listeners.clear();
        self.end_order();
        self.socket_wait.wake_helper();
    }

    /// Fails the NIC: its helper thread has panicked.
    pub fn fail(self: &Arc<Self>, thread: &str, why: &str) {
        let why = self.listeners.fail(thread, why);
        let requests = std::mem::take(&mut *self.requests.lock());
        thread::attempt(|| drop(requests));
        for link in self.links() {
            thread::attempt(|| link.with(|connection, driver| driver.fail(connection, &why)));
        }
        for peer in self.peers.all() {
            thread::attempt(|| peer.shutdown(ConnectionStatus::Lost(why.clone())));
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

impl Ordered for Core {
    type Buffer = SendMeter;

    fn send_order(&self) -> Option<&SendOrder<SendMeter>> {
        self.send_order.as_ref()
    }

    fn take_turn(&self, link: u64, bytes: usize) {
        let link = self.links.read().get(&link).cloned();
        if let Some(link) = link {
            link.with(|connection, driver| driver.take_turn(connection, bytes));
        }
    }

    fn fail(self: &Arc<Self>, thread: &str, why: &str) {
        Core::fail(self, thread, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{End, connect, open, works};

    /// A thread that waits for its own link removes it from the list. Links that stay there would wake the helper
    /// for nothing.
    #[test]
    fn a_link_that_is_driven_by_its_own_thread_does_not_stay_on_the_ready_list() {
        let ((core_a, a), (core_b, b)) = (open(), open());
        let (mut a, mut b) = (End::new(&a, Reliability::Delivery), End::new(&b, Reliability::Delivery));
        connect(&mut a, &mut b);
        // No other thread drives links of this NIC meanwhile.
        let _helper_waits = core_b.progress_lock.lock();
        (0..10).for_each(|_| works(&mut a, &mut b));
        let count = core_b.ready.lock().len();
        assert!(count <= 1, "{count} entries for one link");
        assert_eq!(core_b.ready_count.load(Ordering::Relaxed), count);
        drop(core_a);
    }
}
