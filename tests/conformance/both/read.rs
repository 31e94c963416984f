//! RDMA read.

use std::marker::PhantomData;

use udeck_via::Deadline;

use super::{Access, End, Interface, Place, shared_case};
use crate::kit::{assert_bytes, pattern};
use crate::{Case, Fabric};

const TOPIC: &str = "read";

/// Cases of this topic for the interface `I`.
pub struct Read<I>(PhantomData<I>);

impl<I: Interface> Read<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] = &[
        shared_case!(TOPIC, read_a_whole_window, I::READ),
        shared_case!(TOPIC, read_part_of_a_window, I::READ),
        shared_case!(TOPIC, read_scatters, I::READ),
        shared_case!(TOPIC, read_what_another_wrote, I::BOTH),
        shared_case!(TOPIC, a_read_takes_no_receive, I::READ),
    ];
}

/// Reads `len` bytes.
fn read<E: End>(end: &mut E, len: usize, from: <E::Place as Place>::At) -> Vec<u8> {
    end.post_read(&[len], from, false);
    let finished = end.sent();
    assert_eq!(finished.length, len);
    finished.bytes()
}

fn read_a_whole_window<I: Interface>(fabric: &dyn Fabric) {
    for len in [1, 64, 4096, 1 << 20] {
        let (mut a, b) = I::reaching(fabric);
        let bytes = pattern(len, len);
        let place = b.place(&bytes, Access::Read);
        assert_bytes(&read(&mut a, len, place.at()), &bytes);
        assert_bytes(&place.bytes(), &bytes);
    }
}

fn read_part_of_a_window<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, b) = I::reaching(fabric);
    let bytes = pattern(1, 1000);
    let place = b.place(&bytes, Access::Read);
    for (offset, len) in [(0, 10), (990, 10), (3, 500), (500, 0), (1000, 0)] {
        let from = <<I::End as End>::Place as Place>::part(place.at(), offset..offset + len);
        assert_bytes(&read(&mut a, len, from), &bytes[offset..offset + len]);
    }
}

fn read_scatters<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, b) = I::reaching(fabric);
    let lengths: Vec<_> = (0..a.max_segments().min(3)).map(|i| 900 + i).collect();
    let bytes = pattern(1, lengths.iter().sum());
    let place = b.place(&bytes, Access::Read);
    a.post_read(&lengths, place.at(), false);
    let finished = a.sent();
    assert_eq!(finished.parts.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
    assert_bytes(&finished.parts.concat(), &bytes);
}

fn read_what_another_wrote<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, b) = I::reaching(fabric);
    let place = b.place(&[0; 700], Access::Both);
    let bytes = pattern(3, 700);
    a.post_write(&[&bytes], place.at(), false);
    a.sent();
    assert_bytes(&read(&mut a, 700, place.at()), &bytes);
}

fn a_read_takes_no_receive<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::reaching(fabric);
    let place = b.place(&[3; 100], Access::Read);
    b.post_receive(&[3]);
    read(&mut a, 100, place.at());
    assert!(b.receive_by(Deadline::now()).is_none());
    a.post_send(b"abc");
    assert_eq!(b.received(), b"abc", "the message got the only descriptor");
}
