//! RDMA reads that may complete after their posts: in order, with the data that were read, whatever else
//! happens.

use udeck_via::{Block, Descriptor, Error, Reading, Reliability, Rights, State, Status, Window};

use crate::both;
use crate::kit::{Pair, assert_bytes, pattern, regions, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "late";
pub const CASES: &[Case] = &[
    case!(reads_and_sends_are_reported_in_the_order_of_their_posts, RDMA_READ),
    case!(as_many_reads_as_a_queue_holds, RDMA_READ),
    case!(reads_of_blocks_end_with_what_was_read, RDMA_READ),
    case!(reads_that_were_posted_before_a_disconnect_are_reported, RDMA_READ),
    case!(reads_that_the_peer_leaves_alone_are_flushed, RDMA_READ),
    case!(reads_of_blocks_are_over_when_their_connection_is, RDMA_READ),
    case!(a_vi_that_goes_takes_no_memory_along, RDMA_READ),
];

const LEN: usize = 200_000;

fn at_level(fabric: &dyn Fabric, level: Reliability) -> Pair {
    Pair::with(fabric, &Options::default(), |attributes| {
        attributes.enable_rdma_read = true;
        attributes.reliability = level;
    })
}

fn pair(fabric: &dyn Fabric) -> Pair {
    at_level(fabric, Reliability::Delivery)
}

/// Makes a pair of each level that has RDMA read.
fn pairs(fabric: &dyn Fabric) -> impl Iterator<Item = Pair> {
    let caps = fabric.open(&Options::default()).caps();
    let levels = [Reliability::Delivery, Reliability::Reception].into_iter();
    levels.filter(move |level| caps.has(level.cap())).map(|level| at_level(fabric, level))
}

/// A window of `b` that holds a pattern.
fn shown(pair: &Pair) -> Window {
    let mut window = pair.b.nic.window_for(LEN, pair.b.ptag, Rights::READ).unwrap();
    window.write(0, &pattern(1, LEN)).unwrap();
    window
}

fn post_read(pair: &mut Pair, window: &Window) {
    let read = Descriptor::rdma_read([pair.a.region(&[0xcc; LEN])], window.remote());
    pair.a.vi.post_send(read).unwrap();
}

/// Status of the next finished read of `a`: done with its data, or flushed.
fn over(pair: &mut Pair) -> Status {
    let ended = pair.a.vi.send_wait(soon()).unwrap();
    let memory = regions(ended.descriptor.unwrap()).pop().unwrap();
    match ended.status {
        Status::Done => {
            assert_eq!(ended.length, LEN);
            assert_bytes(&memory, &pattern(1, LEN));
        }
        status => assert_eq!((status, ended.length), (Status::Flushed, 0)),
    }
    ended.status
}

fn reads_and_sends_are_reported_in_the_order_of_their_posts(fabric: &dyn Fabric) {
    pairs(fabric).for_each(|Pair { a, b }| both::reported_in_order((a, b)));
}

fn as_many_reads_as_a_queue_holds(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let window = shown(&pair);
    let bound = pair.a.nic.attributes().max_descriptors_per_queue;
    for _ in 0..2 {
        let mut posted = 0;
        // A connection may hold fewer reads: then it refuses more, and has room again when some have completed.
        while posted < bound {
            let part = udeck_via::RemoteBuffer { offset: posted, len: 100, ..window.remote() };
            match pair.a.vi.post_send(Descriptor::rdma_read([pair.a.region(&[0xcc; 100])], part)) {
                Ok(()) => posted += 1,
                Err((error, _)) => {
                    assert!(matches!(error, Error::Full { .. }) && posted > 0, "{error}");
                    break;
                }
            }
        }
        for at in 0..posted {
            let read = regions(pair.a.sent().descriptor.unwrap());
            assert_bytes(&read[0], &pattern(1, LEN)[at..at + 100]);
        }
        assert!(pair.a.vi.send_done().is_none());
    }
}

/// Starts a read into a block. Returns the number of a read that has not completed.
fn start(pair: &mut Pair, window: &Window) -> Option<u64> {
    match pair.a.vi.rdma_read(pair.a.block(&[0xcc; LEN]), window.remote()).unwrap() {
        Reading::Done(block) => {
            assert_bytes(block.bytes(), &pattern(1, LEN));
            None
        }
        Reading::UnderWay(number) => Some(number),
    }
}

fn reads_of_blocks_end_with_what_was_read(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let window = shown(&pair);
    for _ in 0..3 {
        // The reads into blocks lie between posted reads, and another call reports them.
        post_read(&mut pair, &window);
        let mut under_way: Vec<u64> = (0..5).filter_map(|_| start(&mut pair, &window)).collect();
        post_read(&mut pair, &window);
        while !under_way.is_empty() {
            let done = until("the end of a read", || pair.a.vi.read_done());
            let at = under_way.iter().position(|number| *number == done.number);
            under_way.remove(at.expect("one that was started, and once"));
            assert_bytes(done.block.unwrap().bytes(), &pattern(1, LEN));
        }
        assert_eq!([over(&mut pair), over(&mut pair)], [Status::Done; 2]);
        assert!(pair.a.vi.read_done().is_none() && pair.a.vi.send_done().is_none());
    }
}

fn reads_that_were_posted_before_a_disconnect_are_reported(fabric: &dyn Fabric) {
    for mut pair in pairs(fabric) {
        let window = shown(&pair);
        (0..5).for_each(|_| post_read(&mut pair, &window));
        pair.a.vi.disconnect();
        let ends: Vec<Status> = (0..5).map(|_| over(&mut pair)).collect();
        assert!(ends.is_sorted_by_key(|status| *status == Status::Flushed), "{ends:?}");
        assert!(pair.a.vi.send_done().is_none());
        assert_eq!(pair.a.nic.outbox().usage().used, 0, "and their memory is back");
        pair.b.vi.disconnect();
        pair.connect();
        pair.check();
    }
}

fn reads_that_the_peer_leaves_alone_are_flushed(fabric: &dyn Fabric) {
    for mut pair in pairs(fabric) {
        let window = shown(&pair);
        (0..5).for_each(|_| post_read(&mut pair, &window));
        pair.b.vi.disconnect();
        let ends: Vec<Status> = (0..5).map(|_| over(&mut pair)).collect();
        assert!(ends.is_sorted_by_key(|status| *status == Status::Flushed), "{ends:?}");
        if ends.contains(&Status::Flushed) {
            assert_ne!(
                pair.a.vi.state(),
                State::Connected,
                "who reports a flushed read is connected to nobody"
            );
        }
    }
}

fn reads_of_blocks_are_over_when_their_connection_is(fabric: &dyn Fabric) {
    for peer_leaves in [true, false] {
        let mut pair = pair(fabric);
        let window = shown(&pair);
        let under_way = (0..5).filter_map(|_| start(&mut pair, &window)).count();
        if peer_leaves {
            pair.b.vi.disconnect()
        } else {
            pair.a.vi.disconnect()
        }
        for _ in 0..under_way {
            match until("the end of a read", || pair.a.vi.read_done()).block {
                Ok(block) => assert_bytes(block.bytes(), &pattern(1, LEN)),
                Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
            }
        }
        assert_eq!(pair.a.nic.outbox().usage().used, 0);
    }
}

fn a_vi_that_goes_takes_no_memory_along(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let window = shown(&pair);
    (0..3).for_each(|_| post_read(&mut pair, &window));
    let _ = start(&mut pair, &window);
    let Pair { a, b } = pair;
    let nic = a.nic.clone();
    drop(a);
    // A late write of the read would hit memory of this NIC, but must not hit these blocks.
    let block = || -> Block { nic.outbox().block(LEN, udeck_via::mem::Fill::Zero).unwrap() };
    let others: Vec<Block> = (0..4).map(|_| block()).collect();
    drop(b);
    until("the memory is home", || {
        nic.reclaim();
        (nic.outbox().usage().blocks == others.len()).then_some(())
    });
    assert!(others.iter().all(|block| block.bytes().iter().all(|&byte| byte == 0)));
}
