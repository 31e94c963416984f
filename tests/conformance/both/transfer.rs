//! Sends and receives: sizes and pieces.

use std::marker::PhantomData;

use super::{End, Interface, PostStatus, shared_case};
use crate::kit::{assert_bytes, pattern, soon};
use crate::{Case, Fabric};

const TOPIC: &str = "transfer";

/// Cases of this topic for the interface `I`.
pub struct Transfer<I>(PhantomData<I>);

impl<I: Interface> Transfer<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] = &[
        shared_case!(TOPIC, messages_of_all_sizes, &[]),
        shared_case!(TOPIC, both_directions_at_once, &[]),
        shared_case!(TOPIC, a_message_shorter_than_its_descriptor, &[]),
        shared_case!(TOPIC, gather_from_several_segments, &[]),
        shared_case!(TOPIC, scatter_over_several_segments, &[]),
        shared_case!(TOPIC, gather_and_scatter_with_other_boundaries, &[]),
    ];
}

const SIZES: [usize; 12] = [0, 1, 7, 47, 48, 49, 63, 64, 65, 4096, 65_537, 1 << 20];

fn messages_of_all_sizes<I: Interface>(fabric: &dyn Fabric) {
    all_sizes(I::pair(fabric));
}

/// `a` sends messages of many lengths, one by one.
pub fn all_sizes<E: End>((mut a, mut b): (E, E)) {
    for (seed, len) in SIZES.into_iter().enumerate() {
        let bytes = pattern(seed, len);
        b.post_receive(&[len]);
        a.post_send(&bytes);
        let finished = b.receive_by(soon()).expect("it has come");
        assert_eq!((finished.status, finished.length), (PostStatus::Done, len));
        assert_bytes(&finished.bytes(), &bytes);
        let sent = a.sent();
        assert_eq!(sent.length, len);
        assert_bytes(&sent.parts[0], &bytes);
    }
}

fn both_directions_at_once<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    for len in SIZES {
        let (there, back) = (pattern(1, len), pattern(2, len));
        a.post_receive(&[len]);
        b.post_receive(&[len]);
        a.post_send(&there);
        b.post_send(&back);
        assert_bytes(&a.received(), &back);
        assert_bytes(&b.received(), &there);
        a.sent();
        b.sent();
    }
}

fn a_message_shorter_than_its_descriptor<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    for len in [0, 10, 3000] {
        let bytes = pattern(4, len);
        b.post_receive(&[4096]);
        a.post_send(&bytes);
        let finished = b.receive_by(soon()).expect("it has come");
        assert_eq!((finished.status, finished.length), (PostStatus::Done, len));
        assert_bytes(&finished.bytes(), &bytes);
        assert!(
            finished.parts[0][len..].iter().all(|&byte| byte == 0),
            "what the message does not reach is left alone"
        );
        a.sent();
    }
}

fn gather_from_several_segments<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    for count in 1..=a.max_segments() {
        for len in [5, 500] {
            let pieces: Vec<_> = (0..count).map(|i| pattern(i, len + i)).collect();
            b.post_receive(&[pieces.iter().map(Vec::len).sum()]);
            a.post_send_of(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>(), false);
            assert_bytes(&b.received(), &pieces.concat());
            assert_eq!(a.sent().parts, pieces, "each piece has come back as it was");
        }
    }
}

fn scatter_over_several_segments<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    for count in 1..=b.max_segments() {
        for len in [5, 500] {
            let rooms: Vec<_> = (0..count).map(|i| len + i).collect();
            let bytes = pattern(count, rooms.iter().sum());
            b.post_receive(&rooms);
            a.post_send(&bytes);
            let finished = b.receive_by(soon()).expect("it has come");
            assert_eq!(finished.status, PostStatus::Done);
            assert_bytes(&finished.bytes(), &bytes);
            assert_eq!(finished.parts.iter().map(Vec::len).collect::<Vec<_>>(), rooms);
            a.sent();
        }
    }
}

fn gather_and_scatter_with_other_boundaries<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    let most = a.max_segments().min(b.max_segments());
    // The segments are given by the lengths of the first pieces; one more piece has the rest.
    let cut = |total: usize, first: [usize; 2]| {
        let mut lengths: Vec<usize> = first.into_iter().take(most - 1).collect();
        lengths.push(total - lengths.iter().sum::<usize>());
        lengths
    };
    for total in [45, 5000] {
        for (sent, room) in [([0, 0], [1, 3]), ([1, 30], [30, 1]), ([40, 5], [13, 0]), ([7, 7], [7, 7])] {
            let bytes = pattern(sent[0], total);
            let mut rest = &bytes[..];
            let pieces: Vec<&[u8]> = cut(total, sent)
                .into_iter()
                .map(|len| {
                    let (piece, others) = rest.split_at(len);
                    rest = others;
                    piece
                })
                .collect();
            b.post_receive(&cut(total, room));
            a.post_send_of(&pieces, false);
            assert_bytes(&b.received(), &bytes);
            a.sent();
        }
    }
}
