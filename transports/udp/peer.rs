//! A QUIC connection with another NIC, and the streams in it: one for control, and one for each VI.
//!
//! Both sides may have called: a NIC uses a connection that stands, whoever called. [`State`] lies behind one lock, which is
//! taken after that of a VI's link and before that of the endpoint. What comes for links is noted under it
//! ([`crate::core::Core::note_ready`]) and given to them afterwards, by whoever holds no link's lock.
//!
//! | file | what it is |
//! |---|---|
//! | `handshake` | both sides prove who they are |
//! | `streams` | requests, answers, and the bytes of VIs |
//! | `events` | what QUIC tells: new streams, what can be read and written, the end |
//! | `transmit` | packets to the socket, and when to be called |

mod events;
mod handshake;
mod streams;
mod transmit;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use parking_lot::{Mutex, MutexGuard};
use quinn_proto::{Connection, ConnectionEvent, ConnectionHandle, EndpointEvent, StreamId, VarInt};
use udeck_session::poll::Bell;
use udeck_sys::job_time;
use udeck_via::auth::Pair;

use crate::core::Core;
use crate::neighbours::{Vigil, socket_at};
use crate::unproven;
use crate::wire::{Close, Process};
pub use handshake::Standing;
#[cfg(test)]
pub use handshake::{CALLEE, CALLER, said};
pub use streams::{Call, Outcome, Read, Stream};

/// How long a connection without VIs is kept for the next one.
const LINGER: Duration = Duration::from_secs(10);

/// See the module.
pub struct Peer {
    pub core: Arc<Core>,
    pub handle: ConnectionHandle,
    pub at: SocketAddr,
    /// Whether this side has called.
    pub called: bool,
    /// When it began.
    pub since: Instant,
    /// Both sides have proved who they are.
    stands: AtomicBool,
    /// It cannot be used any more.
    over: AtomicBool,
    state: Mutex<State>,
}

/// Under the lock.
pub struct State {
    pub quic: Connection,
    pub standing: Standing,
    /// Who calls whom, and what both know; of a connection that was called, as soon as the caller has said it.
    pub pair: Option<Pair>,
    pub streams: HashMap<StreamId, Stream>,
    /// Requests and answers that flow control has held up: what is left of each goes before anything else of its stream.
    unsent: HashMap<StreamId, Vec<u8>>,
    /// Rung when it stands, or does not come to stand, and when a stream can be opened.
    bells: Vec<Arc<Bell>>,
    control: Control,
    transmit: transmit::Transmit,
    /// Where what is written is gathered.
    pub gathered: BytesMut,
    vigil: Vigil,
    heard: Heard,
    /// The endpoint knows nothing of it any more.
    forgotten: bool,
    /// Since when it has no streams.
    idle_since: Option<Instant>,
}

/// What is said on the control stream.
struct Control {
    stream: Option<StreamId>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

/// When the peer was heard last.
struct Heard {
    /// Frames that had come then.
    frames: u64,
    last: Instant,
    /// Its silence counts from here: from then, or from when it was last found stopped.
    at: Instant,
}

impl State {
    /// `bell` is rung once when something changes for who waits.
    pub fn notify(&mut self, bell: &Arc<Bell>) {
        if !self.bells.iter().any(|other| Arc::ptr_eq(other, bell)) {
            self.bells.push(bell.clone());
        }
    }

    /// Whether somebody of this side waits for it.
    fn is_awaited(&mut self) -> bool {
        self.bells.retain(|bell| Arc::strong_count(bell) > 1);
        !self.bells.is_empty()
    }

    /// When something was last heard of the other side, as far as the helper has looked.
    pub fn last_heard(&self) -> Instant {
        self.heard.last
    }

