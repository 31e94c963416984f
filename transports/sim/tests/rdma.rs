//! RDMA that takes time: operations in transit can be waited for, fenced, given up, and refused by a target that
//! they reach too late.

mod common;

use std::time::Duration;

use common::{MILLISECOND, Pair, body};
use udeck_sim::{Fabric, Link, Pace};
use udeck_via::mem::Fill;
use udeck_via::transport::Body;
use udeck_via::{Block, Descriptor, Error, Reading, Reliability, Rights, State, Status, Window};

const LEN: usize = 3000;
const RELIABLE: [Reliability; 2] = [Reliability::Delivery, Reliability::Reception];

/// Makes a pair whose links take 3 ms each way. Time passes by `advance` only.
fn slow(level: Reliability) -> (Fabric, Pair) {
    let (fabric, pair) = Pair::new(7, level);
    let delay = || Link { delay: 3 * MILLISECOND..Duration::ZERO, ..Link::default() };
    fabric.set_link("a", "b", delay());
    fabric.set_link("b", "a", delay());
    fabric.set_pace(Pace::Blocked);
    (fabric, pair)
}

/// Returns a window of `b` with message 1 in it.
fn window(pair: &Pair, rights: Rights) -> Window {
    let mut window = pair.b.nic().window_for(LEN, pair.b.attributes().ptag, rights).unwrap();
    window.write(0, &body(1, LEN)).unwrap();
    window
}

fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    window.read(0, &mut bytes).unwrap();
    bytes
}

fn region(pair: &Pair, number: u32) -> udeck_via::Region {
    let mut region = pair.a.nic().region(LEN, pair.a.attributes().ptag).unwrap();
    region.copy_from_slice(&body(number, LEN));
    region
}

fn post_read(pair: &mut Pair, window: &Window) {
    let read = Descriptor::rdma_read([region(pair, 9)], window.remote());
    pair.a.post_send(read).unwrap();
}

fn post_write(pair: &mut Pair, number: u32, window: &Window, immediate: Option<u32>) {
    let write = Descriptor::rdma_write([region(pair, number)], window.remote());
    pair.a.post_send(immediate.into_iter().fold(write, Descriptor::immediate)).unwrap();
}

/// Returns the status of `a`'s next completed send, and the contents of its memory; `None` while it is under way.
fn over(pair: &mut Pair) -> Option<(Status, Vec<u8>)> {
    let completion = pair.a.send_done()?;
    assert_eq!(completion.length, if completion.status == Status::Done { LEN } else { 0 });
    Some((completion.status, completion.descriptor.unwrap().segments()[0].bytes().to_vec()))
}

fn assert_broken(pair: &mut Pair, why: &str) {
    let error = pair.b.arrival().unwrap_err();
    assert!(matches!(&error, Error::Lost(words) if words.contains(why)), "{error}");
    assert_eq!((pair.a.state(), pair.b.state()), (State::Error, State::Error));
}

#[test]
fn a_read_is_over_when_its_answer_is_back() {
    for level in RELIABLE {
        let (fabric, mut pair) = slow(level);
        let window = window(&pair, Rights::READ);
        post_read(&mut pair, &window);
        fabric.advance(5 * MILLISECOND);
        assert!(over(&mut pair).is_none());
        fabric.advance(MILLISECOND);
        assert_eq!(over(&mut pair), Some((Status::Done, body(1, LEN))));
    }
}

#[test]
fn a_read_gets_what_is_there_when_its_question_comes() {
    let (fabric, mut pair) = slow(Reliability::Delivery);
    let mut window = window(&pair, Rights::READ);
    post_read(&mut pair, &window);
    fabric.advance(2 * MILLISECOND);
    window.write(0, &body(2, LEN)).unwrap();
    fabric.advance(2 * MILLISECOND);
    window.write(0, &body(3, LEN)).unwrap();
    fabric.advance(2 * MILLISECOND);
    assert_eq!(over(&mut pair), Some((Status::Done, body(2, LEN))));
}

