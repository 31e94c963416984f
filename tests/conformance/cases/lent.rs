//! Lent receives: the receiver uses the sender's memory until it drops the message.

use std::sync::Arc;
use std::thread;

use udeck_via::mem::SharedBytes;
use udeck_via::transport::Body;
use udeck_via::{Arrival, Caps, Error, Lent, MemHandle, Nic, Receive, Reliability, RemoteBuffer};

use crate::kit::{End, Pair, address, assert_bytes, pattern, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "lent";
pub const CASES: &[Case] = &[
    case!(a_handed_off_block_arrives_with_its_head),
    case!(hand_off_copies_nothing, HAND_OFF),
    case!(a_block_comes_home_when_it_is_dropped, HAND_OFF),
    case!(a_vi_takes_back_what_was_dropped),
    case!(a_block_is_dropped_on_another_thread),
    case!(blocks_are_dropped_in_any_order),
    case!(a_refused_hand_off_gives_the_block_back),
    case!(a_block_of_another_nic_is_refused),
    case!(a_shared_block_comes_home_when_all_have_dropped_it, HAND_OFF),
    case!(a_shared_block_that_is_refused_has_no_owner_here),
    case!(parts_of_a_shared_block_are_lent_where_they_lie),
    case!(a_hoarding_receiver_does_not_starve_its_sender),
    case!(a_hoarding_receiver_does_not_withhold_receipts, RELIABLE_RECEPTION),
    case!(messages_outlive_the_senders_vi),
    case!(messages_outlive_the_receivers_vi),
    case!(messages_outlive_the_senders_nic),
    case!(messages_outlive_the_receivers_nic),
    case!(unread_messages_come_home_when_the_receiver_leaves),
    case!(a_posted_send_outlives_its_vi),
];

const LEN: usize = 5000;

fn hand_off(end: &mut End, number: usize) -> Result<(), Error> {
    let block = end.block(&pattern(number, LEN));
    end.vi.hand_off(Some(number as u32), b"head", block).map_err(|(error, _)| error)
}

fn lent(arrival: Arrival) -> Lent {
    let Body::Lent(_, lent) = arrival.body else { panic!("{LEN} bytes are not inline: {arrival:?}") };
    lent
}

fn blocks(nic: &Nic) -> usize {
    nic.reclaim();
    nic.outbox().usage().blocks
}

/// Uses memory as a program that continues does: all free memory is overwritten.
fn churn(nic: &Nic) {
    let arena = nic.outbox();
    let all: Vec<_> = (0..200).map(|_| arena.block(LEN, udeck_via::mem::Fill::Keep).unwrap()).collect();
    for mut block in all {
        block.bytes_mut().fill(0xee);
    }
}

fn a_handed_off_block_arrives_with_its_head(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let longest = pair.a.nic.attributes().max_head;
    for (immediate, head, len) in [(None, 0, 1), (Some(7), longest, LEN), (Some(0), 1, 1 << 20), (None, 3, 0)]
    {
        let (head, bytes) = (pattern(1, head), pattern(2, len));
        let block = pair.a.block(&bytes);
        pair.a.vi.hand_off(immediate, &head, block).unwrap();
        let arrival = pair.b.arrival();
        assert_eq!(arrival.immediate, immediate);
        let Body::Lent(its_head, lent) = &arrival.body else { panic!("{arrival:?}") };
        assert_eq!((its_head.bytes(), lent.as_slice().unwrap()), (&head[..], &bytes[..]));
        assert_eq!((lent.len(), lent.is_empty()), (len, len == 0));
    }
}

fn hand_off_copies_nothing(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let copied = |pair: &Pair| (pair.a.nic.bytes_copied(), pair.b.nic.bytes_copied());
    let before = copied(&pair);
    for number in 0..100 {
        hand_off(&mut pair.a, number).unwrap();
        assert_bytes(lent(pair.b.arrival()).as_slice().unwrap(), &pattern(number, LEN));
    }
    assert_eq!(copied(&pair), before);
}

fn a_block_comes_home_when_it_is_dropped(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let before = blocks(&pair.a.nic);
    hand_off(&mut pair.a, 1).unwrap();
    assert_eq!(blocks(&pair.a.nic), before + 1, "in flight");
    let message = lent(pair.b.arrival());
    assert_eq!(blocks(&pair.a.nic), before + 1, "being read");
    churn(&pair.a.nic);
    assert_bytes(message.as_slice().unwrap(), &pattern(1, LEN));
    drop(message);
    assert_eq!(blocks(&pair.a.nic), before, "home");
}

/// The VI reclaims by itself: the program does not ask its NIC.
fn a_vi_takes_back_what_was_dropped(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let blocks = |end: &End| end.nic.outbox().usage().blocks;
    let before = blocks(&pair.a);
    hand_off(&mut pair.a, 1).unwrap();
    drop(pair.b.arrival());
    until("the block is home", || {
        pair.a.vi.reclaim();
        (blocks(&pair.a) == before).then_some(())
    });
}

/// Waits until as many blocks are in use as before. Over a network a block is free when the peer's host has confirmed
/// that it has the bytes, which may be after its program has read them.
fn come_home(nic: &Nic, before: usize, why: &str) {
    until(why, || (blocks(nic) == before).then_some(()));
}

fn a_block_is_dropped_on_another_thread(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let before = blocks(&pair.a.nic);
    let (give, take) = std::sync::mpsc::channel::<(usize, Lent)>();
    let reader = thread::spawn(move || {
        for (number, message) in take {
            assert_bytes(message.as_slice().unwrap(), &pattern(number, LEN));
        }
    });
    for number in 0..500 {
        until("room", || hand_off(&mut pair.a, number).ok());
        give.send((number, lent(pair.b.arrival()))).unwrap();
    }
    drop(give);
    reader.join().unwrap();
    come_home(&pair.a.nic, before, "all were read");
}

fn blocks_are_dropped_in_any_order(fabric: &dyn Fabric) {
    const COUNT: usize = 20;
    let mut pair = Pair::lent(fabric);
    let before = blocks(&pair.a.nic);
    let mut held: Vec<_> = (0..COUNT)
        .map(|number| {
            hand_off(&mut pair.a, number).unwrap();
            (number, lent(pair.b.arrival()))
        })
        .collect();
    for step in 0..COUNT {
        held.remove(step * 7 % held.len());
        churn(&pair.a.nic);
        // Over a network, news of that may come late.
        until("what was dropped comes home", || {
            pair.a.nic.reclaim();
            (blocks(&pair.a.nic) <= before + held.len()).then_some(())
        });
        for (number, message) in &held {
            assert_bytes(message.as_slice().unwrap(), &pattern(*number, LEN));
        }
    }
}

fn a_refused_hand_off_gives_the_block_back(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let (mut number, mut refused) = (0, None);
    while refused.is_none() {
        let block = pair.a.block(&pattern(number, LEN));
        refused = pair.a.vi.hand_off(Some(number as u32), b"", block).err();
        number += usize::from(refused.is_none());
    }
    let (error, block) = refused.unwrap();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert_bytes(block.bytes(), &pattern(number, LEN));
    for number in 0..number {
        assert_bytes(lent(pair.b.arrival()).as_slice().unwrap(), &pattern(number, LEN));
    }
    let mut waiting = Some(block);
    // Over a network, news of that may come late.
    until("there is room again", || {
        let block = waiting.take().expect("it came back");
        let refused = pair.a.vi.hand_off(Some(number as u32), b"", block).err();
        waiting = refused.map(|(error, block)| {
            assert!(matches!(error, Error::Full { .. }), "{error}");
            block
        });
        waiting.is_none().then_some(())
    });
    assert_bytes(lent(pair.b.arrival()).as_slice().unwrap(), &pattern(number, LEN));
    pair.a.vi.disconnect();
    let block = pair.a.block(b"idle");
    let (error, block) = pair.a.vi.hand_off(None, b"", block).unwrap_err();
    assert!(matches!(error, Error::InvalidState { .. }), "{error}");
    assert_eq!(block.bytes(), b"idle");
}

fn a_shared_block_comes_home_when_all_have_dropped_it(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let before = blocks(&pair.a.nic);
    let mut block = Arc::new(pair.a.block(&pattern(1, LEN)));
    let mut held: Vec<_> = (0..5)
        .map(|number| {
            pair.a.vi.hand_off_shared(Some(number), b"head", &block.clone().into()).unwrap();
            let arrival = pair.b.arrival();
            assert_eq!(arrival.immediate, Some(number));
            lent(arrival)
        })
        .collect();
    while let Some(message) = held.pop() {
        assert_eq!(blocks(&pair.a.nic), before + 1, "one block for all");
        assert!(Arc::get_mut(&mut block).is_none(), "somebody reads it");
        churn(&pair.a.nic);
        assert_bytes(message.as_slice().unwrap(), &pattern(1, LEN));
    }
    pair.a.nic.reclaim();
    Arc::get_mut(&mut block).expect("nobody reads it any more").bytes_mut().fill(0);
    pair.a.vi.hand_off_shared(None, b"", &block.clone().into()).unwrap();
    drop(block);
    assert_eq!(blocks(&pair.a.nic), before + 1, "in flight");
    assert_bytes(lent(pair.b.arrival()).as_slice().unwrap(), &[0; LEN]);
    assert_eq!(blocks(&pair.a.nic), before, "home");
}

fn parts_of_a_shared_block_are_lent_where_they_lie(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let whole = SharedBytes::from(pair.a.block(&pattern(1, LEN)));
    let rest = whole.part(1001..LEN);
    let parts = [(0, whole.part(0..1001)), (1001, rest.clone()), (1008, rest.part(7..2007))];
    drop((whole, rest));
    let error = pair.b.vi.hand_off_shared(None, b"head", &parts[0].1).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    for (_, part) in &parts {
        pair.a.vi.hand_off_shared(None, b"head", part).unwrap();
    }
    // A message in flight keeps its memory.
    let places = parts.map(|(from, part)| from..from + part.len());
    for place in places {
        let message = lent(pair.b.arrival());
        assert_bytes(message.as_slice().unwrap(), &pattern(1, LEN)[place]);
    }
}

fn a_shared_block_that_is_refused_has_no_owner_here(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let foreign = Arc::new(pair.b.block(b"foreign"));
    let error = pair.a.vi.hand_off_shared(None, b"", &foreign.clone().into()).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_eq!(Arc::strong_count(&foreign), 1);
    let block = Arc::new(pair.a.block(&pattern(1, LEN)));
    let mut lent_out = 0;
    let error = loop {
        match pair.a.vi.hand_off_shared(None, b"", &block.clone().into()) {
            Ok(()) => lent_out += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(Arc::strong_count(&block) <= 1 + lent_out, "the refused one has none");
    pair.a.vi.disconnect();
    let error = pair.a.vi.hand_off_shared(None, b"", &block.clone().into()).unwrap_err();
    assert!(matches!(error, Error::InvalidState { .. }), "{error}");
}

/// The offset of such a block would name another object's memory here.
fn a_block_of_another_nic_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let bytes = pattern(1, LEN);
    let foreign = pair.b.block(&bytes);
    let nowhere = RemoteBuffer { handle: MemHandle(0), offset: 0, len: LEN };
    let (error, foreign) = pair.a.vi.rdma_write(foreign, nowhere, None).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    let (error, foreign) = pair.a.vi.hand_off(None, &[], foreign).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_bytes(foreign.bytes(), &bytes);
    pair.b.vi.hand_off(None, &[], foreign).expect("it is of this NIC");
    assert_bytes(lent(pair.a.arrival()).as_slice().unwrap(), &bytes);
}

fn a_hoarding_receiver_does_not_starve_its_sender(fabric: &dyn Fabric) {
    hoard(Pair::lent(fabric));
}

/// The sender awaits the receipt of each message: a message that is copied has arrived.
fn a_hoarding_receiver_does_not_withhold_receipts(fabric: &dyn Fabric) {
    hoard(Pair::with(fabric, &Options::default(), |attributes| {
        attributes.reliability = Reliability::Reception;
        attributes.receive = Receive::Lent;
    }));
}

/// `b` keeps everything that it takes.
fn hoard(mut pair: Pair) {
    const COUNT: usize = 500;
    let mut hoard = Vec::new();
    for number in 0..COUNT {
        until("the sender goes on", || hand_off(&mut pair.a, number).ok());
        hoard.push(lent(pair.b.arrival()));
    }
    churn(&pair.a.nic);
    for (number, message) in hoard.iter().enumerate() {
        assert_bytes(message.as_slice().unwrap(), &pattern(number, LEN));
    }
    if !pair.a.nic.caps().has(Caps::HAND_OFF) {
        // Arrived messages lie in the receiver's own memory.
        return;
    }
    let in_place = pair.a.nic.attributes().max_descriptors_per_queue;
    let copied = pair.b.nic.bytes_copied();
    assert!(
        copied as usize >= (COUNT - in_place) * LEN,
        "what it holds beyond its quota are copies: {copied}"
    );
}

fn messages_outlive_the_senders_vi(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let before = blocks(&pair.a.nic);
    for number in 0..3 {
        hand_off(&mut pair.a, number).unwrap();
    }
    let first = lent(pair.b.arrival());
    drop(pair.a.vi);
    churn(&pair.a.nic);
    let others = [lent(pair.b.arrival()), lent(pair.b.arrival())];
    for (number, message) in [first].iter().chain(&others).enumerate() {
        assert_bytes(message.as_slice().unwrap(), &pattern(number, LEN));
    }
    drop(others);
    let end = until("the end", || pair.b.vi.arrival().err());
    assert!(matches!(end, Error::Closed), "{end}");
    come_home(&pair.a.nic, before, "all were read");
}

fn messages_outlive_the_receivers_vi(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let before = blocks(&pair.a.nic);
    hand_off(&mut pair.a, 1).unwrap();
    let message = lent(pair.b.arrival());
    drop(pair.b.vi);
    let end = pair.a.learns_of_the_end();
    assert!(matches!(end, Error::Closed), "{end}");
    churn(&pair.a.nic);
    assert_bytes(message.as_slice().unwrap(), &pattern(1, LEN));
    pair.a.vi.disconnect();
    churn(&pair.a.nic);
    assert_bytes(message.as_slice().unwrap(), &pattern(1, LEN));
    drop(message);
    come_home(&pair.a.nic, before, "all were read");
}

fn messages_outlive_the_senders_nic(fabric: &dyn Fabric) {
    let Pair { mut a, mut b } = Pair::lent(fabric);
    hand_off(&mut a, 1).unwrap();
    let message = lent(b.arrival());
    drop(a);
    assert_bytes(message.as_slice().unwrap(), &pattern(1, LEN));
    let end = until("the end", || b.vi.arrival().err());
    assert!(end.is_final(), "{end}");
    assert_bytes(message.as_slice().unwrap(), &pattern(1, LEN));
}

fn messages_outlive_the_receivers_nic(fabric: &dyn Fabric) {
    let Pair { mut a, mut b } = Pair::lent(fabric);
    hand_off(&mut a, 1).unwrap();
    let message = lent(b.arrival());
    let gone = address(&b.nic, b"gone");
    drop(b);
    let end = a.learns_of_the_end();
    assert!(end.is_final(), "{end}");
    assert!(End::new(&a.nic, |_| {}).connect(&gone, b"").is_err(), "the NIC is gone");
    churn(&a.nic);
    assert_bytes(message.as_slice().unwrap(), &pattern(1, LEN));
}

fn unread_messages_come_home_when_the_receiver_leaves(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let before = blocks(&pair.a.nic);
    for number in 0..10 {
        hand_off(&mut pair.a, number).unwrap();
    }
    let held = lent(pair.b.arrival());
    drop(pair.b.vi);
    let end = pair.a.learns_of_the_end();
    assert!(end.is_final(), "{end}");
    pair.a.vi.disconnect();
    churn(&pair.a.nic);
    assert_bytes(held.as_slice().unwrap(), &pattern(0, LEN));
    drop(held);
    come_home(&pair.a.nic, before, "nobody will ever read the others");
}

fn a_posted_send_outlives_its_vi(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    pair.a.post_send(&pattern(1, LEN));
    pair.a.post_send(&pattern(2, LEN));
    let first = lent(pair.b.arrival());
    drop(pair.a.vi);
    churn(&pair.a.nic);
    assert_bytes(first.as_slice().unwrap(), &pattern(1, LEN));
    assert_bytes(lent(pair.b.arrival()).as_slice().unwrap(), &pattern(2, LEN));
}