    /// What is being sent.
    pub fn transmit(&mut self) -> &mut transmit::Transmit {
        &mut self.transmit
    }
}

impl Peer {
    /// `pair`: of a connection that this side has called for.
    pub fn new(
        core: &Arc<Core>,
        (handle, quic): (ConnectionHandle, Connection),
        pair: Option<Pair>,
    ) -> Arc<Self> {
        let now = job_time();
        let at = quic.remote_address();
        let called = pair.is_some();
        let state = State {
            quic,
            standing: Standing::Shaking,
            pair,
            streams: HashMap::new(),
            unsent: HashMap::new(),
            bells: Vec::new(),
            control: Control { stream: None, incoming: Vec::new(), outgoing: Vec::new() },
            transmit: transmit::Transmit::default(),
            gathered: BytesMut::new(),
            vigil: Vigil::default(),
            heard: Heard { frames: 0, last: now, at: now },
            forgotten: false,
            idle_since: None,
        };
        let (stands, over, state) = (AtomicBool::new(false), AtomicBool::new(false), Mutex::new(state));
        Arc::new(Peer { core: core.clone(), handle, at, called, since: now, stands, over, state })
    }

    /// Whether it cannot be used any more.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether both sides have proved who they are.
    pub fn stands(&self) -> bool {
        self.stands.load(Ordering::Acquire)
    }

    /// Whether it has called and not proved yet who it is.
    pub fn is_unproven(&self) -> bool {
        !self.called && !self.stands()
    }

    /// Whether a VI's stream is noted as having something to take.
    pub fn is_listed(&self, stream: StreamId) -> bool {
        matches!(self.lock().streams.get(&stream), Some(Stream::Linked(flow)) if flow.listed)
    }

    /// Takes in what came for it. [`Peer::flush`] when it has been served.
    pub fn take(self: &Arc<Self>, events: impl IntoIterator<Item = ConnectionEvent>) {
        let mut state = self.lock();
        events.into_iter().for_each(|event| state.quic.handle_event(event));
        self.take_events(&mut state);
    }