#[test]
fn sends_are_reported_behind_the_read_before_them() {
    let (fabric, mut pair) = slow(Reliability::Delivery);
    let window = window(&pair, Rights::READ);
    post_read(&mut pair, &window);
    pair.a.post_send(Descriptor::new([region(&pair, 4)]).immediate(4)).unwrap();
    fabric.advance(3 * MILLISECOND);
    assert_eq!(pair.numbers(), [4], "it does not wait for the read");
    assert!(over(&mut pair).is_none(), "but it is reported in order");
    fabric.advance(3 * MILLISECOND);
    assert_eq!(over(&mut pair), Some((Status::Done, body(1, LEN))));
    assert_eq!(over(&mut pair), Some((Status::Done, body(4, LEN))));
}

#[test]
fn what_is_fenced_waits_for_the_reads_before_it_and_what_is_behind_it_too() {
    for level in RELIABLE {
        let (fabric, mut pair) = slow(level);
        let readable = window(&pair, Rights::READ);
        let writable = window(&pair, Rights::WRITE);
        post_read(&mut pair, &readable);
        pair.a.post_send(Descriptor::new([region(&pair, 4)]).immediate(4)).unwrap();
        pair.a.post_send(Descriptor::new([region(&pair, 5)]).immediate(5).fenced()).unwrap();
        post_write(&mut pair, 6, &writable, Some(6));
        fabric.advance(5 * MILLISECOND);
        assert_eq!(pair.numbers(), [4], "what is before the fence goes");
        assert_eq!(pair.a.unread().unwrap(), 2, "what waits is not read");
        fabric.advance(3 * MILLISECOND);
        assert_eq!(
            (pair.numbers(), contents(&writable)),
            (vec![], body(1, LEN)),
            "posted at 0, sent at 6 ms"
        );
        fabric.advance(MILLISECOND);
        assert_eq!([(); 2].map(|()| pair.b.arrival().unwrap().unwrap().immediate), [Some(5), Some(6)]);
        assert_eq!(contents(&writable), body(6, LEN));
    }
}

#[test]
fn a_fenced_read_is_asked_when_the_one_before_it_is_over() {
    let (fabric, mut pair) = slow(Reliability::Delivery);
    let window = window(&pair, Rights::READ);
    post_read(&mut pair, &window);
    for number in [4, 5] {
        pair.a.post_send(Descriptor::rdma_read([region(&pair, 9)], window.remote()).fenced()).unwrap();
        pair.a.post_send(Descriptor::new([region(&pair, number)]).immediate(number).fenced()).unwrap();
    }
    let mut came = Vec::new();
    for millisecond in 0..30 {
        came.extend(pair.numbers().into_iter().map(|number| (number, millisecond)));
        fabric.advance(MILLISECOND);
    }
    // The order of events in ms: read 0..6; read 6..12; send 12..15; read 12..18; send 18..21.
    assert_eq!(came, [(4, 15), (5, 21)]);
    assert_eq!(std::iter::from_fn(|| over(&mut pair)).count(), 5);
}

#[test]
fn a_fence_without_reads_holds_nothing_back() {
    let (fabric, mut pair) = slow(Reliability::Reception);
    pair.a.fence();
    pair.a.post_send(Descriptor::new([region(&pair, 4)]).immediate(4).fenced()).unwrap();
    fabric.advance(3 * MILLISECOND);
    assert_eq!(pair.numbers(), [4]);
}

#[test]
fn what_waits_behind_a_fence_takes_room() {
    let (fabric, mut pair) = slow(Reliability::Delivery);
    let window = window(&pair, Rights::READ);
    post_read(&mut pair, &window);
    pair.a.fence();
    let bound = pair.a.nic().attributes().max_descriptors_per_queue as u32;
    (0..bound).for_each(|number| pair.send(number));
    let error = pair.a.send_inline(None, b"", b"").unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    fabric.advance(9 * MILLISECOND);
    assert_eq!(pair.numbers(), (0..bound).collect::<Vec<_>>());
}

