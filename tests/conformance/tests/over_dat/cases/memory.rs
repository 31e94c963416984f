//! Registered memory: its zones and its rights.

use udeck_conformance::both::{Access, End as _, Place};
use udeck_conformance::kit::{assert_bytes, pattern};
use udeck_conformance::{Case, Fabric};
use udeck_dat::{Connection, Error, Flags, Lmr, Operation, Pz, RemoteMemory, Rights, SharedLmr, Status};

use crate::end::{End, Pair, Shown};

const TOPIC: &str = "memory";
pub const CASES: &[Case] = &[
    case!(requests_from_memory_of_another_zone_are_refused),
    case!(a_receive_into_memory_of_another_zone_breaks_the_connection),
    case!(part_of_a_region_is_sent_and_filled),
    case!(write_past_the_end),
    case!(write_by_a_context_that_never_was),
    case!(write_to_memory_that_was_freed),
    case!(write_to_memory_of_another_zone),
    case!(read_past_the_end),
    case!(read_by_a_context_that_never_was),
    case!(read_of_memory_that_was_freed),
    case!(read_of_memory_of_another_zone),
    case!(rights_are_kept_apart),
    case!(rdma_longer_than_what_it_names_is_refused),
    case!(memory_of_the_programs_own_comes_back),
];

fn requests_from_memory_of_another_zone_are_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let Pair { a, b, .. } = &mut pair;
    let (foreign, place) = (Pz::new(&a.ia), b.place(&[0; 100], Access::Both));
    let lmr = || Lmr::of(&foreign, vec![3; 100].into()).unwrap();
    let refused = [
        a.ep.post_send(lmr(), 0),
        a.ep.post_send([a.lmr(b"ours"), lmr()], 0), // one of the right zone does not help
        a.ep.post_rdma_write(lmr(), place.remote(), 0, Flags::NONE),
        a.ep.post_rdma_read(lmr(), place.remote(), 0, Flags::NONE),
    ];
    for refused in refused {
        let (error, iov) = refused.unwrap_err();
        assert!(matches!(error, Error::Protection { .. }), "{error}");
        assert_eq!(iov.into_vec().pop().unwrap()[..], [3; 100]);
    }
    assert_bytes(&place.bytes(), &[0; 100]);
    pair.check();
}

fn a_receive_into_memory_of_another_zone_breaks_the_connection(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let Pair { a, b, .. } = &mut pair;
    let foreign = Lmr::of(&Pz::new(&b.ia), vec![3; 100].into()).unwrap();
    b.ep.post_receive(foreign, 0).unwrap();
    a.post_send(&[9; 50]);
    let over = b.receive_over();
    assert_eq!((over.status, over.length), (Status::LocalProtection, 0));
    assert_eq!(over.iov.into_lmr()[..], [3; 100]);
    pair.mend();
}

fn part_of_a_region_is_sent_and_filled(fabric: &dyn Fabric) {
    let Pair { mut a, b, .. } = Pair::new(fabric);
    let bytes = pattern(8, 10_000);
    for range in [0..1, 100..148, 1..5000, 9999..10_000, 10_000..10_000] {
        let (mut from, mut into) = (a.lmr(&bytes), b.lmr(&[1; 10_000]));
        from.select(range.clone()).unwrap();
        let room = 17..17 + range.len().min(9000);
        into.select(room.clone()).unwrap();
        b.ep.post_receive(into, 0).unwrap();
        a.ep.post_send(from, 0).unwrap();
        let over = b.receive_over();
        assert_eq!((over.status, over.length), (Status::Success, range.len()));
        let came = over.iov.into_lmr();
        assert_bytes(&came[room.clone()], &bytes[range]);
        let outside = came[..room.start].iter().chain(&came[room.end..]);
        assert!(outside.copied().all(|byte| byte == 1), "nothing beside the part is touched");
        a.sent();
    }
}

/// `a` writes where `b` does not allow it: the data have left, and both are notified. `theirs` stays as it is.
fn forbidden_write(pair: &mut Pair, bytes: &[u8], to: RemoteMemory) {
    pair.b.post_receive(&[8]);
    pair.a.post_write(&[bytes], to, false);
    let over = pair.a.request_over();
    assert_eq!((over.operation, over.status), (Operation::RdmaWrite, Status::Success));
    let flushed = pair.b.receive_over();
    assert_eq!((flushed.status, flushed.length), (Status::Flushed, 0));
    pair.mend();
}

/// `a` reads where `b` does not allow it: the read fails, with its memory untouched, and both are notified.
fn forbidden_read(pair: &mut Pair, len: usize, from: RemoteMemory) {
    pair.a.post_read(&[len], from, false);
    let over = pair.a.request_over();
    assert_eq!((over.operation, over.status, over.length), (Operation::RdmaRead, Status::RemoteAccess, 0));
    assert_bytes(&over.iov.into_lmr(), &vec![0xcc; len]);
    pair.mend();
}

/// Places that are partly outside of the memory.
fn beyond(whole: RemoteMemory) -> Vec<(usize, RemoteMemory)> {
    [(0, 1001), (1, 1000), (1000, 1), (5000, 1), (u64::MAX, 1), (u64::MAX - 3, 10)]
        .into_iter()
        .map(|(offset, len)| {
            let address = whole.address.wrapping_add(offset);
            (len, RemoteMemory { address, len: len as u32, ..whole })
        })
        .collect()
}