    /// Sends what there is to send.
    pub fn flush(self: &Arc<Self>) {
        self.send(&mut self.lock(), job_time());
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Works under the lock, and sends what there is to send.
    pub fn with<R>(self: &Arc<Self>, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        self.settle(&mut state);
        result
    }

    /// Whoever works under the lock does this at the end: takes in what QUIC tells, and sends.
    pub fn settle(self: &Arc<Self>, state: &mut State) {
        let now = job_time();
        self.take_events(state);
        self.send(state, now);
    }

    /// The time that it asked for has come.
    pub fn time(self: &Arc<Self>, now: Instant) {
        let mut state = self.lock();
        state.transmit.called = None;
        if self.is_unproven() && now.duration_since(self.since) >= unproven::LIMIT {
            return self.dismiss_locked(&mut state);
        }
        if state.quic.poll_timeout().is_some_and(|due| due <= now) {
            state.quic.handle_timeout(now);
        }
        self.take_events(&mut state);
        self.send(&mut state, now);
    }

    /// The rank that the other side has proved to be.
    pub fn rank(&self, state: &State) -> Option<u32> {
        let pair = state.pair.as_ref()?;
        if self.called { pair.callee() } else { pair.caller() }
    }

    /// Ends the connection: the other side is told `close`, and whoever works with it here `why`.
    pub fn close(self: &Arc<Self>, state: &mut State, close: Close, why: Standing) {
        state.quic.close(job_time(), VarInt::from_u32(close.code()), bytes::Bytes::new());
        self.end(state, why);
    }

    /// Ends it at once, if it has not proved meanwhile who it is. The other side is told, and nothing of it is kept.
    pub fn dismiss(self: &Arc<Self>) {
        let mut state = self.lock();
        if self.is_unproven() {
            self.dismiss_locked(&mut state);
        }
    }

    fn dismiss_locked(self: &Arc<Self>, state: &mut State) {
        self.close(state, Close::Done, Standing::Closed);
        self.send(state, job_time());
        if !std::mem::replace(&mut state.forgotten, true) {
            self.core.forget_peer(self);
            let _ = self.core.endpoint.lock().handle_event(self.handle, EndpointEvent::drained());
        }
    }

    /// Asks the NIC to call it when QUIC wants that, or when it has to have proved who it is.
    fn call_in_time(&self, state: &mut State, wanted: Option<Instant>) {
        if !state.forgotten {
            let proof = self.is_unproven().then(|| self.since + unproven::LIMIT);
            let wanted = wanted.into_iter().chain(proof).min();
            self.core.note_due(wanted, &mut state.transmit.called, self.number());
        }
    }

    /// It cannot be used any more: everybody is told.
    fn end(self: &Arc<Self>, state: &mut State, why: Standing) {
        if self.over.swap(true, Ordering::AcqRel) {
            return;
        }
        state.standing = why;
        self.core.forget_peer_at(self, self.rank(state));
        // VIs keep the connection until the program closes them, perhaps for long: nothing else is to stay in it.
        state.streams.retain(|_, stream| stream.end(&self.core, &state.standing));
        state.bells.drain(..).for_each(|bell| bell.ring());
    }

    /// The helper's look at what no packet tells of.
    pub fn check(self: &Arc<Self>, now: Instant, detect: Duration) {
        let mut state = self.lock();
        if matches!(state.standing, Standing::Stands) {
            self.check_silence(&mut state, now, detect);
        } else if self.called && now.duration_since(self.since) >= unproven::LIMIT && !state.is_awaited() {
            self.close(&mut state, Close::Done, Standing::Closed);
        }
        if state.streams.is_empty() && matches!(state.standing, Standing::Stands) {
            let since = *state.idle_since.get_or_insert(now);
            if now.duration_since(since) >= LINGER {
                self.close(&mut state, Close::Done, Standing::Closed);
            }
        } else {
            state.idle_since = None;
        }
        self.settle(&mut state);
    }

    /// Whether the peer answers what keeps the connection alive.
    fn check_silence(self: &Arc<Self>, state: &mut State, now: Instant, detect: Duration) {
        let frames = state.quic.stats().frame_rx;
        let heard = frames.acks + frames.ping + frames.stream + frames.datagram;
        if heard != state.heard.frames {
            state.heard = Heard { frames: heard, last: now, at: now };
            state.vigil.heard();
        }
        if now.duration_since(state.heard.at) < detect {
            return;
        }
        if state.vigil.excuses(socket_at(self.at)) {
            state.heard.at = now;
            return;
        }
        let seconds = detect.as_secs();
        let why = format!("nothing was heard of {} for {seconds} seconds", self.at);
        self.close(state, Close::Done, Standing::Lost(why));
    }

    /// The network says that nobody is at its port. `quote`: how a datagram began that was sent there.
    pub fn nobody_there(self: &Arc<Self>, quote: &[u8]) {
        let mut state = self.lock();
        if state.transmit.has_sent(quote) {
            let why = match state.standing {
                Standing::Shaking => Standing::Nobody,
                _ => Standing::Lost(format!(
                    "the process at {} has died, or closed its NIC by force: nobody is there",
                    self.at
                )),
            };
            self.close(&mut state, Close::Done, why);
            self.settle(&mut state);
        }
    }

    /// The NIC is closed, or has failed.
    pub fn shut(self: &Arc<Self>, why: Standing) {
        let mut state = self.lock();
        self.close(&mut state, Close::Done, why);
        self.settle(&mut state);
    }

    /// Which process the other side says it is.
    fn watch_over(&self, state: &mut State, theirs: Process) {
        state.vigil = Vigil::over(self.core.process, theirs);
        state.heard.at = job_time();
    }
}

#[cfg(test)]
mod tests {
    use udeck_via::Reliability;
    use udeck_via::transport::Hello;

    use super::*;
    use crate::fixture::{End, connect, open, works};
    use crate::wire::Control;

