//! A QUIC connection with another NIC, and its streams: one for control, and one for each VI.
//!
//! A NIC uses an established connection whichever side opened it. [`State`] is behind one lock. This lock is taken
//! after the lock of a VI's link, and before the endpoint's. News for links goes on the ready list under this lock
//! ([`crate::core::Core::push_ready`]); a thread that holds no link's lock drives them afterwards.
//!
//! | file | what it is |
//! |---|---|
//! | `handshake` | both sides authenticate |
//! | `streams` | requests, answers, and the bytes of VIs |
//! | `events` | the events of QUIC: new streams, readable and writable ones, the end |
//! | `transmit` | sends packets, and arms the connection's timer |

mod events;
mod handshake;
mod streams;
mod transmit;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use quinn_proto::{Connection, ConnectionEvent, ConnectionHandle, EndpointEvent, StreamId, VarInt};
use rustix::io::Errno;
use udeck_session::poll::Bell;
use udeck_sys::job_time;
use udeck_via::auth::Pair;

use crate::buffer_pool::BufferPool;
use crate::core::{Core, ViLink};
use crate::liveness::{LivenessProbe, find_socket};
use crate::path_mtu;
use crate::peer_table::Entry;
use crate::send_meter::SendMeter;
use crate::unauthenticated;
use crate::wire::{CloseReason, Process};
pub use handshake::ConnectionStatus;
#[cfg(test)]
pub use handshake::{CLIENT, SERVER, proof_context};
pub use streams::{PendingRequest, ReadEnd, RequestOutcome, Stream};

/// How long a connection without VIs is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A QUIC connection with another NIC.
pub struct Peer {
    pub core: Arc<Core>,
    pub handle: ConnectionHandle,
    pub at: SocketAddr,
    /// Whether this side opened the connection (QUIC's client).
    pub is_client: bool,
    pub created: Instant,
    /// Meter of bytes in flight and unsent; `None` where levels have no shares.
    pub meter: Option<Arc<SendMeter>>,
    /// Both sides have authenticated.
    is_established: AtomicBool,
    /// The connection is closed or lost.
    is_over: AtomicBool,
    state: Mutex<State>,
}

/// State of the connection, behind its lock.
pub struct State {
    pub quic: Connection,
    pub status: ConnectionStatus,
    /// The ranks of caller and callee, and the key that they share. On the server's side it is known once the client
    /// has claimed its rank.
    pub pair: Option<Pair>,
    pub streams: HashMap<StreamId, Stream>,
    /// Rest of a request or answer that flow control has blocked, by stream. It precedes all other bytes of its stream.
    unsent: HashMap<StreamId, Vec<u8>>,
    /// Eventfds that are rung when the handshake succeeds or fails, and when a stream can be opened.
    waiters: Vec<Arc<Bell>>,
    control: ControlStream,
    transmit: transmit::Transmitter,
    /// Buffers in which bytes to write are gathered.
    pub gathered: BufferPool,
    liveness: LivenessProbe,
    received: Received,
    /// The endpoint has forgotten the connection.
    forgotten: bool,
    /// Since when the connection has no streams.
    idle_since: Option<Instant>,
}

/// State of the control stream.
struct ControlStream {
    stream: Option<StreamId>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

/// Time and count of the peer's last frames.
struct Received {
    /// Number of frames received by then.
    frames: u64,
    last: Instant,
    /// Start of the peer's silence: `last`, or when it was last found alive.
    silent_since: Instant,
}

impl State {
    /// Rings `bell` once, at the next change.
    pub fn notify(&mut self, bell: &Arc<Bell>) {
        if !self.waiters.iter().any(|other| Arc::ptr_eq(other, bell)) {
            self.waiters.push(bell.clone());
        }
    }

    /// Whether a connection request of this side waits for this connection.
    fn is_awaited(&mut self) -> bool {
        self.waiters.retain(|bell| Arc::strong_count(bell) > 1);
        !self.waiters.is_empty()
    }

    /// When the peer last sent something, as of the helper's last check.
    pub fn last_received(&self) -> Instant {
        self.received.last
    }

    /// State of sending.
    pub fn transmit(&mut self) -> &mut transmit::Transmitter {
        &mut self.transmit
    }
}

impl Entry for Peer {
    fn handle(&self) -> usize {
        self.handle.0
    }

    fn remote(&self) -> SocketAddr {
        self.at
    }

    fn is_client(&self) -> bool {
        self.is_client
    }

    fn created(&self) -> Instant {
        self.created
    }

