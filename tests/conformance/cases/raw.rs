//! Posting by address.

#![allow(unsafe_code, reason = "the raw posts are unsafe to call")]

use std::ptr::NonNull;

use udeck_via::mem::{RawRegion, RawSegment};
use udeck_via::{Error, Nic, Ptag, Region, RemoteBuffer, Rights, State, Status};

use crate::kit::{End, Pair, assert_bytes, pattern, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "raw";
pub const CASES: &[Case] = &[
    case!(raw_posts_are_reported_by_their_ids),
    case!(raw_receives_scatter),
    case!(memory_of_others_is_refused),
    case!(a_raw_receive_too_short_is_a_length_error),
    case!(raw_receives_are_flushed),
    case!(memory_registered_by_address_is_sent_and_received),
    case!(memory_of_both_kinds_is_sent_by_address),
    case!(a_raw_segment_lies_in_a_living_registration),
    case!(a_raw_segment_has_the_tag_of_its_vi),
    case!(a_registered_regions_memory_is_posted_by_address),
    case!(raw_writes, RDMA_WRITE),
    case!(raw_writes_that_are_refused, RDMA_WRITE),
    case!(raw_reads, RDMA_READ),
    case!(a_raw_send_arrives_though_its_vi_is_gone),
];

fn whole(region: &mut Region) -> RawSegment {
    RawSegment { address: NonNull::from(&mut region[..]).cast(), len: region.len() }
}

fn raw_posts_are_reported_by_their_ids(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for len in [1, 48, 49, 100_000] {
        let bytes = pattern(len, len);
        let (mut from, mut into) = (pair.a.region(&bytes), pair.b.region(&vec![0; len]));
        let (source, target) = ([whole(&mut from)], [whole(&mut into)]);
        // SAFETY: both regions are untouched until both ends have reported, below.
        unsafe {
            pair.b.vi.post_receive_raw(&target, u64::MAX).unwrap();
            pair.a.vi.post_send_raw(&source, Some(4), len as u64).unwrap();
        }
        let received = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((received.status, received.length, received.immediate), (Status::Done, len, Some(4)));
        assert_eq!(received.descriptor.unwrap_err(), u64::MAX);
        assert_eq!(pair.a.sent().descriptor.unwrap_err(), len as u64);
        assert_bytes(&into, &bytes);
    }
}

fn raw_receives_scatter(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut into = [5, 0, 100, 395].map(|len| pair.b.region(&vec![0; len]));
    let targets: Vec<_> = into.iter_mut().map(whole).collect();
    let most = pair.b.nic.attributes().max_segments;
    let targets = &targets[targets.len().saturating_sub(most)..];
    let bytes = pattern(2, targets.iter().map(|segment| segment.len).sum());
    // SAFETY: the regions are untouched until the receive is reported, below.
    unsafe { pair.b.vi.post_receive_raw(targets, 1).unwrap() };
    pair.a.post_send(&bytes);
    assert_eq!(pair.b.vi.receive_wait(soon()).unwrap().length, bytes.len());
    let skipped = into.len() - targets.len();
    assert_eq!(into[skipped..].iter().flat_map(|region| region.iter()).copied().collect::<Vec<_>>(), bytes);
}

fn memory_of_others_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut stranger = pair.b.region(&[1; 100]);
    let mut heap = [0u8; 100];
    let heap = RawSegment { address: NonNull::from(&mut heap[..]).cast(), len: 100 };
    for segment in [whole(&mut stranger), heap] {
        // SAFETY: refused, so nothing is done with the memory, which lives to the end of this function anyway.
        let error = unsafe { pair.a.vi.post_send_raw(&[segment], None, 1) }.unwrap_err();
        assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    }
    let mut own = pair.a.region(&[1; 100]);
    let beyond = RawSegment { len: usize::MAX, ..whole(&mut own) };
    // SAFETY: as above.
    let error = unsafe { pair.a.vi.post_send_raw(&[beyond], None, 1) }.unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert!(pair.a.vi.send_done().is_none());
    pair.check();
}

