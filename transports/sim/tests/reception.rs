//! Reliable reception: a send is complete when its receipt has come back, and a fault that hits a receipt leaves its
//! sender not knowing.

mod common;

use std::time::Duration;

use common::{MILLISECOND, Pair, body, happened, soon};
use udeck_sim::trace::{Event, Happening};
use udeck_sim::{Fabric, Link, Pace, When, replay};
use udeck_via::mem::Lent;
use udeck_via::transport::Body;
use udeck_via::{Descriptor, Reliability, State, Status};

fn reception(seed: u64) -> (Fabric, Pair) {
    Pair::new(seed, Reliability::Reception)
}

/// Makes a pair where messages take 3 ms, receipts 5 ms, and time passes by `advance` only.
fn slow(seed: u64) -> (Fabric, Pair) {
    let (fabric, pair) = reception(seed);
    let delay = |count: u32| Link { delay: count * MILLISECOND..Duration::ZERO, ..Link::default() };
    fabric.set_link("a", "b", delay(3));
    fabric.set_link("b", "a", delay(5));
    fabric.set_pace(Pace::Blocked);
    (fabric, pair)
}

/// Takes the next message at `b`, and checks that it is whole.
fn taken(pair: &mut Pair, number: u32) -> Lent {
    let arrival = pair.b.arrival().expect("the connection stands").expect("a message");
    assert_eq!(arrival.immediate, Some(number));
    let Body::Lent(_, lent) = arrival.body else { panic!("a posted send is lent") };
    assert_eq!(lent.as_slice().unwrap(), body(number, lent.len()));
    lent
}

fn assert_undecided(pair: &mut Pair) {
    assert!(pair.a.send_done().is_none(), "nothing came back that says how it ended");
}

#[test]
fn a_send_is_done_when_its_receipt_is_back() {
    let (fabric, mut pair) = slow(1);
    pair.post_numbered(4, 5000);
    fabric.advance(3 * MILLISECOND);
    assert_undecided(&mut pair);
    drop(taken(&mut pair, 4));
    fabric.advance(4 * MILLISECOND);
    assert_undecided(&mut pair);
    fabric.advance(MILLISECOND);
    assert_eq!(pair.a.send_done().map(|done| (done.status, done.length)), Some((Status::Done, 5000)));
    assert_eq!(happened(&fabric, |what| what == Happening::Acknowledged(0)), 1);
}

#[test]
fn a_refusal_comes_back_as_a_receipt() {
    let (fabric, mut pair) = slow(1);
    pair.post_numbered(4, 10);
    fabric.advance(3 * MILLISECOND);
    taken(&mut pair, 4).refuse();
    fabric.advance(4 * MILLISECOND);
    assert_undecided(&mut pair);
    fabric.advance(MILLISECOND);
    assert_eq!(pair.a.send_done().map(|done| done.status), Some(Status::RemoteDescriptorError));
    assert_eq!(pair.a.state(), State::Error);
}

#[test]
fn the_end_comes_behind_the_receipts_and_flushes_what_nobody_took() {
    let (fabric, mut pair) = slow(1);
    (0..3).for_each(|number| pair.post_numbered(number, 3000));
    fabric.advance(3 * MILLISECOND);
    drop(taken(&mut pair, 0));
    pair.b.disconnect();
    assert_undecided(&mut pair);
    fabric.advance(5 * MILLISECOND);
    assert_eq!([(); 3].map(|()| pair.end_of_send()), [Status::Done, Status::Flushed, Status::Flushed]);
}

#[test]
fn a_loan_that_outlives_its_receiver_is_acknowledged_all_the_same() {
    let (fabric, mut pair) = slow(1);
    pair.post_numbered(0, 3000);
    fabric.advance(3 * MILLISECOND);
    let lent = taken(&mut pair, 0);
    pair.b.disconnect();
    fabric.advance(5 * MILLISECOND);
    assert_undecided(&mut pair);
    drop(lent);
    fabric.advance(5 * MILLISECOND);
    assert_eq!(pair.a.send_done().map(|done| done.status), Some(Status::Done));
}

#[test]
fn who_left_still_learns_how_its_sends_ended() {
    let (fabric, mut pair) = slow(1);
    (0..2).for_each(|number| pair.post_numbered(number, 3000));
    pair.a.disconnect();
    fabric.advance(3 * MILLISECOND);
    drop(taken(&mut pair, 0));
    fabric.advance(5 * MILLISECOND);
    assert_eq!(pair.a.send_done().map(|done| done.status), Some(Status::Flushed), "its memory is back");
    assert_undecided(&mut pair);
    pair.b.disconnect();
    fabric.advance(5 * MILLISECOND);
    assert_eq!(pair.a.send_done().map(|done| done.status), Some(Status::Flushed));
}

