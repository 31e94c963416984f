//! Fences: posts that wait for the RDMA reads before them.

use udeck_via::{Caps, Descriptor, Region, Reliability, Rights, Window};

use crate::kit::{Pair, assert_bytes, pattern, regions};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "fence";
pub const CASES: &[Case] = &[
    case!(a_raw_post_is_fenced_by_its_vi, RDMA_READ),
    case!(a_fence_without_reads_changes_nothing),
    case!(a_refused_post_leaves_a_fence_that_holds_nothing_up, RDMA_READ),
];

/// Length in bytes, so long that a read takes noticeable time, if its transport takes any.
const LEN: usize = 1 << 20;

fn pair(fabric: &dyn Fabric) -> Pair {
    let caps = fabric.open(&Options::default()).caps();
    Pair::with(fabric, &Options::default(), |attributes| {
        attributes.enable_rdma_read = true;
        attributes.enable_rdma_write = caps.has(Caps::RDMA_WRITE);
    })
}

/// A window of `b` that holds `bytes`.
fn shown(pair: &Pair, bytes: &[u8], rights: Rights) -> Window {
    let mut window = pair.b.nic.window_for(bytes.len(), pair.b.ptag, rights).unwrap();
    window.write(0, bytes).unwrap();
    window
}

/// Posts a read of the whole window.
fn read(pair: &mut Pair, window: &Window, fenced: bool) {
    let read = Descriptor::rdma_read([pair.a.region(&vec![0xcc; window.len()])], window.remote());
    pair.a.vi.post_send(if fenced { read.fenced() } else { read }).unwrap();
}

/// Waits until the next send of `a` is done, and returns its memory.
fn done(pair: &mut Pair) -> Region {
    regions(pair.a.sent().descriptor.unwrap()).pop().unwrap()
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
