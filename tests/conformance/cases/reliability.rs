//! Reliability: the promise of a completed send on each level, and the effect of a message without a place on
//! each.

use udeck_via::{Caps, Descriptor, Error, Receive, Reliability, State, Status};

use crate::kit::{Pair, assert_bytes, contents, pattern, regions, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "reliability";
pub const CASES: &[Case] = &[
    case!(a_send_is_done_when_it_has_arrived, RELIABLE_RECEPTION),
    case!(sends_are_done_as_they_arrive, RELIABLE_RECEPTION),
    case!(a_send_to_a_lending_receiver_is_done_when_it_is_dropped, RELIABLE_RECEPTION),
    case!(a_send_that_finds_no_receive_is_a_remote_descriptor_error, RELIABLE_RECEPTION),
    case!(a_send_that_finds_a_short_receive_is_a_remote_descriptor_error, RELIABLE_RECEPTION),
    case!(sends_that_nobody_took_are_flushed, RELIABLE_RECEPTION),
    case!(a_vi_that_reports_a_flushed_send_is_in_error, RELIABLE_RECEPTION),
    case!(a_lending_vi_that_reports_a_flushed_send_is_in_error, RELIABLE_RECEPTION),
    case!(a_write_behind_a_flushed_send_is_flushed, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(a_write_with_immediate_data_is_done_when_they_arrived, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(a_write_to_a_lending_receiver_is_done_when_that_looks_on, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(a_write_that_cannot_be_announced_writes_nothing, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(a_write_whose_immediate_data_find_no_receive, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(a_write_without_immediate_data_needs_no_receive, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(a_write_without_immediate_data_waits_for_no_program, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(a_write_that_is_in_place_is_done_though_the_receiver_disconnects, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(after_an_error_both_connect_again, RELIABLE_RECEPTION),
    case!(a_delivered_send_is_done_before_anybody_looks, RELIABLE_DELIVERY),
    case!(a_delivered_send_says_nothing_of_its_arrival, RELIABLE_DELIVERY),
    case!(an_unreliable_message_without_a_receive_is_dropped, UNRELIABLE),
    case!(an_unreliable_message_too_long_is_a_length_error_only, UNRELIABLE),
    case!(dropped_messages_hide_nothing_behind_them, UNRELIABLE),
    case!(an_unreliable_write_keeps_its_data_when_the_immediate_is_dropped, UNRELIABLE, RDMA_WRITE),
    case!(an_unreliable_write_to_a_window_that_is_gone_is_dropped, UNRELIABLE, RDMA_WRITE),
    case!(unreliable_vis_learn_of_the_end, UNRELIABLE),
];

/// Lengths in bytes around the limit of a descriptor, and well beyond it.
const LENGTHS: [usize; 6] = [0, 1, 48, 49, 5000, 300_000];

fn pair(fabric: &dyn Fabric, reliability: Reliability) -> Pair {
    let caps = fabric.open(&Options::default()).caps();
    Pair::with(fabric, &Options::default(), |attributes| {
        attributes.reliability = reliability;
        attributes.enable_rdma_write = caps.has(Caps::RDMA_WRITE);
    })
}

/// A pair in which both receive lent, and receipts are reported.
fn lending(fabric: &dyn Fabric) -> Pair {
    Pair::with(fabric, &Options::default(), |attributes| {
        attributes.reliability = Reliability::Reception;
        attributes.receive = Receive::Lent;
        attributes.enable_rdma_write = true;
    })
}

fn states(pair: &Pair) -> (State, State) {
    (pair.a.vi.state(), pair.b.vi.state())
}

/// Polls `b` until the connection has broken.
fn breaks_at_b(pair: &mut Pair) {
    until("the receiver finds the message without a place", || {
        pair.b.vi.receive_done();
        (pair.b.vi.state() == State::Error).then_some(())
    });
}

/// Takes the next finished send of `a`: its status, its length, and the bytes of its descriptor.
fn end_of_send(pair: &mut Pair) -> (Status, usize, Vec<u8>) {
    let completion = pair.a.vi.send_wait(soon()).expect("every send is reported");
    let descriptor = completion.descriptor.expect("posted with a descriptor");
    let bytes = regions(descriptor).iter().flat_map(|region| region.to_vec()).collect();
    (completion.status, completion.length, bytes)
}

fn a_send_is_done_when_it_has_arrived(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    for len in LENGTHS {
        let bytes = pattern(len, len);
        pair.b.post_receive(len);
        pair.a.post_send(&bytes);
        assert!(pair.a.vi.send_done().is_none(), "{len} bytes: the receiver has not looked yet");
        assert_bytes(&pair.b.received(), &bytes);
        assert_eq!(pair.a.sent().length, len);
    }
}

fn sends_are_done_as_they_arrive(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    for len in LENGTHS {
        pair.b.post_receive(len);
        pair.a.post_send(&pattern(len, len));
    }
    for len in LENGTHS {
        assert!(pair.a.vi.send_done().is_none());
        assert_eq!(pair.b.received().len(), len);
        assert_eq!(pair.a.sent().length, len);
    }
}

fn a_send_to_a_lending_receiver_is_done_when_it_is_dropped(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| {
        attributes.reliability = Reliability::Reception;
        attributes.receive = Receive::Lent;
    });
    for len in LENGTHS {
        pair.a.post_send(&pattern(len, len));
        let arrival = pair.b.arrival();
        drop(arrival);
        assert_eq!(pair.a.sent().length, len);
    }
}

fn a_send_that_finds_no_receive_is_a_remote_descriptor_error(fabric: &dyn Fabric) {
    for len in LENGTHS {
        let mut pair = pair(fabric, Reliability::Reception);
        pair.b.post_receive(100);
        let messages = [pattern(1, 100), pattern(2, len), pattern(3, 10), pattern(4, 5000)];
        messages.iter().for_each(|message| pair.a.post_send(message));
        assert_eq!(pair.b.received(), messages[0], "what came before the error arrives");
        breaks_at_b(&mut pair);
        let [first, second, third, fourth] = messages;
        assert_eq!(end_of_send(&mut pair), (Status::Done, 100, first));
        assert_eq!(end_of_send(&mut pair), (Status::RemoteDescriptorError, 0, second));
        assert_eq!(end_of_send(&mut pair), (Status::Flushed, 0, third));
        assert_eq!(end_of_send(&mut pair), (Status::Flushed, 0, fourth));
        assert!(pair.a.vi.send_done().is_none());
        assert_eq!(states(&pair), (State::Error, State::Error));
    }
}

fn a_send_that_finds_a_short_receive_is_a_remote_descriptor_error(fabric: &dyn Fabric) {
    for (room, len) in [(0, 1), (47, 48), (48, 49), (4096, 10_000)] {
        let mut pair = pair(fabric, Reliability::Reception);
        for room in [room, 7] {
            pair.b.post_receive(room);
        }
        pair.a.post_receive(8);
        let messages = [pattern(1, len), pattern(2, 7)];
        messages.iter().for_each(|message| pair.a.post_send(message));
        let completion = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((completion.status, completion.length), (Status::LengthError, room));
        assert_eq!(contents(&completion), messages[0][..room], "what fitted is there");
        assert_eq!(pair.b.vi.receive_wait(soon()).unwrap().status, Status::Flushed);
        let [first, second] = messages;
        assert_eq!(end_of_send(&mut pair), (Status::RemoteDescriptorError, 0, first));
        assert_eq!(end_of_send(&mut pair), (Status::Flushed, 0, second));
        assert_eq!(states(&pair), (State::Error, State::Error));
        assert_eq!(pair.a.vi.receive_done().map(|c| c.status), Some(Status::Flushed), "receives too");
    }
}

fn sends_that_nobody_took_are_flushed(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    for len in LENGTHS {
        pair.b.post_receive(len);
        pair.a.post_send(&pattern(len, len));
    }
    assert_eq!(pair.b.received().len(), LENGTHS[0]);
    pair.b.vi.disconnect();
    assert_eq!(end_of_send(&mut pair).0, Status::Done);
    for len in &LENGTHS[1..] {
        assert_eq!(end_of_send(&mut pair), (Status::Flushed, 0, pattern(*len, *len)));
    }
}

/// The VI polls its sends only; messages that the peer sent before it left have arrived nevertheless.
fn a_vi_that_reports_a_flushed_send_is_in_error(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    (0..3).for_each(|_| pair.a.post_receive(100));
    let (last, words) = (pattern(1, 10), pattern(2, 100));
    pair.b.post_send(&last);
    pair.b.post_send(&words);
    pair.a.post_send(&pattern(3, 5000));
    pair.b.vi.disconnect();
    assert_eq!(end_of_send(&mut pair).0, Status::Flushed);
    assert_eq!(pair.a.vi.state(), State::Error, "a flushed send is seen, and the VI is connected to nobody");
    assert_eq!(pair.a.received(), last);
    assert_eq!(pair.a.received(), words);
    let flushed = pair.a.vi.receive_done().expect("flushed before the send was reported");
    assert_eq!((flushed.status, pair.a.vi.receive_done().is_none()), (Status::Flushed, true));
}

fn a_lending_vi_that_reports_a_flushed_send_is_in_error(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| {
        attributes.reliability = Reliability::Reception;
        attributes.receive = Receive::Lent;
    });
    pair.b.post_send(&pattern(1, 10));
    pair.a.post_send(&pattern(2, 5000));
    pair.b.vi.disconnect();
    assert_eq!(end_of_send(&mut pair).0, Status::Flushed);
    assert_eq!(pair.a.vi.state(), State::Error);
    drop(pair.a.arrival());
    let end = until("the end", || pair.a.vi.arrival().err());
    assert!(matches!(end, Error::Closed), "{end}");
}

/// The completed posts are a prefix of all posts, although the write needed no action at the other end.
fn a_write_behind_a_flushed_send_is_flushed(fabric: &dyn Fabric) {
    for peer_leaves in [true, false] {
        let mut pair = pair(fabric, Reliability::Reception);
        let window = pair.b.nic.window(1000, pair.b.ptag).unwrap();
        let bytes = pattern(1, 1000);
        pair.a.post_send(&bytes);
        let write = Descriptor::rdma_write([pair.a.region(&bytes)], window.remote());
        pair.a.vi.post_send(write).unwrap();
        if !peer_leaves {
            pair.a.vi.disconnect();
        }
        pair.b.vi.disconnect();
        for _ in 0..2 {
            assert_eq!(end_of_send(&mut pair), (Status::Flushed, 0, bytes.clone()), "by peer: {peer_leaves}");
        }
    }
}

fn a_write_with_immediate_data_is_done_when_they_arrived(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    let window = pair.b.nic.window(1000, pair.b.ptag).unwrap();
    let bytes = pattern(1, 1000);
    pair.b.post_receive(0);
    let descriptor = Descriptor::rdma_write([pair.a.region(&bytes)], window.remote()).immediate(6);
    pair.a.vi.post_send(descriptor).unwrap();
    assert!(pair.a.vi.send_done().is_none(), "the receiver has not looked yet");
    let completion = pair.b.vi.receive_wait(soon()).unwrap();
    assert_eq!((completion.status, completion.length, completion.immediate), (Status::Done, 1000, Some(6)));
    assert_eq!(pair.a.sent().length, 1000);
    let mut there = vec![0; 1000];
    window.read(0, &mut there).unwrap();
    assert_bytes(&there, &bytes);
}

/// The write's immediate data take no descriptor at the receiver, and no memory that could be dropped.
fn a_write_to_a_lending_receiver_is_done_when_that_looks_on(fabric: &dyn Fabric) {
    let mut pair = lending(fabric);
    let window = pair.b.nic.window(100, pair.b.ptag).unwrap();
    for number in 0..3 {
        let write = Descriptor::rdma_write([pair.a.region(&[1; 100])], window.remote());
        pair.a.vi.post_send(write.immediate(number)).unwrap();
        assert_eq!(pair.b.arrival().immediate, Some(number));
        assert!(pair.b.vi.arrival().unwrap().is_none(), "nothing comes behind it");
        assert_eq!(pair.a.sent().length, 100);
    }
}

/// The messages that the receiver holds and those that it has not read yet together fill the connection.
fn a_write_that_cannot_be_announced_writes_nothing(fabric: &dyn Fabric) {
    let mut pair = lending(fabric);
    let window = pair.b.nic.window(100, pair.b.ptag).unwrap();
    let mut held = Vec::new();
    for _ in 0..pair.a.nic.attributes().max_descriptors_per_queue / 2 {
        let block = pair.a.block(&[1; 5000]);
        pair.a.vi.hand_off(None, b"", block).expect("few are under way");
        held.push(pair.b.arrival());
    }
    // The queue may take more writes than a byte can distinguish.
    let bytes = |number: u32| number.to_le_bytes().repeat(25);
    let mut last = 0;
    let error = until("a full connection", || {
        let write = Descriptor::rdma_write([pair.a.region(&bytes(last + 1))], window.remote());
        let refused = pair.a.vi.post_send(write.immediate(0)).err();
        last += u32::from(refused.is_none());
        refused.map(|(error, _)| error)
    });
    assert!(matches!(error, Error::Full { .. }), "{error}");
    // The data of later writes come later, if those were accepted.
    until("what the last one wrote that was taken", || {
        assert!(
            pair.b.vi.unread().is_ok() && pair.a.vi.send_done().is_none(),
            "time passes, and nobody looks"
        );
        let mut there = [0; 100];
        window.read(0, &mut there).unwrap();
        (there[..] == bytes(last)).then_some(())
    });
}

fn a_write_whose_immediate_data_find_no_receive(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    let window = pair.b.nic.window(1000, pair.b.ptag).unwrap();
    let bytes = pattern(1, 1000);
    let descriptor = Descriptor::rdma_write([pair.a.region(&bytes)], window.remote()).immediate(6);
    pair.a.vi.post_send(descriptor).unwrap();
    let descriptor = Descriptor::rdma_write([pair.a.region(&bytes)], window.remote());
    pair.a.vi.post_send(descriptor).unwrap();
    breaks_at_b(&mut pair);
    assert_eq!(end_of_send(&mut pair), (Status::RemoteDescriptorError, 0, bytes.clone()));
    assert_eq!(end_of_send(&mut pair), (Status::Flushed, 0, bytes));
    assert_eq!(states(&pair), (State::Error, State::Error));
}

fn a_write_without_immediate_data_needs_no_receive(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    let window = pair.b.nic.window(1000, pair.b.ptag).unwrap();
    let bytes = pattern(1, 1000);
    pair.a.vi.post_send(Descriptor::rdma_write([pair.a.region(&bytes)], window.remote())).unwrap();
    assert_eq!(pair.a.sent().length, 1000);
    let mut there = vec![0; 1000];
    window.read(0, &mut there).unwrap();
    assert_bytes(&there, &bytes);
    pair.check();
}

/// Earlier messages, whose reception nobody awaits, may lie there untaken.
fn a_write_without_immediate_data_waits_for_no_program(fabric: &dyn Fabric) {
    let mut pair = lending(fabric);
    let window = pair.b.nic.window(1000, pair.b.ptag).unwrap();
    for round in 0..3 {
        let (bytes, long) = (pattern(round, 1000), pattern(round, 5000));
        pair.a.vi.send_inline(Some(1), b"", b"not taken").unwrap();
        let block = pair.a.block(&long);
        pair.a.vi.hand_off(Some(2), b"", block).expect("few are under way");
        pair.a.vi.post_send(Descriptor::rdma_write([pair.a.region(&bytes)], window.remote())).unwrap();
        assert_eq!(pair.a.sent().length, 1000);
        let mut there = vec![0; 1000];
        window.read(0, &mut there).unwrap();
        assert_bytes(&there, &bytes);
    }
    for _ in 0..3 {
        assert_eq!([pair.b.arrival().immediate, pair.b.arrival().immediate], [Some(1), Some(2)]);
    }
}

/// A write that arrived before the receiver disconnects counts, although its program has not polled since. The second
/// write's data show that the first one's have arrived, with everything that belongs to them.
fn a_write_that_is_in_place_is_done_though_the_receiver_disconnects(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    let mut window = pair.b.nic.window(100, pair.b.ptag).unwrap();
    for round in 0..40 {
        window.write(0, &[0; 100]).unwrap();
        let (first, second) = (pattern(2 * round + 1, 100), pattern(2 * round + 2, 100));
        for bytes in [&first, &second] {
            let write = Descriptor::rdma_write([pair.a.region(bytes)], window.remote());
            pair.a.vi.post_send(write).unwrap();
        }
        until("the second write is in place", || {
            assert!(pair.a.vi.unread().is_ok(), "time passes, and the receiver does not look");
            let mut there = vec![0; 100];
            window.read(0, &mut there).unwrap();
            (there == second).then_some(())
        });
        pair.b.vi.disconnect();
        assert_eq!(end_of_send(&mut pair), (Status::Done, 100, first), "round {round}");
        let (status, _, bytes) = end_of_send(&mut pair);
        assert!(matches!(status, Status::Done | Status::Flushed) && bytes == second, "{status:?}");
        pair.a.vi.disconnect();
        pair.connect();
    }
}

fn after_an_error_both_connect_again(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Reception);
    for _ in 0..3 {
        pair.a.post_send(b"nobody waits for this");
        pair.a.post_send(&pattern(1, 5000));
        breaks_at_b(&mut pair);
        assert_eq!(end_of_send(&mut pair).0, Status::RemoteDescriptorError);
        pair.a.vi.disconnect();
        pair.b.vi.disconnect();
        assert_eq!(states(&pair), (State::Idle, State::Idle));
        assert_eq!(end_of_send(&mut pair).0, Status::Flushed, "reported after the disconnect, too");
        pair.connect();
        pair.check();
    }
}

fn a_delivered_send_is_done_before_anybody_looks(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Delivery);
    let bytes = pattern(1, pair.a.nic.attributes().max_inline);
    pair.b.post_receive(bytes.len());
    pair.a.post_send(&bytes);
    pair.a.sent();
    assert_eq!(pair.b.received(), bytes);
}

fn a_delivered_send_says_nothing_of_its_arrival(fabric: &dyn Fabric) {
    for len in LENGTHS {
        let mut pair = pair(fabric, Reliability::Delivery);
        pair.a.post_send(&pattern(1, len));
        breaks_at_b(&mut pair);
        assert_eq!(end_of_send(&mut pair), (Status::Done, len, pattern(1, len)));
    }
}

fn an_unreliable_message_without_a_receive_is_dropped(fabric: &dyn Fabric) {
    for len in LENGTHS {
        let mut pair = pair(fabric, Reliability::Unreliable);
        pair.a.post_send(&pattern(1, len));
        until("the message is gone", || {
            assert!(pair.b.vi.receive_done().is_none());
            pair.a.vi.send_done().map(|completion| assert_eq!(completion.status, Status::Done))
        });
        // A send that is done has left: it may still be under way.
        until("nothing is under way", || {
            assert!(pair.b.vi.receive_done().is_none());
            (pair.a.vi.unread().unwrap() == 0).then_some(())
        });
        assert_eq!(states(&pair), (State::Connected, State::Connected));
        pair.check();
    }
}

fn an_unreliable_message_too_long_is_a_length_error_only(fabric: &dyn Fabric) {
    for (room, len) in [(0, 1), (47, 48), (48, 49), (4096, 10_000)] {
        let mut pair = pair(fabric, Reliability::Unreliable);
        let bytes = pattern(1, len);
        pair.b.post_receive(room);
        pair.b.post_receive(len);
        pair.a.post_send(&bytes);
        pair.a.post_send(&bytes);
        let completion = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((completion.status, completion.length), (Status::LengthError, room));
        assert_eq!(contents(&completion), bytes[..room], "what fitted is there");
        assert_bytes(&pair.b.received(), &bytes);
        for _ in 0..2 {
            assert_eq!(pair.a.sent().length, len);
        }
        assert_eq!(states(&pair), (State::Connected, State::Connected));
    }
}

fn dropped_messages_hide_nothing_behind_them(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Unreliable);
    for number in 0..20 {
        pair.a.post_send(&pattern(number, 20 + number));
    }
    until("they are gone", || {
        assert!(pair.b.vi.receive_done().is_none());
        while pair.a.vi.send_done().is_some() {}
        (pair.a.vi.unread().expect("the connection stands") == 0).then_some(())
    });
    pair.b.drain_news();
    pair.b.post_receive(9);
    pair.a.post_send(&pattern(1, 9));
    pair.b.cq.wait(soon(), || false).expect("its queue is named");
    assert_eq!(pair.b.received(), pattern(1, 9));
}

fn an_unreliable_write_keeps_its_data_when_the_immediate_is_dropped(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Unreliable);
    let window = pair.b.nic.window(1000, pair.b.ptag).unwrap();
    let bytes = pattern(1, 1000);
    let descriptor = Descriptor::rdma_write([pair.a.region(&bytes)], window.remote()).immediate(6);
    pair.a.vi.post_send(descriptor).unwrap();
    pair.a.sent();
    until("the immediate data are gone", || {
        assert!(pair.b.vi.receive_done().is_none());
        (pair.a.vi.unread().expect("the connection stands") == 0).then_some(())
    });
    let mut there = vec![0; 1000];
    window.read(0, &mut there).unwrap();
    assert_bytes(&there, &bytes);
    pair.check();
}

/// The write is dropped even if the sender has found the window before.
fn an_unreliable_write_to_a_window_that_is_gone_is_dropped(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Unreliable);
    let window = pair.b.nic.window(1000, pair.b.ptag).unwrap();
    let remote = window.remote();
    let write = |pair: &mut Pair| {
        let descriptor = Descriptor::rdma_write([pair.a.region(&pattern(1, 1000))], remote).immediate(6);
        let posted = pair.a.vi.post_send(descriptor).map_err(|(error, _)| error);
        if posted.is_ok() {
            pair.a.sent();
        }
        posted
    };
    pair.b.post_receive(0);
    write(&mut pair).unwrap();
    let completion = pair.b.vi.receive_wait(soon()).unwrap();
    assert_eq!((completion.status, completion.immediate), (Status::Done, Some(6)));
    drop(window);
    pair.b.post_receive(0);
    for _ in 0..5 {
        // If memory is shared, the post already finds the window gone.
        let posted = write(&mut pair);
        assert!(matches!(posted, Ok(()) | Err(Error::RdmaProtection { .. })), "{posted:?}");
    }
    until("nothing is under way", || {
        assert!(pair.b.vi.receive_done().is_none(), "a write to nowhere has no immediate data");
        (pair.a.vi.unread().expect("the connection stands") == 0).then_some(())
    });
    assert_eq!(states(&pair), (State::Connected, State::Connected));
    pair.a.post_send(b"");
    assert_eq!(pair.b.received(), b"");
    pair.check();
}

fn unreliable_vis_learn_of_the_end(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Unreliable);
    pair.b.post_receive(10);
    pair.a.vi.disconnect();
    let completion = pair.b.vi.receive_wait(soon()).unwrap();
    assert_eq!((completion.status, pair.b.vi.state()), (Status::Flushed, State::Error));
}
