//! Statuses: how work ends, and the effect on its connection.

use udeck_conformance::both::{Access, End as _};
use udeck_conformance::kit::pattern;
use udeck_conformance::{Case, Fabric};
use udeck_dat::{EpState, Flags, Operation, RemoteMemory, Status};

use crate::end::{Door, End, Pair};

const TOPIC: &str = "statuses";
pub const CASES: &[Case] = &[
    case!(a_completion_says_what_was_done),
    case!(a_receive_too_short_is_a_length_error),
    case!(an_error_flushes_what_is_behind_it),
    case!(one_broken_connection_leaves_the_others_alone),
];

fn a_completion_says_what_was_done(fabric: &dyn Fabric) {
    let Pair { a, mut b, .. } = Pair::new(fabric);
    let place = b.place(&pattern(1, 500), Access::Both);
    b.post_receive(&[100]);
    a.ep.post_rdma_write(a.lmr(&[1; 500]), place.remote(), 11, Flags::NONE).unwrap();
    a.ep.post_rdma_read(a.lmr(&[1; 50]), place.remote(), 22, Flags::NONE).unwrap();
    a.ep.post_send(a.lmr(&[1; 5]), 33).unwrap();
    let expected = [(Operation::RdmaWrite, 11, 500), (Operation::RdmaRead, 22, 50), (Operation::Send, 33, 5)];
    for (operation, cookie, length) in expected {
        let over = a.request_over();
        assert_eq!((over.ep, over.status), (a.ep.id(), Status::Success));
        assert_eq!((over.operation, over.cookie, over.length), (operation, cookie, length));
    }
    let over = b.receive_over();
    assert_eq!((over.ep, over.operation, over.length), (b.ep.id(), Operation::Receive, 5));
}

fn a_receive_too_short_is_a_length_error(fabric: &dyn Fabric) {
    for len in [10, 5000] {
        let mut pair = Pair::new(fabric);
        pair.b.post_receive(&[len - 1]);
        pair.b.post_receive(&[len]);
        pair.a.post_send(&pattern(1, len));
        let over = pair.b.receive_over();
        assert_eq!((over.status, over.length), (Status::LocalLength, 0));
        assert_eq!(pair.b.receive_over().status, Status::Flushed, "the one behind it");
        pair.mend();
    }
}

/// The first post has its own status, those behind it are flushed, each is reported once, and in order.
fn an_error_flushes_what_is_behind_it(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let Pair { a, b, .. } = &mut pair;
    let place = b.place(&[0; 100], Access::Write);
    (0..3).for_each(|_| a.post_receive(&[8]));
    let read =
        |cookie| a.ep.post_rdma_read(a.lmr(&[0xcc; 100]), place.remote(), cookie, Flags::FENCE).unwrap();
    (0..5).for_each(read);
    let over: Vec<_> = (0..5).map(|_| a.request_over()).collect();
    assert_eq!(over.iter().map(|over| over.cookie).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(over[0].status, Status::RemoteAccess);
    assert!(over[1..].iter().all(|over| over.status == Status::Flushed), "{over:?}");
    assert!((0..3).all(|_| a.receive_over().status == Status::Flushed));
    a.assert_quiet();
    pair.mend();
}

fn one_broken_connection_leaves_the_others_alone(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let (a, b) = (End::on(pair.a.ia.nic()), End::on(pair.b.ia.nic()));
    let door = Door::at(&b, 2);
    door.join(&a, &b);
    let mut other = Pair { a, b, door };
    let nowhere = RemoteMemory { address: 0, len: 10, context: 0 };
    other.a.post_write(&[&[1; 10]], nowhere, false);
    other.a.sent();
    pair.check();
    other.mend();
    assert_eq!((pair.a.ep.state(), pair.b.ep.state()), (EpState::Connected, EpState::Connected));
    pair.check();
}