#[test]
fn ends_that_cross_leave_nothing_out() {
    let (fabric, mut pair) = slow(1);
    let outbox = pair.a.nic().outbox().clone();
    (0..2).for_each(|number| pair.post_numbered(number, 3000));
    pair.a.disconnect();
    pair.b.disconnect();
    assert_undecided(&mut pair);
    fabric.advance(5 * MILLISECOND);
    assert_eq!([(); 2].map(|()| pair.end_of_send()), [Status::Flushed; 2]);
    assert_eq!(outbox.usage().blocks, 0);
}

#[test]
fn a_lost_receipt_breaks_the_connection() {
    let (fabric, mut pair) = reception(7);
    fabric.set_link("b", "a", Link { lose: When::Frames(vec![1]), ..Link::default() });
    (0..3).for_each(|number| pair.post_numbered(number, 3000));
    (0..3).for_each(|number| drop(taken(&mut pair, number)));
    let ends = [(); 3].map(|()| pair.end_of_send());
    assert_eq!(
        ends,
        [Status::Done, Status::TransportError, Status::Flushed],
        "the third receipt is behind it"
    );
    pair.assert_lost("frame 1 from b to a was lost (seed 7)");
}

#[test]
fn a_lost_message_is_a_transport_error() {
    let (fabric, mut pair) = reception(7);
    fabric.set_link("a", "b", Link { lose: When::Frames(vec![1]), ..Link::default() });
    (0..3).for_each(|number| pair.post_numbered(number, 3000));
    drop(taken(&mut pair, 0));
    let ends = [(); 3].map(|()| pair.end_of_send());
    assert_eq!(ends, [Status::Done, Status::TransportError, Status::Flushed]);
    pair.assert_lost("frame 1 from a to b was lost (seed 7)");
}

#[test]
fn a_stalled_receipt_comes_when_the_link_moves_again() {
    let (fabric, mut pair) = reception(1);
    fabric.set_link("b", "a", Link { stalled: true, ..Link::default() });
    pair.post_numbered(0, 3000);
    drop(taken(&mut pair, 0));
    fabric.advance(1000 * MILLISECOND);
    assert_undecided(&mut pair);
    assert_eq!(happened(&fabric, |what| what == Happening::Stalled(0)), 1);
    fabric.set_link("b", "a", Link::default());
    assert_eq!(pair.end_of_send(), Status::Done);
    assert_eq!((pair.a.state(), pair.b.state()), (State::Connected, State::Connected));
}

#[test]
fn a_duplicate_of_a_receipt_ends_nothing_twice() {
    let (fabric, mut pair) = reception(1);
    fabric.set_link("b", "a", Link { duplicate: When::Chance(1.0), ..Link::default() });
    for number in 0..3 {
        pair.post_numbered(number, 3000);
        drop(taken(&mut pair, number));
        assert_eq!(pair.end_of_send(), Status::Done);
    }
    assert_undecided(&mut pair);
    assert_eq!(happened(&fabric, |what| matches!(what, Happening::Discarded(_))), 3);
}

#[test]
fn a_death_between_arrival_and_receipt_leaves_the_sender_not_knowing() {
    let (fabric, mut pair) = slow(7);
    pair.post_numbered(0, 3000);
    fabric.advance(3 * MILLISECOND);
    drop(taken(&mut pair, 0));
    fabric.kill("b");
    assert_eq!(pair.end_of_send(), Status::TransportError, "although it arrived");
    pair.assert_lost("b died (seed 7)");
}

#[test]
fn a_death_before_anybody_took_it_is_a_transport_error() {
    let (fabric, mut pair) = slow(7);
    pair.post_numbered(0, 3000);
    fabric.advance(3 * MILLISECOND);
    fabric.kill("b");
    assert_eq!(pair.end_of_send(), Status::TransportError);
    assert_eq!(pair.a.nic().outbox().usage().blocks, 0);
}

#[test]
fn what_is_read_when_the_connection_breaks_stays_the_readers() {
    let (fabric, mut pair) = slow(7);
    pair.post_numbered(0, 3000);
    fabric.advance(3 * MILLISECOND);
    let lent = taken(&mut pair, 0);
    fabric.kill("a");
    assert_undecided(&mut pair);
    assert_eq!(lent.as_slice().unwrap(), body(0, 3000));
    drop(lent);
    assert_eq!(pair.end_of_send(), Status::TransportError);
}

