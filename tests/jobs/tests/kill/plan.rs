//! Plan of the kills: every point, in either role, with every protocol, at a few passages each.

use udeck::Protocol;
use udeck_jobs::traffic::Role;
use udeck_sys::fault;

/// A kill at the `passage`-th passage of `point`.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    pub point: &'static str,
    pub passage: u64,
}

pub const PROTOCOLS: [Protocol; 6] = [
    Protocol::Eager,
    Protocol::Copy,
    Protocol::RdmaWrite,
    Protocol::RdmaRead,
    Protocol::Handshake,
    Protocol::HandOff,
];

/// All kills of one role and protocol; of each point only the first and the last passage, unless `UDECK_KILLS` is `all`, as in the
/// nightly tests.
pub fn kills(role: Role, protocol: Protocol) -> Vec<Kill> {
    let all = std::env::var("UDECK_KILLS").is_ok_and(|word| word == "all");
    let reached = fault::POINTS.iter().filter(|point| never_passed(point, role, protocol).is_none());
    let passages = |point| {
        let passages = passages(point).iter().enumerate();
        let ends = [0, self::passages(point).len() - 1];
        passages.filter(move |(nth, _)| all || ends.contains(nth)).map(|(_, &passage)| passage)
    };
    reached.flat_map(|point| passages(point).map(move |passage| Kill { point, passage })).collect()
}

/// Passages of a point at which to kill: the first, one in the middle, and ones after a ring of 64 cells (or of 64
/// tokens) has wrapped: seven of eight messages take the first of two rings. Some points are passed rarely.
fn passages(point: &str) -> &'static [u64] {
    match point {
        // These points are passed twice for each connection that the victim makes, on its own doorbell; then on
        // the survivor's.
        "doorbell.leaf" | "doorbell.summary" => &[1, 2, 3, 5, 9, 14],
        "doorbell.unparked" => &[1, 2, 4, 7],
        // The point is passed once for each of two postboxes.
        "accept.accepted" => &[1, 2],
        // The point is passed once in a quarter of a ring.
        "retrieve.credited" => &[1, 2, 3, 5, 9],
        _ => &[1, 2, 30, 64, 74, 150, 300],
    }
}

/// Why a victim in this role never passes a point; `None`: it does.
pub fn never_passed(point: &str, role: Role, protocol: Protocol) -> Option<&'static str> {
    use {Protocol::*, Role::*};
    let announces = matches!(protocol, Copy | RdmaWrite | RdmaRead | Handshake);
    match (point, role) {
        (
            "announce.said" | "copy.sent" | "read.announced" | "handshake.asked" | "handshake.sent",
            Retrieves,
        ) => return Some("the poster does"),
        (
            "accept.accepted" | "announce.taken" | "announce.answered" | "copy.taken" | "read.fetched"
            | "handshake.granted" | "handshake.received",
            Posts,
        ) => return Some("the retriever does"),
        ("announce.said" | "announce.answered", _) if !matches!(protocol, Copy | RdmaWrite) => {
            return Some("only messages that wait in the queue are announced so");
        }
        _ => {}
    }
    match (point.split('.').next()?, role, protocol) {
        ("post", Retrieves, _) if !announces => Some("a retriever sends only answers to announcements"),
        ("retrieve", Posts, _) if !announces => Some("a poster gets only answers to its announcements"),
        ("rdma", _, Eager | Copy | HandOff | Handshake) => Some("it does no RDMA"),
        ("rdma", Retrieves, RdmaWrite) => Some("the poster writes"),
        ("rdma", Posts, RdmaRead) => Some("the retriever reads"),
        ("announce", ..) if !announces => Some("it announces nothing"),
        ("copy", _, other) if other != Copy => Some("only copy goes by fragments"),
        ("read", _, other) if other != RdmaRead => Some("only rdma-read is read"),
        ("handshake", _, other) if other != Handshake => Some("only handshake shakes hands"),
        ("release", Posts, _) => Some("nothing is lent to a poster"),
        ("release", Retrieves, RdmaWrite | RdmaRead) => Some("what goes by RDMA is not lent"),
        _ => None,
    }
}

#[test]
fn every_point_is_reached_in_some_role_by_some_protocol() {
    for point in fault::POINTS {
        let reached = Role::ALL
            .iter()
            .flat_map(|role| PROTOCOLS.map(|protocol| (*role, protocol)))
            .any(|(role, protocol)| never_passed(point, role, protocol).is_none());
        assert!(reached, "nothing is killed at {point}");
    }
}
