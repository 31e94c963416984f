//! Draining: waiting until posted requests no longer need this process.
//!
//! All NICs of one process live on. Other tests show that nothing is lost if a NIC is drained and then ends: the simulated
//! fabric's own tests, and jobs whose ranks leave (`tests/jobs/leave`).

use std::thread;

use udeck_via::transport::Body;
use udeck_via::{Deadline, Descriptor, Error};

use crate::kit::{Pair, assert_bytes, pattern, shortly, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "drain";
pub const CASES: &[Case] = &[
    case!(where_nothing_was_posted_there_is_nothing_to_wait_for),
    case!(what_was_posted_is_with_the_peer_before_its_program_looks),
    case!(what_a_vi_posted_that_is_gone_is_waited_for),
    case!(who_takes_something_at_last_ends_the_wait),
    case!(nobody_is_waited_for_who_has_closed),
    case!(writes_are_waited_for, RDMA_WRITE),
];

/// Lengths in bytes: one that fits into a descriptor, one sent in place, and one of many packets.
const LENGTHS: [usize; 3] = [20, 5000, 300_000];

fn where_nothing_was_posted_there_is_nothing_to_wait_for(fabric: &dyn Fabric) {
    let pair = Pair::lent(fabric);
    fabric.open(&Options::default()).drain(Deadline::now()).unwrap();
    for nic in [&pair.a.nic, &pair.b.nic] {
        nic.drain(soon()).unwrap();
    }
}

fn what_was_posted_is_with_the_peer_before_its_program_looks(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for len in LENGTHS {
        pair.b.post_receive(len);
        pair.a.post_send(&pattern(len, len));
    }
    pair.a.nic.drain(soon()).unwrap();
    for len in LENGTHS {
        assert_bytes(&pair.b.received(), &pattern(len, len));
    }
}

fn what_a_vi_posted_that_is_gone_is_waited_for(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    for len in LENGTHS {
        let block = pair.a.block(&pattern(len, len));
        pair.a.vi.hand_off(None, b"", block).unwrap();
    }
    let (nic, vi) = (pair.a.nic.clone(), pair.a.vi);
    drop(vi);
    nic.drain(soon()).unwrap();
    for len in LENGTHS {
        let arrival = pair.b.arrival();
        let Body::Lent(_, lent) = arrival.body else { panic!("{:?}", arrival.body) };
        assert_bytes(lent.as_slice().unwrap(), &pattern(len, len));
    }
    let end = until("the end", || pair.b.vi.arrival().err());
    assert!(matches!(end, Error::Closed), "{end}");
}

/// Posts short messages until there is no room for another, and returns their number.
fn fill(pair: &mut Pair) -> usize {
    let mut posted = 0;
    loop {
        match pair.a.vi.send_inline(None, b"", &[posted as u8]) {
            Ok(()) => posted += 1,
            Err(Error::Full { .. }) => return posted,
            Err(error) => panic!("{error}"),
        }
    }
}

/// If a queue accepts more than the peer takes in beforehand, the drain waits for the rest; otherwise there is nothing to
/// wait for.
fn who_takes_something_at_last_ends_the_wait(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let posted = fill(&mut pair);
    match pair.a.nic.drain(shortly()) {
        Ok(()) | Err(Error::Timeout { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let nic = pair.a.nic.clone();
    let drained = thread::spawn(move || nic.drain(soon()));
    for number in 0..posted {
        let Body::Inline(bytes) = pair.b.arrival().body else { panic!("a short one") };
        assert_eq!(bytes.bytes(), [number as u8]);
    }
    drained.join().unwrap().unwrap();
}

fn nobody_is_waited_for_who_has_closed(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    fill(&mut pair);
    pair.b.vi.disconnect();
    pair.a.nic.drain(soon()).unwrap();
}

fn writes_are_waited_for(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| {
        attributes.enable_rdma_write = true;
    });
    let len = LENGTHS[2];
    let window = pair.b.nic.window(len, pair.b.ptag).unwrap();
    pair.b.post_receive(0);
    let write = Descriptor::rdma_write([pair.a.region(&pattern(3, len))], window.remote());
    pair.a.vi.post_send(write.immediate(3)).unwrap();
    pair.a.nic.drain(soon()).unwrap();
    // The data have reached at least the peer's host; a message there tells that they are in place.
    pair.b.received();
    let settled = window.revoke(soon()).unwrap();
    assert_bytes(&settled, &pattern(3, len));
}
