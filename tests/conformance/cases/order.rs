//! The order of posts: kept within one queue, not promised between queues.

use udeck_via::{Caps, Descriptor, Reliability, Status};

use crate::both;
use crate::kit::{Pair, assert_bytes, contents, pattern, soon};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "order";
pub const CASES: &[Case] = &[
    case!(sends_and_writes_arrive_in_the_order_of_their_posts, RDMA_WRITE, RELIABLE_DELIVERY),
    case!(sends_and_writes_arrive_in_order_by_reliable_reception, RDMA_WRITE, RELIABLE_RECEPTION),
    case!(receives_complete_while_sends_wait_to_be_taken),
];

/// Number of posts of both kinds, mixed.
const POSTS: usize = 24;

fn sends_and_writes(fabric: &dyn Fabric, reliability: Reliability) {
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| {
        attributes.reliability = reliability;
        attributes.enable_rdma_write = true;
    });
    let window = pair.b.nic.window(64, pair.b.ptag).unwrap();
    for round in 0..5 {
        (0..POSTS).for_each(|_| pair.b.post_receive(1000));
        let is_write = |at: usize| (at * 7 + round).is_multiple_of(3);
        // Some posts fit into their descriptor, some do not.
        let bytes = |at: usize| pattern(at, [3, 900, 48][at % 3]);
        for at in 0..POSTS {
            let descriptor = if is_write(at) {
                Descriptor::rdma_write([pair.a.region(&[at as u8; 64])], window.remote())
            } else {
                Descriptor::new([pair.a.region(&bytes(at))])
            };
            pair.a.vi.post_send(descriptor.immediate(at as u32)).expect("a post is taken");
        }
        for at in 0..POSTS {
            let completion = pair.b.vi.receive_wait(soon()).unwrap();
            assert_eq!((completion.status, completion.immediate), (Status::Done, Some(at as u32)));
            if is_write(at) {
                assert_eq!(completion.length, 64);
            } else {
                assert_bytes(&contents(&completion), &bytes(at));
            }
        }
        (0..POSTS)
            .for_each(|at| assert_eq!(pair.a.sent().length, if is_write(at) { 64 } else { bytes(at).len() }));
    }
}

fn sends_and_writes_arrive_in_the_order_of_their_posts(fabric: &dyn Fabric) {
    sends_and_writes(fabric, Reliability::Delivery);
}

fn sends_and_writes_arrive_in_order_by_reliable_reception(fabric: &dyn Fabric) {
    sends_and_writes(fabric, Reliability::Reception);
}

fn receives_complete_while_sends_wait_to_be_taken(fabric: &dyn Fabric) {
    let caps = fabric.open(&Options::default()).caps();
    let Pair { a, b } = Pair::with(fabric, &Options::default(), |attributes| {
        // The two queues interact most if a send is done only when it has arrived.
        if caps.has(Caps::RELIABLE_RECEPTION) {
            attributes.reliability = Reliability::Reception;
        }
    });
    both::receives_first((a, b));
}