#[test]
fn an_rdma_write_is_done_when_its_receipt_is_back() {
    let (fabric, mut pair) = slow(1);
    let window = pair.b.nic().window(3000, pair.b.attributes().ptag).unwrap();
    let write = |pair: &mut Pair, immediate: Option<u32>| {
        let region = pair.a.nic().region(3000, pair.a.attributes().ptag).unwrap();
        let descriptor = Descriptor::rdma_write([region], window.remote());
        let descriptor = immediate.into_iter().fold(descriptor, Descriptor::immediate);
        pair.a.post_send(descriptor).unwrap();
        fabric.advance(3 * MILLISECOND);
    };
    write(&mut pair, None);
    fabric.advance(4 * MILLISECOND);
    assert_undecided(&mut pair);
    fabric.advance(MILLISECOND);
    assert_eq!(pair.end_of_send(), Status::Done);
    write(&mut pair, Some(6));
    fabric.advance(5 * MILLISECOND);
    assert_undecided(&mut pair);
    let arrival = pair.b.arrival().unwrap().unwrap();
    assert!(matches!(arrival.body, Body::Written(3000)) && arrival.immediate == Some(6), "{arrival:?}");
    assert!(pair.b.arrival().unwrap().is_none(), "and with this look, it is done with that");
    assert_undecided(&mut pair);
    fabric.advance(5 * MILLISECOND);
    assert_eq!(pair.end_of_send(), Status::Done);
}

#[test]
fn receipts_take_no_room() {
    let (_fabric, mut pair) = reception(1);
    pair.post_numbered(0, 3000);
    drop(taken(&mut pair, 0));
    assert_eq!(pair.end_of_send(), Status::Done);
    assert_eq!(pair.b.unread().unwrap(), 0);
}

#[test]
fn hand_offs_wait_for_no_receipt() {
    let (fabric, mut pair) = slow(1);
    pair.hand_off(0, 3000);
    fabric.advance(3 * MILLISECOND);
    drop(taken(&mut pair, 0));
    assert_eq!(pair.a.nic().outbox().usage().blocks, 0);
    assert_eq!(happened(&fabric, |what| matches!(what, Happening::Acknowledged(_))), 0);
}

#[test]
fn an_rdma_read_waits_for_both_ways() {
    for (from, to) in [("a", "b"), ("b", "a")] {
        let (fabric, mut pair) = reception(1);
        let ptag = pair.b.attributes().ptag;
        let mut window = pair.b.nic().window_for(3000, ptag, udeck_via::Rights::READ).unwrap();
        window.write(0, &body(1, 3000)).unwrap();
        let region = pair.a.nic().region(3000, pair.a.attributes().ptag).unwrap();
        fabric.set_link(from, to, Link { stalled: true, ..Link::default() });
        pair.a.post_send(Descriptor::rdma_read([region], window.remote())).unwrap();
        fabric.advance(1000 * MILLISECOND);
        assert_undecided(&mut pair);
        fabric.set_link(from, to, Link::default());
        let read = pair.a.send_wait(soon()).unwrap();
        assert_eq!(read.status, Status::Done);
        assert_eq!(read.descriptor.unwrap().segments()[0].bytes(), body(1, 3000));
    }
}

/// Posts a hundred messages over links with all faults but loss, both ways. Returns their statuses, and the trace.
fn wild(seed: u64) -> (Vec<Status>, Vec<Event>) {
    let (fabric, mut pair) = reception(seed);
    let delay = Duration::from_micros(1)..Duration::from_micros(90);
    let some = When::Chance(0.2);
    let link = Link { duplicate: some.clone(), reorder: some, delay, ..Link::default() };
    fabric.set_link("a", "b", link.clone());
    fabric.set_link("b", "a", link);
    let mut ends = Vec::new();
    for round in 0..5 {
        let numbers = round * 20..(round + 1) * 20;
        numbers.clone().for_each(|number| pair.post_numbered(number, 10 + 30 * number as usize));
        numbers.clone().for_each(|number| drop(taken(&mut pair, number)));
        ends.extend(numbers.map(|_| pair.end_of_send()));
    }
    (ends, fabric.trace())
}

#[test]
fn every_message_arrives_once_in_order_and_is_acknowledged_whatever_the_seed() {
    replay::seeds(30, |fabric| {
        let (ends, trace) = wild(fabric.seed());
        assert_eq!(ends, [Status::Done; 100]);
        let receipts = trace.iter().filter(|event| matches!(event.what, Happening::Acknowledged(_)));
        assert_eq!(receipts.count(), 100);
    });
}

#[test]
fn a_seed_repeats_itself_receipts_included() {
    let runs = [11, 11, 12].map(wild);
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0].1, runs[2].1);
}
