//! Completions of one VI, and the completion queue that names it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use udeck_via::{Cq, Descriptor, Error, Receive, Source, State, Status, ViAttributes};

use crate::kit::{Door, Pair, pattern, shortly, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "completion";
pub const CASES: &[Case] = &[
    case!(waits_end_at_their_deadline),
    case!(an_empty_queue_names_nothing_until_the_deadline),
    case!(wait_stops_when_told),
    case!(wake_makes_the_waiter_ask_again),
    case!(arrivals_are_named_with_their_context),
    case!(a_queue_is_named_until_it_is_empty),
    case!(room_to_send_is_named),
    case!(who_waits_for_room_is_told_of_the_end),
    case!(two_queues_of_one_vi_report_apart),
    case!(the_end_of_a_connection_is_named),
    case!(the_end_is_named_behind_what_came_before_it),
    case!(no_post_is_slept_through),
    case!(a_queue_of_another_nic_is_refused_by_connect),
    case!(a_queue_of_another_nic_is_refused_by_accept),
    case!(a_completion_queue_moves_between_threads),
];

fn waits_end_at_their_deadline(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    pair.a.post_receive(1);
    let waited = pair.a.vi.receive_wait(shortly());
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    let waited = pair.a.vi.send_wait(shortly());
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    assert_eq!(pair.a.vi.state(), State::Connected);
    pair.b.post_send(b"x");
    assert_eq!(pair.a.received(), b"x", "the descriptor is still posted");
}

fn an_empty_queue_names_nothing_until_the_deadline(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let mut alone = Cq::new(&nic).unwrap();
    assert_eq!(alone.poll(), None);
    assert_eq!(alone.wait(shortly(), || false), None);
    let mut pair = Pair::posted(fabric);
    pair.a.drain_news();
    assert_eq!(pair.a.cq.wait(shortly(), || false), None);
    pair.a.cq.set_oversubscribed(true);
    assert_eq!(pair.a.cq.wait(shortly(), || false), None);
}

fn wait_stops_when_told(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let mut cq = Cq::new(&nic).unwrap();
    let mut asked = 0;
    let entry = cq.wait(soon(), || {
        asked += 1;
        asked == 10
    });
    assert_eq!((entry, asked), (None, 10));
}

fn wake_makes_the_waiter_ask_again(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let mut cq = Cq::new(&nic).unwrap();
    let handle = cq.handle();
    let (asked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let told = || {
                asked.fetch_add(1, Ordering::Relaxed);
                stop.load(Ordering::Acquire)
            };
            assert_eq!(cq.wait(soon(), told), None);
            assert!(stop.load(Ordering::Acquire), "it was told, and did not wait for the deadline");
        });
        until("the waiter waits", || (asked.load(Ordering::Relaxed) > 0).then_some(()));
        stop.store(true, Ordering::Release);
        handle.wake();
    });
    handle.wake(); // nobody waits: nothing happens
}

fn arrivals_are_named_with_their_context(fabric: &dyn Fabric) {
    const CONTEXT: u64 = u64::MAX - 5;
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| attributes.context = CONTEXT);
    pair.b.drain_news();
    pair.b.post_receive(3);
    pair.a.post_send(b"abc");
    let entry = pair.b.cq.wait(soon(), || false).expect("news");
    assert_eq!((entry.context, entry.source), (CONTEXT, Source::Receive));
    assert_eq!(pair.b.vi.receive_done().unwrap().status, Status::Done);
}

fn a_queue_is_named_until_it_is_empty(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    pair.b.drain_news();
    for len in 0..10 {
        pair.b.post_receive(len);
        pair.a.post_send(&pattern(1, len));
    }
    for len in 0..10 {
        // Each time that the queue is named, one message is taken.
        let done = until("news", || {
            pair.b.cq.wait(soon(), || false).expect("named again while messages lie there");
            pair.b.vi.receive_done()
        });
        assert_eq!(done.length, len);
    }
    pair.b.drain_news();
    assert_eq!(pair.b.cq.wait(shortly(), || false), None);
}

