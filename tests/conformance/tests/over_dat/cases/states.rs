//! States of an end point: the events that change them, and the calls that they allow.

use udeck_conformance::both::End as _;
use udeck_conformance::kit::soon;
use udeck_conformance::{Case, Fabric, Options};
use udeck_dat::{Connection, EpState, Error, Flags, Iov, Operation, RemoteMemory, Rights, SharedLmr, Status};

use crate::end::{Door, End, Pair, accept};

const TOPIC: &str = "states";
pub const CASES: &[Case] = &[
    case!(states_follow_connect_and_disconnect),
    case!(an_unconnected_end_point_takes_receives_but_no_requests),
    case!(a_connected_end_point_neither_asks_nor_accepts),
    case!(what_is_posted_to_an_ended_end_point_is_flushed),
];

fn states_follow_connect_and_disconnect(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    let states = || (a.ep.state(), b.ep.state());
    assert_eq!(states(), (EpState::Unconnected, EpState::Unconnected));
    a.request_connection(&door.address(), b"");
    let request = door.request();
    assert_eq!(states(), (EpState::ActivePending, EpState::Unconnected));
    accept(&b, request, b"");
    assert_eq!((a.told(), b.told()), (Connection::Established, Connection::Established));
    assert_eq!(states(), (EpState::Connected, EpState::Connected));
    a.ep.disconnect(true).unwrap();
    assert_eq!((a.told(), b.told()), (Connection::Disconnected, Connection::Disconnected));
    assert_eq!(states(), (EpState::Disconnected, EpState::Disconnected));
    b.ep.disconnect(true).expect("which changes nothing");
    a.ep.reset().unwrap();
    assert_eq!(states(), (EpState::Unconnected, EpState::Disconnected));
    a.ep.reset().expect("which changes nothing");
}

fn is_in(error: &Error, wanted: EpState) -> bool {
    matches!(error, Error::InvalidState { state, .. } if *state == wanted)
}

/// Posts each kind of request with memory of its own, and returns the results.
fn requests(end: &End, at: RemoteMemory) -> [Result<(), (Error, Iov)>; 3] {
    let lmr = || end.lmr(b"abc");
    [
        end.ep.post_send(lmr(), 1),
        end.ep.post_rdma_write(lmr(), at, 2, Flags::NONE),
        end.ep.post_rdma_read(lmr(), at, 3, Flags::NONE),
    ]
}

fn an_unconnected_end_point_takes_receives_but_no_requests(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric);
    let Pair { a, b, .. } = &mut pair;
    let place = SharedLmr::new(&b.pz, 3, Rights::READ_WRITE).unwrap();
    for refused in requests(a, place.remote()) {
        let (error, iov) = refused.unwrap_err();
        assert!(is_in(&error, EpState::Unconnected), "{error}");
        assert_eq!(&iov.into_lmr()[..], b"abc", "the memory comes back untouched");
    }
    let error = a.ep.disconnect(true).unwrap_err();
    assert!(is_in(&error, EpState::Unconnected), "{error}");
    a.assert_quiet();
    b.post_receive(&[7]);
    pair.connect();
    pair.a.post_send(b"waiting");
    assert_eq!(pair.b.received(), b"waiting", "into what was posted before the connection");
}

fn a_connected_end_point_neither_asks_nor_accepts(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let Pair { a, b, door } = &mut pair;
    let error = a.ep.connect(&door.address(), soon().remaining(), b"").unwrap_err();
    assert!(is_in(&error, EpState::Connected), "{error}");
    let error = a.ep.reset().unwrap_err();
    assert!(is_in(&error, EpState::Connected), "{error}");
    let (other, answer) = (End::on(&fabric.open(&Options::default())), End::on(b.ia.nic()));
    // An end point accepts only requests that arrived at its own adapter.
    let own = Door::at(&answer, 2);
    other.request_connection(&own.address(), b"");
    let (error, request) = b.ep.accept(own.request(), b"").unwrap_err();
    assert!(is_in(&error, EpState::Connected), "{error}");
    accept(&answer, request, b"");
    assert_eq!((other.told(), answer.told()), (Connection::Established, Connection::Established));
    pair.check();
}

fn what_is_posted_to_an_ended_end_point_is_flushed(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::new(fabric);
    let place = SharedLmr::new(&b.pz, 3, Rights::READ_WRITE).unwrap();
    a.ep.disconnect(false).unwrap();
    assert_eq!((a.told(), b.told()), (Connection::Disconnected, Connection::Disconnected));
    for end in [&a, &b] {
        for taken in requests(end, place.remote()) {
            taken.map_err(|(error, _)| error).unwrap();
        }
        let operations = [Operation::Send, Operation::RdmaWrite, Operation::RdmaRead];
        for (operation, cookie) in operations.into_iter().zip(1..) {
            let over = end.request_over();
            assert_eq!(
                (over.operation, over.cookie, over.status, over.length),
                (operation, cookie, Status::Flushed, 0)
            );
            assert_eq!(&over.iov.into_lmr()[..], b"abc");
        }
        end.ep.post_receive(end.lmr(b"abc"), 4).unwrap();
        let over = end.receive_over();
        assert_eq!((over.cookie, over.status), (4, Status::Flushed));
        let error = end.ep.connect(&door.address(), soon().remaining(), b"").unwrap_err();
        assert!(is_in(&error, EpState::Disconnected), "{error}");
    }
}