#[test]
fn a_write_is_in_place_when_it_arrives_and_before_what_is_behind_it() {
    for level in RELIABLE {
        let (fabric, mut pair) = slow(level);
        let window = window(&pair, Rights::WRITE);
        post_write(&mut pair, 2, &window, None);
        pair.send(3);
        fabric.advance(2 * MILLISECOND);
        assert_eq!(contents(&window), body(1, LEN));
        assert!(over(&mut pair).is_none(), "its memory is on its way");
        fabric.advance(MILLISECOND);
        assert_eq!((contents(&window), pair.numbers()), (body(2, LEN), vec![3]));
        fabric.advance(3 * MILLISECOND);
        assert_eq!(over(&mut pair), Some((Status::Done, body(2, LEN))), "{level:?}");
    }
}

#[test]
fn an_unreliable_write_has_left_when_it_is_posted() {
    let (fabric, mut pair) = slow(Reliability::Unreliable);
    let window = window(&pair, Rights::WRITE);
    post_write(&mut pair, 2, &window, None);
    assert_eq!(over(&mut pair), Some((Status::Done, body(2, LEN))));
    fabric.advance(3 * MILLISECOND);
    assert_eq!((contents(&window), pair.a.unread().unwrap()), (body(2, LEN), 0));
}

#[test]
fn a_write_to_a_window_that_is_taken_back_meanwhile_is_refused_where_it_comes() {
    for level in RELIABLE {
        let (fabric, mut pair) = slow(level);
        let window = window(&pair, Rights::WRITE);
        pair.send(0);
        post_write(&mut pair, 2, &window, Some(1));
        pair.a.post_send(Descriptor::new([region(&pair, 3)]).immediate(3)).unwrap();
        let settled = window.revoke(common::soon()).unwrap();
        fabric.advance(6 * MILLISECOND);
        assert_eq!(pair.b.arrival().unwrap().unwrap().immediate, Some(0), "what came before it");
        assert_eq!(over(&mut pair), Some((Status::RdmaProtectionError, body(2, LEN))), "{level:?}");
        assert_eq!(over(&mut pair).unwrap().0, Status::Flushed, "{level:?}");
        assert_eq!(settled[..], body(1, LEN));
        assert_broken(&mut pair, "an RDMA write of a to a place where b does not allow it (seed 7)");
    }
}

#[test]
fn a_read_of_a_window_that_is_taken_back_meanwhile_is_refused_where_it_comes() {
    for level in RELIABLE {
        let (fabric, mut pair) = slow(level);
        let window = window(&pair, Rights::READ);
        post_read(&mut pair, &window);
        drop(window);
        fabric.advance(6 * MILLISECOND);
        assert_eq!(over(&mut pair), Some((Status::RdmaProtectionError, body(9, LEN))), "{level:?}");
        assert_broken(&mut pair, "an RDMA read of a to a place where b does not allow it");
    }
}

#[test]
fn an_unreliable_write_to_a_window_that_is_taken_back_is_dropped() {
    let (fabric, mut pair) = slow(Reliability::Unreliable);
    let window = window(&pair, Rights::WRITE);
    post_write(&mut pair, 2, &window, Some(1));
    let settled = window.revoke(common::soon()).unwrap();
    pair.send(4);
    fabric.advance(3 * MILLISECOND);
    assert_eq!((pair.numbers(), pair.a.unread().unwrap()), (vec![4], 0));
    assert_eq!(settled[..], body(1, LEN));
    assert_eq!(over(&mut pair).unwrap().0, Status::Done);
}

