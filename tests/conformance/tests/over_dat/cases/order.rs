//! The order of posts.

use udeck_conformance::both::{self, Access, End as _, Interface, Place};
use udeck_conformance::kit::{assert_bytes, pattern};
use udeck_conformance::{Case, Fabric};

use crate::end::{Dat, Pair};

const TOPIC: &str = "order";
pub const CASES: &[Case] = &[
    case!(sends_and_writes_arrive_in_the_order_of_their_posts),
    case!(receives_complete_while_sends_wait_to_be_taken),
    case!(reads_and_sends_are_reported_in_the_order_of_their_posts),
];

/// Number of posts of both kinds, mixed.
const POSTS: usize = 24;

/// When a message has arrived, the writes before it are in place.
fn sends_and_writes_arrive_in_the_order_of_their_posts(fabric: &dyn Fabric) {
    let Pair { mut a, mut b, .. } = Pair::new(fabric);
    let place = b.place(&[0; POSTS], Access::Write);
    for round in 0..5 {
        let is_write = |at: usize| (at * 7 + round).is_multiple_of(3);
        let bytes = |at: usize| pattern(at, [3, 900, 48][at % 3]);
        (0..POSTS).filter(|at| !is_write(*at)).for_each(|_| b.post_receive(&[1000]));
        for at in 0..POSTS {
            if is_write(at) {
                a.post_write(&[&[round as u8 + 1]], place.remote().part(at..at + 1).unwrap(), false);
            } else {
                a.post_send(&bytes(at));
            }
        }
        for at in (0..POSTS).filter(|at| !is_write(*at)) {
            assert_bytes(&b.received(), &bytes(at));
            let written = place.bytes();
            assert!(
                (0..at).filter(|at| is_write(*at)).all(|at| written[at] == round as u8 + 1),
                "before {at}"
            );
        }
        (0..POSTS).for_each(|at| assert_eq!(a.sent().length, if is_write(at) { 1 } else { bytes(at).len() }));
    }
}

fn receives_complete_while_sends_wait_to_be_taken(fabric: &dyn Fabric) {
    both::receives_first(Dat::pair(fabric));
}

fn reads_and_sends_are_reported_in_the_order_of_their_posts(fabric: &dyn Fabric) {
    both::reported_in_order(Dat::pair(fabric));
}
