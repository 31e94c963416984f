//! Integrity: each message arrives, exactly once, in order.

use std::marker::PhantomData;

use udeck_via::Deadline;

use super::{End, FinishedPost, Interface, PostStatus, shared_case};
use crate::kit::{assert_bytes, pattern, soon};
use crate::{Case, Fabric};

const TOPIC: &str = "integrity";

/// Cases of this topic for the interface `I`.
pub struct Integrity<I>(PhantomData<I>);

impl<I: Interface> Integrity<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] =
        &[shared_case!(TOPIC, messages_arrive_once_in_the_order_of_posting, &[])];
}

/// Number of messages under way at a time, and number of rounds.
const BATCH: usize = 8;
const ROUNDS: usize = 20;
const LONGEST: usize = 5000;

/// A message inside a descriptor, at the limit of that, or beyond it. It begins with its number.
fn message(number: usize) -> Vec<u8> {
    let mut bytes = pattern(number, [4, 30, 48, 49, 7, LONGEST][number % 6]);
    bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
    bytes
}

fn number_of(finished: &FinishedPost) -> usize {
    let bytes = finished.bytes();
    u32::from_le_bytes(*bytes.first_chunk().expect("each has its number")) as usize
}

fn messages_arrive_once_in_the_order_of_posting<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    // There is one receive more than messages, so that a message that arrives twice finds a place, too.
    b.post_receive(&[LONGEST]);
    for round in 0..ROUNDS {
        let numbers = || round * BATCH..(round + 1) * BATCH;
        for number in numbers() {
            b.post_receive(&[LONGEST]);
            a.post_send(&message(number));
        }
        let mut came = Vec::new();
        while came.len() < BATCH
            && let Some(one) = b.receive_by(soon())
        {
            assert_eq!(one.status, PostStatus::Done);
            came.push(one);
        }
        let order: Vec<usize> = came.iter().map(number_of).collect();
        assert_eq!(order, numbers().collect::<Vec<_>>(), "what came, and what was posted");
        came.iter().zip(numbers()).for_each(|(one, number)| assert_bytes(&one.bytes(), &message(number)));
        if let Some(more) = b.receive_by(Deadline::now()) {
            panic!("message {} came again", number_of(&more));
        }
        numbers().for_each(|_| drop(a.sent()));
    }
}
