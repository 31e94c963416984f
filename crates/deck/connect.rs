//! Connecting a postbox to a mailbox, over the first NIC of this rank through which the mailbox can be
//! reached.
//!
//! If nobody answers a request, the next NIC is tried, and [`Route`] records why. An answer is final: if the
//! mailbox is gone, no other NIC is tried. If the mailbox has no room for the connection, the request is
//! repeated until the deadline.

pub(crate) mod attempt;
pub(crate) mod wire;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_boot::waits::Call;
use udeck_boot::{BootError, Maker, family};
use udeck_via::{
    Caps, Cq, Deadline, Error as ViaError, NetAddress, NicAttributes, Receive, ServiceLevel, Vi,
    ViAttributes, Withdrawal, stderr_line,
};

use self::attempt::Attempt;
use self::wire::{Advert, Endpoint};
use crate::config::ENCRYPT_ALL;
use crate::error::{Error, Result, is_internal};
use crate::exits::check::MAX_WAIT;
use crate::long_wait::{asking, for_owner, publish};
use crate::nics::WorldNic;
use crate::payload::Payload;
use crate::route::{Route, RouteLevel, SkippedTransport, explanation, reasons};
use crate::send::{Channel, Target};
use crate::wire::{Introduction, Role};
use crate::world_state::WorldState;

/// Longest wait for an answer while another NIC can be tried; at most half of the time that is left.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Interval at which the launcher's report about a rank that cannot be found is checked: the rank may have
/// ended.
const REPORT_PAUSE: Duration = Duration::from_millis(5);

/// One NIC that may lead to a mailbox, or the reason why it does not.
struct Candidate<'a> {
    world_nic: &'a WorldNic,
    endpoint: Result<&'a Endpoint, String>,
}

/// Locations of this rank and of a mailbox's owner, and what has to be encrypted between them.
#[derive(Clone, Copy)]
struct Path<'a> {
    /// Identifiers of the two hosts; an empty one stands for an unknown host.
    ours: &'a [u8],
    theirs: &'a [u8],
    /// Whether the launcher has started both ranks on one host.
    started_together: bool,
    /// Whether this rank insists on encryption between hosts.
    we_encrypt: bool,
    /// Whether the mailbox's owner insists on encryption between hosts.
    they_encrypt: bool,
}

impl<'a> Path<'a> {
    fn to(world: &'a WorldState, owner: u32, advert: &'a Advert) -> Self {
        Path {
            ours: world.host(),
            theirs: &advert.host,
            started_together: world.client().welcome().is_neighbour(owner),
            we_encrypt: world.config().encrypt,
            they_encrypt: advert.encrypt,
        }
    }

    fn is_unknown(self) -> bool {
        self.ours.is_empty() || self.theirs.is_empty()
    }

    /// Whether messages leave the host, or may leave it.
    fn leaves_host(self) -> bool {
        self.is_unknown() || self.ours != self.theirs || !self.started_together
    }

    /// The reason why this NIC must not be used, if any.
    fn rejected(self, attributes: &NicAttributes) -> Option<String> {
        if attributes.host_only {
            return (!self.is_unknown() && self.ours != self.theirs)
                .then(|| "it runs on another host".into());
        }
        if attributes.encrypted || !self.leaves_host() {
            return None;
        }
        match (self.we_encrypt, self.they_encrypt) {
            (true, _) => Some("it is not encrypted (DECK_ENCRYPT)".into()),
            (false, true) => {
                Some(format!("it is not encrypted, and the mailbox's rank insists on that; {ENCRYPT_ALL}"))
            }
            (false, false) => None,
        }
    }

    /// The reason why the mailbox cannot be reached by a NIC's transport.
    fn missing_transport(self, attributes: &NicAttributes, advert: &Advert) -> String {
        let theirs: Vec<_> = advert.endpoints.iter().map(|endpoint| endpoint.transport.as_str()).collect();
        if theirs.is_empty() {
            return "the mailbox lists no transport".into();
        }
        let only = format!("the mailbox can be reached by {} only", theirs.join(", "));
        // The owner was not told to encrypt, so it has not opened a transport that does.
        let lacks_encryption =
            attributes.encrypted && self.we_encrypt && !self.they_encrypt && self.leaves_host();
        if lacks_encryption { format!("{only}; {ENCRYPT_ALL}") } else { only }
    }
}

