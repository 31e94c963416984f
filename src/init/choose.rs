//! Choice of the NICs that a rank opens: by the places of the job's ranks, or as the user wants.

use std::net::IpAddr;

use udeck_deck::{Error, Result};

use crate::registry::Transport;

/// Places of the ranks of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    /// This rank's number.
    pub rank: u32,
    /// The number of each rank's host; empty if all run on one.
    pub hosts: &'a [u32],
    /// This host's address towards the others.
    pub interface: Option<IpAddr>,
}

impl Places<'_> {
    /// Returns how many of `size` ranks run on this host.
    pub fn here(&self, size: u32) -> usize {
        let Some(own) = self.own() else { return size as usize };
        self.hosts.iter().filter(|host| **host == own).count()
    }

    /// Tells whether other ranks run on other hosts.
    pub fn has_others(&self) -> bool {
        self.company().1
    }

    fn own(&self) -> Option<u32> {
        self.hosts.get(self.rank as usize).copied()
    }

    /// Tells whether another rank runs on this host, and whether one runs on another host. (A rank that is
    /// alone in the world counts as its own neighbour.)
    fn company(&self) -> (bool, bool) {
        let Some(own) = self.own() else { return (true, false) };
        let others = || self.hosts.iter().enumerate().filter(|(rank, _)| *rank != self.rank as usize);
        let elsewhere = others().any(|(_, host)| *host != own);
        (others().any(|(_, host)| *host == own) || !elsewhere, elsewhere)
    }
}

/// Wishes of the user.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// Only these transports, in this order.
    pub transports: Option<&'a str>,
    /// Only transports that encrypt, between hosts.
    pub encrypt: bool,
}

/// A NIC to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub transport: &'static str,
    /// See [`crate::NicOptions::bind`].
    pub bind: Option<IpAddr>,
    /// The user did not name this NIC: a host that cannot have it does without.
    pub optional: bool,
}

/// Place of a rank, seen from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    SameHost,
    OtherHost,
}

/// Reason why a transport is not taken if encryption is asked for.
pub(crate) const NOT_ENCRYPTED: &str = "it is not encrypted (--encrypt)";

/// Returns why a transport is not taken between ranks in this relation, if the user does not name it; `None` if
/// it is taken, unless there is a better one.
pub(crate) fn why_not(transport: &Transport, relation: Relation, encrypt: bool) -> Option<&'static str> {
    match (relation, transport.network) {
        (Relation::OtherHost, false) => Some("it reaches ranks of its own host only"),
        (Relation::SameHost, true) => Some("it is for other hosts"),
        _ if encrypt && transport.network => (!transport.encrypted).then_some(NOT_ENCRYPTED),
        _ if !transport.by_default => Some("it is taken when asked for only (--transport)"),
        _ => None,
    }
}

/// Returns the NICs that a rank uses, in order of preference: those that `wanted` names; otherwise one for this
/// host if others run here, and one for the network if others run elsewhere. If encryption is asked for, a NIC
/// that does not encrypt listens on this host only.
pub(crate) fn choose(
    places: &Places<'_>,
    wanted: Wanted<'_>,
    existing: &[Transport],
) -> Result<Vec<Opening>> {
    let is_open = |transport: &Transport| transport.network && (transport.encrypted || !wanted.encrypt);
    let bind = |transport: &Transport| if is_open(transport) { places.interface } else { None };
    let optional = wanted.transports.is_none();
    let opening =
        |transport: &Transport| Opening { transport: transport.name, bind: bind(transport), optional };
    let (here, elsewhere) = places.company();
    let chosen: Vec<&Transport> = match wanted.transports {
        Some(names) => named(names, existing)?,
        None => {
            let taken =
                |transport: &Transport, relation| why_not(transport, relation, wanted.encrypt).is_none();
            let suits = |transport: &&Transport| {
                (here && taken(transport, Relation::SameHost))
                    || (elsewhere && taken(transport, Relation::OtherHost))
            };
            existing.iter().filter(suits).collect()
        }
    };
    let asked_for = wanted.transports.is_some() && !wanted.encrypt;
    if elsewhere && !asked_for && !chosen.iter().any(|transport| is_open(transport)) {
        return Err(no_way_out(wanted, &chosen, existing));
    }
    Ok(chosen.into_iter().map(opening).collect())
}

/// Makes the error that no transport reaches the job's other hosts as the user wants it.
#[cold]
fn no_way_out(wanted: Wanted<'_>, chosen: &[&Transport], existing: &[Transport]) -> Error {
    let names = |transports: &mut dyn Iterator<Item = &Transport>| {
        transports.map(|transport| transport.name).collect::<Vec<_>>().join(", ")
    };
    let why = match wanted.transports {
        _ if !wanted.encrypt => "this build has no transport that reaches the job's other hosts".to_owned(),
        None => "this build has no transport that encrypts (--encrypt, DECK_ENCRYPT)".to_owned(),
        Some(_) => format!(
            "none of {} encrypts what goes to the job's other hosts, and --encrypt (DECK_ENCRYPT) wants that; add one that \
             does to --transport (DECK_TRANSPORT): {}",
            names(&mut chosen.iter().copied()),
            names(&mut existing.iter().filter(|transport| transport.encrypted))
        ),
    };
    let source = Box::new(udeck_via::Error::InvalidParameter(why));
    Error::Via { what: "choosing transports".into(), source }
}