#[test]
fn a_disconnect_gives_reads_up_and_what_was_behind_them_still_arrives() {
    for level in RELIABLE {
        let (fabric, mut pair) = slow(level);
        let window = window(&pair, Rights::READ);
        post_read(&mut pair, &window);
        pair.a.fence();
        post_read(&mut pair, &window);
        pair.send(4);
        fabric.advance(4 * MILLISECOND);
        pair.a.disconnect();
        for _ in 0..2 {
            assert_eq!(over(&mut pair), Some((Status::Flushed, body(9, LEN))), "at once, and never written");
        }
        fabric.advance(3 * MILLISECOND);
        assert_eq!(pair.b.arrival().unwrap().unwrap().immediate, Some(4));
        assert!(matches!(pair.b.arrival(), Err(Error::Closed)));
        fabric.advance(6 * MILLISECOND);
        assert_eq!(pair.a.nic().outbox().usage().blocks, 0);
    }
}

#[test]
fn reads_that_the_peer_did_not_answer_before_it_left_are_flushed() {
    for level in RELIABLE {
        let (fabric, mut pair) = slow(level);
        let window = window(&pair, Rights::READ);
        post_read(&mut pair, &window);
        fabric.advance(3 * MILLISECOND);
        post_read(&mut pair, &window);
        pair.b.disconnect();
        fabric.advance(3 * MILLISECOND);
        assert_eq!(over(&mut pair), Some((Status::Done, body(1, LEN))), "it was answered");
        assert_eq!(over(&mut pair), Some((Status::Flushed, body(9, LEN))), "{level:?}");
    }
}

#[test]
fn a_death_ends_reads_and_writes_under_way() {
    for level in RELIABLE {
        let (fabric, mut pair) = slow(level);
        let (readable, writable) = (window(&pair, Rights::READ), window(&pair, Rights::WRITE));
        post_read(&mut pair, &readable);
        post_write(&mut pair, 2, &writable, None);
        fabric.kill("b");
        let ends = [over(&mut pair), over(&mut pair)].map(|end| end.unwrap().0);
        assert_eq!(ends, [Status::TransportError, Status::Flushed], "{level:?}");
    }
}

fn block(pair: &Pair) -> Block {
    let mut block = pair.a.nic().outbox().block(LEN, Fill::Keep).unwrap();
    block.bytes_mut().fill(0xcc);
    block
}

#[test]
fn a_block_that_is_read_into_comes_back_when_the_answer_has() {
    let (fabric, mut pair) = slow(Reliability::Delivery);
    let window = window(&pair, Rights::READ);
    let numbers = [0, 1].map(|_| match pair.a.rdma_read(block(&pair), window.remote()).unwrap() {
        Reading::UnderWay(number) => number,
        Reading::Done(_) => panic!("it takes 6 ms"),
    });
    fabric.advance(5 * MILLISECOND);
    assert!(pair.a.read_done().is_none());
    fabric.advance(MILLISECOND);
    for number in numbers {
        let done = pair.a.read_done().unwrap();
        assert_eq!((done.number, done.block.unwrap().bytes()), (number, &body(1, LEN)[..]));
    }
    assert!(pair.a.read_done().is_none() && pair.a.send_done().is_none());
}

#[test]
fn a_wait_for_a_read_ends_with_the_answer() {
    let (fabric, mut pair) = slow(Reliability::Delivery);
    let window = window(&pair, Rights::READ);
    pair.a.rdma_read(block(&pair), window.remote()).unwrap();
    while pair.a_cq.poll().is_some() {}
    pair.a.request_send_notify();
    assert!(pair.a.read_done().is_none());
    // A sleeper lets time pass, until its queue is returned.
    pair.a_cq.wait(common::soon(), || false).expect("the send queue is named");
    assert!(pair.a.read_done().unwrap().block.is_ok());
    drop(fabric);
}

