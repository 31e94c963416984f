//! Posting by address.

use std::ptr::NonNull;

use udeck_via::mem::RawSegment;
use udeck_via::{Error, Region, State, Status};

use crate::kit::{Pair, assert_bytes, pattern, soon};
use crate::{Case, Fabric};

const TOPIC: &str = "raw";
pub const CASES: &[Case] = &[
    case!(raw_posts_are_reported_by_their_ids),
    case!(raw_receives_scatter),
    case!(memory_of_others_is_refused),
    case!(a_raw_receive_too_short_is_a_length_error),
    case!(raw_receives_are_flushed),
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