fn a_raw_receive_too_short_is_a_length_error(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut into = pair.b.region(&[0; 70]);
    let target = RawSegment { len: 60, ..whole(&mut into) };
    // SAFETY: the region is untouched until the receive is reported, below.
    unsafe { pair.b.vi.post_receive_raw(&[target], 9).unwrap() };
    let bytes = pattern(1, 70);
    pair.a.post_send(&bytes);
    let completion = pair.b.vi.receive_wait(soon()).unwrap();
    assert_eq!((completion.status, completion.length), (Status::LengthError, 60));
    assert_eq!(completion.descriptor.unwrap_err(), 9);
    assert_eq!((&into[..60], &into[60..]), (&bytes[..60], &[0; 10][..]), "nothing beyond the segment");
    assert_eq!(pair.b.vi.state(), State::Error);
}

fn raw_receives_are_flushed(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut into = pair.b.region(&[0; 10]);
    let target = [whole(&mut into)];
    for id in 0..3 {
        // SAFETY: the region is untouched until the receives are reported, below.
        unsafe { pair.b.vi.post_receive_raw(&target, id).unwrap() };
    }
    pair.b.vi.disconnect();
    for id in 0..3 {
        let completion = pair.b.vi.receive_done().unwrap();
        assert_eq!((completion.status, completion.descriptor.unwrap_err()), (Status::Flushed, id));
    }
}

fn segment_of(bytes: &mut [u8]) -> RawSegment {
    RawSegment { address: NonNull::from(&mut *bytes).cast(), len: bytes.len() }
}

/// Registers memory that the caller keeps until it has dropped the registration.
fn registered(nic: &Nic, memory: RawSegment, ptag: Ptag) -> RawRegion {
    let place = NonNull::slice_from_raw_parts(memory.address, memory.len);
    // SAFETY: in all cases here, the memory is declared before its registration, and dropped after it.
    unsafe { nic.register_raw(place, ptag) }.expect("it is registered")
}

fn memory_registered_by_address_is_sent_and_received(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for len in [1, 48, 49, 100_000] {
        let bytes = pattern(len, len);
        let (mut from, mut into) = (bytes.clone(), vec![0; len]);
        let (source, target) = (segment_of(&mut from), segment_of(&mut into));
        let registrations =
            (registered(&pair.a.nic, source, pair.a.ptag), registered(&pair.b.nic, target, pair.b.ptag));
        assert_eq!((registrations.0.attributes().len, registrations.0.attributes().ptag), (len, pair.a.ptag));
        assert_eq!(registrations.0.memory().cast(), source.address);
        // SAFETY: both buffers are untouched until both ends have reported, below.
        unsafe {
            pair.b.vi.post_receive_raw(&[target], 7).unwrap();
            pair.a.vi.post_send_raw(&[source], Some(4), 8).unwrap();
        }
        let received = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((received.status, received.length, received.immediate), (Status::Done, len, Some(4)));
        let sent = pair.a.sent();
        assert_eq!((received.descriptor.unwrap_err(), sent.descriptor.unwrap_err()), (7, 8));
        drop(registrations);
        assert_bytes(&into, &bytes);
    }
    assert_eq!(pair.a.nic.registrations().entries, 0);
    assert_eq!(pair.a.nic.outbox().usage().used, 0, "nothing stays staged");
}

fn memory_of_both_kinds_is_sent_by_address(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let count = pair.a.nic.attributes().max_segments.min(3);
    let (mut first, mut third) = (pattern(1, 700), pattern(3, 7000));
    let mut second = pair.a.region(&pattern(2, 70));
    let segments = [segment_of(&mut first), whole(&mut second), segment_of(&mut third)];
    let _registered = [0, 2].map(|at| registered(&pair.a.nic, segments[at], pair.a.ptag));
    pair.b.post_receive(8000);
    // SAFETY: the buffers are untouched until the send is reported, below.
    unsafe { pair.a.vi.post_send_raw(&segments[..count], None, 1).unwrap() };
    let expected = [pattern(1, 700), pattern(2, 70), pattern(3, 7000)][..count].concat();
    assert_bytes(&pair.b.received(), &expected);
    pair.a.sent();
}

