//! Limits: a bounded resource reports when it is full, and continues when it has room again.

use udeck_conformance::both::{Access, End as _};
use udeck_conformance::kit::{assert_bytes, pattern};
use udeck_conformance::{Case, Fabric, Options};
use udeck_dat::{Ep, EpAttributes, Error, Flags, Lmr, Qos};

use crate::end::{End, Pair};

const TOPIC: &str = "limits";
pub const CASES: &[Case] = &[
    case!(the_request_queue_fills_and_recovers),
    case!(the_receive_queue_fills_and_recovers),
    case!(too_many_segments_are_refused),
    case!(a_transfer_too_long_is_refused),
    case!(a_queue_that_can_never_be_is_refused),
];

const FEW: EpAttributes = EpAttributes { max_receives: 8, max_requests: 8, qos: Qos::BestEffort };

/// Reads do not complete before the message in front of them has found a receive.
fn the_request_queue_fills_and_recovers(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, FEW);
    let Pair { a, b, .. } = &mut pair;
    let place = b.place(&pattern(1, 100), Access::Read);
    for _ in 0..2 {
        a.post_send(b"in front");
        a.sent();
        (0..FEW.max_requests).for_each(|_| a.post_read(&[100], place.remote(), false));
        for refused in [
            a.ep.post_send(a.lmr(b"one more"), 0),
            a.ep.post_rdma_write(a.lmr(b"one more"), place.remote(), 0, Flags::NONE),
            a.ep.post_rdma_read(a.lmr(b"one more"), place.remote(), 0, Flags::NONE),
        ] {
            let (error, iov) = refused.unwrap_err();
            assert!(error.is_full(), "{error}");
            assert_eq!(&iov.into_lmr()[..], b"one more", "the memory comes back");
        }
        b.post_receive(&[8]);
        assert_eq!(b.received(), b"in front");
        (0..FEW.max_requests).for_each(|_| assert_bytes(&a.sent().parts[0], &pattern(1, 100)));
    }
    pair.check();
}

fn the_receive_queue_fills_and_recovers(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, FEW);
    let Pair { a, b, .. } = &mut pair;
    (0..FEW.max_receives).for_each(|_| b.post_receive(&[8]));
    let (error, iov) = b.ep.post_receive(b.lmr(b"one more"), 0).unwrap_err();
    assert!(error.is_full(), "{error}");
    a.post_send(b"room");
    assert_eq!(b.received(), b"room");
    b.ep.post_receive(iov, 0).map_err(|(error, _)| error).expect("there is room again");
    let (error, _) = b.ep.post_receive(b.lmr(b"one more"), 0).unwrap_err();
    assert!(error.is_full(), "{error}");
}

fn too_many_segments_are_refused(fabric: &dyn Fabric) {
    const MOST: usize = 64;
    let mut pair = Pair::new(fabric);
    let Pair { a, b, .. } = &mut pair;
    fn pieces<const N: usize>(end: &End) -> [Lmr; N] {
        std::array::from_fn(|_| end.lmr(b"piece"))
    }
    let (error, iov) = a.ep.post_send(pieces::<{ MOST + 1 }>(a), 0).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
    assert_eq!(iov.into_vec().len(), MOST + 1);
    let (error, _) = b.ep.post_receive(pieces::<{ MOST + 1 }>(b), 0).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
    b.ep.post_receive(pieces::<MOST>(b), 0).map_err(|(error, _)| error).unwrap();
    a.ep.post_send(pieces::<MOST>(a), 0).map_err(|(error, _)| error).unwrap();
    assert_bytes(&b.received(), &b"piece".repeat(MOST));
    a.sent();
    pair.check();
}

fn a_transfer_too_long_is_refused(fabric: &dyn Fabric) {
    let options = Options { arena_limit: 3 << 20, ..Options::default() };
    let [mut a, mut b] = [(); 2].map(|()| End::on(&fabric.open(&options)));
    let door = crate::end::Door::at(&b, 1);
    door.join(&a, &b);
    let most = a.ia.max_transfer();
    let place = b.place(&[0], Access::Both);
    let endless = udeck_dat::RemoteMemory { len: u32::MAX, ..place.remote() };
    for refused in [
        a.ep.post_send_with(a.lmr(&vec![1; most + 1]), 0, Flags::NONE),
        a.ep.post_rdma_write(a.lmr(&vec![1; most + 1]), endless, 0, Flags::NONE),
        a.ep.post_rdma_read(a.lmr(&vec![1; most + 1]), endless, 0, Flags::NONE),
        a.ep.post_send(a.lmr(&vec![1; most + 1]), 0),
    ] {
        let (error, iov) = refused.unwrap_err();
        assert!(matches!(error, Error::Length { len, .. } if len == most + 1), "{error}");
        assert_eq!(iov.len(), most + 1);
    }
    let bytes = pattern(1, most);
    b.post_receive(&[most]);
    a.post_send(&bytes);
    assert_bytes(&b.received(), &bytes);
}

fn a_queue_that_can_never_be_is_refused(fabric: &dyn Fabric) {
    let end = End::on(&fabric.open(&Options::default()));
    for (max_receives, max_requests) in [(0, 1), (1, 0), (8193, 1), (1, 8193)] {
        let attributes = EpAttributes { max_receives, max_requests, ..FEW };
        let made = Ep::new(&end.pz, &end.requests, &end.receives, &end.connections, attributes);
        assert!(matches!(made, Err(Error::InvalidParameter { .. })), "{attributes:?}");
    }
    // An end point with another adapter's dispatchers is refused, too.
    let other = End::on(&fabric.open(&Options::default()));
    let made = Ep::new(&end.pz, &other.requests, &end.receives, &end.connections, FEW);
    assert!(matches!(made, Err(Error::InvalidParameter { .. })), "{made:?}");
}
