//! Which way a postbox's messages take: by the first of this rank's NICs that the mailbox has, too, and that reaches it.
//!
//! A request that meets nobody, or no answer, says that there is no way by this NIC; the next one is tried, and why is
//! kept ([`Route`]). A request that is answered is decided: a mailbox that is gone is not looked for by other ways.

pub(crate) mod wire;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use udeck_via::{Caps, Cq, Deadline, Error as ViaError, NetAddress, Receive, Vi, ViAttributes, stderr_line};

use crate::channel::{Channel, Whom};
use crate::error::{Error, Result, Titled};
use crate::nics::Line;
use crate::shared::{Shared, WORD};
use crate::wire::Role;
use wire::{Advert, Door};

/// While there is another way, an answer is waited for at most so long, and at most half of the time that is left.
const TRY: Duration = Duration::from_secs(5);
/// A rank that nobody finds may have ended: the launcher's word of it is looked for so often.
const WORD_PAUSE: Duration = Duration::from_millis(5);

/// By which transport a postbox's messages travel, and why by no better one ([`crate::Postbox::route`]).
///
/// As text: `tcp: shm not possible: it runs on another host`; where nothing stood in the way, `shm`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The transport.
    pub transport: String,
    /// Those that this rank would have preferred, the best first.
    pub passed: Vec<Passed>,
}

/// A transport that leads to a mailbox no way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
    /// The transport.
    pub transport: String,
    /// Why it is not possible.
    pub why: String,
}

/// A transport that this host cannot have, and how many of a world's NICs are better all the same.
pub type Lacking = (usize, Passed);

impl Passed {
    /// `why` is for people.
    pub fn new(transport: impl Into<String>, why: impl Into<String>) -> Self {
        Passed { transport: transport.into(), why: why.into() }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.transport)?;
        for (nth, Passed { transport, why }) in self.passed.iter().enumerate() {
            write!(f, "{}{transport} not possible: {why}", if nth == 0 { ": " } else { "; " })?;
        }
        Ok(())
    }
}

impl Route {
    /// In brackets what [`Route`]'s text says after a colon.
    fn brief(&self) -> String {
        match self.passed.len() {
            0 => self.transport.clone(),
            _ => format!("{} ({})", self.transport, told(&self.passed)),
        }
    }
}

/// What stood in the way, one after the other.
fn told(passed: &[Passed]) -> String {
    passed
        .iter()
        .map(|Passed { transport, why }| format!("{transport}: {why}"))
        .collect::<Vec<_>>()
        .join("; ")
}

/// One way to a mailbox, or why it is none.
struct Way<'a> {
    line: &'a Line,
    leads: Result<&'a Door, String>,
}

/// The ways of a rank on `host`, in order of preference.
fn ways<'a>(lines: impl Iterator<Item = &'a Line>, host: &[u8], advert: &'a Advert) -> Vec<Way<'a>> {
    let mut ways = Vec::new();
    for line in lines {
        let elsewhere = !host.is_empty() && !advert.host.is_empty() && host != advert.host;
        if line.nic.attributes().host_only && elsewhere {
            ways.push(Way { line, leads: Err("it runs on another host".into()) });
            continue;
        }
        let doors = advert.doors.iter().filter(|door| door.transport == line.transport);
        let before = ways.len();
        ways.extend(doors.map(|door| Way { line, leads: Ok(door) }));
        if ways.len() == before {
            let theirs = advert.doors.iter().map(|door| door.transport.as_str()).collect::<Vec<_>>();
            let why = match theirs.len() {
                0 => "the mailbox can be reached by nothing".into(),
                _ => format!("the mailbox can be reached by {} only", theirs.join(", ")),
            };
            ways.push(Way { line, leads: Err(why) });
        }
    }
    ways
}