/// Returns the transports of a list, in its order.
fn named<'a>(wanted: &str, existing: &'a [Transport]) -> Result<Vec<&'a Transport>> {
    let mut chosen: Vec<&Transport> = Vec::new();
    for name in wanted.split(',').map(str::trim) {
        let found = existing.iter().find(|transport| transport.name == name);
        match found.filter(|found| chosen.iter().all(|other| other.name != found.name)) {
            Some(transport) => chosen.push(transport),
            None => return Err(no_such(wanted, existing)),
        }
    }
    Ok(chosen)
}

#[cold]
fn no_such(wanted: &str, existing: &[Transport]) -> Error {
    let names: Vec<_> = existing.iter().map(|transport| transport.name).collect();
    let expected = format!(
        "transports, each once, the best first, with commas between them; there are: {}",
        names.join(", ")
    );
    Error::Config { variable: "DECK_TRANSPORT", value: wanted.to_owned(), expected: expected.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERFACE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn existing() -> Vec<Transport> {
        let transport = |name, network, by_default| Transport::pretended(name, network, by_default);
        vec![
            transport("shm", false, true),
            transport("verbs", true, true),
            transport("tcp", true, true),
            transport("udp", true, false),
        ]
    }

    fn chosen(rank: u32, hosts: &[u32], wanted: Option<&str>) -> Vec<&'static str> {
        let places = Places { rank, hosts, interface: Some(INTERFACE) };
        let openings = choose(&places, Wanted { transports: wanted, encrypt: false }, &existing()).unwrap();
        for opening in &openings {
            assert_eq!(opening.bind, (opening.transport != "shm").then_some(INTERFACE), "{opening:?}");
            assert_eq!(opening.optional, wanted.is_none(), "{opening:?}");
        }
        openings.iter().map(|opening| opening.transport).collect()
    }

    #[test]
    fn ranks_of_one_host_need_no_network() {
        assert_eq!(chosen(0, &[], None), ["shm"]);
        assert_eq!(chosen(1, &[4, 4, 4], None), ["shm"]);
        assert_eq!(chosen(0, &[3], None), ["shm"], "a world of one");
    }

    #[test]
    fn a_rank_alone_on_its_host_needs_only_the_network() {
        assert_eq!(chosen(1, &[0, 1, 2], None), ["verbs", "tcp"]);
        assert_eq!(chosen(2, &[0, 0, 1], None), ["verbs", "tcp"]);
    }

    #[test]
    fn a_rank_with_neighbours_and_others_needs_both() {
        for rank in [0, 1] {
            assert_eq!(chosen(rank, &[0, 0, 1], None), ["shm", "verbs", "tcp"]);
        }
    }

    #[test]
    fn the_user_has_his_way() {
        for hosts in [&[][..], &[0, 0], &[0, 1]] {
            assert_eq!(chosen(0, hosts, Some("tcp")), ["tcp"]);
            assert_eq!(chosen(0, hosts, Some("udp, shm")), ["udp", "shm"]);
        }
        for wanted in ["", "shm,", "smh", "shm,shm", "SHM", "shm tcp"] {
            let places = Places { rank: 0, hosts: &[], interface: None };
            let error = choose(&places, Wanted { transports: Some(wanted), encrypt: false }, &existing())
                .unwrap_err();
            assert!(matches!(&error, Error::Config { value, .. } if value == wanted), "{error}");
            assert!(error.to_string().contains("there are: shm, verbs, tcp, udp"), "{error}");
        }
    }

    #[test]
    fn a_build_without_a_network_says_so() {
        let places = Places { rank: 0, hosts: &[0, 0, 1], interface: None };
        let error = choose(&places, Wanted::default(), &existing()[..1]).unwrap_err();
        assert!(error.to_string().contains("other hosts"), "{error}");
        assert_eq!(
            choose(&places, Wanted { transports: Some("shm"), encrypt: false }, &existing()[..1])
                .unwrap()
                .len(),
            1,
            "he wanted it"
        );
    }

    #[test]
    fn what_is_to_be_encrypted_leaves_the_host_by_what_encrypts() {
        let encrypted = |hosts: &[u32], transports| {
            let places = Places { rank: 0, hosts, interface: Some(INTERFACE) };
            choose(&places, Wanted { transports, encrypt: true }, &existing())
        };
        let names = |openings: Vec<Opening>| {
            openings.into_iter().map(|opening| (opening.transport, opening.bind)).collect::<Vec<_>>()
        };
        let open = Some(INTERFACE);
        assert_eq!(names(encrypted(&[0, 0], None).unwrap()), [("shm", None)]);
        assert_eq!(names(encrypted(&[0, 1], None).unwrap()), [("udp", open)]);
        assert_eq!(names(encrypted(&[0, 0, 1], None).unwrap()), [("shm", None), ("udp", open)]);
        // A NIC that does not encrypt is reached from this host only.
        assert_eq!(names(encrypted(&[0, 1], Some("tcp,udp")).unwrap()), [("tcp", None), ("udp", open)]);
        assert_eq!(names(encrypted(&[0, 0], Some("tcp")).unwrap()), [("tcp", None)]);
        let error = encrypted(&[0, 1], Some("verbs,tcp")).unwrap_err().to_string();
        assert!(error.contains("none of verbs, tcp encrypts") && error.contains(": udp"), "{error}");
        let tcp = &existing()[2];
        assert_eq!(why_not(tcp, Relation::OtherHost, true), Some(NOT_ENCRYPTED));
        assert_eq!(why_not(tcp, Relation::OtherHost, false), None);
    }

    #[test]
    fn ranks_here_are_counted() {
        let places = |rank, hosts| Places { rank, hosts, interface: None };
        assert_eq!(places(0, &[]).here(5), 5);
        assert_eq!(places(2, &[0, 0, 1, 1, 1]).here(5), 3);
    }
}
