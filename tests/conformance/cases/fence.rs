//! Fences: what waits for the RDMA reads before it.

use std::sync::atomic::{AtomicBool, Ordering};

use udeck_via::{Caps, Descriptor, Region, Reliability, Rights, Status, Window};

use crate::kit::{Pair, assert_bytes, pattern, regions};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "fence";
pub const CASES: &[Case] = &[
    case!(when_a_fenced_message_has_come_the_reads_before_it_are_over, RDMA_READ),
    case!(a_fenced_write_does_not_spoil_the_read_before_it, RDMA_READ, RDMA_WRITE),
    case!(a_fence_lets_the_peer_reuse_what_was_read, RDMA_READ),
    case!(fenced_posts_stay_in_their_order, RDMA_READ),
    case!(a_raw_post_is_fenced_by_its_vi, RDMA_READ),
    case!(a_fence_without_reads_changes_nothing),
    case!(a_refused_post_leaves_a_fence_that_holds_nothing_up, RDMA_READ),
];

/// Long enough that a read is not over in an instant, where it takes its time.
const LEN: usize = 1 << 20;

fn pair(fabric: &dyn Fabric) -> Pair {
    let caps = fabric.open(&Options::default()).caps();
    Pair::with(fabric, &Options::default(), |attributes| {
        attributes.enable_rdma_read = true;
        attributes.enable_rdma_write = caps.has(Caps::RDMA_WRITE);
    })
}

/// A window of `b`'s that holds `bytes`.
fn shown(pair: &Pair, bytes: &[u8], rights: Rights) -> Window {
    let mut window = pair.b.nic.window_for(bytes.len(), pair.b.ptag, rights).unwrap();
    window.write(0, bytes).unwrap();
    window
}

/// Posts a read of all of the window.
fn read(pair: &mut Pair, window: &Window, fenced: bool) {
    let read = Descriptor::rdma_read([pair.a.region(&vec![0xcc; window.len()])], window.remote());
    pair.a.vi.post_send(if fenced { read.fenced() } else { read }).unwrap();
}

/// The memory of the next send of `a` that is over, and done.
fn done(pair: &mut Pair) -> Region {
    regions(pair.a.sent().descriptor.unwrap()).pop().unwrap()
}

fn when_a_fenced_message_has_come_the_reads_before_it_are_over(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let bytes = pattern(1, LEN);
    let window = shown(&pair, &bytes, Rights::READ);
    for _ in 0..10 {
        pair.b.post_receive(4);
        read(&mut pair, &window, false);
        read(&mut pair, &window, false);
        pair.a.vi.post_send(Descriptor::new([pair.a.region(b"over")]).fenced()).unwrap();
        assert_eq!(pair.b.received(), b"over");
        for _ in 0..2 {
            let over = pair.a.vi.send_done().expect("there is nothing to wait for");
            assert_eq!((over.status, over.length), (Status::Done, LEN));
            assert_bytes(&regions(over.descriptor.unwrap())[0], &bytes);
        }
        pair.a.sent();
    }
}

fn a_fenced_write_does_not_spoil_the_read_before_it(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let window = shown(&pair, &[0; LEN], Rights::BOTH);
    for round in 1..10 {
        pair.b.post_receive(0);
        read(&mut pair, &window, false);
        let write = Descriptor::rdma_write([pair.a.region(&[round; LEN])], window.remote());
        pair.a.vi.post_send(write.immediate(0).fenced()).unwrap();
        assert!(done(&mut pair).iter().all(|&byte| byte == round - 1), "what was there when it was posted");
        pair.a.sent();
        pair.b.received();
        let mut there = vec![0; LEN];
        window.read(0, &mut there).unwrap();
        assert!(there.iter().all(|&byte| byte == round));
    }
}

/// The owner of a window writes there again as soon as it is told that it was read.
fn a_fence_lets_the_peer_reuse_what_was_read(fabric: &dyn Fabric) {
    const ROUNDS: u8 = 20;
    let pair = pair(fabric);
    let mut window = shown(&pair, &[0; LEN], Rights::READ);
    let from = window.remote();
    let Pair { mut a, mut b } = pair;
    let stop = AtomicBool::new(false);
    b.post_receive(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                b.received();
                b.post_receive(0);
                window.write(0, &vec![round; LEN]).unwrap();
                b.post_send(b"");
                b.sent();
            }
            stop.store(true, Ordering::Relaxed);
        });
        for round in 0..ROUNDS {
            a.post_receive(0);
            let region = a.region(&vec![0xcc; LEN]);
            a.vi.post_send(Descriptor::rdma_read([region], from)).unwrap();
            a.vi.post_send(Descriptor::new([a.region(b"")]).fenced()).unwrap();
            let read = regions(a.sent().descriptor.unwrap());
            assert!(read[0].iter().all(|&byte| byte == round), "round {round}: nothing of the next");
            a.sent();
            assert!(a.received().is_empty());
        }
    });
    assert!(stop.into_inner());
}

fn fenced_posts_stay_in_their_order(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let bytes = pattern(1, 10_000);
    let window = shown(&pair, &bytes, Rights::READ);
    for _ in 0..10 {
        let lengths = [0, 1, 48, 49, 5000, 7, 70_000, 3];
        for (number, len) in lengths.into_iter().enumerate() {
            pair.b.post_receive(len);
            read(&mut pair, &window, number % 4 == 3);
            let send = Descriptor::new([pair.a.region(&pattern(number, len))]);
            pair.a.vi.post_send(if number % 2 == 0 { send.fenced() } else { send }).unwrap();
        }
        for (number, len) in lengths.into_iter().enumerate() {
            assert_bytes(&pair.b.received(), &pattern(number, len));
            assert_bytes(&done(&mut pair), &bytes);
            assert_bytes(&done(&mut pair), &pattern(number, len));
        }
    }
}

fn a_raw_post_is_fenced_by_its_vi(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let window = shown(&pair, &pattern(1, LEN), Rights::READ);
    pair.b.post_receive(4);
    read(&mut pair, &window, false);
    pair.a.vi.fence();
    pair.a.post_send(b"over");
    assert_eq!(pair.b.received(), b"over");
    assert!(pair.a.vi.send_done().is_some(), "there is nothing to wait for");
    pair.a.sent();
}

fn a_fence_without_reads_changes_nothing(fabric: &dyn Fabric) {
    let caps = fabric.open(&Options::default()).caps();
    for level in [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception] {
        if !caps.has(level.cap()) {
            continue;
        }
        let mut pair = Pair::with(fabric, &Options::default(), |attributes| attributes.reliability = level);
        for len in [0, 1, 48, 49, 5000] {
            pair.b.post_receive(len);
            let send = Descriptor::new([pair.a.region(&pattern(len, len))]).fenced();
            pair.a.vi.post_send(send).unwrap();
            assert_bytes(&pair.b.received(), &pattern(len, len));
            pair.a.sent();
        }
    }
}

fn a_refused_post_leaves_a_fence_that_holds_nothing_up(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let window = shown(&pair, &pattern(1, LEN), Rights::READ);
    read(&mut pair, &window, false);
    let pieces: Vec<_> = (0..=pair.a.nic.attributes().max_segments).map(|_| pair.a.region(b"x")).collect();
    pair.a.vi.post_send(Descriptor::new(pieces).fenced()).expect_err("too many segments");
    assert_bytes(&done(&mut pair), &pattern(1, LEN));
    pair.check();
    assert!(pair.a.vi.send_done().is_none());
}