impl Shared {
    /// Connects to the mailbox that is advertised so.
    pub fn reach(self: &Arc<Self>, whom: Whom, advert: &Advert, deadline: Deadline) -> Result<Channel> {
        let ways = ways(self.nics().iter(), self.host(), advert);
        let last = ways.iter().rposition(|way| way.leads.is_ok());
        let mut passed = Vec::new();
        for (at, Way { line, leads }) in ways.iter().enumerate() {
            let why = match leads {
                Err(why) => why.clone(),
                Ok(door) => {
                    let is_last = last == Some(at);
                    let until = if is_last { deadline } else { deadline.min(short(deadline)) };
                    match self.reach_by(line, door, &whom, until) {
                        Ok((vi, cq, to)) => {
                            let place = self.nics().iter().position(|other| std::ptr::eq(other, *line));
                            let passed = self.nics().all_passed(place.unwrap_or(0), passed);
                            let route = Route { transport: line.transport.clone(), passed };
                            self.explain(whom.owner, &route);
                            return Ok(Channel::new(vi, cq, self.clone(), to, whom, route));
                        }
                        Err(error) if is_last && passed.is_empty() || !is_no_way(&error) => {
                            return Err(self.connect_error(&whom.mailbox, whom.owner, error));
                        }
                        Err(error) => error.to_string(),
                    }
                }
            };
            passed.push(Passed { transport: line.transport.clone(), why });
        }
        Err(self.unreachable(whom, &passed, deadline))
    }

    fn reach_by(
        &self,
        line: &Line,
        door: &Door,
        whom: &Whom,
        deadline: Deadline,
    ) -> Result<(Vi, Cq, NetAddress), ViaError> {
        let mut cq = Cq::new(&line.nic)?;
        cq.set_oversubscribed(self.oversubscribed());
        let mut attributes = ViAttributes::new(line.postboxes);
        attributes.receive = Receive::Lent;
        attributes.enable_rdma_read = line.nic.caps().has(Caps::RDMA_READ);
        attributes.peer = Some(whom.owner);
        let mut vi = Vi::new(&line.nic, attributes)?;
        let to = NetAddress { host: door.address.clone(), discriminator: whom.mailbox.as_bytes().to_vec() };
        let introduction = self.introduce(whom.number, Role::Control);
        vi.connect(&to, &cq.handle(), &cq.handle(), &introduction, deadline)?;
        Ok((vi, cq, to))
    }

    /// No way led anywhere. If that is because the rank has ended, says so.
    #[cold]
    fn unreachable(&self, whom: Whom, passed: &[Passed], deadline: Deadline) -> Error {
        let (name, node) = (whom.mailbox, whom.owner as usize);
        let until = deadline.min(Deadline::after(WORD));
        loop {
            if let Some(how) = self.ends().how_lost(whom.owner) {
                return Error::PeerLost { node, how };
            }
            if self.ends().is_done(whom.owner) {
                return Error::MailboxGone { name, owner: node };
            }
            if until.passed() {
                return Error::Unreachable { name, node, tried: told(passed) };
            }
            std::thread::sleep(WORD_PAUSE);
        }
    }

    /// What an error of connecting means to a program.
    pub fn connect_error(&self, name: &str, owner: u32, error: ViaError) -> Error {
        let (name, node) = (name.to_owned(), owner as usize);
        let gone = |name| Error::MailboxGone { name, owner: node };
        match (self.ends().how_lost(owner), error) {
            (Some(how), _) => Error::PeerLost { node, how },
            (None, ViaError::Lost(how)) => self.lost_or_closed(node, how, || gone(name)),
            // It registered the mailbox, and now nobody is there: it has ended.
            (None, ViaError::Os { what, source }) if source.kind() == io::ErrorKind::ConnectionRefused => {
                self.lost_or_closed(node, format!("{what}: {source}"), || gone(name))
            }
            (None, ViaError::NoMatch(_)) => gone(name),
            (None, ViaError::Timeout { waited, .. }) => {
                let what = format!("connecting to {}", Titled(&name));
                Error::Deadline { what, waited, whom: format!("rank {node} to answer") }
            }
            (None, error) => Error::via(format!("connecting to {} on rank {node}", Titled(&name)), error),
        }
    }

