//! Frames that arrive with a flipped bit: every level notices, and none of their bytes reaches a program.

mod common;

use common::{Pair, happened};
use udeck_sim::trace::{Event, Happening};
use udeck_sim::{Link, When, replay};
use udeck_via::transport::Body;
use udeck_via::{Descriptor, Reliability, Rights, State, Status};

fn corrupting(frames: &[u64]) -> Link {
    Link { corrupt: When::Frames(frames.to_vec()), ..Link::default() }
}

#[test]
fn unreliable_connections_drop_corrupt_frames() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Unreliable);
    fabric.set_link("a", "b", corrupting(&[1, 3]));
    pair.send(0);
    pair.send(1);
    (2..5).for_each(|number| pair.hand_off(number, 5000));
    assert_eq!(pair.numbers(), [0, 2, 4]);
    for frame in [1, 3] {
        for what in [Happening::Corrupted(frame), Happening::Detected(frame)] {
            assert_eq!(happened(&fabric, |happening| happening == what), 1, "{what:?}");
        }
        assert_eq!(happened(&fabric, |what| what == Happening::Arrived(frame)), 0);
    }
    assert_eq!((pair.a.state(), pair.b.state()), (State::Connected, State::Connected));
}

#[test]
fn dropped_frames_take_no_room() {
    let (fabric, mut pair) = Pair::new(1, Reliability::Unreliable);
    fabric.set_link("a", "b", Link { corrupt: When::Chance(1.0), ..Link::default() });
    let many = 3 * pair.a.nic().attributes().max_descriptors_per_queue as u32;
    (0..many).for_each(|number| pair.send(number));
    assert_eq!(pair.a.unread().unwrap(), 0);
    fabric.set_link("a", "b", Link::default());
    pair.send(many);
    assert_eq!(pair.numbers(), [many]);
}

#[test]
fn reliable_connections_break_of_a_corrupt_frame_at_both_ends() {
    for level in [Reliability::Delivery, Reliability::Reception] {
        let (fabric, mut pair) = Pair::new(7, level);
        fabric.set_link("a", "b", corrupting(&[2]));
        (0..2).for_each(|number| pair.send(number));
        pair.post_numbered(2, 5000);
        for expected in [0, 1] {
            assert_eq!(pair.b.arrival().unwrap().unwrap().immediate, Some(expected), "in order up to it");
        }
        assert_eq!(pair.end_of_send(), Status::TransportError, "{level:?}");
        pair.assert_lost("frame 2 from a to b arrived corrupt: its checksum is wrong (seed 7)");
        assert_eq!(happened(&fabric, |what| what == Happening::Broken), 1);
    }
}

#[test]
fn a_corrupt_receipt_breaks_the_connection() {
    let (fabric, mut pair) = Pair::new(7, Reliability::Reception);
    fabric.set_link("b", "a", corrupting(&[0]));
    pair.post_numbered(0, 5000);
    let arrival = pair.b.arrival().unwrap().unwrap();
    assert!(
        matches!(&arrival.body, Body::Lent(_, lent) if lent.as_slice().unwrap() == common::body(0, 5000))
    );
    drop(arrival);
    assert_eq!(pair.end_of_send(), Status::TransportError, "although it arrived");
    pair.assert_lost("frame 0 from b to a arrived corrupt");
}

#[test]
fn a_corrupt_word_of_an_rdma_write_is_noticed() {
    let (fabric, mut pair) = Pair::new(7, Reliability::Delivery);
    fabric.set_link("a", "b", corrupting(&[0]));
    let window = pair.b.nic().window(100, pair.b.attributes().ptag).unwrap();
    let region = pair.a.nic().region(100, pair.a.attributes().ptag).unwrap();
    pair.a.post_send(Descriptor::rdma_write([region], window.remote()).immediate(1)).unwrap();
    pair.assert_lost("frame 0 from a to b arrived corrupt");
}

#[test]
fn a_read_whose_question_or_answer_is_lost_or_corrupt_reads_nothing() {
    for (from, to) in [("a", "b"), ("b", "a")] {
        let lossy = Link { lose: When::Frames(vec![0]), ..Link::default() };
        for (link, what) in [(corrupting(&[0]), "arrived corrupt"), (lossy, "was lost")] {
            let (fabric, mut pair) = Pair::new(7, Reliability::Delivery);
            fabric.set_link(from, to, link);
            let ptag = pair.b.attributes().ptag;
            let mut window = pair.b.nic().window_for(1000, ptag, Rights::READ).unwrap();
            window.write(0, &[3; 1000]).unwrap();
            let region = pair.a.nic().region(1000, pair.a.attributes().ptag).unwrap();
            pair.a.post_send(Descriptor::rdma_read([region], window.remote())).unwrap();
            let ended = pair.a.send_wait(common::soon()).unwrap();
            assert_eq!((ended.status, ended.length), (Status::TransportError, 0));
            assert_eq!(ended.descriptor.unwrap().segments()[0].bytes(), [0; 1000]);
            let why = format!("frame 0 from {from} to {to} {what}");
            pair.assert_lost(&why);
        }
    }
}

/// Sends two hundred messages over an unreliable link with all faults. Returns the numbers of the messages that came
/// whole, and the trace.
fn wild(seed: u64) -> (Vec<u32>, Vec<Event>) {
    let (fabric, mut pair) = Pair::new(seed, Reliability::Unreliable);
    let some = When::Chance(0.2);
    let [lose, duplicate, reorder, corrupt] = [(); 4].map(|()| some.clone());
    fabric.set_link("a", "b", Link { lose, duplicate, reorder, corrupt, ..Link::default() });
    let mut came = Vec::new();
    for number in 0..200 {
        if number % 3 == 0 {
            pair.hand_off(number, 100 + number as usize)
        } else {
            pair.send(number)
        }
        if number % 20 == 19 {
            came.extend(pair.numbers());
        }
    }
    (came, fabric.trace())
}

#[test]
fn what_was_neither_lost_nor_corrupt_comes_once_whatever_the_seed() {
    replay::seeds(50, |fabric| {
        let (mut came, trace) = wild(fabric.seed());
        let count = |what: fn(&Happening) -> bool| trace.iter().filter(|event| what(&event.what)).count();
        let lost = count(|what| matches!(what, Happening::Lost(_)));
        let corrupted = count(|what| matches!(what, Happening::Corrupted(_)));
        assert!(corrupted > 0);
        assert_eq!(count(|what| matches!(what, Happening::Detected(_))), corrupted, "each is noticed");
        came.sort_unstable();
        came.dedup();
        assert_eq!(came.len() + lost + corrupted, 200);
    });
}

#[test]
fn a_seed_corrupts_the_same_again() {
    let runs = [11, 11, 12].map(wild);
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0].1, runs[2].1);
}
