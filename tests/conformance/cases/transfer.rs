//! Sends and receives: sizes, pieces, immediate data, order.

use udeck_via::transport::Body;
use udeck_via::{Caps, Descriptor, Region, Reliability, Segment, Status};

use crate::both;
use crate::kit::{Pair, assert_bytes, contents, pattern, regions, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "transfer";
pub const CASES: &[Case] = &[
    case!(messages_of_all_sizes_by_reliable_reception, RELIABLE_RECEPTION),
    case!(a_message_without_segments),
    case!(part_of_a_region),
    case!(segments_past_their_region),
    case!(immediate_data_with_and_without),
    case!(messages_stay_in_order),
    case!(descriptors_come_back_and_serve_again),
    case!(inline_sends_reach_posted_receives),
    case!(what_a_posted_receive_costs_is_counted, HAND_OFF),
    case!(posted_sends_reach_lent_receivers),
    case!(a_sender_learns_what_is_unread),
];

const SIZES: [usize; 12] = [0, 1, 7, 47, 48, 49, 63, 64, 65, 4096, 65_537, 1 << 20];

fn messages_of_all_sizes_by_reliable_reception(fabric: &dyn Fabric) {
    let Pair { a, b } = Pair::with(fabric, &Options::default(), |attributes| {
        attributes.reliability = Reliability::Reception;
    });
    both::all_sizes((a, b));
}

fn a_message_without_segments(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let nothing = || Descriptor::new(Vec::<Region>::new());
    pair.b.vi.post_receive(nothing()).unwrap();
    pair.a.vi.post_send(nothing().immediate(5)).unwrap();
    let completion = pair.b.vi.receive_wait(soon()).unwrap();
    assert_eq!((completion.length, completion.immediate), (0, Some(5)));
    assert!(completion.descriptor.unwrap().segments().is_empty());
    assert_eq!(pair.a.sent().length, 0);
}

fn part_of_a_region(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let bytes = pattern(8, 10_000);
    for range in [0..1, 100..148, 1..5000, 9999..10_000, 10_000..10_000] {
        let from = Segment::new(pair.a.region(&bytes), range.clone()).unwrap();
        let into = Segment::new(pair.b.region(&vec![1; 10_000]), 17..17 + range.len()).unwrap();
        pair.b.vi.post_receive(Descriptor::new([into])).unwrap();
        pair.a.vi.post_send(Descriptor::new([from])).unwrap();
        let completion = pair.b.vi.receive_wait(soon()).unwrap();
        assert_bytes(&contents(&completion), &bytes[range.clone()]);
        let region = regions(completion.descriptor.unwrap()).remove(0);
        let outside = region[..17].iter().chain(&region[17 + range.len()..]);
        assert!(outside.copied().all(|byte| byte == 1), "nothing beside the segment is touched");
        pair.a.sent();
    }
}

fn segments_past_their_region(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let ptag = nic.ptag();
    #[allow(clippy::reversed_empty_ranges, reason = "that it is refused is the point")]
    for range in [0..101, 101..101, 100..101, 60..50, 5..usize::MAX] {
        let region = nic.region(100, ptag).unwrap();
        assert!(Segment::new(region, range.clone()).is_err(), "{range:?}");
    }
    Segment::new(nic.region(100, ptag).unwrap(), 100..100).expect("nothing, at the end");
}

fn immediate_data_with_and_without(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for len in [0, 48, 4096] {
        for immediate in [None, Some(0), Some(1), Some(u32::MAX)] {
            let bytes = pattern(len, len);
            pair.b.post_receive(len);
            let mut descriptor = Descriptor::new([pair.a.region(&bytes)]);
            if let Some(data) = immediate {
                descriptor = descriptor.immediate(data);
            }
            pair.a.vi.post_send(descriptor).unwrap();
            let completion = pair.b.vi.receive_wait(soon()).unwrap();
            assert_eq!(completion.immediate, immediate);
            assert_bytes(&contents(&completion), &bytes);
            assert_eq!(pair.a.sent().immediate, None, "sends report none");
        }
    }
}

/// Size of message `number`: mostly small, some beyond every inline limit, a few large.
fn mixed_size(number: usize) -> usize {
    match number % 16 {
        0 => 0,
        1..=9 => number % 49,
        10..=14 => 49 + number % 3000,
        _ => 20_000,
    }
}

fn messages_stay_in_order(fabric: &dyn Fabric) {
    const MESSAGES: usize = 5000;
    let mut pair = Pair::posted(fabric);
    let window = pair.a.nic.attributes().max_descriptors_per_queue.min(16);
    let (a, b) = (&mut pair.a, &mut pair.b);
    (0..window).for_each(|_| b.post_receive(20_000));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                if number >= window {
                    // The peer reports that it has posted one more receive.
                    assert_eq!(a.received(), [1]);
                }
                a.post_receive(1);
                a.post_send(&pattern(number, mixed_size(number)));
                while let Some(done) = a.vi.send_done() {
                    drop(done);
                }
            }
        });
        for number in 0..MESSAGES {
            assert_bytes(&b.received(), &pattern(number, mixed_size(number)));
            if number + window < MESSAGES {
                b.post_receive(20_000);
                until("room to answer", || b.vi.send_inline(None, b"", &[1]).ok());
            }
        }
    });
}

