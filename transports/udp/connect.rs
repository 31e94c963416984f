//! Connecting side of a connection request. It runs on the calling thread, which waits until its deadline at most.
//! The thread that reads the socket handles the answer, so that the frames behind the answer find their link.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quinn_proto::StreamId;
use rustix::io::Errno;
use udeck_session::address;
use udeck_session::admission::wire::{Request, fits};
use udeck_session::poll::Bell;
use udeck_sys::{advise_route, job_time};
use udeck_via::transport::{Connected, Hello, Queues};
use udeck_via::{Deadline, Error, NetAddress, RejectKind, Rejection, Result, Until};

use crate::completion_queue::take_slots;
use crate::core::Core;
use crate::path_mtu;
use crate::peer::{ConnectionStatus, Peer, PendingRequest, RequestOutcome};
use crate::peer_table::prefers_incoming;
use crate::wire::OURS;

/// Upper bound of the time between two polls of a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a connection request waits for a connection that the peer is opening at the same time.
const SIMULTANEOUS_OPEN: Duration = Duration::from_millis(500);
/// Upper bound of repeated requests. An established connection may belong to a process that has ended; then the
/// request is repeated over a new connection.
const MAX_RECONNECTS: usize = 1;

/// Sends a connection request and waits for its answer.
///
/// # Errors
/// The errors of [`udeck_via::transport::Device::connect`].
pub fn connect(
    core: &Arc<Core>,
    to: &NetAddress,
    rank: Option<u32>,
    hello: &Hello,
    queues: &Queues<'_>,
    deadline: Deadline,
) -> Result<Connected> {
    core.listeners.check(&to.discriminator)?;
    fits(&to.discriminator, hello, &[])?;
    let at = address::decode(to)?;
    let slots = take_slots(core, queues)?;
    let bell = Arc::new(Bell::new().map_err(|error| Error::os("calling a process", error))?);
    let until = queues.until(deadline);
    let connector = Connector { core, at, since: Instant::now(), until: until.clone(), bell };
    let request =
        Request { discriminator: to.discriminator.clone(), hello: hello.clone(), parameters: Vec::new() };
    let mut attempts = 0;
    loop {
        connector.await_simultaneous_open(rank);
        let peer = core.peer_for(at, rank)?;
        let was_established = peer.is_established();
        match connector.call(&peer, rank, &request)? {
            RequestOutcome::Accepted(link, theirs) => {
                return Ok((core.vi_endpoint(link, slots, queues), theirs));
            }
            RequestOutcome::Ended(_) if was_established && attempts < MAX_RECONNECTS => attempts += 1,
            // The peer evicted this connection for another caller, or closes its NIC.
            RequestOutcome::Ended(ConnectionStatus::Closed) if !was_established && !until.passed() => {
                core.socket_wait.wait_for_answer(core, &connector.bell, POLL_INTERVAL.min(until.remaining()));
            }
            outcome => return Err(connector.error(outcome, &request)),
        }
    }
}

/// A connection attempt: the NIC, the deadline, and the eventfd on which it sleeps.
struct Connector<'a> {
    core: &'a Arc<Core>,
    at: SocketAddr,
    since: Instant,
    until: Until,
    bell: Arc<Bell>,
}