fn room_to_send_is_named(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    pair.a.drain_news();
    until("the connection is full", || pair.a.vi.send_inline(None, b"", b"x").err());
    pair.a.vi.request_send_notify();
    let full = pair.a.vi.send_inline(None, b"", b"x").unwrap_err();
    assert!(matches!(full, Error::Full { .. }), "{full}");
    let (b, found) = (&mut pair.b, AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // A posted message may still be under way.
            let (deadline, mut count) = (soon(), 0);
            while (count == 0 || !found.load(Ordering::Acquire)) && !deadline.passed() {
                match b.vi.arrival().unwrap() {
                    Some(_) => count += 1,
                    None => thread::yield_now(),
                }
            }
            assert!(count > 0, "they are there already, or on their way");
        });
        until("room", || {
            let entry = pair.a.cq.wait(soon(), || false).expect("news of room");
            assert_eq!(entry.source, Source::Send);
            pair.a.vi.request_send_notify();
            pair.a.vi.send_inline(None, b"", b"y").ok()
        });
        found.store(true, Ordering::Release);
    });
}

/// The receiver reads nothing, so no room appears: the queue reports the end instead.
fn who_waits_for_room_is_told_of_the_end(fabric: &dyn Fabric) {
    let (Pair { mut a, b }, _receive_cq) = report_apart(fabric);
    until("the connection is full", || a.vi.send_inline(None, b"", b"x").err());
    a.drain_news();
    a.vi.request_send_notify();
    drop(b.vi);
    let end = until("the end", || {
        let entry = a.cq.wait(soon(), || false).expect("the end is news to who waits for room");
        assert_eq!(entry.source, Source::Send);
        match a.vi.send_inline(None, b"", b"x") {
            Ok(()) | Err(Error::Full { .. }) => {
                a.vi.request_send_notify();
                None
            }
            Err(error) => Some(error),
        }
    });
    assert!(matches!(end, Error::Closed), "{end}");
}

/// Connected ends, and the completion queue of the first one's receives: its own queue reports sends only.
fn report_apart(fabric: &dyn Fabric) -> (Pair, Cq) {
    let lent = |attributes: &mut ViAttributes| attributes.receive = Receive::Lent;
    let mut pair = Pair::idle(fabric, &Options::default(), lent);
    let receive_cq = Cq::new(&pair.a.nic).unwrap();
    let Pair { a, b } = &mut pair;
    let (send, receive) = (a.cq.handle(), receive_cq.handle());
    let door = Door::new(&b.nic, b"apart");
    thread::scope(|scope| {
        let asker = scope.spawn(|| a.vi.connect(&door.address, &send, &receive, b"", soon()));
        b.accept(door.listener.wait(soon()).unwrap(), b"").unwrap();
        asker.join().unwrap().unwrap();
    });
    (pair, receive_cq)
}

fn two_queues_of_one_vi_report_apart(fabric: &dyn Fabric) {
    let (Pair { a: mut left, b: mut right }, mut receive_cq) = report_apart(fabric);
    left.drain_news();
    while receive_cq.poll().is_some() {}
    right.vi.send_inline(None, b"", b"x").unwrap();
    assert_eq!(receive_cq.wait(soon(), || false).expect("the arrival").source, Source::Receive);
    assert_eq!(left.cq.poll(), None, "the send queue has no news");
    assert!(left.vi.arrival().unwrap().is_some());

    left.vi.request_send_notify();
    left.vi.post_send(Descriptor::new([left.region(&[1; 5000])])).unwrap();
    left.vi.request_send_notify();
    drop(right.arrival());
    let completion = until("the send's end", || {
        let entry = left.cq.wait(soon(), || false).expect("news of the send");
        assert_eq!(entry.source, Source::Send);
        left.vi.send_done()
    });
    assert_eq!(completion.status, Status::Done);
}

