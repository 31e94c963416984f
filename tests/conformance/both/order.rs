//! The order of posts: kept within one queue, not promised between queues.

use std::marker::PhantomData;

use udeck_via::Deadline;

use super::{Access, End, Interface, Place, PostStatus, shared_case};
use crate::kit::{assert_bytes, pattern, soon};
use crate::{Case, Fabric};

/// Cases of the interface `I` on receives, and on the two queues.
pub struct Order<I>(PhantomData<I>);
/// Cases of the interface `I` on completions.
pub struct Completion<I>(PhantomData<I>);
/// Cases of the interface `I` on reads among other posts.
pub struct Late<I>(PhantomData<I>);

impl<I: Interface> Order<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] = &[
        shared_case!("order", receives_are_taken_in_the_order_of_their_posts, &[]),
        shared_case!("order", sends_complete_while_receives_wait_to_be_taken, &[]),
    ];
}

impl<I: Interface> Completion<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] = &[shared_case!("completion", sends_are_reported_in_order, &[])];
}

impl<I: Interface> Late<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] = &[shared_case!("late", both_read_at_a_time, I::READ)];
}

/// Number of posts of each kind.
const POSTS: usize = 24;

/// A message takes the oldest descriptor, not the one that fits best.
fn receives_are_taken_in_the_order_of_their_posts<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    let rooms: Vec<usize> = (0..POSTS).map(|at| 100 + at * 37 % POSTS).collect();
    rooms.iter().for_each(|room| b.post_receive(&[*room]));
    (0..POSTS).for_each(|at| a.post_send(&pattern(at, at)));
    for (at, room) in rooms.iter().enumerate() {
        let finished = b.receive_by(soon()).expect("it has come");
        assert_eq!((finished.status, finished.parts[0].len()), (PostStatus::Done, *room));
        assert_bytes(&finished.bytes(), &pattern(at, at));
    }
}

/// Both ends have sent to each other, and no completion has been taken: the receives are taken first, then the
/// sends.
pub fn receives_first<E: End>((mut a, mut b): (E, E)) {
    for end in [&mut a, &mut b] {
        (0..POSTS).for_each(|_| end.post_receive(&[1000]));
    }
    for at in 0..POSTS {
        a.post_send(&pattern(at, 10 * at));
        b.post_send(&pattern(1000 + at, 20 * at));
    }
    for at in 0..POSTS {
        assert_bytes(&a.received(), &pattern(1000 + at, 20 * at));
        assert_bytes(&b.received(), &pattern(at, 10 * at));
    }
    for at in 0..POSTS {
        assert_eq!((a.sent().length, b.sent().length), (10 * at, 20 * at));
    }
}

fn sends_complete_while_receives_wait_to_be_taken<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    (0..POSTS).for_each(|_| a.post_receive(&[1000]));
    // The messages have arrived, and their completions lie unreported; a message inside its descriptor
    // completes without the peer's help.
    let short = |at: usize| pattern(at, at);
    (0..POSTS).for_each(|at| b.post_send(&short(at)));
    (0..POSTS).for_each(|_| b.post_receive(&[1000]));
    (0..POSTS).for_each(|at| a.post_send(&short(at + 1)));
    (0..POSTS).for_each(|at| assert_eq!(a.sent().length, at + 1));
    (0..POSTS).for_each(|at| assert_eq!(b.received(), short(at + 1)));
    (0..POSTS).for_each(|at| assert_eq!(b.sent().length, at));
    (0..POSTS).for_each(|at| assert_eq!(a.received(), short(at)));
}

fn sends_are_reported_in_order<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    let lengths = [5000, 3, 70, 48, 49, 0];
    for len in lengths {
        b.post_receive(&[len]);
        a.post_send(&pattern(len, len));
    }
    for len in lengths {
        assert_bytes(&b.received(), &pattern(len, len));
    }
    for len in lengths {
        let finished = a.sent();
        assert_eq!((finished.length, finished.parts[0].len()), (len, len));
    }
    assert!(a.request_by(Deadline::now()).is_none());
}

const LEN: usize = 200_000;

/// The reads and sends of `a` complete in the order of their posts, the reads with their data.
pub fn reported_in_order<E: End>((mut a, mut b): (E, E)) {
    let place = b.place(&pattern(1, LEN), Access::Read);
    let lengths = [1, 0, 5000, 48, 49];
    for len in lengths {
        b.post_receive(&[len]);
        a.post_read(&[LEN], place.at(), false);
        a.post_send(&pattern(len, len));
    }
    for len in lengths {
        assert_bytes(&b.received(), &pattern(len, len));
    }
    for len in lengths {
        let read = a.sent();
        assert_eq!(read.length, LEN);
        assert_bytes(&read.parts[0], &pattern(1, LEN));
        assert_eq!(a.sent().length, len);
    }
}

fn both_read_at_a_time<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::reaching(fabric);
    let (at_a, at_b) = (a.place(&pattern(2, LEN), Access::Read), b.place(&pattern(1, LEN), Access::Read));
    for _ in 0..10 {
        for _ in 0..3 {
            a.post_read(&[LEN], at_b.at(), false);
            b.post_read(&[LEN], at_a.at(), false);
        }
        for _ in 0..3 {
            assert_bytes(&a.sent().parts[0], &pattern(1, LEN));
            assert_bytes(&b.sent().parts[0], &pattern(2, LEN));
        }
    }
}