    type Ends = [(Arc<Core>, End); 2];

    /// Two connected ends, and the connection as each side has it.
    fn pair() -> (Ends, [Arc<Peer>; 2]) {
        let ((core_a, a), (core_b, b)) = (open(), open());
        let (mut a, mut b) = (End::new(&a, Reliability::Delivery), End::new(&b, Reliability::Delivery));
        connect(&mut a, &mut b);
        works(&mut a, &mut b);
        let peers = [&core_a, &core_b].map(|core| core.peers()[0].clone());
        ([(core_a, a), (core_b, b)], peers)
    }

    /// One VI may use all that flow control allows, while another one connects: neither the request nor the answer is lost.
    #[test]
    fn what_flow_control_holds_up_of_a_connect_goes_later() {
        for held_up in [0, 1] {
            let (ends, peers) = pair();
            let window = 1 << 20;
            peers[held_up].with(|state| state.quic.set_send_window(0));
            let freed = peers[held_up].clone();
            let free = std::thread::spawn(move || {
                // Until something waits to be sent: a few bytes first, so that it goes in parts.
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

    /// It was ignored for so long that the token of its Retry became too old: it calls again.
    #[test]
    fn whoever_was_ignored_for_long_is_not_lost() {
        let (_ends, [a, _b]) = pair();
        let (error_code, reason) = (quinn_proto::TransportErrorCode::INVALID_TOKEN, bytes::Bytes::new());
        let close = quinn_proto::ConnectionClose { error_code, frame_type: None, reason };
        let standing = a.broken(&a.lock(), &quinn_proto::ConnectionError::ConnectionClosed(close));
        assert!(matches!(standing, Standing::Closed), "{standing:?}");
    }

    #[test]
    fn nothing_more_is_read_of_who_speaks_another_version() {
        let (ends, [a, b]) = pair();
        b.lock().standing = Standing::OtherVersion(None);
        a.with(|state| a.say(state, &[0; 10_000]));
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            ends.iter().for_each(|(core, _)| _ = core.serve());
            assert!(b.lock().control.incoming.is_empty());
        }
    }

    /// A request of this side's that is never answered.
    fn calling(state: &mut State) -> (StreamId, Arc<Call>) {
        let ours = Hello {
            reliability: Reliability::Delivery,
            writable_ptag: None,
            readable_ptag: None,
            private_data: Vec::new(),
        };
        let bell = Arc::new(Bell::new().unwrap());
        let call = Arc::new(Call { ours, outcome: Mutex::default(), asked: Mutex::default(), bell });
        let stream = StreamId::new(quinn_proto::Side::Client, quinn_proto::Dir::Bi, 77);
        state.streams.insert(stream, Stream::Calling(call.clone(), Vec::new()));
        (stream, call)
    }

    /// VIs of a process that has died keep the connection, perhaps for long; not what called meanwhile.
    #[test]
    fn nothing_is_kept_of_a_request_that_the_end_of_the_connection_has_answered() {
        let (ends, [a, _b]) = pair();
        let (_, call) = calling(&mut a.lock());
        a.shut(Standing::Lost("it has died".into()));
        assert!(matches!(call.outcome.lock().take(), Some(Outcome::Ended(Standing::Lost(_)))));
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
        a.hear_about(&mut state, Control::Confirm { stream: stream.into(), offset: 500 });
        assert_eq!((*call.asked.lock(), sent(&state)), (Some(500), before));
    }

    #[test]
    fn datagrams_of_a_reliable_vi_are_not_kept() {
        let (_ends, [a, _b]) = pair();
        let mut state = a.lock();
        let flow = state.streams.values_mut().find_map(|stream| match stream {
            Stream::Linked(flow) => Some(flow),
            _ => None,
        });
        let flow = flow.expect("its VI");
        assert!(!flow.add(&a.core, bytes::Bytes::from_static(b"anything")));
        assert!(flow.datagrams.is_empty());
    }
}
