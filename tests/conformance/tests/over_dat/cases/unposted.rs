//! Messages that find no receive: they wait for one, as hardware does by repeating them.

use udeck_conformance::both::{Access, End as _, PostStatus};
use udeck_conformance::kit::{assert_bytes, pattern, soon};
use udeck_conformance::{Case, Fabric};
use udeck_dat::{Connection, EpState};
use udeck_via::Deadline;

use crate::end::Pair;

const TOPIC: &str = "unposted";
pub const CASES: &[Case] = &[
    case!(a_message_waits_for_its_receive),
    case!(a_read_is_answered_while_a_message_waits),
    case!(the_end_comes_behind_what_waits),
    case!(reads_under_way_are_flushed),
];

fn lengths() -> [usize; 4] {
    [5, 100_000, 0, 49]
}

fn a_message_waits_for_its_receive(fabric: &dyn Fabric) {
    let Pair { mut a, mut b, .. } = Pair::new(fabric);
    for len in lengths() {
        a.post_send(&pattern(len, len));
    }
    lengths().iter().for_each(|len| assert_eq!(a.sent().length, *len, "its data have left"));
    assert!(b.receive_by(Deadline::now()).is_none());
    for len in lengths() {
        b.post_receive(&[len]);
        assert_bytes(&b.received(), &pattern(len, len));
    }
    assert_eq!((a.ep.state(), b.ep.state()), (EpState::Connected, EpState::Connected));
}

/// The program may post the receive only after it has read.
fn a_read_is_answered_while_a_message_waits(fabric: &dyn Fabric) {
    let Pair { mut a, mut b, .. } = Pair::new(fabric);
    let place = a.place(&pattern(1, 70_000), Access::Read);
    a.post_send(b"look there");
    b.post_read(&[70_000], place.remote(), false);
    assert_bytes(&b.sent().parts[0], &pattern(1, 70_000));
    b.post_receive(&[10]);
    assert_eq!(b.received(), b"look there");
}

fn the_end_comes_behind_what_waits(fabric: &dyn Fabric) {
    let Pair { mut a, mut b, .. } = Pair::new(fabric);
    for len in lengths() {
        a.post_send(&pattern(len, len));
    }
    a.disconnect();
    assert_eq!(a.told(), Connection::Disconnected);
    for len in lengths() {
        b.post_receive(&[len]);
        assert_bytes(&b.received(), &pattern(len, len));
    }
    assert_eq!(b.told(), Connection::Disconnected);
    b.post_receive(&[1]);
    assert_eq!(b.receive_by(soon()).expect("it is reported").status, PostStatus::Flushed);
}

/// The reads wait behind a message without a receive, under way or at the peer.
fn reads_under_way_are_flushed(fabric: &dyn Fabric) {
    for peer_leaves in [false, true] {
        let Pair { mut a, mut b, .. } = Pair::new(fabric);
        let place = b.place(&pattern(1, 200_000), Access::Read);
        a.post_send(b"in front");
        a.sent();
        (0..5).for_each(|_| a.post_read(&[200_000], place.remote(), false));
        if peer_leaves {
            b.disconnect();
        } else {
            a.ep.disconnect(false).unwrap();
        }
        for _ in 0..5 {
            let finished = a.request_by(soon()).expect("it is reported");
            assert_eq!((finished.status, finished.length), (PostStatus::Flushed, 0));
            assert_bytes(&finished.parts[0], &[0xcc; 200_000]);
        }
        a.assert_quiet();
    }
}
