//! Peer-to-peer connection (VIA: `VipConnectPeerRequest`, `VipConnectPeerDone`, `VipConnectPeerWait`): two equals
//! name each other, and neither has to know who came first.
//!
//! Both know both addresses, so both know who asks and who answers, and requests cannot cross: the NIC with the lower
//! address asks, again and again until the other has made its request or the deadline passes; the other listens, and
//! accepts on the transport's thread. Exactly one connection results. Within one NIC, the VI that comes first listens.
//! They meet at a discriminator of their own, which no [`crate::Listener`] has, and which names the asking NIC: so a
//! third one does not get between them.
//!
//! A side that has given up never becomes connected. A request that reaches it is refused. An acceptance that reaches it
//! is answered by closing the connection; so the side that listens counts as connected only when the one that asked has
//! confirmed it, by an empty message, and goes on listening if the connection is closed instead.

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
use crate::report::Alarm;
use crate::transport::{Hello, Incoming, Queues, Reporter, ViEndpoint};
use udeck_sys::{Deadline, thread};

/// How long the side that asks waits before it asks again.
const RETRY: Duration = Duration::from_millis(2);
/// How often the side that listens looks for the confirmation, which comes as soon as the acceptance has arrived.
const LOOK: Duration = Duration::from_micros(100);

/// A peer request that is under way. Dropped, it is withdrawn.
pub(crate) struct Peering {
    meeting: Arc<Meeting>,
    /// Where we listen, if it is us.
    listening: Option<(Nic, Vec<u8>)>,
    whom: String,
    since: Instant,
    pub deadline: Deadline,
}

/// Where the program meets the thread on which the connection is made.
struct Meeting {
    outcome: Mutex<PeerOutcome>,
    changed: Condvar,
}

enum PeerOutcome {
    Pending,
    /// We listen, have accepted a request, and wait for its confirmation.
    Accepted(Made),
    Settled(Result<Made>),
    /// Timed out, or withdrawn; or the program has taken the outcome.
    Over,
}

/// A connection that the VI has yet to take.
pub(crate) struct Made {
    pub endpoint: Box<dyn ViEndpoint>,
    pub theirs: Hello,
    pub reporter: Arc<Reporter>,
}

/// Everything that is needed to connect.
#[derive(Clone)]
pub(crate) struct Side {
    pub alarm: Arc<Alarm>,
    pub hello: Hello,
    pub send: CqHandle,
    pub receive: CqHandle,
    pub context: u64,
    pub level: ServiceLevel,
    /// [`crate::ViAttributes::peer`].
    pub peer: Option<u32>,
}

impl Peering {
    pub fn start(nic: &Nic, remote: &NetAddress, side: Side, deadline: Deadline) -> Result<Self> {
        let own = &nic.attributes().address;
        let name = rendezvous(own.min(&remote.host), &remote.discriminator);
        let limit = nic.attributes().max_discriminator;
        if name.len() > limit {
            let what = format!("a peer's address and discriminator of {} bytes, at most {limit}", name.len());
            return Err(Error::InvalidParameter(what));
        }
        let meeting =
            Arc::new(Meeting { outcome: Mutex::new(PeerOutcome::Pending), changed: Condvar::new() });
        let listens = match own.cmp(&remote.host) {
            Ordering::Less => false,
            Ordering::Greater => {
                meeting.listen(nic, &name, side.clone())?;
                true
            }
            // Both on this NIC: who comes second finds the first listening.
            Ordering::Equal => match meeting.listen(nic, &name, side.clone()) {
                Ok(()) => true,
                Err(Error::InvalidParameter(_)) => false,
                Err(other) => return Err(other),
            },
        };
        if !listens {
            let to = NetAddress { host: remote.host.clone(), discriminator: name.clone() };
            meeting.clone().ask(nic, to, side, deadline)?;
        }
        let whom = format!(
            "a peer request at {:?} from {:?}",
            String::from_utf8_lossy(&remote.discriminator),
            String::from_utf8_lossy(&remote.host),
        );
        let listening = listens.then(|| (nic.clone(), name));
        Ok(Peering { meeting, listening, whom, since: Instant::now(), deadline })
    }

    /// The outcome, waiting for it until then; `None` when there is none yet and the deadline is not over.
    pub fn outcome(&self, until: Deadline) -> Option<Result<Made>> {
        let mut outcome = self.meeting.outcome.lock();
        loop {
            outcome.look();
            let wait = match &*outcome {
                PeerOutcome::Settled(_) | PeerOutcome::Over => break,
                PeerOutcome::Accepted(_) => LOOK.min(until.remaining()),
                PeerOutcome::Pending => until.remaining(),
            };
            if self.deadline.passed() {
                break;
            }
            if until.passed() {
                return None;
            }
            self.meeting.changed.wait_for(&mut outcome, wait);
        }
        // What comes from now on comes too late.
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
        let unclaimed = mem::replace(&mut *self.meeting.outcome.lock(), PeerOutcome::Over);
        self.meeting.changed.notify_all();
        if let Some((nic, name)) = &self.listening {
            nic.device().unlisten(name);
        }
        drop(unclaimed); // may close a connection: outside the lock
    }
}

