//! Peer-to-peer connection (VIA: `VipConnectPeerRequest`, `VipConnectPeerDone`, `VipConnectPeerWait`): two equals name each
//! other, and neither has to know which came first.
//!
//! Both know both addresses, so both know which side asks and which answers, and requests cannot cross. The NIC with the
//! lower address asks, again and again until the other has made its request or the deadline passes; the other listens, and
//! accepts on the transport's thread. Exactly one connection results. Within one NIC, the VI that comes first listens. They
//! meet at a discriminator of their own, which no [`crate::Listener`] has, and which names the asking NIC, so that a third
//! one does not get between them.
//!
//! A side that has given up never becomes connected. A request that reaches it is refused. An acceptance that reaches it is
//! answered by closing the connection. So the listening side counts as connected only when the asking side has confirmed it,
//! by an empty message; if the connection is closed instead, it goes on listening.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::attributes::{NetAddress, ServiceLevel};
use crate::cq::CqHandle;
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::rejection::{RejectKind, Rejection};
use crate::report::ErrorSink;
use crate::transport::{Hello, Incoming, Queues, Reporter, ViEndpoint};
use udeck_sys::{Deadline, thread};

/// Pause of the asking side before it asks again.
const RETRY: Duration = Duration::from_millis(2);
/// Poll interval of the listening side for the confirmation, which comes as soon as the acceptance has arrived.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// A peer request in progress. When dropped, it is withdrawn.
pub(crate) struct Peering {
    rendezvous: Arc<PeerRendezvous>,
    /// NIC and discriminator at which this side listens, if it does.
    listening: Option<(Nic, Vec<u8>)>,
    whom: String,
    since: Instant,
    pub deadline: Deadline,
}

/// State shared by the program and the thread on which the connection is made.
struct PeerRendezvous {
    outcome: Mutex<PeerOutcome>,
    changed: Condvar,
}

enum PeerOutcome {
    Pending,
    /// This side listens, has accepted a request, and waits for its confirmation.
    Accepted(NewConnection),
    Settled(Result<NewConnection>),
    /// The request timed out or was withdrawn; or the program has taken the outcome.
    Over,
}

/// A connection that the VI has not taken yet.
pub(crate) struct NewConnection {
    pub endpoint: Box<dyn ViEndpoint>,
    pub theirs: Hello,
    pub reporter: Arc<Reporter>,
}

/// Parameters of one side's connection.
#[derive(Clone)]
pub(crate) struct Side {
    pub error_sink: Arc<ErrorSink>,
    pub hello: Hello,
    pub send: CqHandle,
    pub receive: CqHandle,
    pub context: u64,
    pub level: ServiceLevel,
    /// Value of [`crate::ViAttributes::peer`].
    pub peer: Option<u32>,
}

impl Peering {
    pub fn start(nic: &Nic, remote: &NetAddress, side: Side, deadline: Deadline) -> Result<Self> {
        let own = &nic.attributes().address;
        let name = rendezvous_name(own.min(&remote.host), &remote.discriminator);
        let limit = nic.attributes().max_discriminator;
        if name.len() > limit {
            let what = format!("a peer's address and discriminator of {} bytes, at most {limit}", name.len());
            return Err(Error::InvalidParameter(what));
        }
        let rendezvous =
            Arc::new(PeerRendezvous { outcome: Mutex::new(PeerOutcome::Pending), changed: Condvar::new() });
        let listens = match own.cmp(&remote.host) {
            Ordering::Less => false,
            Ordering::Greater => {
                rendezvous.listen(nic, &name, side.clone())?;
                true
            }
            // Both VIs are on this NIC: the second finds the first listening.
            Ordering::Equal => match rendezvous.listen(nic, &name, side.clone()) {
                Ok(()) => true,
                Err(Error::InvalidParameter(_)) => false,
                Err(other) => return Err(other),
            },
        };
        if !listens {
            let to = NetAddress { host: remote.host.clone(), discriminator: name.clone() };
            rendezvous.clone().ask(nic, to, side, deadline)?;
        }
        let whom = format!(
            "a peer request at {:?} from {:?}",
            String::from_utf8_lossy(&remote.discriminator),
            String::from_utf8_lossy(&remote.host),
        );
        let listening = listens.then(|| (nic.clone(), name));
        Ok(Peering { rendezvous, listening, whom, since: Instant::now(), deadline })
    }

    /// The outcome, waiting for it until `until`; `None` when there is none yet and the request's deadline has not passed.
    pub fn outcome(&self, until: Deadline) -> Option<Result<NewConnection>> {
        let mut outcome = self.rendezvous.outcome.lock();
        loop {
            outcome.poll_confirmation();
            let wait = match &*outcome {
                PeerOutcome::Settled(_) | PeerOutcome::Over => break,
                PeerOutcome::Accepted(_) => POLL_INTERVAL.min(until.remaining()),
                PeerOutcome::Pending => until.remaining(),
            };
            if self.deadline.passed() {
                break;
            }
            if until.passed() {
                return None;
            }
            self.rendezvous.changed.wait_for(&mut outcome, wait);
        }
        // A later outcome comes too late.
        match mem::replace(&mut *outcome, PeerOutcome::Over) {
            PeerOutcome::Settled(result) => Some(result),
            PeerOutcome::Pending | PeerOutcome::Accepted(_) | PeerOutcome::Over => {
                Some(Err(Error::Timeout { what: self.whom.clone(), waited: self.since.elapsed() }))
            }
        }
    }
}

impl Drop for Peering {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let unclaimed = mem::replace(&mut *self.rendezvous.outcome.lock(), PeerOutcome::Over);
        self.rendezvous.changed.notify_all();
        if let Some((nic, name)) = &self.listening {
            nic.device().unlisten(name);
        }
        drop(unclaimed); // outside the lock: the drop may close a connection
    }
}