/// Errors of posting a send and a receive of `segment`.
fn refused(end: &mut End, segment: RawSegment) -> [Error; 2] {
    // SAFETY: refused, so nothing is done with the memory.
    unsafe {
        [
            end.vi.post_send_raw(&[segment], None, 1).unwrap_err(),
            end.vi.post_receive_raw(&[segment], 1).unwrap_err(),
        ]
    }
}

fn a_raw_segment_lies_in_a_living_registration(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut heap = vec![0u8; 1000];
    let middle = segment_of(&mut heap[100..200]);
    let unknown = |errors: [Error; 2]| {
        assert!(errors.iter().all(|error| matches!(error, Error::InvalidParameter(_))), "{errors:?}");
    };
    unknown(refused(&mut pair.a, middle));
    let registration = registered(&pair.a.nic, middle, pair.a.ptag);
    let before = segment_of(&mut heap[99..200]);
    let after = segment_of(&mut heap[100..201]);
    for outside in [before, after, RawSegment { len: usize::MAX, ..middle }] {
        unknown(refused(&mut pair.a, outside));
    }
    pair.b.post_receive(100);
    // SAFETY: the buffer is untouched until the send is reported, below.
    unsafe { pair.a.vi.post_send_raw(&[middle], None, 1).unwrap() };
    assert_eq!(pair.b.received(), [0; 100]);
    pair.a.sent();
    drop(registration);
    unknown(refused(&mut pair.a, middle));
    pair.check();
}

fn a_raw_segment_has_the_tag_of_its_vi(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut heap = vec![0u8; 100];
    let memory = segment_of(&mut heap);
    let other = pair.a.nic.ptag();
    let mut registration = registered(&pair.a.nic, memory, other);
    let wrong_tag = |errors: [Error; 2]| {
        assert!(errors.iter().all(|error| matches!(error, Error::InvalidPtag)), "{errors:?}");
    };
    wrong_tag(refused(&mut pair.a, memory));
    let again = registered(&pair.a.nic, memory, pair.a.ptag);
    // SAFETY: the buffer is untouched until the receives are reported, below.
    unsafe { pair.a.vi.post_receive_raw(&[memory], 1).expect("registered twice, once with this tag") };
    pair.a.vi.disconnect();
    pair.a.vi.receive_done().unwrap();
    drop(again);
    wrong_tag(refused_receive(&mut pair.a, memory));
    registration.set_ptag(pair.a.ptag).unwrap();
    pair.a.nic.destroy_ptag(other).expect("nothing carries it any more");
    // SAFETY: as above.
    unsafe { pair.a.vi.post_receive_raw(&[memory], 1).unwrap() };
    pair.a.vi.disconnect();
    pair.a.vi.receive_done().unwrap();
}

/// Errors as in [`refused`], for a receive, which may be posted while not connected; twice.
fn refused_receive(end: &mut End, segment: RawSegment) -> [Error; 2] {
    // SAFETY: refused, so nothing is done with the memory.
    [1, 2].map(|id| unsafe { end.vi.post_receive_raw(&[segment], id) }.unwrap_err())
}

fn a_registered_regions_memory_is_posted_by_address(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut region = pair.a.nic.register(pattern(4, 300), pair.a.ptag).unwrap();
    let segment = whole(&mut region);
    pair.b.post_receive(300);
    // SAFETY: the region is untouched until the send is reported, below.
    unsafe { pair.a.vi.post_send_raw(&[segment], None, 1).unwrap() };
    assert_bytes(&pair.b.received(), &pattern(4, 300));
    pair.a.sent();
    region.set_ptag(pair.a.nic.ptag()).unwrap();
    let errors = refused(&mut pair.a, segment);
    assert!(errors.iter().all(|error| matches!(error, Error::InvalidPtag)), "{errors:?}");
}