/// The NICs of a rank with their reasons, in order of preference.
fn candidates<'a>(world: &'a WorldState, owner: u32, advert: &'a Advert) -> Vec<Candidate<'a>> {
    let path = Path::to(world, owner, advert);
    let mut candidates = Vec::new();
    for world_nic in world.nics().iter() {
        let attributes = world_nic.nic.attributes();
        if let Some(why) = path.rejected(attributes) {
            candidates.push(Candidate { world_nic, endpoint: Err(why) });
            continue;
        }
        let endpoints = advert.endpoints.iter().filter(|endpoint| endpoint.transport == world_nic.transport);
        let before = candidates.len();
        candidates.extend(endpoints.map(|endpoint| Candidate { world_nic, endpoint: Ok(endpoint) }));
        if candidates.len() == before {
            candidates
                .push(Candidate { world_nic, endpoint: Err(path.missing_transport(attributes, advert)) });
        }
    }
    candidates
}

/// How a mailbox is looked up.
#[derive(Clone, Copy)]
pub(crate) enum LookupMode {
    /// Once: the mailbox exists, or not.
    Now,
    /// Waits as long as the maker may still make the mailbox.
    Of(Maker),
}

/// Connects to a mailbox, by its registered name.
pub(crate) fn connect<T: Payload>(
    world: &Arc<WorldState>,
    registered: &str,
    mode: LookupMode,
    level: Option<ServiceLevel>,
    deadline: Deadline,
) -> Result<Channel> {
    asking(world, |asked| connect_asking::<T>(world, registered, mode, level, deadline, asked))
}

/// Implements [`connect`]. `asked` returns whether its waits are to end.
fn connect_asking<T: Payload>(
    world: &Arc<WorldState>,
    registered: &str,
    mode: LookupMode,
    level: Option<ServiceLevel>,
    deadline: Deadline,
    asked: fn() -> bool,
) -> Result<Channel> {
    let start = Instant::now();
    let record = match mode {
        LookupMode::Now => world.client().lookup(registered, false, deadline.instant()),
        LookupMode::Of(maker) => {
            world.client().lookup_of(registered, maker, deadline.instant(), Some(&asked))
        }
    };
    let record = record.map_err(|error| lookup_error(world, registered, error))?;
    let name = family::parts(registered).0;
    let Ok(advert) = Advert::decode(&record.value) else {
        return Err(Error::BadName {
            name: name.to_owned(),
            why: "the name is registered, but not as a mailbox",
        });
    };
    if advert.kind != T::kind() || advert.size as usize != T::SIZE {
        let ours = T::kind().to_owned();
        return Err(Error::WrongType { name: name.to_owned(), theirs: advert.kind, ours });
    }
    let number = world.next_postbox();
    let queue = world.queue_limit(advert.queue);
    let (mailbox, registered) = (name.to_owned(), registered.to_owned());
    let level = level.unwrap_or(advert.level);
    let incast = advert.incast;
    let target = Target {
        mailbox,
        registered,
        owner: record.owner,
        number,
        queue,
        depth: advert.depth,
        level,
        incast,
    };
    let waits = matches!(mode, LookupMode::Of(_));
    reach(world, target, &advert, Attempt { start, deadline, waits }, &Withdrawal::asking(asked))
}

/// The error of a mailbox that was not found.
#[cold]
fn lookup_error(world: &WorldState, registered: &str, error: BootError) -> Error {
    let (name, member) = family::parts(registered);
    let (name, rank) = (name.to_owned(), member.map(|rank| rank as usize));
    match error {
        BootError::PeerDone { rank, .. } => Error::MailboxGone { name, rank: rank as usize },
        BootError::NoSuchName { existing, waited, .. } => {
            let existing: Vec<_> = existing.into_iter().filter(|name| !is_internal(name)).collect();
            let existing = family::listed(&existing);
            Error::NoSuchMailbox { name, rank, existing, waited, lost: world.exit_log().lost() }
        }
        // The rank that was to make the mailbox has ended. If a rank was lost, it may have been that one.
        BootError::NobodyLeft { .. } => match world.exit_log().find_lost(|_| true) {
            Some((rank, how)) => Error::PeerLost { rank: rank as usize, how },
            None => Error::NobodyLeft { name },
        },
        other => other.into(),
    }
}

