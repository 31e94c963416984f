//! Fences: posts that wait for the RDMA reads before them.

use std::marker::PhantomData;
use std::thread;

use udeck_via::Deadline;

use super::{Access, End, Interface, Place, PostStatus, shared_case};
use crate::kit::{assert_bytes, pattern};
use crate::{Case, Fabric};

const TOPIC: &str = "fence";

/// Cases of this topic for the interface `I`.
pub struct Fence<I>(PhantomData<I>);

impl<I: Interface> Fence<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] = &[
        shared_case!(TOPIC, when_a_fenced_message_has_come_the_reads_before_it_are_over, I::READ),
        shared_case!(TOPIC, a_fenced_write_does_not_spoil_the_read_before_it, I::BOTH),
        shared_case!(TOPIC, a_fence_lets_the_peer_reuse_what_was_read, I::READ),
        shared_case!(TOPIC, fenced_posts_stay_in_their_order, I::READ),
    ];
}

/// Length in bytes, so long that a read takes noticeable time, if its transport takes any.
const LEN: usize = 1 << 20;

fn when_a_fenced_message_has_come_the_reads_before_it_are_over<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::reaching(fabric);
    let bytes = pattern(1, LEN);
    let place = b.place(&bytes, Access::Read);
    for _ in 0..10 {
        b.post_receive(&[4]);
        a.post_read(&[LEN], place.at(), false);
        a.post_read(&[LEN], place.at(), false);
        a.post_send_of(&[b"over"], true);
        assert_eq!(b.received(), b"over");
        for _ in 0..2 {
            let finished = a.request_by(Deadline::now()).expect("there is nothing to wait for");
            assert_eq!((finished.status, finished.length), (PostStatus::Done, LEN));
            assert_bytes(&finished.parts[0], &bytes);
        }
        a.sent();
    }
}

fn a_fenced_write_does_not_spoil_the_read_before_it<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::reaching(fabric);
    let place = b.place(&[0; LEN], Access::Both);
    for round in 1..10 {
        b.post_receive(&[0]);
        a.post_read(&[LEN], place.at(), false);
        a.post_write(&[&[round; LEN]], place.at(), true);
        a.post_send(b"");
        let read = a.sent();
        assert!(read.parts[0].iter().all(|&byte| byte == round - 1), "what was there when it was posted");
        a.sent();
        a.sent();
        b.received();
        assert!(place.bytes().iter().all(|&byte| byte == round));
    }
}

/// The owner of the memory writes there again as soon as it learns that it was read.
fn a_fence_lets_the_peer_reuse_what_was_read<I: Interface>(fabric: &dyn Fabric) {
    const ROUNDS: u8 = 20;
    let (mut a, mut b) = I::reaching(fabric);
    let mut place = b.place(&[0; LEN], Access::Read);
    let from = place.at();
    b.post_receive(&[0]);
    thread::scope(|scope| {
        let owner = scope.spawn(move || {
            for round in 1..=ROUNDS {
                b.received();
                b.post_receive(&[0]);
                place.fill(&vec![round; LEN]);
                b.post_send(b"");
                b.sent();
            }
            (b, place)
        });
        for round in 0..ROUNDS {
            a.post_receive(&[0]);
            a.post_read(&[LEN], from, false);
            a.post_send_of(&[b""], true);
            assert!(
                a.sent().parts[0].iter().all(|&byte| byte == round),
                "round {round}: nothing of the next"
            );
            a.sent();
            assert!(a.received().is_empty());
        }
        drop(owner.join().expect("no panic"));
    });
}

fn fenced_posts_stay_in_their_order<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::reaching(fabric);
    let bytes = pattern(1, 10_000);
    let place = b.place(&bytes, Access::Read);
    for _ in 0..10 {
        let lengths = [0, 1, 48, 49, 5000, 7, 70_000, 3];
        for (number, len) in lengths.into_iter().enumerate() {
            b.post_receive(&[len]);
            a.post_read(&[bytes.len()], place.at(), number % 4 == 3);
            a.post_send_of(&[&pattern(number, len)], number % 2 == 0);
        }
        for (number, len) in lengths.into_iter().enumerate() {
            assert_bytes(&b.received(), &pattern(number, len));
            assert_bytes(&a.sent().parts[0], &bytes);
            assert_bytes(&a.sent().parts[0], &pattern(number, len));
        }
    }
}
