//! Each fault at a chosen frame, the guarantees of VIA under it, and the repeatability of a seed.

mod common;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::{MILLISECOND, Pair, body, happened, soon};
use udeck_sim::trace::Happening;
use udeck_sim::{Fabric, Link, Options, Pace, When, replay};
use udeck_via::transport::Body;
use udeck_via::{
    Cq, Deadline, Error, ErrorCode, NetAddress, Nic, Reliability, State, Status, Vi, ViAttributes,
};

fn losing(frames: &[u64]) -> Link {
    Link { lose: When::Frames(frames.to_vec()), ..Link::default() }
}

#[test]
fn unreliable_connections_do_not_notice_a_loss() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Unreliable);
    fabric.set_link("a", "b", losing(&[1, 3]));
    (0..5).for_each(|number| pair.send(number));
    assert_eq!(pair.numbers(), [0, 2, 4]);
    assert_eq!(happened(&fabric, |what| matches!(what, Happening::Lost(1 | 3))), 2);
    assert_eq!((pair.a.state(), pair.b.state()), (State::Connected, State::Connected));
}

#[test]
fn reliable_connections_break_of_a_loss_at_both_ends() {
    let (fabric, mut pair) = Pair::new(7, Reliability::Delivery);
    fabric.set_link("a", "b", losing(&[2]));
    (0..5).for_each(|number| pair.send(number));
    for expected in [0, 1] {
        assert_eq!(pair.b.arrival().unwrap().unwrap().immediate, Some(expected), "in order up to the gap");
    }
    let error = pair.b.arrival().unwrap_err();
    assert!(
        matches!(&error, Error::Lost(why) if why.contains("frame 2") && why.contains("seed 7")),
        "{error}"
    );
    let error = pair.a.send_inline(None, b"", b"").unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert_eq!((pair.a.state(), pair.b.state()), (State::Error, State::Error));
}

#[test]
fn what_was_drained_outlives_its_sender() {
    for (is_drained, expected) in [(true, vec![0, 1, 2]), (false, vec![])] {
        let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
        fabric.set_link("a", "b", Link { delay: MILLISECOND..2 * MILLISECOND, ..Link::default() });
        (0..3).for_each(|number| pair.hand_off(number, 5000));
        if is_drained {
            pair.a.nic().drain(soon()).unwrap();
        }
        fabric.kill("a");
        let came = std::iter::from_fn(|| pair.b.arrival().ok().flatten()?.immediate);
        assert_eq!(came.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_drain_says_who_is_not_reached() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
    fabric.set_link("a", "b", Link { stalled: true, ..Link::default() });
    pair.send(0);
    let error = pair.a.nic().drain(Deadline::after(MILLISECOND)).unwrap_err();
    assert!(
        matches!(&error, Error::Timeout { what, .. } if what.contains("1 of its connections")),
        "{error}"
    );
    fabric.set_link("a", "b", Link::default());
    pair.a.nic().drain(soon()).unwrap();
}

#[test]
fn a_lost_descriptor_ends_as_a_transport_error() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
    fabric.set_link("a", "b", losing(&[0]));
    pair.post(&[5; 5000]);
    assert_eq!(
        pair.a.send_wait(Deadline::after(Duration::from_secs(60))).unwrap().status,
        Status::TransportError
    );
    assert!(matches!(pair.b.arrival(), Err(Error::Lost(_))));
}

#[test]
fn duplicates_are_delivered_once() {
    for level in [Reliability::Unreliable, Reliability::Delivery] {
        let (fabric, mut pair) = Pair::new(1, level);
        fabric.set_link("a", "b", Link { duplicate: When::Chance(1.0), ..Link::default() });
        for number in 0..5 {
            pair.send(number);
            pair.hand_off(number, 5000);
        }
        assert_eq!(pair.numbers(), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(happened(&fabric, |what| matches!(what, Happening::Discarded(_))), 10);
    }
}

#[test]
fn frames_overtake_each_other_on_unreliable_connections_only() {
    let held_back = Link { reorder: When::Frames(vec![0]), ..Link::default() };
    for (level, expected) in [(Reliability::Unreliable, [1, 2, 0]), (Reliability::Delivery, [0, 1, 2])] {
        let (fabric, mut pair) = Pair::new(1, level);
        fabric.set_link("a", "b", held_back.clone());
        (0..3).for_each(|number| pair.send(number));
        assert_eq!(pair.numbers(), expected, "{level:?}");
        assert_eq!(happened(&fabric, |what| what == Happening::HeldBack(0)), 1);
    }
}

#[test]
fn what_is_delayed_arrives_at_its_moment() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
    fabric.set_pace(Pace::Blocked);
    fabric.set_link("a", "b", Link { delay: 3 * MILLISECOND..3 * MILLISECOND, ..Link::default() });
    let start = fabric.now();
    pair.send(0);
    fabric.advance(2 * MILLISECOND);
    assert!(pair.numbers().is_empty(), "looking does not hurry it");
    fabric.advance(MILLISECOND);
    assert_eq!(pair.numbers(), [0]);
    assert_eq!(fabric.now() - start, 3 * MILLISECOND);
}

#[test]
fn a_sleeper_lets_time_pass() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
    fabric.set_pace(Pace::Blocked);
    while pair.b_cq.poll().is_some() {}
    fabric.set_link("a", "b", Link { delay: 3600 * 1000 * MILLISECOND..Duration::ZERO, ..Link::default() });
    pair.send(0);
    pair.b_cq.wait(Deadline::after(Duration::from_secs(60)), || false).expect("an hour is nothing");
    assert_eq!(pair.numbers(), [0]);
    assert!(fabric.now() >= 3600 * 1000 * MILLISECOND);
}

