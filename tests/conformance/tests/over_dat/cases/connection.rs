//! Connections: service points, requests, answers, and the end of a connection.

use std::time::Duration;

use udeck_conformance::both::End as _;
use udeck_conformance::kit::{pattern, soon, until};
use udeck_conformance::{Case, Fabric, Options};
use udeck_dat::{Connection, EpState, Error, Evd, MAX_PRIVATE_DATA, Psp};
use udeck_via::Deadline;

use crate::end::{Door, End, Pair, accept};

const TOPIC: &str = "connection";
pub const CASES: &[Case] = &[
    case!(private_data_travel_both_ways),
    case!(private_data_too_long_are_refused),
    case!(a_rejection_carries_its_reason),
    case!(a_request_dropped_unanswered_is_refused),
    case!(nobody_listens),
    case!(who_listens_in_time_is_found),
    case!(an_unanswered_request_times_out),
    case!(an_answer_that_comes_too_late_connects_nobody),
    case!(a_withdrawn_request_connects_nobody),
    case!(each_request_is_answered_once),
    case!(a_qualifier_is_taken_once),
    case!(qualifiers_are_compared_by_all_their_bits),
    case!(an_adapter_connects_to_itself),
    case!(different_secrets_never_connect),
    case!(a_dropped_end_point_disconnects),
    case!(an_end_point_connects_again),
];

fn private_data_travel_both_ways(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    for len in [0, 1, MAX_PRIVATE_DATA] {
        let (ours, theirs) = (pattern(1, len), pattern(2, len));
        a.request_connection(&door.address(), &ours);
        let request = door.request();
        assert_eq!(request.private_data(), ours);
        accept(&b, request, &theirs);
        assert_eq!((a.told(), b.told()), (Connection::Established, Connection::Established));
        assert_eq!(a.answer(), theirs);
        a.ep.disconnect(true).unwrap();
        assert_eq!((a.told(), b.told()), (Connection::Disconnected, Connection::Disconnected));
        a.ep.reset().unwrap();
        b.ep.reset().unwrap();
    }
}

fn private_data_too_long_are_refused(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    let long = vec![0; MAX_PRIVATE_DATA + 1];
    let error = a.ep.connect(&door.address(), soon().remaining(), &long).unwrap_err();
    assert!(matches!(error, Error::Length { .. }), "{error}");
    assert_eq!(a.ep.state(), EpState::Unconnected);
    a.request_connection(&door.address(), b"");
    let (error, request) = b.ep.accept(door.request(), &long).unwrap_err();
    assert!(matches!(error, Error::Length { .. }), "{error}");
    accept(&b, request, b"");
    assert_eq!((a.told(), b.told()), (Connection::Established, Connection::Established));
}

fn a_rejection_carries_its_reason(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    for reason in [vec![], pattern(3, MAX_PRIVATE_DATA)] {
        a.request_connection(&door.address(), b"");
        door.request().reject(&reason).unwrap();
        assert_eq!(a.told(), Connection::PeerRejected);
        assert_eq!((a.answer(), a.ep.state()), (reason, EpState::Disconnected));
        a.ep.reset().unwrap();
    }
    door.join(&a, &b);
}

fn a_request_dropped_unanswered_is_refused(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    a.request_connection(&door.address(), b"");
    drop(door.request());
    assert_eq!(a.told(), Connection::PeerRejected);
    a.ep.reset().unwrap();
    door.join(&a, &b);
}

/// The connect repeats its request as long as a service point may appear.
fn nobody_listens(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    let to = door.address();
    drop(door);
    a.request_connection(&to, b"");
    assert_eq!(a.told(), Connection::NonPeerRejected);
    a.ep.reset().unwrap();
    Door::at(&b, 1).join(&a, &b);
}

fn who_listens_in_time_is_found(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    let to = door.address();
    drop(door);
    a.request_connection(&to, b"");
    assert_eq!(a.ep.state(), EpState::ActivePending);
    let door = Door::at(&b, 1);
    accept(&b, door.request(), b"");
    assert_eq!((a.told(), b.told()), (Connection::Established, Connection::Established));
}

fn an_unanswered_request_times_out(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    drop(door.stale(&a));
    assert_eq!(a.ep.state(), EpState::Disconnected);
    a.ep.reset().unwrap();
    door.join(&a, &b);
}

/// The answering side learns that nobody is connected: at once, or as the end of a supposed connection.
fn connects_nobody(b: &End, request: udeck_dat::ConnectionRequest) {
    accept(b, request, b"");
    match b.told() {
        Connection::AcceptFailed => {}
        Connection::Established => assert_eq!(b.told(), Connection::Disconnected),
        other => panic!("{other:?}"),
    }
    assert_eq!(b.ep.state(), EpState::Disconnected);
    b.ep.reset().unwrap();
}

