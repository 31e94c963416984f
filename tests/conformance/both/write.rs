//! RDMA write.

use std::marker::PhantomData;
use std::thread;

use super::{Access, End, Interface, Place, drain, shared_case};
use crate::kit::{assert_bytes, pattern};
use crate::{Case, Fabric};

const TOPIC: &str = "memory";

/// Cases of this topic for the interface `I`.
pub struct Write<I>(PhantomData<I>);

impl<I: Interface> Write<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] = &[
        shared_case!(TOPIC, write_a_whole_window, I::WRITE),
        shared_case!(TOPIC, write_part_of_a_window, I::WRITE),
        shared_case!(TOPIC, write_gathers, I::WRITE),
        shared_case!(TOPIC, write_without_immediate_data_takes_no_receive, I::WRITE),
        shared_case!(TOPIC, data_are_visible_when_the_message_behind_them_is, I::WRITE),
    ];
}

/// Writes, and waits until the data are in place: a message behind a write arrives after it.
fn write<E: End>(a: &mut E, b: &mut E, bytes: &[u8], to: <E::Place as Place>::At) {
    a.post_write(&[bytes], to, false);
    let finished = a.sent();
    assert_eq!(finished.length, bytes.len());
    assert_bytes(&finished.parts[0], bytes);
    drain(a, b);
}

fn write_a_whole_window<I: Interface>(fabric: &dyn Fabric) {
    for len in [1, 64, 4096, 1 << 20] {
        let (mut a, mut b) = I::reaching(fabric);
        let place = b.place(&vec![0; len], Access::Write);
        let bytes = pattern(len, len);
        write(&mut a, &mut b, &bytes, place.at());
        assert_bytes(&place.bytes(), &bytes);
    }
}

fn write_part_of_a_window<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::reaching(fabric);
    let place = b.place(&[0; 1000], Access::Write);
    let mut expected = vec![0; 1000];
    for (offset, len) in [(0, 10), (990, 10), (3, 500), (500, 0), (1000, 0)] {
        let bytes = pattern(offset + 1, len);
        expected[offset..offset + len].copy_from_slice(&bytes);
        let to = <<I::End as End>::Place as Place>::part(place.at(), offset..offset + len);
        write(&mut a, &mut b, &bytes, to);
        assert_bytes(&place.bytes(), &expected);
    }
}

fn write_gathers<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::reaching(fabric);
    let place = b.place(&[0; 3000], Access::Write);
    let pieces: Vec<_> = (0..a.max_segments().min(3)).map(|i| pattern(i, 900 + i)).collect();
    let total = pieces.iter().map(Vec::len).sum();
    let to = <<I::End as End>::Place as Place>::part(place.at(), 0..total);
    a.post_write(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>(), to, false);
    assert_eq!(a.sent().length, total);
    drain(&mut a, &mut b);
    assert_bytes(&place.bytes()[..total], &pieces.concat());
    assert!(place.bytes()[total..].iter().all(|&byte| byte == 0), "and nothing behind them");
}

fn write_without_immediate_data_takes_no_receive<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::reaching(fabric);
    let place = b.place(&[0; 100], Access::Write);
    b.post_receive(&[3]);
    a.post_write(&[&[1; 100]], place.at(), false);
    a.sent();
    a.post_send(b"abc");
    assert_eq!(b.received(), b"abc", "the message got the only descriptor");
    a.sent();
    assert!(b.is_connected());
}

fn data_are_visible_when_the_message_behind_them_is<I: Interface>(fabric: &dyn Fabric) {
    const ROUNDS: u32 = 500;
    let (mut a, mut b) = I::reaching(fabric);
    let place = b.place(&[0; 4096], Access::Write);
    let to = place.at();
    b.post_receive(&[4]);
    thread::scope(|scope| {
        // The side that finishes first must not drop anything that the other side uses.
        let writer = scope.spawn(move || {
            for round in 0..ROUNDS {
                a.post_receive(&[0]);
                a.post_write(&[&[(round as u8).wrapping_add(1); 4096]], to, false);
                a.post_send(&round.to_le_bytes());
                a.sent();
                a.sent();
                assert!(a.received().is_empty());
            }
            a
        });
        for round in 0..ROUNDS {
            assert_eq!(b.received(), round.to_le_bytes());
            let expected = (round as u8).wrapping_add(1);
            assert!(place.bytes().iter().all(|&byte| byte == expected), "round {round}");
            b.post_receive(&[4]);
            b.post_send(b"");
            b.sent();
        }
        drop(writer.join().expect("no panic"));
    });
}