/// Connects to the mailbox of an advert.
fn reach(
    world: &Arc<WorldState>,
    mut target: Target,
    advert: &Advert,
    attempt: Attempt,
    withdrawal: &Withdrawal,
) -> Result<Channel> {
    let deadline = attempt.deadline;
    // Published at once: a connection takes much longer than the publication.
    let _known = publish(world, &for_owner(Call::Connect, &target.mailbox, target.owner), Duration::ZERO);
    let candidates = candidates(world, target.owner, advert);
    let last = candidates.iter().rposition(|candidate| candidate.endpoint.is_ok());
    let mut skipped = Vec::new();
    for (at, Candidate { world_nic, endpoint }) in candidates.iter().enumerate() {
        let why = match endpoint {
            Err(why) => why.clone(),
            Ok(endpoint) => {
                let is_last = last == Some(at);
                let until = || if is_last { deadline } else { deadline.min(short(deadline)) };
                let reached = reach_by(world, world_nic, endpoint, &target, until, attempt, withdrawal);
                // A signal's handler interrupts once: that counts even if a connection was made at the same
                // time.
                if withdrawal.is_withdrawn() {
                    return Err(Error::Interrupted);
                }
                match reached {
                    Ok((vi, cq, to)) => {
                        let place = world.nics().iter().position(|other| std::ptr::eq(other, *world_nic));
                        let skipped = world.nics().all_skipped(place.unwrap_or(0), skipped);
                        let encrypted = world_nic.nic.attributes().encrypted;
                        let ordered = world_nic.nic.caps().has(Caps::SERVICE_LEVELS);
                        let shared = world_nic.nic.caps().has(Caps::HAND_OFF);
                        let level = RouteLevel { level: target.level, ordered, shared };
                        target.incast = target.incast.over(world_nic.nic.attributes());
                        let (transport, incast) = (world_nic.transport.clone(), target.incast.setting());
                        let route = Route { transport, encrypted, level, incast, skipped };
                        explain(world, target.owner, &route);
                        return Ok(Channel::new(vi, cq, world.clone(), to, target, route));
                    }
                    Err(error) if is_last && skipped.is_empty() || !may_try_next(&error) => {
                        return Err(attempt.translate(world, &target.mailbox, target.owner, error));
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
    withdrawal: &Withdrawal,
) -> Result<(Vi, Cq, NetAddress), ViaError> {
    let mut cq = Cq::new(&world_nic.nic)?;
    cq.set_oversubscribed(world.oversubscribed());
    let mut attributes = ViAttributes::new(world_nic.postboxes);
    attributes.receive = Receive::Lent;
    attributes.enable_rdma_read = world_nic.nic.caps().has(Caps::RDMA_READ);
    attributes.peer = Some(target.owner);
    attributes.level = target.level;
    let mut vi = Vi::new(&world_nic.nic, attributes)?;
    let to =
        NetAddress { host: endpoint.address.clone(), discriminator: target.registered.as_bytes().to_vec() };
    let introduction = Introduction { postbox: target.number, role: Role::Control }.encode();
    let cqs = cq.handle();
    attempt.persist(Some(withdrawal), || {
        vi.connect_unless(withdrawal, &to, (&cqs, &cqs), &introduction, until())
    })?;
    Ok((vi, cq, to))
}

/// The error if no NIC reached the mailbox. If the rank has ended, the error says so.
#[cold]
fn unreachable(
    world: &WorldState,
    target: Target,
    skipped: &[SkippedTransport],
    deadline: Deadline,
) -> Error {
    let (name, rank) = (target.mailbox, target.owner as usize);
    let until = deadline.min(Deadline::after(MAX_WAIT));
    loop {
        if let Some(how) = world.exit_log().how_lost(target.owner) {
            return Error::PeerLost { rank, how };
        }
        if world.exit_log().has_finished(target.owner) {
            return Error::MailboxGone { name, rank };
        }
        if until.passed() {
            return Error::Unreachable { name, rank, tried: reasons(skipped) };
        }
        std::thread::sleep(REPORT_PAUSE);
    }
}

/// Reports to the user how this rank reaches another, once for each rank (`DECK_EXPLAIN`).
fn explain(world: &WorldState, owner: u32, route: &Route) {
    if let Some(explained) = world.explained()
        && explained.is_news(owner, route.level.level)
    {
        stderr_line(format_args!("{}", explanation(world.rank(), owner, route)));
    }
}

/// Deadline for an answer while another NIC can be tried.
fn short(deadline: Deadline) -> Deadline {
    Deadline::after(ANSWER_LIMIT.min(deadline.remaining() / 2))
}

/// Whether the attempt met nobody who could have decided anything.
fn may_try_next(error: &ViaError) -> bool {
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
        // The connection ended before a request was answered: by another kernel, which notices a different
        // boot id.
        ViaError::Lost(_) => true,
        // This NIC lacks something with this peer: on one host, the peer may run as another user.
        ViaError::Unavailable { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incast::Rules;

    #[test]
    fn what_is_not_encrypted_leaves_no_host_where_that_is_asked_for() {
        let attributes = |host_only, encrypted| {
            let mut attributes = NicAttributes::new("nic0");
            (attributes.host_only, attributes.encrypted) = (host_only, encrypted);
            attributes
        };
        let (near, open, sealed) =
            (attributes(true, false), attributes(false, false), attributes(false, true));
        let path = |theirs, [we_encrypt, they_encrypt]: [bool; 2]| Path {
            ours: b"here",
            theirs,
            started_together: true,
            we_encrypt,
            they_encrypt,
        };
        let may = |nic: &NicAttributes, path: Path<'_>| path.rejected(nic).is_none();
        for theirs in [&b"here"[..], b"there", b""] {
            assert!(may(&open, path(theirs, [false, false])));
            for insists in [[true, false], [false, true], [true, true]] {
                let path = path(theirs, insists);
                assert!(may(&sealed, path));
                // An unknown host may be another one.
                assert_eq!(may(&open, path), theirs == b"here");
                assert_eq!(may(&near, path), theirs != b"there");
                // Two of the launcher's hosts may be one machine: the launcher's placement counts.
                let apart = Path { started_together: false, ..path };
                assert!(!may(&open, apart) && may(&sealed, apart));
            }
        }
        let unknown = Path { ours: b"", ..path(b"there", [true, false]) };
        assert!(unknown.rejected(&open).is_some_and(|why| why.contains("not encrypted")));
        let theirs = path(b"there", [false, true]).rejected(&open).unwrap();
        assert!(theirs.contains("insists") && theirs.contains("DECK_ENCRYPT=1"), "{theirs}");
    }

    #[test]
    fn a_mailbox_that_nothing_encrypted_leads_to_says_what_to_do() {
        let mut attributes = NicAttributes::new("sealed0");
        attributes.encrypted = true;
        let endpoints = vec![Endpoint { transport: "open".into(), address: vec![1] }];
        let advert = Advert {
            encrypt: false,
            level: ServiceLevel::default(),
            queue: None,
            depth: None,
            incast: Rules::Off,
            host: b"there".to_vec(),
            endpoints,
            kind: "u8".into(),
            size: 1,
        };
        let path = |we_encrypt| Path {
            ours: b"here",
            theirs: &advert.host,
            started_together: false,
            we_encrypt,
            they_encrypt: false,
        };
        assert_eq!(
            path(false).missing_transport(&attributes, &advert),
            "the mailbox can be reached by open only"
        );
        assert!(path(true).missing_transport(&attributes, &advert).ends_with(ENCRYPT_ALL));
    }

    #[test]
    fn answers_are_final_and_silence_is_not() {
        let os = |kind: io::ErrorKind| ViaError::os("connecting", kind);
        for error in [
            os(io::ErrorKind::ConnectionRefused),
            os(io::ErrorKind::NotFound),
            os(io::ErrorKind::HostUnreachable),
            ViaError::Timeout { what: "an answer".into(), waited: ANSWER_LIMIT },
            ViaError::Lost("it runs on another kernel".into()),
            ViaError::Unavailable { what: "shared memory".into(), why: "it runs as another user".into() },
        ] {
            assert!(may_try_next(&error), "{error}");
        }
        for error in [
            os(io::ErrorKind::PermissionDenied),
            os(io::ErrorKind::OutOfMemory),
            ViaError::NoMatch("in".into()),
            ViaError::rejected("the secret is not the same"),
            ViaError::Closed,
        ] {
            assert!(!may_try_next(&error), "{error}");
        }
    }
}