impl PeerOutcome {
    /// Polls for the confirmation of an accepted request. A requester that gave up has closed the connection: the next one is
    /// waited for then.
    fn poll_confirmation(&mut self) {
        let PeerOutcome::Accepted(connection) = self else { return };
        match connection.endpoint.receive() {
            Ok(None) => {}
            Ok(Some(_)) => {
                if let PeerOutcome::Accepted(connection) = mem::replace(self, PeerOutcome::Over) {
                    *self = PeerOutcome::Settled(Ok(connection));
                }
            }
            Err(_) => *self = PeerOutcome::Pending,
        }
    }
}

impl PeerRendezvous {
    /// Starts the listening side: the first request that comes is accepted, on the transport's thread.
    fn listen(self: &Arc<Self>, nic: &Nic, name: &[u8], side: Side) -> Result {
        let rendezvous = self.clone();
        nic.device().listen(name, Box::new(move |incoming| rendezvous.answer(incoming, &side)))
    }

    fn answer(&self, incoming: Box<dyn Incoming>, side: &Side) {
        if side.peer.is_some() && incoming.peer() != side.peer {
            // The wanted process may still come.
            let words = "the peer waits for another process";
            return incoming.reject(Rejection::new(RejectKind::Identity, words));
        }
        let mut outcome = self.outcome.lock();
        outcome.poll_confirmation();
        if !matches!(*outcome, PeerOutcome::Pending) {
            drop(outcome);
            let words = "the peer has given up, or is connected already";
            incoming.reject(Rejection::new(RejectKind::Refused, words));
            return;
        }
        let theirs = incoming.hello().clone();
        *outcome = if theirs.reliability == side.hello.reliability {
            let reporter = side.reporter();
            match incoming.accept(&side.hello, side.queues(&reporter)) {
                Ok(endpoint) => PeerOutcome::Accepted(NewConnection { endpoint, theirs, reporter }),
                // The requester is gone, perhaps one from before this request: the next one is waited for.
                Err(error) if error.is_final() => PeerOutcome::Pending,
                Err(error) => PeerOutcome::Settled(Err(error)),
            }
        } else {
            incoming.reject(RejectKind::Reliability.into());
            PeerOutcome::Settled(Err(Error::InvalidReliability))
        };
        self.changed.notify_all();
    }

    /// Starts the asking side, on a thread of its own: [`crate::transport::Device::connect`] waits for its answer.
    fn ask(self: Arc<Self>, nic: &Nic, to: NetAddress, side: Side, deadline: Deadline) -> Result {
        let device = nic.device().clone();
        let failing = self.clone();
        let asking = move || {
            loop {
                let reporter = side.reporter();
                match device.connect(&to, side.peer, &side.hello, side.queues(&reporter), deadline) {
                    // The peer is not there yet, or still busy with a request of ours that we gave up; or the deadline has
                    // passed, which the waiting program reports for the whole request.
                    Err(Error::NoMatch(_) | Error::Rejected(_) | Error::Timeout { .. }) => {}
                    Ok((endpoint, theirs)) => {
                        if self.confirm(NewConnection { endpoint, theirs, reporter }) {
                            return;
                        }
                    }
                    Err(error) => return self.settle(Err(error)),
                }
                if !self.pause(deadline) {
                    return;
                }
            }
        };
        thread::spawn("via-peer", asking, move |why| failing.settle(Err(Error::Lost(why.to_owned()))))
            .map(drop)
            .map_err(|error| Error::os("starting a thread that asks a peer for a connection", error))
    }

    /// Waits before the next request. Returns whether there is to be one.
    fn pause(&self, deadline: Deadline) -> bool {
        let mut outcome = self.outcome.lock();
        self.changed.wait_for(&mut outcome, RETRY);
        matches!(*outcome, PeerOutcome::Pending) && !deadline.passed()
    }

    /// Notes the connection and confirms it to the peer, unless the request is over: then the connection is closed again.
    /// Returns whether the request is settled, which it is not if the peer has given up in the meantime.
    fn confirm(&self, mut connection: NewConnection) -> bool {
        let mut outcome = self.outcome.lock();
        if !matches!(*outcome, PeerOutcome::Pending) {
            return true;
        }
        let confirmed = connection.endpoint.send(None, &[], &[]).is_ok();
        if confirmed {
            *outcome = PeerOutcome::Settled(Ok(connection));
            self.changed.notify_all();
        }
        confirmed
    }

    /// Notes the outcome, unless the request is over.
    fn settle(&self, result: Result<NewConnection>) {
        let mut outcome = self.outcome.lock();
        if matches!(*outcome, PeerOutcome::Pending) {
            *outcome = PeerOutcome::Settled(result);
            self.changed.notify_all();
        }
    }
}

impl Side {
    /// The reporter of one attempt. An attempt that failed reports nothing to the program.
    fn reporter(&self) -> Arc<Reporter> {
        self.error_sink.reporter(self.context)
    }

    fn queues<'a>(&'a self, reporter: &'a Arc<Reporter>) -> Queues<'a> {
        let (send, receive) = (self.send.notifier(), self.receive.notifier());
        Queues { send, receive, context: self.context, level: self.level, reporter }
    }
}

/// The discriminator at which a pair of NICs meets.
fn rendezvous_name(asker: &[u8], discriminator: &[u8]) -> Vec<u8> {
    let mut name = b"\0peer\0".to_vec();
    name.extend((asker.len() as u32).to_le_bytes());
    name.extend(asker);
    name.extend(discriminator);
    name
}

impl fmt::Debug for Peering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.whom)
    }
}