    fn is_unauthenticated(&self) -> bool {
        self.is_unauthenticated()
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }
}

impl Peer {
    /// Makes the object of a connection. `pair` is given if this side opens it.
    pub fn new(
        core: &Arc<Core>,
        (handle, quic): (ConnectionHandle, Connection),
        pair: Option<Pair>,
    ) -> Arc<Self> {
        let now = job_time();
        let at = quic.remote_address();
        let is_client = pair.is_some();
        let meter = core.send_order.as_ref().and_then(|_| SendMeter::of(&quic));
        let state = State {
            quic,
            status: ConnectionStatus::Handshaking,
            pair,
            streams: HashMap::new(),
            unsent: HashMap::new(),
            waiters: Vec::new(),
            control: ControlStream { stream: None, incoming: Vec::new(), outgoing: Vec::new() },
            transmit: transmit::Transmitter::default(),
            gathered: BufferPool::new(),
            liveness: LivenessProbe::default(),
            received: Received { frames: 0, last: now, silent_since: now },
            forgotten: false,
            idle_since: None,
        };
        let (is_established, is_over, state) =
            (AtomicBool::new(false), AtomicBool::new(false), Mutex::new(state));
        Arc::new(Peer {
            core: core.clone(),
            handle,
            at,
            is_client,
            created: now,
            meter,
            is_established,
            is_over,
            state,
        })
    }

    /// Whether the connection is closed or lost.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether the peer opened the connection and has not authenticated itself yet.
    pub fn is_unauthenticated(&self) -> bool {
        !self.is_client && !self.is_established()
    }

    /// Whether both sides have authenticated.
    pub fn is_established(&self) -> bool {
        self.is_established.load(Ordering::Acquire)
    }

    /// The link of a VI's stream, if it is on the ready list.
    pub fn ready_link(&self, stream: StreamId) -> Option<Arc<ViLink>> {
        match self.lock().streams.get(&stream) {
            Some(Stream::Vi(flow)) if flow.is_queued => Some(flow.link.clone()),
            _ => None,
        }
    }

    /// Processes received packets. The caller drives the links and then calls [`Peer::flush`].
    pub fn on_events(self: &Arc<Self>, events: impl IntoIterator<Item = ConnectionEvent>) {
        let mut state = self.lock();
        events.into_iter().for_each(|event| state.quic.handle_event(event));
        self.process_events(&mut state);
    }

    /// Transmits the packets that QUIC has to send.
    pub fn flush(self: &Arc<Self>) {
        self.transmit(&mut self.lock(), job_time());
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs `work` under the lock, then [`Peer::drive`].
    pub fn with<R>(self: &Arc<Self>, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        self.drive(&mut state);
        result
    }

    /// Processes QUIC's events and transmits. This is the last step of all work under the lock.
    pub fn drive(self: &Arc<Self>, state: &mut State) {
        let now = job_time();
        self.process_events(state);
        self.transmit(state, now);
    }

    /// Handles the connection's timer, which has fired.
    pub fn on_timeout(self: &Arc<Self>, now: Instant) {
        let mut state = self.lock();
        state.transmit.timer = None;
        if self.is_unauthenticated() && now.duration_since(self.created) >= unauthenticated::BOUNDS.limit {
            return self.evict_locked(&mut state);
        }
        if state.quic.poll_timeout().is_some_and(|due| due <= now) {
            state.quic.handle_timeout(now);
        }
        self.process_events(&mut state);
        self.transmit(&mut state, now);
    }

    /// Rank that the other side has proved to be.
    pub fn rank(&self, state: &State) -> Option<u32> {
        let pair = state.pair.as_ref()?;
        if self.is_client { pair.callee() } else { pair.caller() }
    }

    /// Closes the connection: the peer gets `close`, its users here get `why`.
    pub fn close(self: &Arc<Self>, state: &mut State, close: CloseReason, why: ConnectionStatus) {
        state.quic.close(job_time(), VarInt::from_u32(close.code()), bytes::Bytes::new());
        self.terminate(state, why);
    }

    /// Closes the connection and forgets it at once, unless the peer has authenticated itself meanwhile.
    pub fn evict(self: &Arc<Self>) {
        let mut state = self.lock();
        if self.is_unauthenticated() {
            self.evict_locked(&mut state);
        }
    }

    fn evict_locked(self: &Arc<Self>, state: &mut State) {
        self.close(state, CloseReason::Done, ConnectionStatus::Closed);
        self.transmit(state, job_time());
        if !std::mem::replace(&mut state.forgotten, true) {
            self.core.remove_peer(self);
            let _ = self.core.endpoint.lock().handle_event(self.handle, EndpointEvent::drained());
        }
    }

    /// Arms the connection's timer: for QUIC's timeout, or the end of the handshake's time.
    fn set_timer(&self, state: &mut State, wanted: Option<Instant>) {
        if !state.forgotten {
            let proof = self.is_unauthenticated().then(|| self.created + unauthenticated::BOUNDS.limit);
            let wanted = wanted.into_iter().chain(proof).min();
            self.core.set_peer_timer(wanted, &mut state.transmit.timer, self.number());
        }
    }

    /// Ends the connection, and tells all its users why.
    fn terminate(self: &Arc<Self>, state: &mut State, why: ConnectionStatus) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        state.status = why;
        self.core.peers.remove_usable(self, self.rank(state));
        // VIs keep this object until the program closes them. Only their streams stay in it.
        state.streams.retain(|_, stream| stream.end(&self.core, &state.status));
        state.waiters.drain(..).for_each(|bell| bell.ring());
    }

