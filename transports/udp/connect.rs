//! The side that asks for a connection: on the caller's thread, which waits until the deadline at most. Whoever reads the
//! socket takes its part in the exchange, so that what follows the answer finds the link.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quinn_proto::StreamId;
use udeck_session::address;
use udeck_session::admission::wire::{Answer, Request, fits};
use udeck_session::poll::Bell;
use udeck_sys::job_time;
use udeck_via::transport::{Connected, Hello, Queues};
use udeck_via::{Deadline, Error, NetAddress, Result};

use crate::completion_queue::take_slots;
use crate::core::Core;
use crate::peer::{Call, Outcome, Peer, Standing};
use crate::wire::OURS;

/// Whatever it waits for, a call looks that often.
const LOOK: Duration = Duration::from_millis(100);
/// A connection that stood may turn out to be one with a process that has ended. Then one with the process that is
/// there now is tried, so many times.
const ATTEMPTS: usize = 1;

/// # Errors
/// As [`udeck_via::transport::Device::connect`].
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
    let caller = Caller { core, at, since: Instant::now(), deadline, bell };
    let request =
        Request { discriminator: to.discriminator.clone(), hello: hello.clone(), parameters: Vec::new() };
    let mut attempts = 0;
    loop {
        let peer = core.peer_at(at, rank)?;
        let stood = peer.stands();
        match caller.call(&peer, &request)? {
            Outcome::Accepted(link, theirs) => return Ok((core.port(link, slots, queues), theirs)),
            Outcome::Ended(_) if stood && attempts < ATTEMPTS => attempts += 1,
            // It had to make place for another caller, or the NIC is being closed: then nobody will be there soon.
            Outcome::Ended(Standing::Closed) if !stood && !deadline.passed() => {
                core.rest.sleep(core, &caller.bell, LOOK.min(deadline.remaining()));
            }
            outcome => return Err(caller.meaning(outcome, &request)),
        }
    }
}

/// Who waits.
struct Caller<'a> {
    core: &'a Arc<Core>,
    at: SocketAddr,
    since: Instant,
    deadline: Deadline,
    bell: Arc<Bell>,
}

impl Caller<'_> {
    fn call(&self, peer: &Arc<Peer>, request: &Request) -> Result<Outcome> {
        if let Some(why) = self.meet(peer)? {
            return Ok(Outcome::Ended(why));
        }
        let (ours, outcome, asked) = (request.hello.clone(), Mutex::default(), Mutex::default());
        let call = Arc::new(Call { ours, outcome, asked, bell: self.bell.clone() });
        let stream = self.ask(peer, request, &call)?;
        let Some(stream) = stream else { return Ok(Outcome::Ended(peer.lock().standing.clone())) };
        let answered = self.wait("an answer from the process", peer, || call.outcome.lock().take().map(Ok));
        if answered.is_err() {
            peer.with(|state| peer.withdraw(state, stream));
            // It may have come at the last moment.
            if let Some(outcome) = call.outcome.lock().take() {
                return Ok(outcome);
            }
        }
        answered
    }

    /// Waits until both have proved who they are. Returns why they will not.
    fn meet(&self, peer: &Arc<Peer>) -> Result<Option<Standing>> {
        self.wait("the hand-shake with the process", peer, || {
            let mut state = peer.lock();
            match &state.standing {
                Standing::Stands => Some(Ok(None)),
                Standing::Shaking => {
                    if let Some(error) = state.failure(self.core.detect) {
                        return Some(Err(self.os(error)));
                    }
                    state.notify(&self.bell);
                    None
                }
                why => Some(Ok(Some(why.clone()))),
            }
        })
    }

    /// Waits until there is a stream. `None`: the connection has ended.
    fn ask(&self, peer: &Arc<Peer>, request: &Request, call: &Arc<Call>) -> Result<Option<StreamId>> {
        self.wait("a free stream to the process", peer, || {
            peer.with(|state| {
                if peer.is_over() {
                    return Some(Ok(None));
                }
                let stream = peer.ask(state, request, call);
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
            self.core.serve();
            if let Some(done) = done() {
                return done;
            }
            if self.deadline.passed() {
                let waited = self.since.elapsed();
                return Err(match peer.lock().outage() {
                    Some(outage) => address::late_by_outage(self.at, outage, waited),
                    None => Error::Timeout { what: format!("{what} at {}", self.at), waited },
                });
            }
            self.core.rest.sleep(self.core, &self.bell, LOOK.min(self.deadline.remaining()));
        }
    }

    fn os(&self, error: io::Error) -> Error {
        Error::os(format!("connecting to the process at {}", self.at), error)
    }

    #[cold]
    fn meaning(&self, outcome: Outcome, request: &Request) -> Error {
        let at = self.at;
        match outcome {
            Outcome::Refused(Answer::Rejected(text)) => Error::Rejected(text),
            Outcome::Refused(Answer::Reliability) => Error::InvalidReliability,
            Outcome::Refused(_) | Outcome::Accepted(..) => {
                Error::NoMatch(String::from_utf8_lossy(&request.discriminator).into_owned())
            }
            Outcome::Ended(Standing::OtherVersion(theirs)) => {
                let theirs = theirs.map_or_else(
                    || "another version".into(),
                    |theirs| format!("version {}.{}", theirs.datagrams, theirs.frames),
                );
                Error::Rejected(format!(
                    "{at} was called: it speaks {theirs} of the UDP protocol, this process {}.{}: build both from one version",
                    OURS.datagrams, OURS.frames
                ))
            }
            Outcome::Ended(Standing::Nobody) => {
                let error = io::Error::from(io::ErrorKind::ConnectionRefused);
                Error::os(format!("connecting to the process at {at}, where nobody is"), error)
            }
            Outcome::Ended(Standing::Stranger(why)) => Error::Rejected(format!("{at} was called: {why}")),
            Outcome::Ended(Standing::OtherProcess) => {
                Error::NoMatch(format!("{at}, where another process is now"))
            }
            Outcome::Ended(why) => {
                Error::Lost(why.why().unwrap_or_else(|| format!("the process at {at} has closed its NIC")))
            }
        }
    }
}

/// The kernel's last word on what is sent there.
impl crate::peer::State {
    /// Why a hand-shake will not come about: the kernel refuses, or has said for `detect` that there is no way.
    fn failure(&mut self, detect: Duration) -> Option<io::Error> {
        let transmit = self.transmit();
        let lasts = |(since, _): &mut (Instant, io::Error)| job_time().duration_since(*since) >= detect;
        transmit.failure.take().or_else(|| transmit.outage.take_if(lasts).map(|(_, error)| error))
    }

    fn outage(&mut self) -> Option<&io::Error> {
        self.transmit().outage.as_ref().map(|(_, error)| error)
    }
}
