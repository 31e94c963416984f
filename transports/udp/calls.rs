//! The side that asks for a connection: on the caller's thread, which waits until the deadline at most. Whoever reads the
//! socket takes its part in the exchange, so that what follows the answer finds the link.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use udeck_session::Side;
use udeck_session::address;
use udeck_session::poll::Bell;
use udeck_sys::job_time;
use udeck_via::auth::{Pair, is_same};
use udeck_via::transport::{Connected, Hello, Queues};
use udeck_via::{Deadline, Error, NetAddress, Result};

use crate::completion_queue::take_slots;
use crate::core::{Core, Made, UdpLink};
use crate::flow::{FIRST_RTT, Names};
use crate::greeting::{OURS, prove};
use crate::icmp::{Report, Verdict};
use crate::tombs::farewell;
use crate::wire::greeting::{Answer, Ask, Exchange, Greeting, Meet, Nonce, Prove, Versions, Withdraw};
use crate::wire::{Kind, Opened};

/// What was not answered is said again after that, then after twice as long, ...
const AGAIN: Duration = Duration::from_millis(20);
/// ... at most that.
const AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// Bytes of what a call says that a quote of it must have: they end behind the number that the call drew, and in a proof
/// that only the two of them can make.
const QUOTED: usize = 64;

/// Whether `quote` is how `datagram` begins, so much of it that nobody could guess that.
fn is_quoted(datagram: &[u8], quote: &[u8]) -> bool {
    quote.len() >= QUOTED && datagram.starts_with(quote)
}

/// What the answer to a Meet that was said `said` times, `took` ago at first, tells of the way. Said more than once, it is
/// not known which was answered, and nothing is known of the way.
fn first_round_trip(took: Duration, said: u32) -> Duration {
    if said == 1 { took.min(FIRST_RTT) } else { FIRST_RTT }
}

/// Calls under way, by the number of the connection.
#[derive(Default)]
pub struct Calls(RwLock<HashMap<u64, Arc<Call>>>);

/// A call.
struct Call {
    number: u64,
    nonce: Nonce,
    /// Who calls whom, and what both know.
    pair: Pair,
    at: SocketAddr,
    /// What it says first.
    meet: Vec<u8>,
    discriminator: Vec<u8>,
    ours: Hello,
    stage: Mutex<Stage>,
    bell: Bell,
}

enum Stage {
    /// First said then, and how often.
    Meeting {
        since: Instant,
        said: u32,
    },
    Asking {
        exchange: Exchange,
        datagram: Vec<u8>,
        round_trip: Duration,
    },
    Answered(Outcome),
    Over,
}

enum Outcome {
    Accepted(Arc<UdpLink>, Hello),
    Refused(Answer),
    OtherVersion(Versions),
    Stranger,
    OtherProcess,
    Nobody,
}

/// # Errors
/// As [`udeck_via::transport::Device::connect`].
pub fn connect(
    core: &Arc<Core>,
    to: &NetAddress,
    peer: Option<u32>,
    hello: &Hello,
    queues: &Queues<'_>,
    deadline: Deadline,
) -> Result<Connected> {
    core.listeners.check(&to.discriminator)?;
    let at = address::decode(to)?;
    let slots = take_slots(core, queues)?;
    let pair = core.keys.call(peer).map_err(|error| Error::InvalidParameter(error.to_string()))?;
    let call = Call::start(core, at, to, pair, hello)?;
    let outcome = call.wait(core, deadline);
    core.calls.0.write().remove(&call.number);
    match outcome? {
        Outcome::Accepted(link, theirs) => Ok((Core::port(link, slots, queues), theirs)),
        Outcome::OtherVersion(theirs) => Err(Error::Rejected(format!(
            "{at} was called: it speaks version {}.{} of the UDP protocol, this process {}.{}: build both from one version",
            theirs.datagrams, theirs.frames, OURS.datagrams, OURS.frames
        ))),
        Outcome::Nobody => {
            let error = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            Err(Error::os(format!("connecting to the process at {at}, where nobody is"), error))
        }
        Outcome::Stranger => {
            Err(Error::Rejected(format!("{at} was called: {}", call.pair.why_wrong_callee())))
        }
        Outcome::OtherProcess => Err(Error::NoMatch(format!("{at}, where another process is now"))),
        Outcome::Refused(Answer::Rejected(text)) => Err(Error::Rejected(text)),
        Outcome::Refused(Answer::Reliability) => Err(Error::InvalidReliability),
        Outcome::Refused(_) => Err(Error::NoMatch(String::from_utf8_lossy(&to.discriminator).into_owned())),
    }
}