    /// Periodic check by the helper: silence, abandoned handshakes, idle connections.
    pub fn check(self: &Arc<Self>, now: Instant, detect: Duration) {
        let mut state = self.lock();
        state.gathered.check();
        if matches!(state.status, ConnectionStatus::Established) {
            self.check_silence(&mut state, now, detect);
        } else if self.is_client
            && now.duration_since(self.created) >= unauthenticated::BOUNDS.limit
            && !state.is_awaited()
        {
            self.close(&mut state, CloseReason::Done, ConnectionStatus::Closed);
        }
        if state.streams.is_empty() && matches!(state.status, ConnectionStatus::Established) {
            let since = *state.idle_since.get_or_insert(now);
            if now.duration_since(since) >= IDLE_TIMEOUT {
                self.close(&mut state, CloseReason::Done, ConnectionStatus::Closed);
            }
        } else {
            state.idle_since = None;
        }
        self.drive(&mut state);
    }

    /// Checks whether the peer answers keep-alives.
    fn check_silence(self: &Arc<Self>, state: &mut State, now: Instant, detect: Duration) {
        let frames = state.quic.stats().frame_rx;
        let count = frames.acks + frames.ping + frames.stream + frames.datagram;
        if count != state.received.frames {
            state.received = Received { frames: count, last: now, silent_since: now };
            state.liveness.on_received();
        }
        if now.duration_since(state.received.silent_since) < detect {
            return;
        }
        if state.liveness.is_alive(find_socket(self.at)) {
            state.received.silent_since = now;
            return;
        }
        let seconds = detect.as_secs();
        let failed = state.transmit.failure.as_ref().and_then(Errno::from_io_error);
        let advice = if matches!(failed, Some(Errno::MSGSIZE | Errno::NOBUFS)) {
            path_mtu::advice(self.core.address.ip(), self.at)
        } else {
            String::new()
        };
        let why = format!("nothing was heard of {} for {seconds} seconds{advice}", self.at);
        self.close(state, CloseReason::Done, ConnectionStatus::Lost(why));
    }

    /// Handles an ICMP message that says that the peer's port is closed. `quote` is the beginning of the datagram
    /// that it answers.
    pub fn on_port_unreachable(self: &Arc<Self>, quote: &[u8]) {
        let mut state = self.lock();
        if state.transmit.has_sent(quote) {
            let why = match state.status {
                ConnectionStatus::Handshaking => ConnectionStatus::PortUnreachable,
                _ => ConnectionStatus::Lost(format!(
                    "the process at {} has died, or closed its NIC by force: no socket is bound there",
                    self.at
                )),
            };
            self.close(&mut state, CloseReason::Done, why);
            self.drive(&mut state);
        }
    }

    /// Closes the connection: the NIC is closed or has failed.
    pub fn shutdown(self: &Arc<Self>, why: ConnectionStatus) {
        let mut state = self.lock();
        self.close(&mut state, CloseReason::Done, why);
        self.drive(&mut state);
    }

    /// Starts the liveness probe with the process that the peer has sent.
    fn start_liveness(&self, state: &mut State, theirs: Process) {
        state.liveness = LivenessProbe::new(self.core.process, theirs);
        state.received.silent_since = job_time();
    }
}

#[cfg(test)]
mod tests {
    use udeck_via::Reliability;
    use udeck_via::transport::Hello;

    use super::*;
    use crate::fixture::{End, connect, open, works};
    use crate::wire::ControlMessage;

    type Ends = [(Arc<Core>, End); 2];

    /// Returns two connected ends, and each side's object of their connection.
    fn pair() -> (Ends, [Arc<Peer>; 2]) {
        let ((core_a, a), (core_b, b)) = (open(), open());
        let (mut a, mut b) = (End::new(&a, Reliability::Delivery), End::new(&b, Reliability::Delivery));
        connect(&mut a, &mut b);
        works(&mut a, &mut b);
        let peers = [&core_a, &core_b].map(|core| core.peers.all()[0].clone());
        ([(core_a, a), (core_b, b)], peers)
    }

