//! Connects a postbox to a mailbox, over the first NIC of this rank through which the mailbox can be reached.
//!
//! If nobody answers a request, the next NIC is tried, and [`Route`] records why. An answer is final: if the mailbox is gone, no
//! other NIC is tried. If the mailbox has no room for the connection, the request is repeated until the deadline.

pub(crate) mod attempt;
pub(crate) mod wire;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_boot::{BootError, Maker};
use udeck_via::{
    Caps, Cq, Deadline, Error as ViaError, NetAddress, NicAttributes, Receive, Vi, ViAttributes, stderr_line,
};

use self::attempt::Attempt;
use self::wire::{Advert, Endpoint};
use crate::error::{Error, Result, is_internal};
use crate::nics::WorldNic;
use crate::payload::Payload;
use crate::route::{Route, SkippedTransport, explanation, reasons};
use crate::send::{Channel, Target};
use crate::suspicion::WORD;
use crate::wire::{Introduction, Role};
use crate::world_state::WorldState;

/// While there is another way, an answer is waited for at most so long, and at most half of the time that is left.
const TRY: Duration = Duration::from_secs(5);
/// A rank that nobody finds may have ended: the launcher's word of it is looked for so often.
const WORD_PAUSE: Duration = Duration::from_millis(5);

/// One way to a mailbox, or why it is none.
struct Way<'a> {
    world_nic: &'a WorldNic,
    leads: Result<&'a Endpoint, String>,
}

/// Why this NIC leads to no mailbox of a rank on host `theirs`, from `ours`; an empty name is an unknown host. `encrypt`: what
/// leaves the host, or may, has to be encrypted.
fn barred(attributes: &NicAttributes, ours: &[u8], theirs: &[u8], encrypt: bool) -> Option<&'static str> {
    let (unknown, other) = (ours.is_empty() || theirs.is_empty(), ours != theirs);
    match attributes.host_only {
        true if !unknown && other => Some("it runs on another host"),
        false if encrypt && !attributes.encrypted && (unknown || other) => {
            Some("it is not encrypted (DECK_ENCRYPT)")
        }
        _ => None,
    }
}

/// The ways of a rank, in order of preference.
fn ways<'a>(world: &'a WorldState, advert: &'a Advert) -> Vec<Way<'a>> {
    let mut ways = Vec::new();
    for world_nic in world.nics().iter() {
        let attributes = world_nic.nic.attributes();
        if let Some(why) = barred(attributes, world.host(), &advert.host, world.config().encrypt) {
            ways.push(Way { world_nic, leads: Err(why.into()) });
            continue;
        }
        let endpoints = advert.endpoints.iter().filter(|endpoint| endpoint.transport == world_nic.transport);
        let before = ways.len();
        ways.extend(endpoints.map(|endpoint| Way { world_nic, leads: Ok(endpoint) }));
        if ways.len() == before {
            let theirs =
                advert.endpoints.iter().map(|endpoint| endpoint.transport.as_str()).collect::<Vec<_>>();
            let why = match theirs.len() {
                0 => "the mailbox can be reached by nothing".into(),
                _ => format!("the mailbox can be reached by {} only", theirs.join(", ")),
            };
            ways.push(Way { world_nic, leads: Err(why) });
        }
    }
    ways
}

/// How a mailbox is looked for.
#[derive(Clone, Copy)]
pub(crate) enum LookupMode {
    /// It exists, or not.
    Now,
    /// It is waited for as long as it may be made.
    Of(Maker),
}

/// Connects to a mailbox.
pub(crate) fn connect<T: Payload>(
    world: &Arc<WorldState>,
    name: &str,
    mode: LookupMode,
    deadline: Deadline,
) -> Result<Channel> {
    let start = Instant::now();
    let record = match mode {
        LookupMode::Now => world.client().lookup(name, false, deadline.instant()),
        LookupMode::Of(maker) => world.client().lookup_of(name, maker, deadline.instant()),
    };
    let record = record.map_err(|error| lookup_error(world, name, error))?;
    let Ok(advert) = Advert::decode(&record.value) else {
        return Err(Error::BadName { name: name.to_owned(), why: "what is registered there is no mailbox" });
    };
    if advert.kind != T::kind() || advert.size as usize != T::SIZE {
        let ours = T::kind().to_owned();
        return Err(Error::WrongType { name: name.to_owned(), theirs: advert.kind, ours });
    }
    let number = world.next_postbox();
    let target = Target { mailbox: name.to_owned(), owner: record.owner, number };
    let waits = matches!(mode, LookupMode::Of(_));
    reach(world, target, &advert, Attempt { start, deadline, waits })
}

/// Why a mailbox could not be found.
#[cold]
fn lookup_error(world: &WorldState, name: &str, error: BootError) -> Error {
    let name = name.to_owned();
    match error {
        BootError::PeerDone { rank, .. } => Error::MailboxGone { name, rank: rank as usize },
        BootError::NoSuchName { existing, waited, .. } => {
            let existing = existing.into_iter().filter(|name| !is_internal(name)).collect();
            Error::NoSuchMailbox { name, existing, waited, lost: world.exits().lost() }
        }
        // Whoever was to make it has ended. If one was lost, it may have been that one.
        BootError::NobodyLeft { .. } => match world.exits().lost_that(|_| true) {
            Some((rank, how)) => Error::PeerLost { rank: rank as usize, how },
            None => Error::NobodyLeft { name },
        },
        other => other.into(),
    }
}