impl Call {
    fn start(
        core: &Arc<Core>,
        at: SocketAddr,
        to: &NetAddress,
        pair: Pair,
        hello: &Hello,
    ) -> Result<Arc<Self>> {
        let os = |what: &'static str| move |error: std::io::Error| Error::os(what, error);
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(std::io::Error::other).map_err(os("drawing a nonce"))?;
        let number = core.fresh()?;
        let body = Meet { versions: OURS, number, nonce, claim: pair.claim() }.encode();
        let meet = Greeting { kind: Kind::Meet, connection: 0, proof: [0; 32], body: &body }.encode();
        let call = Arc::new(Call {
            number,
            nonce,
            pair,
            at,
            meet,
            discriminator: to.discriminator.clone(),
            ours: hello.clone(),
            stage: Mutex::new(Stage::Meeting { since: job_time(), said: 0 }),
            bell: Bell::new().map_err(os("calling a process"))?,
        });
        core.calls.0.write().insert(call.number, call.clone());
        Ok(call)
    }

    fn wait(&self, core: &Arc<Core>, deadline: Deadline) -> Result<Outcome> {
        let since = Instant::now();
        let (mut next, mut pause) = (job_time(), AGAIN);
        let mut outage = None;
        loop {
            let now = job_time();
            if now >= next {
                match self.say(core) {
                    Ok(()) => outage = None,
                    Err(error) => self.bear(core, now, error, &mut outage)?,
                }
                (next, pause) = (now + pause, (2 * pause).min(AGAIN_AT_MOST));
            }
            core.serve();
            let mut stage = self.stage.lock();
            if let Stage::Answered(_) = *stage {
                let Stage::Answered(outcome) = std::mem::replace(&mut *stage, Stage::Over) else { continue };
                return Ok(outcome);
            }
            if deadline.passed() {
                let former = std::mem::replace(&mut *stage, Stage::Over);
                drop(stage);
                let error = self.give_up(core, &former, since.elapsed());
                let by_outage = |(_, outage)| address::late_by_outage(self.at, &outage, since.elapsed());
                return Err(outage.map_or(error, by_outage));
            }
            drop(stage);
            let limit = next.saturating_duration_since(job_time()).min(deadline.remaining());
            core.rest.sleep(core, &self.bell, limit);
        }
    }