impl PeerOutcome {
    /// Looks for the confirmation of what was accepted. A requester that gave up has closed it: then the next one is
    /// waited for.
    fn look(&mut self) {
        let PeerOutcome::Accepted(made) = self else { return };
        match made.endpoint.receive() {
            Ok(None) => {}
            Ok(Some(_)) => {
                if let PeerOutcome::Accepted(made) = mem::replace(self, PeerOutcome::Over) {
                    *self = PeerOutcome::Settled(Ok(made));
                }
            }
            Err(_) => *self = PeerOutcome::Pending,
        }
    }
}

impl Meeting {
    /// The side that answers: the first request that comes is accepted, on the transport's thread.
    fn listen(self: &Arc<Self>, nic: &Nic, name: &[u8], side: Side) -> Result {
        let meeting = self.clone();
        nic.device().listen(name, Box::new(move |incoming| meeting.answer(incoming, &side)))
    }

    fn answer(&self, incoming: Box<dyn Incoming>, side: &Side) {
        if side.peer.is_some() && incoming.peer() != side.peer {
            // The one that is meant may still come.
            return incoming.reject("the peer waits for another process");
        }
        let mut outcome = self.outcome.lock();
        outcome.look();
        if !matches!(*outcome, PeerOutcome::Pending) {
            drop(outcome);
            incoming.reject("the peer has given up, or is connected already");
            return;
        }
        let theirs = incoming.hello().clone();
        *outcome = if theirs.reliability == side.hello.reliability {
            let reporter = side.reporter();
            match incoming.accept(&side.hello, side.queues(&reporter)) {
                Ok(endpoint) => PeerOutcome::Accepted(Made { endpoint, theirs, reporter }),
                // The requester is gone, perhaps one from before this request: the next one is waited for.
                Err(error) if error.is_final() => PeerOutcome::Pending,
                Err(error) => PeerOutcome::Settled(Err(error)),
            }
        } else {
            incoming.reject_reliability();
            PeerOutcome::Settled(Err(Error::InvalidReliability))
        };
        self.changed.notify_all();
    }

    /// The side that asks, on a thread of its own: [`crate::transport::Device::connect`] waits for its answer.
    fn ask(self: Arc<Self>, nic: &Nic, to: NetAddress, side: Side, deadline: Deadline) -> Result {
        let device = nic.device().clone();
        let failing = self.clone();
        let asking = move || {
            loop {
                let reporter = side.reporter();
                match device.connect(&to, side.peer, &side.hello, side.queues(&reporter), deadline) {
                    // Nobody there yet, or still busy with a request of ours that we gave up; or it is too late, which who
                    // waits says of the whole request.
                    Err(Error::NoMatch(_) | Error::Rejected(_) | Error::Timeout { .. }) => {}
                    Ok((endpoint, theirs)) => {
                        if self.confirm(Made { endpoint, theirs, reporter }) {
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

    /// Notes the connection and tells the peer, unless nobody wants it any more: then it is closed again. Returns
    /// whether the matter is settled: not so if the peer has given up in the meantime.
    fn confirm(&self, mut made: Made) -> bool {
        let mut outcome = self.outcome.lock();
        if !matches!(*outcome, PeerOutcome::Pending) {
            return true;
        }
        let confirmed = made.endpoint.send(None, &[], &[]).is_ok();
        if confirmed {
            *outcome = PeerOutcome::Settled(Ok(made));
            self.changed.notify_all();
        }
        confirmed
    }

    /// Notes the outcome, unless nobody wants it any more.
    fn settle(&self, result: Result<Made>) {
        let mut outcome = self.outcome.lock();
        if matches!(*outcome, PeerOutcome::Pending) {
            *outcome = PeerOutcome::Settled(result);
            self.changed.notify_all();
        }
    }
}

impl Side {
    /// For one attempt: what becomes of those that came to nothing is nobody's concern.
    fn reporter(&self) -> Arc<Reporter> {
        self.alarm.reporter(self.context)
    }

    fn queues<'a>(&'a self, reporter: &'a Arc<Reporter>) -> Queues<'a> {
        let (send, receive) = (self.send.notifier(), self.receive.notifier());
        Queues { send, receive, context: self.context, level: self.level, reporter }
    }
}

/// The discriminator at which a pair of NICs meets.
fn rendezvous(asker: &[u8], discriminator: &[u8]) -> Vec<u8> {
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