fn an_answer_that_comes_too_late_connects_nobody(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    let stale = door.stale(&a);
    connects_nobody(&b, stale);
    a.ep.reset().unwrap();
    door.join(&a, &b);
}

fn a_withdrawn_request_connects_nobody(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric);
    let Pair { a, b, door } = &mut pair;
    a.post_receive(&[5]);
    a.request_connection(&door.address(), b"");
    let request = door.request();
    a.ep.disconnect(false).unwrap();
    assert_eq!(a.told(), Connection::Disconnected);
    assert_eq!(a.receive_over().status, udeck_dat::Status::Flushed);
    connects_nobody(b, request);
    a.ep.reset().unwrap();
    pair.connect();
    pair.check();
}

/// Each requester gets the answer to its own request, in whatever order the answers are given.
fn each_request_is_answered_once(fabric: &dyn Fabric) {
    let (nic, server) = (fabric.open(&Options::default()), End::on(&fabric.open(&Options::default())));
    let door = Door::at(&server, 5);
    let askers: Vec<End> = (0..6).map(|_| End::on(&nic)).collect();
    for (number, asker) in (0..).zip(&askers) {
        asker.request_connection(&door.address(), &[number]);
    }
    let mut requests: Vec<_> = askers.iter().map(|_| door.request()).collect();
    requests.sort_by_key(|request| request.private_data()[0] % 3);
    for request in requests {
        let number = request.private_data()[0];
        request.reject(&[number]).unwrap();
    }
    for (number, asker) in (0..).zip(&askers) {
        assert_eq!((asker.told(), asker.answer()), (Connection::PeerRejected, vec![number]));
    }
    assert!(door.request_by(Deadline::now()).is_none());
}

fn a_qualifier_is_taken_once(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    let error = Psp::new(1, &Evd::new(&b.ia, 0)).unwrap_err();
    assert!(matches!(error, Error::QualifierInUse { qualifier: 1, .. }), "{error}");
    let _elsewhere = Door::at(&a, 1);
    door.join(&a, &b);
    drop(door);
    Door::at(&b, 1);
}

fn qualifiers_are_compared_by_all_their_bits(fabric: &dyn Fabric) {
    let Pair { a, b, door: _one } = Pair::idle(fabric);
    let qualifiers = [0, 1 << 32, 1 << 63, u64::MAX, u64::from(u32::MAX)];
    let doors: Vec<Door> = qualifiers.iter().map(|qualifier| Door::at(&b, *qualifier)).collect();
    for (door, qualifier) in doors.iter().zip(qualifiers) {
        a.request_connection(&door.address(), &qualifier.to_be_bytes());
        let request = door.request();
        assert_eq!(request.private_data(), qualifier.to_be_bytes());
        request.reject(b"right").unwrap();
        assert_eq!((a.told(), a.answer()), (Connection::PeerRejected, b"right".to_vec()));
        a.ep.reset().unwrap();
    }
}

fn an_adapter_connects_to_itself(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let (a, b) = (End::on(&nic), End::on(&nic));
    let door = Door::at(&b, 1);
    let mut pair = Pair { a, b, door };
    pair.connect();
    pair.check();
}

fn different_secrets_never_connect(fabric: &dyn Fabric) {
    let [stranger, nic] = [1, 2]
        .map(|secret| End::on(&fabric.open(&Options { keys: [secret; 32].into(), ..Options::default() })));
    let door = Door::at(&nic, 1);
    stranger.request_connection(&door.address(), b"");
    let told = stranger.told();
    assert!(matches!(told, Connection::Unreachable | Connection::NonPeerRejected), "{told:?}");
    assert!(door.request_by(Deadline::now()).is_none(), "the request never came through");
}

fn a_dropped_end_point_disconnects(fabric: &dyn Fabric) {
    let Pair { mut a, b, door: _door } = Pair::new(fabric);
    a.post_receive(&[3]);
    let End { ep, receives, .. } = a;
    drop(ep);
    assert_eq!(b.told(), Connection::Disconnected);
    assert_eq!(receives.len(), 1, "what was posted is reported");
}

fn an_end_point_connects_again(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    for round in 0..20 {
        pair.check();
        // Either side disconnects first, gracefully or not.
        let first = if round % 2 == 0 { &pair.a } else { &pair.b };
        first.ep.disconnect(round % 4 < 2).unwrap();
        assert_eq!((pair.a.told(), pair.b.told()), (Connection::Disconnected, Connection::Disconnected));
        for end in [&mut pair.a, &mut pair.b] {
            end.assert_quiet();
            end.ep.reset().unwrap();
        }
        pair.connect();
    }
    // No further event follows at either side.
    until("nothing", || (pair.a.connections.dequeue().is_none()).then_some(()));
    assert!(pair.b.connections.wait(Deadline::after(Duration::from_millis(5))).is_err());
}