#[test]
fn a_stalled_link_delivers_when_it_moves_again() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
    fabric.set_link("a", "b", Link { stalled: true, ..Link::default() });
    (0..3).for_each(|number| pair.send(number));
    fabric.advance(1000 * MILLISECOND);
    assert!(pair.numbers().is_empty());
    assert_eq!(happened(&fabric, |what| matches!(what, Happening::Stalled(_))), 3);
    pair.b.send_inline(Some(9), b"", b"").unwrap();
    assert_eq!(pair.a.arrival().unwrap().unwrap().immediate, Some(9), "the other direction moves");
    fabric.set_link("a", "b", Link::default());
    assert_eq!(pair.numbers(), [0, 1, 2]);
    assert_eq!(pair.a.state(), State::Connected);
}

#[test]
fn a_death_breaks_its_connections_and_refuses_new_ones() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
    pair.send(0);
    pair.post(&[5; 5000]);
    fabric.kill("b");
    let ended = pair.a.send_wait(Deadline::after(Duration::from_secs(60))).unwrap();
    assert_eq!(ended.status, Status::Done, "it had arrived, which is all that this level says");
    let error = pair.a.arrival().unwrap_err();
    assert!(matches!(&error, Error::Lost(why) if why.contains("b died")), "{error}");
    assert!(matches!(pair.b.arrival(), Err(Error::Lost(_))), "the dead do nothing any more");
    let nic = pair.a.nic().clone();
    let mut vi = Vi::new(&nic, ViAttributes::new(nic.ptag())).unwrap();
    let cq = Cq::new(&nic).unwrap().handle();
    let to = NetAddress { host: b"b".to_vec(), discriminator: b"pair".to_vec() };
    let soon = Deadline::after(Duration::from_secs(60));
    assert!(matches!(vi.connect(&to, &cq, &cq, b"", soon), Err(Error::Os { .. })));
    fabric.nic("b", Options::default()).expect("the name is free again");
}

#[test]
fn a_request_under_way_ends_with_the_death_of_whom_it_asks() {
    let fabric = Fabric::new(1);
    let [a, _b] = ["a", "b"].map(|name| fabric.nic(name, Options::default()).unwrap());
    fabric.set_link("a", "b", Link { stalled: true, ..Link::default() });
    let mut vi = Vi::new(&a, ViAttributes::new(a.ptag())).unwrap();
    let cq = Cq::new(&a).unwrap().handle();
    let to = NetAddress { host: b"b".to_vec(), discriminator: b"pair".to_vec() };
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| vi.connect(&to, &cq, &cq, b"", Deadline::after(Duration::from_secs(60))));
        while !fabric.has_stalled() {
            std::thread::yield_now();
        }
        fabric.kill("b");
        let error = asker.join().unwrap().unwrap_err();
        assert!(matches!(&error, Error::Lost(why) if why.contains("b is gone")), "{error}");
    });
}

#[test]
fn what_a_program_reads_stays_whole_when_its_nic_dies() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
    let outbox = pair.a.nic().outbox().clone();
    pair.hand_off(3, 5000);
    let arrival = pair.b.arrival().unwrap().unwrap();
    fabric.kill("b");
    assert_eq!(outbox.usage().blocks, 1, "still being read");
    outbox.block(5000, udeck_via::mem::Fill::Keep).unwrap().bytes_mut().fill(0xee);
    let Body::Lent(_, lent) = arrival.body else { panic!("5000 bytes are not inline") };
    assert_eq!(lent.as_slice().unwrap(), body(3, 5000));
    drop(lent);
    assert_eq!(outbox.usage().blocks, 0);
}