fn the_end_of_a_connection_is_named(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    pair.b.drain_news();
    drop(pair.a.vi);
    let error = until("the end", || {
        pair.b.cq.wait(soon(), || false).expect("the end is news");
        pair.b.vi.arrival().err()
    });
    assert!(matches!(error, Error::Closed), "{error}");
}

/// A program that takes one message each time that the queue is named learns of the end, however many messages
/// came before it.
fn the_end_is_named_behind_what_came_before_it(fabric: &dyn Fabric) {
    for count in [1, 2, 16, 40] {
        let mut pair = Pair::lent(fabric);
        pair.b.drain_news();
        for number in 0..count {
            pair.a.vi.send_inline(Some(number), b"", b"x").unwrap();
        }
        drop(pair.a.vi);
        // Usually everything has arrived by then, and is reported at once. The test cannot see this without
        // polling.
        thread::sleep(Duration::from_millis(20));
        let mut taken = 0;
        let error = until("the end", || {
            pair.b
                .cq
                .wait(soon(), || false)
                .unwrap_or_else(|| panic!("the end is news behind {taken} of {count}"));
            pair.b.vi.arrival().map(|arrival| taken += u32::from(arrival.is_some())).err()
        });
        assert!(matches!(error, Error::Closed), "{error}");
        assert_eq!(taken, count);
    }
}

fn no_post_is_slept_through(fabric: &dyn Fabric) {
    const MESSAGES: u64 = 4000;
    let mut pair = Pair::lent(fabric);
    let (a, b) = (&mut pair.a, &mut pair.b);
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                let arrival = until("a message", || {
                    b.cq.wait(soon(), || false).expect("the waiter is woken");
                    b.vi.arrival().unwrap()
                });
                assert_eq!(arrival.immediate, Some(number as u32));
                taken.store(number + 1, Ordering::Release);
            }
        });
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for number in 0..MESSAGES {
            // Posts happen before, during and after the moment when the waiter goes to sleep.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match random >> 60 {
                0..4 => {}
                4..10 => (0..(random >> 48) % 20_000).for_each(|_| std::hint::spin_loop()),
                _ => thread::sleep(Duration::from_micros((random >> 40) % 300)),
            }
            // Over a network, news of the room may come late.
            until("room", || a.vi.send_inline(Some(number as u32), b"", b"").ok());
            until("the waiter takes it", || (taken.load(Ordering::Acquire) > number).then_some(()));
        }
    });
}

fn a_queue_of_another_nic_is_refused_by_connect(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let door = Door::new(&pair.b.nic, b"door");
    let (own, foreign) = (pair.a.cq.handle(), pair.b.cq.handle());
    for (send, receive) in [(&own, &foreign), (&foreign, &own)] {
        let error = pair.a.vi.connect(&door.address, send, receive, b"", soon()).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
        assert_eq!(pair.a.vi.state(), State::Idle);
    }
    assert!(door.listener.wait(udeck_via::Deadline::now()).is_err(), "no request was made");
    door.join(&mut pair.a, &mut pair.b);
}

fn a_queue_of_another_nic_is_refused_by_accept(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let door = Door::new(&pair.b.nic, b"door");
    let (foreign, own) = (pair.a.cq.handle(), pair.b.cq.handle());
    let vi = &mut pair.b.vi;
    let (asked, answered) = door.connect(&mut pair.a, b"", |request| request.accept(vi, &own, &foreign, b""));
    assert!(matches!(answered, Err(Error::InvalidParameter(_))), "{answered:?}");
    assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
    assert_eq!(pair.b.vi.state(), State::Idle);
    door.join(&mut pair.a, &mut pair.b);
}

fn a_completion_queue_moves_between_threads(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let mut b = pair.b;
    for round in 0..20 {
        pair.a.vi.send_inline(Some(round), b"", b"").unwrap();
        b = thread::spawn(move || {
            let arrival = until("a message", || {
                b.cq.wait(soon(), || false).expect("woken");
                b.vi.arrival().unwrap()
            });
            assert_eq!(arrival.immediate, Some(round));
            b
        })
        .join()
        .unwrap();
    }
}