fn wrong_contexts(right: u32) -> [u32; 6] {
    [0, 1, u32::MAX, right ^ 1, right ^ (1 << 31), right ^ (1 << 12)]
}

fn write_past_the_end(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let place = pair.b.place(&[0; 1000], Access::Write);
    for (len, to) in beyond(place.remote()) {
        forbidden_write(&mut pair, &pattern(9, len), to);
        assert_bytes(&place.bytes(), &[0; 1000]);
    }
}

fn write_by_a_context_that_never_was(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let place = pair.b.place(&[0; 100], Access::Write);
    for context in wrong_contexts(place.remote().context) {
        forbidden_write(&mut pair, &[1; 100], RemoteMemory { context, ..place.remote() });
        assert_bytes(&place.bytes(), &[0; 100]);
    }
}

fn write_to_memory_that_was_freed(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let place = pair.b.place(&[5; 100], Access::Write);
    let to = place.remote();
    let bytes = place.0.into_bytes().expect("nobody else has it");
    forbidden_write(&mut pair, &[6; 100], to);
    let next = pair.b.place(&[7; 100], Access::Write);
    forbidden_write(&mut pair, &[6; 100], to);
    assert_bytes(&bytes, &[5; 100]);
    assert_bytes(&next.bytes(), &[7; 100]);
}

fn of_another_zone(end: &End) -> Shown {
    Shown(SharedLmr::of(&Pz::new(&end.ia), vec![3; 100].into(), Rights::READ_WRITE).unwrap())
}

fn write_to_memory_of_another_zone(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let foreign = of_another_zone(&pair.b);
    forbidden_write(&mut pair, &[6; 100], foreign.remote());
    assert_bytes(&foreign.bytes(), &[3; 100]);
}

fn read_past_the_end(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let place = pair.b.place(&pattern(1, 1000), Access::Read);
    for (len, from) in beyond(place.remote()) {
        forbidden_read(&mut pair, len, from);
    }
}

fn read_by_a_context_that_never_was(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let place = pair.b.place(&[3; 100], Access::Read);
    for context in wrong_contexts(place.remote().context) {
        forbidden_read(&mut pair, 100, RemoteMemory { context, ..place.remote() });
    }
}

fn read_of_memory_that_was_freed(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let place = pair.b.place(&[5; 100], Access::Read);
    let from = place.remote();
    drop(place);
    forbidden_read(&mut pair, 100, from);
}

fn read_of_memory_of_another_zone(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let foreign = of_another_zone(&pair.b);
    forbidden_read(&mut pair, 100, foreign.remote());
}

fn rights_are_kept_apart(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let write_only = pair.b.place(&[3; 100], Access::Write);
    forbidden_read(&mut pair, 100, write_only.remote());
    let read_only = pair.b.place(&[3; 100], Access::Read);
    forbidden_write(&mut pair, &[4; 100], read_only.remote());
    assert_bytes(&read_only.bytes(), &[3; 100]);
    let none = Shown(SharedLmr::of(&pair.b.pz, vec![3; 100].into(), Rights::NONE).unwrap());
    forbidden_read(&mut pair, 100, none.remote());
    forbidden_write(&mut pair, &[4; 100], none.remote());
    assert_bytes(&none.bytes(), &[3; 100]);
}

fn rdma_longer_than_what_it_names_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let Pair { a, b, .. } = &mut pair;
    let place = b.place(&[0; 100], Access::Both);
    let part = place.remote().part(10..60).unwrap();
    assert!(place.remote().part(50..101).is_err());
    for refused in [
        a.ep.post_rdma_write(a.lmr(&[1; 51]), part, 0, Flags::NONE),
        a.ep.post_rdma_read(a.lmr(&[1; 51]), part, 0, Flags::NONE),
    ] {
        let (error, iov) = refused.unwrap_err();
        assert!(matches!(error, Error::Length { len: 51, room: 50, .. }), "{error}");
        assert_bytes(&iov.into_lmr(), &[1; 51]);
    }
    assert_bytes(&place.bytes(), &[0; 100]);
    pair.check();
}

/// The memory comes back in place, whatever became of its post.
fn memory_of_the_programs_own_comes_back(fabric: &dyn Fabric) {
    let Pair { a, b, .. } = Pair::new(fabric);
    let own = || vec![7_u8; 300].into_boxed_slice();
    let (mut at, mut lmrs) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let bytes = own();
        at.push(bytes.as_ptr());
        lmrs.push(Lmr::of(&b.pz, bytes).unwrap());
    }
    lmrs.into_iter().for_each(|lmr| b.ep.post_receive(lmr, 0).unwrap());
    a.ep.post_send(a.lmr(&[9; 300]), 0).unwrap();
    let first = b.receive_over();
    a.ep.disconnect(true).unwrap();
    assert_eq!(b.told(), Connection::Disconnected);
    for (nth, over) in [first, b.receive_over(), b.receive_over()].into_iter().enumerate() {
        let expected = if nth == 0 { (Status::Success, 9) } else { (Status::Flushed, 7) };
        assert_eq!(over.status, expected.0);
        let bytes = over.iov.into_lmr().into_bytes();
        assert_eq!(bytes.as_ptr(), at[nth]);
        assert_bytes(&bytes, &[expected.1; 300]);
    }
}
