//! Integrity on reliable levels: each message arrives, exactly once, in order, and its memory stays untouched. The first promise,
//! for posted receives, is tested in `both/integrity.rs`.

use udeck_via::Descriptor;
use udeck_via::transport::Body;

use crate::kit::{End, Pair, assert_bytes, pattern, soon};
use crate::{Case, Fabric};

const TOPIC: &str = "integrity";
pub const CASES: &[Case] = &[
    case!(lent_messages_arrive_once_in_the_order_of_posting),
    case!(a_send_is_not_done_while_its_receiver_reads_it, HAND_OFF),
];

/// Number of messages under way at a time, and number of rounds.
const BATCH: usize = 8;
const ROUNDS: usize = 20;
const LONGEST: usize = 5000;

/// A message inside a descriptor, at the limit of that, or beyond it.
fn message(number: usize) -> Vec<u8> {
    pattern(number, [1, 30, 48, 49, 0, LONGEST][number % 6])
}

fn lent_messages_arrive_once_in_the_order_of_posting(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    for round in 0..ROUNDS {
        let numbers = || round * BATCH..(round + 1) * BATCH;
        for number in numbers() {
            let descriptor = Descriptor::new([pair.a.region(&message(number))]);
            pair.a.vi.post_send(descriptor.immediate(number as u32)).unwrap();
        }
        let mut came = Vec::new();
        while came.len() < BATCH
            && let Some(one) = next(&mut pair.b, soon())
        {
            came.push(one);
        }
        let order: Vec<_> = came.iter().map(|(number, _)| *number as usize).collect();
        assert_eq!(order, numbers().collect::<Vec<_>>(), "what came, and what was posted");
        came.iter().for_each(|(number, bytes)| assert_bytes(bytes, &message(*number as usize)));
        let more = next(&mut pair.b, udeck_via::Deadline::now());
        assert!(more.is_none(), "message {} came again", more.unwrap().0);
        numbers().for_each(|_| drop(pair.a.sent()));
    }
}

/// Waits for the next message: its immediate data and its bytes.
fn next(end: &mut End, deadline: udeck_via::Deadline) -> Option<(u32, Vec<u8>)> {
    loop {
        if let Some(arrival) = end.vi.arrival().expect("the connection stands") {
            let bytes = match &arrival.body {
                Body::Inline(inline) => inline.bytes().to_vec(),
                Body::Lent(_, lent) => lent.parts().flatten().copied().collect(),
                Body::Written(_) => panic!("nothing was written by RDMA"),
            };
            return Some((arrival.immediate.expect("each has its number"), bytes));
        }
        if deadline.passed() {
            return None;
        }
        std::thread::yield_now();
    }
}

fn a_send_is_not_done_while_its_receiver_reads_it(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    for len in [LONGEST, 300_000] {
        let bytes = pattern(len, len);
        pair.a.post_send(&bytes);
        assert!(pair.a.vi.send_done().is_none(), "{len} bytes: nobody has read them yet");
        let arrival = pair.b.arrival();
        assert!(pair.a.vi.send_done().is_none(), "{len} bytes: the receiver reads them");
        let Body::Lent(_, lent) = &arrival.body else { panic!("{arrival:?}") };
        assert_bytes(lent.as_slice().unwrap(), &bytes);
        drop(arrival);
        assert_eq!(pair.a.sent().length, len);
    }
}
