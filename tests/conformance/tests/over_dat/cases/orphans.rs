//! Orphans: each object holds what it needs, so no order of dropping is wrong.

use udeck_conformance::both::{Access, End as _};
use udeck_conformance::kit::pattern;
use udeck_conformance::{Case, Fabric};
use udeck_dat::{Connection, Event, Status};

use crate::end::{Door, End, Pair, accept};

const TOPIC: &str = "orphans";
pub const CASES: &[Case] = &[
    case!(an_end_point_outlives_its_adapter_and_zone),
    case!(completions_outlive_their_end_point),
    case!(a_request_outlives_its_service_point),
    case!(a_dispatcher_takes_along_what_is_in_it),
    case!(memory_outlives_all_else),
];

fn an_end_point_outlives_its_adapter_and_zone(fabric: &dyn Fabric) {
    let Pair { a, mut b, .. } = Pair::new(fabric);
    let End { ia, pz, requests, ep, receives, connections } = a;
    let lmr = udeck_dat::Lmr::of(&pz, b"still here"[..].into()).unwrap();
    drop((ia, pz, receives, connections));
    b.post_receive(&[10]);
    ep.post_send(lmr, 0).unwrap();
    assert_eq!(b.received(), b"still here");
    drop(ep);
    assert_eq!(requests.len(), 1);
    assert_eq!(b.told(), Connection::Disconnected);
}

fn completions_outlive_their_end_point(fabric: &dyn Fabric) {
    let Pair { mut a, b: _b, .. } = Pair::new(fabric);
    (0..3).for_each(|_| a.post_receive(&[8]));
    let End { receives, ep, .. } = a;
    drop(ep);
    for _ in 0..3 {
        let Some(Event::Dto(over)) = receives.dequeue() else { panic!("each is reported") };
        assert_eq!((over.status, over.iov.len()), (Status::Flushed, 8));
    }
    assert!(receives.dequeue().is_none());
}

fn a_request_outlives_its_service_point(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric);
    let door = Door::at(&pair.b, 2);
    pair.a.request_connection(&door.address(), b"");
    let request = door.request();
    drop(door);
    accept(&pair.b, request, b"");
    assert_eq!((pair.a.told(), pair.b.told()), (Connection::Established, Connection::Established));
    pair.check();
}

/// A request that nobody has taken is refused when its dispatcher ends.
fn a_dispatcher_takes_along_what_is_in_it(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    a.request_connection(&door.address(), b"");
    udeck_conformance::kit::until("the request has come", || (!door.requests.is_empty()).then_some(()));
    drop(door);
    assert_eq!(a.told(), Connection::PeerRejected);
    drop(b);
}

fn memory_outlives_all_else(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::new(fabric);
    let (own, shown) = (a.lmr(&pattern(1, 100)), a.place(&pattern(2, 100), Access::Both));
    drop((a, b, door));
    assert_eq!(own.into_bytes()[..], pattern(1, 100));
    assert_eq!(shown.0.into_bytes().unwrap()[..], pattern(2, 100));
}