fn descriptors_come_back_and_serve_again(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut sending = Descriptor::new([pair.a.region(&[0; 6000])]);
    let mut receiving = Descriptor::new([pair.b.region(&[0; 6000])]);
    let before = pair.a.nic.outbox().usage();
    for round in 0..100u8 {
        let mut region = regions(sending).remove(0);
        region.fill(round);
        pair.b.vi.post_receive(receiving).unwrap();
        pair.a.vi.post_send(Descriptor::new([region])).unwrap();
        receiving = pair.b.vi.receive_wait(soon()).unwrap().descriptor.unwrap();
        assert!(receiving.segments()[0].bytes().iter().all(|&byte| byte == round));
        sending = pair.a.sent().descriptor.unwrap();
    }
    assert_eq!(pair.a.nic.outbox().usage(), before, "the same memory served a hundred times");
}

fn inline_sends_reach_posted_receives(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let bytes = pattern(6, pair.a.nic.attributes().max_inline);
    for cut in [0, 1, bytes.len() / 2, bytes.len()] {
        pair.b.post_receive(bytes.len());
        pair.a.vi.send_inline(Some(cut as u32), &bytes[..cut], &bytes[cut..]).unwrap();
        let completion = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!(completion.immediate, Some(cut as u32));
        assert_bytes(&contents(&completion), &bytes);
        assert!(pair.a.vi.send_done().is_none(), "inline sends have no completion");
    }
}

fn posted_sends_reach_lent_receivers(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    for len in SIZES {
        let bytes = pattern(len, len);
        pair.a.vi.post_send(Descriptor::new([pair.a.region(&bytes)]).immediate(3)).unwrap();
        let arrival = pair.b.arrival();
        assert_eq!(arrival.immediate, Some(3));
        match &arrival.body {
            Body::Inline(inline) => assert_bytes(inline.bytes(), &bytes),
            Body::Lent(head, lent) => {
                assert!(head.bytes().is_empty());
                assert_bytes(lent.as_slice().unwrap(), &bytes);
                let copied = !pair.a.nic.caps().has(Caps::HAND_OFF);
                assert!(copied || pair.a.vi.send_done().is_none(), "the receiver still reads it");
            }
            Body::Written(_) => panic!("nothing was written by RDMA"),
        }
        drop(arrival);
        assert_eq!(pair.a.sent().length, len);
    }
}

/// The receiver makes one copy: out of the sender's memory, as far as its descriptor has room.
fn what_a_posted_receive_costs_is_counted(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let copied = |pair: &Pair| [&pair.a, &pair.b].map(|end| end.nic.bytes_copied());
    let before = copied(&pair);
    pair.b.post_receive(5000);
    pair.a.post_send(&pattern(1, 5000));
    assert_bytes(&pair.b.received(), &pattern(1, 5000));
    assert_eq!(copied(&pair), [before[0], before[1] + 5000]);
    pair.b.post_receive(1000);
    pair.a.post_send(&pattern(1, 5000));
    assert_eq!(pair.b.vi.receive_wait(soon()).unwrap().status, Status::LengthError);
    assert_eq!(copied(&pair), [before[0], before[1] + 6000]);
}

fn a_sender_learns_what_is_unread(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    assert_eq!(pair.a.vi.unread().unwrap(), 0);
    for _ in 0..2 {
        (0..3).for_each(|_| pair.a.vi.send_inline(None, b"", b"unread").unwrap());
        for _ in 0..3 {
            assert_eq!(pair.a.vi.unread().unwrap(), 3, "asking is no message");
        }
        (0..3).for_each(|_| drop(pair.b.arrival()));
        until("the sender is told", || {
            assert!(pair.b.vi.arrival().unwrap().is_none());
            (pair.a.vi.unread().unwrap() == 0).then_some(())
        });
    }
    pair.b.vi.disconnect();
    assert_eq!(pair.a.vi.unread().unwrap(), 0, "everything was read before the end");
}