    fn say(&self, core: &Core) -> io::Result<()> {
        let datagram = match &mut *self.stage.lock() {
            Stage::Meeting { said, .. } => {
                *said += 1;
                self.meet.clone()
            }
            Stage::Asking { datagram, .. } => datagram.clone(),
            Stage::Answered(_) | Stage::Over => return Ok(()),
        };
        match core.socket.send(self.at, &datagram) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A network that is down may come back: a call bears that as long as an open connection does.
    #[cold]
    fn bear(
        &self,
        core: &Core,
        now: Instant,
        error: io::Error,
        outage: &mut Option<(Instant, io::Error)>,
    ) -> Result {
        let since = outage.as_ref().map_or(now, |(since, _)| *since);
        if !address::is_outage(&error) || now - since >= core.detect {
            return Err(self.os(error));
        }
        *outage = Some((since, error));
        Ok(())
    }

    fn os(&self, error: io::Error) -> Error {
        Error::os(format!("connecting to the process at {}", self.at), error)
    }

    #[cold]
    fn give_up(&self, core: &Core, stage: &Stage, waited: Duration) -> Error {
        let what = match stage {
            Stage::Asking { exchange, .. } => {
                // So that who answers too late finds nobody.
                let body = Withdraw(*exchange).encode();
                let proof = prove(&self.pair, Kind::Withdraw, &self.nonce, &exchange.cookie, &body);
                let greeting = Greeting { kind: Kind::Withdraw, connection: 0, proof, body: &body };
                let _ = core.socket.send(self.at, &greeting.encode());
                "an answer from the process"
            }
            _ => "the hand-shake with the process",
        };
        Error::Timeout { what: format!("{what} at {}", self.at), waited }
    }

    fn proved(&self, core: &Arc<Core>, now: Instant, greeting: &Greeting<'_>) {
        let Ok(theirs) = Prove::decode(greeting.body) else { return };
        let mut stage = self.stage.lock();
        let Stage::Meeting { since, said } = *stage else { return };
        if theirs.versions != OURS {
            *stage = Stage::Answered(Outcome::OtherVersion(theirs.versions));
            drop(stage);
            return self.bell.ring();
        }
        let expected = prove(&self.pair, Kind::Prove, &self.nonce, &theirs.cookie, greeting.body);
        if !is_same(&greeting.proof, &expected) {
            let nothing = theirs.cookie == [0; 32] && greeting.proof == [0; 32];
            let outcome = if nothing { Outcome::OtherProcess } else { Outcome::Stranger };
            *stage = Stage::Answered(outcome);
            drop(stage);
            return self.bell.ring();
        }
        let exchange = Exchange {
            number: self.number,
            nonce: self.nonce,
            cookie: theirs.cookie,
            claim: self.pair.claim(),
        };
        let round_trip = first_round_trip(now - since, said);
        let (discriminator, hello) = (self.discriminator.clone(), self.ours.clone());
        let body = Ask { exchange, round_trip, process: core.process, discriminator, hello }.encode();
        let proof = prove(&self.pair, Kind::Ask, &self.nonce, &exchange.cookie, &body);
        let datagram = Greeting { kind: Kind::Ask, connection: 0, proof, body: &body }.encode();
        let _ = core.socket.send(self.at, &datagram);
        *stage = Stage::Asking { exchange, datagram, round_trip };
    }

    fn answered(&self, core: &Arc<Core>, greeting: &Greeting<'_>) {
        let mut stage = self.stage.lock();
        let Stage::Asking { exchange, round_trip, .. } = &*stage else { return };
        let expected = prove(&self.pair, Kind::Answer, &self.nonce, &exchange.cookie, greeting.body);
        if !is_same(&greeting.proof, &expected) {
            return;
        }
        let outcome = match Answer::decode(greeting.body) {
            Ok(Answer::Accepted { number, process, hello: theirs }) => {
                let made = Made {
                    names: Names { ours: self.number, theirs: number },
                    peer: self.at,
                    process,
                    ours: &self.ours,
                    theirs: &theirs,
                    side: Side::Asked,
                    round_trip: *round_trip,
                };
                Outcome::Accepted(core.establish(&made), theirs)
            }
            Ok(refused) => Outcome::Refused(refused),
            Err(_) => return,
        };
        *stage = Stage::Answered(outcome);
        drop(stage);
        self.bell.ring();
    }
}

impl Calls {
    /// The network says something of a datagram without a connection's number.
    pub fn hear_report(&self, report: &Report) {
        if report.verdict != Verdict::NobodyThere {
            return;
        }
        let there = |call: &&Arc<Call>| (call.at.ip(), call.at.port()) == (report.to.ip(), report.to.port());
        for call in self.0.read().values().filter(there) {
            let mut stage = call.stage.lock();
            let said = match &*stage {
                Stage::Meeting { .. } => is_quoted(&call.meet, &report.quote),
                Stage::Asking { datagram, .. } => {
                    is_quoted(&call.meet, &report.quote) || is_quoted(datagram, &report.quote)
                }
                Stage::Answered(_) | Stage::Over => false,
            };
            if said {
                *stage = Stage::Answered(Outcome::Nobody);
                call.bell.ring();
            }
        }
    }

    /// A greeting to who called.
    pub fn hear(&self, core: &Arc<Core>, now: Instant, from: SocketAddr, opened: &Opened<'_>) {
        let Ok(greeting) = Greeting::decode(opened) else { return };
        let call = self.0.read().get(&greeting.connection).cloned();
        match call.filter(|call| call.at == from) {
            Some(call) if greeting.kind == Kind::Prove => call.proved(core, now, &greeting),
            Some(call) => call.answered(core, &greeting),
            None => {
                // Accepted too late: the caller is gone, and the other side learns it.
                if let (Kind::Answer, Ok(Answer::Accepted { number, .. })) =
                    (greeting.kind, Answer::decode(greeting.body))
                {
                    let _ = core.socket.send(from, &farewell(number, 0));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_said_twice_has_measured_nothing() {
        let ms = Duration::from_millis(1);
        assert_eq!(first_round_trip(5 * ms, 1), 5 * ms);
        assert_eq!(first_round_trip(5 * ms, 2), FIRST_RTT);
        assert_eq!(first_round_trip(5000 * ms, 1), FIRST_RTT);
    }
}