/// Returns the reasons of lost connections that a NIC's error callback is told of. The channel ends with the NIC.
fn watch(nic: &Nic) -> Receiver<String> {
    let (tell, told) = channel();
    let callback = move |event: &udeck_via::ErrorEvent| {
        assert_eq!(event.code, ErrorCode::ConnectionLost);
        drop(tell.send(event.why.clone()));
    };
    nic.on_error(callback).unwrap();
    told
}

/// Returns the reasons that both ends of a pair were told. The pair is dropped first.
fn told(pair: Pair, events: [Receiver<String>; 2]) -> [Vec<String>; 2] {
    drop(pair);
    events.map(|events| events.into_iter().collect())
}

#[test]
fn a_loss_is_told_at_both_ends_though_nobody_looks() {
    let (fabric, mut pair) = Pair::new(7, Reliability::Delivery);
    let events = [&pair.a, &pair.b].map(|vi| watch(vi.nic()));
    fabric.set_link("a", "b", losing(&[0]));
    pair.send(0);
    fabric.advance(1000 * MILLISECOND);
    let first =
        [&events[0], &events[1]].map(|told| told.recv_timeout(Duration::from_secs(60)).expect("told"));
    assert!(first.iter().all(|why| why.contains("frame 0") && why.contains("seed 7")), "{first:?}");
    assert!(pair.a.send_inline(None, b"", b"").is_err());
    assert!(told(pair, events).iter().all(Vec::is_empty), "once, whoever looks later");
}

#[test]
fn a_death_is_told_at_both_ends() {
    let (fabric, pair) = Pair::new(1, Reliability::Unreliable);
    let events = [&pair.a, &pair.b].map(|vi| watch(vi.nic()));
    fabric.kill("b");
    let told = told(pair, events);
    assert!(told.iter().all(|whys| whys.len() == 1 && whys[0].contains("b died")), "{told:?}");
}

#[test]
fn the_death_of_who_has_ended_in_order_is_told_to_nobody() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Delivery);
    let events = [&pair.a, &pair.b].map(|vi| watch(vi.nic()));
    pair.b.disconnect();
    fabric.advance(MILLISECOND);
    fabric.kill("b");
    let error = pair.a.send_inline(None, b"", b"").unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
    assert!(told(pair, events).iter().all(Vec::is_empty));
}

/// Sends two hundred messages over a link with all faults. Returns the messages that came, and the trace.
fn wild(seed: u64, level: Reliability, lose: When) -> (Vec<u32>, Vec<udeck_sim::trace::Event>) {
    let (fabric, mut pair) = Pair::new(seed, level);
    let delay = Duration::from_micros(1)..Duration::from_micros(90);
    let some = When::Chance(0.2);
    fabric.set_link(
        "a",
        "b",
        Link { lose, duplicate: some.clone(), reorder: some, delay, ..Link::default() },
    );
    let mut came = Vec::new();
    for number in 0..200 {
        if number % 3 == 0 {
            pair.hand_off(number, 100 + number as usize);
        } else {
            pair.send(number);
        }
        if number % 20 == 19 {
            came.extend(pair.numbers());
        }
    }
    (came, fabric.trace())
}

#[test]
fn a_seed_repeats_itself_and_others_differ() {
    for level in [Reliability::Unreliable, Reliability::Delivery] {
        let lose = if level == Reliability::Unreliable { When::Chance(0.2) } else { When::Never };
        let runs = [11, 11, 12].map(|seed| wild(seed, level, lose.clone()));
        assert_eq!(runs[0], runs[1]);
        assert_ne!(runs[0].1, runs[2].1);
    }
}

#[test]
fn reliable_connections_deliver_all_in_order_whatever_the_seed() {
    replay::seeds(50, |fabric| {
        assert_eq!(wild(fabric.seed(), Reliability::Delivery, When::Never).0, (0..200).collect::<Vec<_>>());
    });
}

#[test]
fn unreliable_connections_deliver_at_most_once_whatever_the_seed() {
    replay::seeds(50, |fabric| {
        let (mut came, trace) = wild(fabric.seed(), Reliability::Unreliable, When::Chance(0.2));
        let lost = trace.iter().filter(|event| matches!(event.what, Happening::Lost(_))).count();
        assert!(!came.is_sorted(), "some overtook others");
        assert_eq!(came.len() + lost, 200, "what was not lost came");
        came.sort_unstable();
        came.dedup();
        assert_eq!(came.len() + lost, 200, "and once");
    });
}