    /// Tells the user by which way this rank reaches another, once for each (`DECK_EXPLAIN`).
    fn explain(&self, owner: u32, route: &Route) {
        if let Some(explained) = self.explained()
            && explained.is_news(owner)
        {
            stderr_line(format_args!("{}", explanation(self.rank(), owner, route)));
        }
    }
}

fn explanation(rank: usize, owner: u32, route: &Route) -> String {
    format!("deck: rank {rank} -> rank {owner}: {}", route.brief())
}

/// Ranks that the user was told the way to.
#[derive(Debug)]
pub(crate) struct Explained(Mutex<BTreeSet<u32>>);

impl Explained {
    /// Nobody needs to be told the way to oneself.
    pub fn new(own: u32) -> Self {
        Explained(Mutex::new(BTreeSet::from([own])))
    }

    fn is_news(&self, rank: u32) -> bool {
        self.0.lock().insert(rank)
    }
}

/// Until when an answer is waited for where another way may be tried.
fn short(deadline: Deadline) -> Deadline {
    Deadline::after(TRY.min(deadline.remaining() / 2))
}

/// Whether nobody was met who could have decided anything.
fn is_no_way(error: &ViaError) -> bool {
    use io::ErrorKind as Kind;
    match error {
        ViaError::Timeout { .. } => true,
        ViaError::Os { source, .. } => matches!(
            source.kind(),
            Kind::ConnectionRefused
                | Kind::NotFound
                | Kind::AddrNotAvailable
                | Kind::HostUnreachable
                | Kind::NetworkUnreachable
                | Kind::NetworkDown
                | Kind::TimedOut
                | Kind::InvalidInput
                | Kind::Unsupported
        ),
        // The link ended before a request was answered: by another kernel, which another boot id tells it.
        ViaError::Lost(_) => true,
        // What this NIC needs is not there with this peer: on one host, another user.
        ViaError::Unavailable { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(transport: &str, why: &str) -> Passed {
        Passed { transport: transport.into(), why: why.into() }
    }

    #[test]
    fn a_route_says_why_it_is_no_better_one() {
        let mut route =
            Route { transport: "far".into(), passed: vec![passed("near", "it runs on another host")] };
        assert_eq!(route.to_string(), "far: near not possible: it runs on another host");
        let line = "deck: rank 2 -> rank 0: far (near: it runs on another host)";
        assert_eq!(explanation(2, 0, &route), line);
        route.passed.push(passed("card", "none is there"));
        assert_eq!(
            route.to_string(),
            "far: near not possible: it runs on another host; card not possible: none is there"
        );
        let direct = Route { transport: "near".into(), passed: vec![] };
        assert_eq!(direct.to_string(), "near");
        assert_eq!(explanation(1, 3, &direct), "deck: rank 1 -> rank 3: near");
    }

    #[test]
    fn a_rank_is_explained_once_and_oneself_never() {
        let explained = Explained::new(2);
        assert_eq!(
            [2, 0, 1, 0, 1, 2].map(|rank| explained.is_news(rank)),
            [false, true, true, false, false, false]
        );
    }

    #[test]
    fn answers_are_final_and_silence_is_not() {
        let os = |kind: io::ErrorKind| ViaError::os("connecting", kind);
        for error in [
            os(io::ErrorKind::ConnectionRefused),
            os(io::ErrorKind::NotFound),
            os(io::ErrorKind::HostUnreachable),
            ViaError::Timeout { what: "an answer".into(), waited: TRY },
            ViaError::Lost("it runs on another kernel".into()),
            ViaError::Unavailable { what: "shared memory".into(), why: "it runs as another user".into() },
        ] {
            assert!(is_no_way(&error), "{error}");
        }
        for error in [
            os(io::ErrorKind::PermissionDenied),
            os(io::ErrorKind::OutOfMemory),
            ViaError::NoMatch("in".into()),
            ViaError::Rejected("the secret is not the same".into()),
            ViaError::Closed,
        ] {
            assert!(!is_no_way(&error), "{error}");
        }
    }
}
