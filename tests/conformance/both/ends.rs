//! The end of a connection.

use std::marker::PhantomData;

use udeck_via::Deadline;

use super::{End, Interface, PostStatus, shared_case};
use crate::kit::{assert_bytes, pattern, soon};
use crate::{Case, Fabric};

const TOPIC: &str = "connection";

/// Cases of this topic for the interface `I`.
pub struct Ends<I>(PhantomData<I>);

impl<I: Interface> Ends<I> {
    /// Table of the cases.
    pub const CASES: &'static [Case] = &[
        shared_case!(TOPIC, the_sender_disconnects_after_sending, &[]),
        shared_case!(TOPIC, the_receiver_disconnects_before_reading, &[]),
        shared_case!(TOPIC, disconnect_flushes_receives_in_order, &[]),
        shared_case!(TOPIC, the_peers_end_flushes_receives_in_order, &[]),
    ];
}

fn the_sender_disconnects_after_sending<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    let messages: Vec<_> = [0, 10, 5000, 48, 100_000].map(|len| pattern(len, len)).into();
    for message in &messages {
        b.post_receive(&[message.len()]);
        a.post_send(message);
    }
    b.post_receive(&[1]);
    a.disconnect();
    // The sender continues, and reuses the memory that it got back.
    while a.request_by(Deadline::now()).is_some() {}
    [5000, 100_000, 5000, 100_000].into_iter().for_each(|len| a.scribble(len));
    for message in &messages {
        assert_bytes(&b.received(), message);
    }
    assert_eq!(b.receive_by(soon()).expect("it is reported").status, PostStatus::Flushed);
    assert!(!b.is_connected());
}

fn the_receiver_disconnects_before_reading<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    let messages = [5000, 10].map(|len| pattern(len, len));
    for message in &messages {
        b.post_receive(&[message.len()]);
        a.post_send(message);
    }
    b.disconnect();
    for message in &messages {
        let finished = a.request_by(soon()).expect("every send is reported, whatever became of it");
        assert_bytes(&finished.parts[0], message);
    }
    crate::kit::until("the sender notices", || {
        a.receive_by(Deadline::now());
        (!a.is_connected()).then_some(())
    });
}

/// Lengths of the posts, all different, so that each can be recognised.
const LENGTHS: [usize; 4] = [11, 22, 33, 44];

fn assert_flushed_in_order<E: End>(end: &mut E) {
    for len in LENGTHS {
        let finished = end.receive_by(soon()).expect("it is reported");
        assert_eq!((finished.status, finished.length), (PostStatus::Flushed, 0));
        assert_eq!(finished.parts[0], vec![0; len]);
    }
    end.assert_quiet();
    assert!(!end.is_connected());
}

fn disconnect_flushes_receives_in_order<I: Interface>(fabric: &dyn Fabric) {
    let (_a, mut b) = I::pair(fabric);
    LENGTHS.iter().for_each(|&len| b.post_receive(&[len]));
    b.disconnect();
    assert_flushed_in_order(&mut b);
}

fn the_peers_end_flushes_receives_in_order<I: Interface>(fabric: &dyn Fabric) {
    let (mut a, mut b) = I::pair(fabric);
    LENGTHS.iter().for_each(|&len| b.post_receive(&[len]));
    a.disconnect();
    assert_flushed_in_order(&mut b);
}