    /// One VI uses all that flow control allows while another one connects: neither the request nor the answer is lost.
    #[test]
    fn what_flow_control_holds_up_of_a_connect_goes_later() {
        for held_up in [0, 1] {
            let (ends, peers) = pair();
            let window = 1 << 20;
            peers[held_up].with(|state| state.quic.set_send_window(0));
            let freed = peers[held_up].clone();
            let free = std::thread::spawn(move || {
                // The window opens for a few bytes first, once bytes wait to be sent, so that they go in parts.
                while freed.with(|state| state.unsent.is_empty()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                freed.with(|state| state.quic.set_send_window(5));
                std::thread::sleep(Duration::from_millis(20));
                freed.with(|state| state.quic.set_send_window(window));
            });
            let [mut left, mut right] = [0, 1].map(|side| End::new(&ends[side].1.nic, Reliability::Delivery));
            connect(&mut left, &mut right);
            free.join().unwrap();
            works(&mut left, &mut right);
            works(&mut right, &mut left);
        }
    }

    /// The peer was ignored until the token of its Retry had expired: it calls again.
    #[test]
    fn whoever_was_ignored_for_long_is_not_lost() {
        let (_ends, [a, _b]) = pair();
        let (error_code, reason) = (quinn_proto::TransportErrorCode::INVALID_TOKEN, bytes::Bytes::new());
        let close = quinn_proto::ConnectionClose { error_code, frame_type: None, reason };
        let standing = a.status_of(&a.lock(), &quinn_proto::ConnectionError::ConnectionClosed(close));
        assert!(matches!(standing, ConnectionStatus::Closed), "{standing:?}");
    }

    #[test]
    fn nothing_more_is_read_of_who_speaks_another_version() {
        let (ends, [a, b]) = pair();
        b.lock().status = ConnectionStatus::VersionMismatch(None);
        a.with(|state| a.send_control(state, &[0; 10_000]));
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            ends.iter().for_each(|(core, _)| _ = core.progress());
            assert!(b.lock().control.incoming.is_empty());
        }
    }

    /// Adds a request of this side that is never answered.
    fn calling(state: &mut State) -> (StreamId, Arc<PendingRequest>) {
        let ours = Hello {
            reliability: Reliability::Delivery,
            writable_ptag: None,
            readable_ptag: None,
            private_data: Vec::new(),
        };
        let bell = Arc::new(Bell::new().unwrap());
        let call =
            Arc::new(PendingRequest { ours, outcome: Mutex::default(), confirm_at: Mutex::default(), bell });
        let stream = StreamId::new(quinn_proto::Side::Client, quinn_proto::Dir::Bi, 77);
        state.streams.insert(stream, Stream::Outgoing(call.clone(), Vec::new()));
        (stream, call)
    }

    /// VIs of a process that has died may keep the connection for long, but not the requests that were pending.
    #[test]
    fn nothing_is_kept_of_a_request_that_the_end_of_the_connection_has_answered() {
        let (ends, [a, _b]) = pair();
        let (_, call) = calling(&mut a.lock());
        a.shutdown(ConnectionStatus::Lost("it has died".into()));
        assert!(matches!(call.outcome.lock().take(), Some(RequestOutcome::Ended(ConnectionStatus::Lost(_)))));
        assert_eq!(Arc::strong_count(&call), 1, "and with it a descriptor");
        drop(ends);
    }

    #[test]
    fn what_lies_behind_an_answer_that_has_not_come_is_not_confirmed() {
        let (_ends, [a, _b]) = pair();
        let mut state = a.lock();
        let (stream, call) = calling(&mut state);
        let sent = |state: &State| state.quic.stats().frame_tx.stream + state.control.outgoing.len() as u64;
        let before = sent(&state);
        a.on_control_message(&mut state, ControlMessage::Confirm { stream: stream.into(), offset: 500 });
        assert_eq!((*call.confirm_at.lock(), sent(&state)), (Some(500), before));
    }

    #[test]
    fn datagrams_of_a_reliable_vi_are_not_kept() {
        let (_ends, [a, _b]) = pair();
        let mut state = a.lock();
        let flow = state.streams.values_mut().find_map(|stream| match stream {
            Stream::Vi(flow) => Some(flow),
            _ => None,
        });
        let flow = flow.expect("its VI");
        assert!(!flow.add(&a.core, bytes::Bytes::from_static(b"anything")));
        assert!(flow.datagrams.is_empty());
    }
}