impl Connector<'_> {
    fn call(&self, peer: &Arc<Peer>, rank: Option<u32>, request: &Request) -> Result<RequestOutcome> {
        if let Some(why) = self.wait_established(peer)? {
            return Ok(RequestOutcome::Ended(why));
        }
        let preferred = self.preferred(peer, rank);
        let peer = preferred.as_ref().unwrap_or(peer);
        let (ours, outcome, confirm_at) = (request.hello.clone(), Mutex::default(), Mutex::default());
        let call = Arc::new(PendingRequest { ours, outcome, confirm_at, bell: self.bell.clone() });
        let stream = self.wait_for_stream(peer, request, &call)?;
        let Some(stream) = stream else { return Ok(RequestOutcome::Ended(peer.lock().status.clone())) };
        let answered = self.wait("an answer from the process", peer, || call.outcome.lock().take().map(Ok));
        if answered.is_err() {
            peer.with(|state| peer.cancel_request(state, stream));
            // The answer may have arrived at the last moment.
            if let Some(outcome) = call.outcome.lock().take() {
                return Ok(outcome);
            }
        }
        answered
    }

    /// Returns the connection that both sides prefer, if the peer has opened one at the same time as this side.
    fn preferred(&self, established: &Peer, rank: Option<u32>) -> Option<Arc<Peer>> {
        if !established.is_client || !prefers_incoming(self.core.address, self.at) {
            return None;
        }
        self.await_handshake_from_peer();
        self.core.peers.usable(self.at, rank).filter(|peer| peer.is_established())
    }

    /// Waits for the connection that the peer is opening, if there is one. Called before this side opens one.
    fn await_simultaneous_open(&self, rank: Option<u32>) {
        if self.core.peers.usable(self.at, rank).is_none() {
            self.await_handshake_from_peer();
        }
    }

    /// Waits until the handshake of a connection that the peer has opened is over, for a limited time: a second,
    /// idle connection does no harm.
    fn await_handshake_from_peer(&self) {
        let until = Instant::now() + SIMULTANEOUS_OPEN.min(self.until.remaining());
        while let Some(incoming) = self.core.peers.handshake_from(self.at) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            incoming.lock().notify(&self.bell);
            self.core.progress();
            if incoming.is_unauthenticated() && !incoming.is_over() {
                self.core.socket_wait.wait_for_answer(self.core, &self.bell, POLL_INTERVAL.min(left));
            }
        }
    }

    /// Waits until the connection is established. Returns the connection's status if it will not be.
    fn wait_established(&self, peer: &Arc<Peer>) -> Result<Option<ConnectionStatus>> {
        self.wait("the hand-shake with the process", peer, || {
            let mut state = peer.lock();
            match &state.status {
                ConnectionStatus::Established => Some(Ok(None)),
                ConnectionStatus::Handshaking => {
                    if let Some(error) = state.failure(self.core.detect) {
                        return Some(Err(self.os_error(error)));
                    }
                    state.notify(&self.bell);
                    None
                }
                why => Some(Ok(Some(why.clone()))),
            }
        })
    }

    /// Waits until a stream can be opened. Returns `None` if the connection has ended.
    fn wait_for_stream(
        &self,
        peer: &Arc<Peer>,
        request: &Request,
        call: &Arc<PendingRequest>,
    ) -> Result<Option<StreamId>> {
        self.wait("a free stream to the process", peer, || {
            peer.with(|state| {
                if peer.is_over() {
                    return Some(Ok(None));
                }
                let stream = peer.open_request(state, request, call);
                if stream.is_none() {
                    state.notify(&self.bell);
                }
                stream.map(|stream| Ok(Some(stream)))
            })
        })
    }

    fn wait<T>(
        &self,
        what: &str,
        peer: &Arc<Peer>,
        mut done: impl FnMut() -> Option<Result<T>>,
    ) -> Result<T> {
        loop {
            self.core.progress();
            if let Some(done) = done() {
                return done;
            }
            if self.until.passed() {
                let waited = self.since.elapsed();
                let advice = if peer.is_established() { String::new() } else { self.advice() };
                return Err(match peer.lock().outage() {
                    Some(outage) => address::late_by_outage(self.at, outage, waited),
                    None => Error::Timeout { what: format!("{what} at {}{advice}", self.at), waited },
                });
            }
            self.core.socket_wait.wait_for_answer(
                self.core,
                &self.bell,
                POLL_INTERVAL.min(self.until.remaining()),
            );
        }
    }

    fn os_error(&self, error: io::Error) -> Error {
        // The kernel reports a path with a small MTU by either of these errors.
        let is_too_long = matches!(Errno::from_io_error(&error), Some(Errno::MSGSIZE | Errno::NOBUFS));
        let advice = if is_too_long { self.advice() } else { String::new() };
        let what = format!("connecting to the process at {}{advice}", self.at);
        Error::os(what, advise_route(error, self.at.ip()))
    }

    fn advice(&self) -> String {
        path_mtu::advice(self.core.address.ip(), self.at)
    }

    #[cold]
    fn error(&self, outcome: RequestOutcome, request: &Request) -> Error {
        let at = self.at;
        match outcome {
            RequestOutcome::Refused(rejection) => Error::of_rejection(rejection, &request.discriminator),
            RequestOutcome::Accepted(..) => Error::Lost("the connection was given up".into()),
            RequestOutcome::Ended(ConnectionStatus::VersionMismatch(theirs)) => {
                let theirs = theirs.map_or_else(
                    || "another version".into(),
                    |theirs| format!("version {}.{}", theirs.datagrams, theirs.frames),
                );
                let words = format!(
                    "{at} was called: it speaks {theirs} of the UDP protocol, this process {}.{}: build both from one version",
                    OURS.datagrams, OURS.frames
                );
                Error::Rejected(Rejection::new(RejectKind::Version, words))
            }
            RequestOutcome::Ended(ConnectionStatus::PortUnreachable) => {
                let error = io::Error::from(io::ErrorKind::ConnectionRefused);
                Error::os(format!("connecting to the process at {at}, where no socket is bound"), error)
            }
            RequestOutcome::Ended(ConnectionStatus::NotAuthenticated(why)) => {
                Error::Rejected(Rejection::new(RejectKind::Identity, format!("{at} was called: {why}")))
            }
            RequestOutcome::Ended(ConnectionStatus::WrongProcess) => {
                Error::NoMatch(format!("{at}, where another process is now"))
            }
            RequestOutcome::Ended(why) => {
                Error::Lost(why.error().unwrap_or_else(|| format!("the process at {at} has closed its NIC")))
            }
        }
    }
}

/// Errors of the kernel while sending.
impl crate::peer::State {
    /// Returns why a handshake cannot succeed: the kernel refuses to send, or has had no route for `detect`.
    fn failure(&mut self, detect: Duration) -> Option<io::Error> {
        let transmit = self.transmit();
        let lasts = |(since, _): &mut (Instant, io::Error)| job_time().duration_since(*since) >= detect;
        transmit.failure.take().or_else(|| transmit.outage.take_if(lasts).map(|(_, error)| error))
    }

    fn outage(&mut self) -> Option<&io::Error> {
        self.transmit().outage.as_ref().map(|(_, error)| error)
    }
}