/// Connects to the mailbox that is advertised so.
fn reach(world: &Arc<WorldState>, target: Target, advert: &Advert, attempt: Attempt) -> Result<Channel> {
    let deadline = attempt.deadline;
    let ways = ways(world, advert);
    let last = ways.iter().rposition(|way| way.leads.is_ok());
    let mut skipped = Vec::new();
    for (at, Way { world_nic, leads }) in ways.iter().enumerate() {
        let why = match leads {
            Err(why) => why.clone(),
            Ok(endpoint) => {
                let is_last = last == Some(at);
                let until = || if is_last { deadline } else { deadline.min(short(deadline)) };
                match reach_by(world, world_nic, endpoint, &target, until, attempt) {
                    Ok((vi, cq, to)) => {
                        let place = world.nics().iter().position(|other| std::ptr::eq(other, *world_nic));
                        let skipped = world.nics().all_skipped(place.unwrap_or(0), skipped);
                        let encrypted = world_nic.nic.attributes().encrypted;
                        let route = Route { transport: world_nic.transport.clone(), encrypted, skipped };
                        explain(world, target.owner, &route);
                        return Ok(Channel::new(vi, cq, world.clone(), to, target, route));
                    }
                    Err(error) if is_last && skipped.is_empty() || !is_no_way(&error) => {
                        return Err(attempt.meaning(world, &target.mailbox, target.owner, error));
                    }
                    Err(error) => error.to_string(),
                }
            }
        };
        skipped.push(SkippedTransport { transport: world_nic.transport.clone(), why });
    }
    Err(unreachable(world, target, &skipped, deadline))
}

fn reach_by(
    world: &WorldState,
    world_nic: &WorldNic,
    endpoint: &Endpoint,
    target: &Target,
    until: impl Fn() -> Deadline,
    attempt: Attempt,
) -> Result<(Vi, Cq, NetAddress), ViaError> {
    let mut cq = Cq::new(&world_nic.nic)?;
    cq.set_oversubscribed(world.oversubscribed());
    let mut attributes = ViAttributes::new(world_nic.postboxes);
    attributes.receive = Receive::Lent;
    attributes.enable_rdma_read = world_nic.nic.caps().has(Caps::RDMA_READ);
    attributes.peer = Some(target.owner);
    let mut vi = Vi::new(&world_nic.nic, attributes)?;
    let to = NetAddress { host: endpoint.address.clone(), discriminator: target.mailbox.as_bytes().to_vec() };
    let introduction = Introduction { postbox: target.number, role: Role::Control }.encode();
    let cqs = cq.handle();
    attempt.persist(|| vi.connect(&to, &cqs, &cqs, &introduction, until()))?;
    Ok((vi, cq, to))
}

/// No way led anywhere. If that is because the rank has ended, says so.
#[cold]
fn unreachable(
    world: &WorldState,
    target: Target,
    skipped: &[SkippedTransport],
    deadline: Deadline,
) -> Error {
    let (name, rank) = (target.mailbox, target.owner as usize);
    let until = deadline.min(Deadline::after(WORD));
    loop {
        if let Some(how) = world.exits().how_lost(target.owner) {
            return Error::PeerLost { rank, how };
        }
        if world.exits().is_done(target.owner) {
            return Error::MailboxGone { name, rank };
        }
        if until.passed() {
            return Error::Unreachable { name, rank, tried: reasons(skipped) };
        }
        std::thread::sleep(WORD_PAUSE);
    }
}

/// Tells the user by which way this rank reaches another, once for each (`DECK_EXPLAIN`).
fn explain(world: &WorldState, owner: u32, route: &Route) {
    if let Some(explained) = world.explained()
        && explained.is_news(owner)
    {
        stderr_line(format_args!("{}", explanation(world.rank(), owner, route)));
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

    #[test]
    fn what_is_not_encrypted_leaves_no_host_where_that_is_asked_for() {
        let attributes = |host_only, encrypted| {
            let mut attributes = NicAttributes::new("nic0");
            (attributes.host_only, attributes.encrypted) = (host_only, encrypted);
            attributes
        };
        let (near, open, sealed) =
            (attributes(true, false), attributes(false, false), attributes(false, true));
        let may =
            |nic: &NicAttributes, theirs: &[u8], encrypt| barred(nic, b"here", theirs, encrypt).is_none();
        for theirs in [&b"here"[..], b"there", b""] {
            assert!(may(&sealed, theirs, true) && may(&open, theirs, false));
            // Of an unknown host it is not known that it is this one.
            assert_eq!(may(&open, theirs, true), theirs == b"here");
            assert_eq!(may(&near, theirs, true), theirs != b"there");
        }
        assert!(barred(&open, b"", b"there", true).is_some_and(|why| why.contains("not encrypted")));
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