fn raw_writes(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| attributes.enable_rdma_write = true);
    let window = pair.b.nic.window(500, pair.b.ptag).unwrap();
    let (mut heap, mut region) = (pattern(1, 200), pair.a.region(&pattern(2, 300)));
    let _registered = registered(&pair.a.nic, segment_of(&mut heap), pair.a.ptag);
    for (id, segment, offset) in [(1, segment_of(&mut heap), 0), (2, whole(&mut region), 200)] {
        let to = RemoteBuffer { offset, len: segment.len, ..window.remote() };
        pair.b.post_receive(0);
        // SAFETY: the memory is untouched until the write is reported, below.
        unsafe { pair.a.vi.post_rdma_write_raw(&[segment], to, Some(id), u64::from(id)).unwrap() };
        assert_eq!(pair.b.vi.receive_wait(soon()).unwrap().immediate, Some(id));
        let sent = pair.a.sent();
        assert_eq!((sent.length, sent.descriptor.unwrap_err()), (segment.len, u64::from(id)));
    }
    let mut bytes = [0; 500];
    window.read(0, &mut bytes).unwrap();
    assert_bytes(&bytes, &[pattern(1, 200), pattern(2, 300)].concat());
}

fn raw_writes_that_are_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| attributes.enable_rdma_write = true);
    let window = pair.b.nic.window(100, pair.b.ptag).unwrap();
    let mut heap = pattern(1, 101);
    let segment = segment_of(&mut heap);
    // SAFETY: refused, so nothing is done with the memory.
    let error = unsafe { pair.a.vi.post_rdma_write_raw(&[segment], window.remote(), None, 1) }.unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    let _registered = registered(&pair.a.nic, segment, pair.a.ptag);
    // SAFETY: refused, or untouched until it is reported.
    match unsafe { pair.a.vi.post_rdma_write_raw(&[segment], window.remote(), None, 1) } {
        Err(error) => assert!(matches!(error, Error::RdmaProtection { .. }), "one byte beyond: {error}"),
        // Only the target can judge the write. The data may have left.
        Ok(()) => {
            let status = pair.a.vi.send_wait(soon()).unwrap().status;
            assert!(matches!(status, Status::RdmaProtectionError | Status::Done), "{status:?}");
            pair.mend();
        }
    }
    assert!(pair.a.vi.send_done().is_none());
    assert_eq!(pair.a.nic.outbox().usage().used, 0);
    pair.check();
}

fn raw_reads(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| attributes.enable_rdma_read = true);
    let mut window = pair.b.nic.window_for(500, pair.b.ptag, Rights::READ).unwrap();
    let bytes = pattern(9, 500);
    window.write(0, &bytes).unwrap();
    let (mut heap, mut region) = (vec![0; 200], pair.a.region(&[0; 300]));
    let _registered = registered(&pair.a.nic, segment_of(&mut heap), pair.a.ptag);
    let segments = [segment_of(&mut heap), whole(&mut region)];
    for (id, segment, offset) in [(1, segments[0], 0), (2, segments[1], 200)] {
        let from = RemoteBuffer { offset, len: segment.len, ..window.remote() };
        // SAFETY: the memory is untouched until the read is reported, below.
        unsafe { pair.a.vi.post_rdma_read_raw(&[segment], from, id).unwrap() };
        let read = pair.a.sent();
        assert_eq!((read.length, read.descriptor.unwrap_err()), (segment.len, id));
    }
    assert_bytes(&heap, &bytes[..200]);
    assert_bytes(&region, &bytes[200..]);
}

fn a_raw_send_arrives_though_its_vi_is_gone(fabric: &dyn Fabric) {
    let Pair { a, mut b } = Pair::posted(fabric);
    let End { nic, ptag, mut vi, cq: _cq } = a;
    let bytes = pattern(2, 5000);
    let mut heap = bytes.clone();
    let registration = registered(&nic, segment_of(&mut heap), ptag);
    b.post_receive(5000);
    // SAFETY: the buffer is untouched until the VI is dropped and its connection over, below.
    unsafe { vi.post_send_raw(&[segment_of(&mut heap)], None, 1).unwrap() };
    drop(vi);
    // Memory that was freed too early would be handed out again.
    let mut other = nic.region(5000, ptag).unwrap();
    other.fill(0xff);
    assert_bytes(&b.received(), &bytes);
    drop((other, registration));
    b.vi.disconnect();
    until("the memory is home", || {
        nic.reclaim();
        (nic.outbox().usage().used == 0).then_some(())
    });
}