#[test]
fn reads_of_blocks_end_with_their_connection() {
    let ended = |cut: fn(&Fabric, &mut Pair)| {
        let (fabric, mut pair) = slow(Reliability::Delivery);
        let window = window(&pair, Rights::READ);
        pair.a.rdma_read(block(&pair), window.remote()).unwrap();
        cut(&fabric, &mut pair);
        fabric.advance(6 * MILLISECOND);
        let done = pair.a.read_done().unwrap();
        assert_eq!(pair.a.nic().outbox().usage().blocks, 0, "the block is home");
        (done.block.unwrap_err(), pair.a.state())
    };
    let (error, state) = ended(|_, pair| pair.b.disconnect());
    assert!(matches!(error, Error::Closed) && state == State::Error, "{error} {state:?}");
    let (error, state) = ended(|_, pair| pair.a.disconnect());
    assert!(matches!(error, Error::Closed) && state == State::Idle, "{error} {state:?}");
    let (error, state) = ended(|fabric, _| fabric.kill("b"));
    assert!(matches!(error, Error::Lost(_)) && state == State::Error, "{error} {state:?}");
}

#[test]
fn a_block_is_kept_while_a_read_of_a_dropped_vi_is_under_way() {
    let (fabric, pair) = slow(Reliability::Delivery);
    let Pair { mut a, b, a_cq, b_cq } = pair;
    let mut window = b.nic().window_for(LEN, b.attributes().ptag, Rights::READ).unwrap();
    window.write(0, &body(1, LEN)).unwrap();
    let nic = a.nic().clone();
    let region = nic.region(LEN, a.attributes().ptag).unwrap();
    a.post_send(Descriptor::rdma_read([region], window.remote())).unwrap();
    a.rdma_read(nic.outbox().block(LEN, Fill::Keep).unwrap(), window.remote()).unwrap();
    fabric.advance(4 * MILLISECOND);
    drop(a);
    // Blocks that take the memory now keep the bytes that are written to them.
    let mut others: Vec<Block> = (0..2).map(|_| nic.outbox().block(LEN, Fill::Keep).unwrap()).collect();
    others.iter_mut().for_each(|block| block.bytes_mut().fill(0xee));
    fabric.advance(6 * MILLISECOND);
    assert!(others.iter().all(|block| block.bytes().iter().all(|&byte| byte == 0xee)));
    drop(others);
    assert_eq!(nic.outbox().usage().blocks, 0);
    drop((b, a_cq, b_cq));
}

#[test]
fn a_block_that_is_written_is_home_when_it_has_arrived() {
    for level in [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception] {
        let (fabric, mut pair) = slow(level);
        let window = window(&pair, Rights::WRITE);
        let (own, shared) = (block(&pair), std::sync::Arc::new(block(&pair)));
        pair.a.rdma_write(own, window.remote(), Some(1)).unwrap();
        pair.a.rdma_write_shared(&shared.into(), window.remote(), Some(2)).unwrap();
        fabric.advance(3 * MILLISECOND);
        assert_eq!(pair.a.nic().outbox().usage().blocks, 0, "{level:?}: nobody waits for a receipt");
        for immediate in [1, 2] {
            let arrival = pair.b.arrival().unwrap().unwrap();
            assert!(matches!(arrival.body, Body::Written(LEN)), "{arrival:?}");
            assert_eq!(arrival.immediate, Some(immediate));
        }
        assert_eq!(contents(&window), [0xcc; LEN]);
    }
}

#[test]
fn the_list_of_reads_is_bounded() {
    let (fabric, mut pair) = slow(Reliability::Delivery);
    let window = window(&pair, Rights::READ);
    let bound = pair.a.nic().attributes().max_descriptors_per_queue;
    for _ in 0..bound {
        pair.a.rdma_read(block(&pair), window.remote()).unwrap();
    }
    let (error, back) = pair.a.rdma_read(block(&pair), window.remote()).unwrap_err();
    assert!(matches!(error, Error::Full { .. }) && back.bytes() == [0xcc; LEN], "{error}");
    drop(back);
    fabric.advance(6 * MILLISECOND);
    assert_eq!(std::iter::from_fn(|| pair.a.read_done()).count(), bound);
    assert!(pair.a.rdma_read(block(&pair), window.remote()).is_ok());
}
