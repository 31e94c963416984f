//! The order of what is posted: within one queue kept, between queues not owed.

use udeck_via::{Caps, Descriptor, Reliability, Status};

use crate::kit::{Pair, assert_bytes, contents, pattern, soon};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "order";
pub const CASES: &[Case] = &[
    case!(sends_and_writes_arrive_in_the_order_of_their_posts, RDMA_WRITE, RELIABLE_DELIVERY),
    case!(sends_and_writes_arrive_in_order_by_reliable_reception, RDMA_WRITE, RELIABLE_RECEPTION),
    case!(receives_are_taken_in_the_order_of_their_posts),
    case!(receives_complete_while_sends_wait_to_be_taken),
    case!(sends_complete_while_receives_wait_to_be_taken),
];

/// Posts of each kind, mixed.
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
        // Some travel inside their descriptor, some do not.
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

/// Messages take the oldest descriptor, not the one that fits best.
fn receives_are_taken_in_the_order_of_their_posts(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let rooms: Vec<usize> = (0..POSTS).map(|at| 100 + at * 37 % POSTS).collect();
    rooms.iter().for_each(|room| pair.b.post_receive(*room));
    (0..POSTS).for_each(|at| pair.a.post_send(&pattern(at, at)));
    for (at, room) in rooms.iter().enumerate() {
        let completion = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!(completion.descriptor.as_ref().expect("posted with a descriptor").len(), *room);
        assert_bytes(&contents(&completion), &pattern(at, at));
    }
}

/// Both ends have sent to each other, and nobody has taken a completion.
fn crossed(fabric: &dyn Fabric) -> Pair {
    let caps = fabric.open(&Options::default()).caps();
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| {
        // Where a send is done when it has arrived, the two queues have most to do with each other.
        if caps.has(Caps::RELIABLE_RECEPTION) {
            attributes.reliability = Reliability::Reception;
        }
    });
    for end in [&mut pair.a, &mut pair.b] {
        (0..POSTS).for_each(|_| end.post_receive(1000));
    }
    for at in 0..POSTS {
        pair.a.post_send(&pattern(at, 10 * at));
        pair.b.post_send(&pattern(1000 + at, 20 * at));
    }
    pair
}

fn receive_all(pair: &mut Pair) {
    for at in 0..POSTS {
        assert_bytes(&pair.a.received(), &pattern(1000 + at, 20 * at));
        assert_bytes(&pair.b.received(), &pattern(at, 10 * at));
    }
}

fn receives_complete_while_sends_wait_to_be_taken(fabric: &dyn Fabric) {
    let mut pair = crossed(fabric);
    receive_all(&mut pair);
    for at in 0..POSTS {
        assert_eq!((pair.a.sent().length, pair.b.sent().length), (10 * at, 20 * at));
    }
}

fn sends_complete_while_receives_wait_to_be_taken(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    (0..POSTS).for_each(|_| pair.a.post_receive(1000));
    // They have come, and lie unreported; of what is inside its descriptor, the sender needs nobody's help.
    let short = |at: usize| pattern(at, at);
    (0..POSTS).for_each(|at| pair.b.post_send(&short(at)));
    (0..POSTS).for_each(|_| pair.b.post_receive(1000));
    (0..POSTS).for_each(|at| pair.a.post_send(&short(at + 1)));
    (0..POSTS).for_each(|at| assert_eq!(pair.a.sent().length, at + 1));
    (0..POSTS).for_each(|at| assert_eq!(pair.b.received(), short(at + 1)));
    (0..POSTS).for_each(|at| assert_eq!(pair.b.sent().length, at));
    (0..POSTS).for_each(|at| assert_eq!(pair.a.received(), short(at)));
}
