//! Event dispatchers: software events, waits, thresholds, and events of many end points.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use udeck_conformance::both::{End as _, Interface};
use udeck_conformance::kit::{shortly, soon, until};
use udeck_conformance::{Case, Fabric, Options};
use udeck_dat::{Error, Evd, Event, Ia};
use udeck_via::Deadline;

use crate::end::{Dat, Pair};

const TOPIC: &str = "events";
pub const CASES: &[Case] = &[
    case!(events_come_out_in_order),
    case!(events_are_bounded),
    case!(each_event_ends_a_wait),
    case!(events_of_many_threads_all_come),
    case!(events_and_messages_do_not_starve_each_other),
    case!(a_wait_ends_at_its_deadline),
    case!(a_wait_is_for_as_many_as_it_says),
    case!(who_waits_is_told_to_stop),
    case!(one_waits_at_a_time),
    case!(no_post_is_slept_through),
];

fn dispatcher(fabric: &dyn Fabric) -> Evd {
    Evd::new(&Ia::on_nic(&fabric.open(&Options::default())).unwrap(), 0)
}

fn number(event: Event) -> u64 {
    match event {
        Event::Software(number) => number,
        other => panic!("{other:?}"),
    }
}

fn events_come_out_in_order(fabric: &dyn Fabric) {
    let evd = dispatcher(fabric);
    assert!(evd.dequeue().is_none());
    (0..100).for_each(|number| evd.post_software(number).unwrap());
    assert_eq!(evd.len(), 100);
    (0..100).for_each(|expected| assert_eq!(number(evd.dequeue().unwrap()), expected));
    assert!(evd.is_empty());
}

fn events_are_bounded(fabric: &dyn Fabric) {
    let evd = dispatcher(fabric);
    let mut posted = 0;
    for _ in 0..2 {
        let full = loop {
            match evd.post_software(posted) {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
            assert!(posted < 1 << 20, "it is never full");
        };
        assert!(full.is_full(), "{full}");
        number(evd.dequeue().unwrap());
    }
    assert_eq!(evd.len() as u64, posted - 2, "none is lost but the refused ones");
}

fn each_event_ends_a_wait(fabric: &dyn Fabric) {
    let evd = dispatcher(fabric);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            (0..200).for_each(|expected| {
                assert_eq!(number(evd.wait(soon()).expect("the waiter is woken")), expected);
            })
        });
        for at in 0..200 {
            until("the last was taken", || evd.is_empty().then_some(()));
            // Sometimes the waiter sleeps by then.
            if at % 20 == 0 {
                thread::sleep(std::time::Duration::from_millis(3));
            }
            evd.post_software(at).unwrap();
        }
        waiter.join().unwrap();
    });
}

fn events_of_many_threads_all_come(fabric: &dyn Fabric) {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let evd = dispatcher(fabric);
    thread::scope(|scope| {
        for own in 0..THREADS {
            let evd = &evd;
            scope.spawn(move || (0..EACH).for_each(|at| evd.post_software(own * EACH + at).unwrap()));
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let number = number(evd.wait(soon()).unwrap());
            let own = &mut next[(number / EACH) as usize];
            assert_eq!(number % EACH, *own, "each thread's in order");
            *own += 1;
        }
    });
    assert!(evd.is_empty());
}

fn events_and_messages_do_not_starve_each_other(fabric: &dyn Fabric) {
    let (mut a, mut b) = Dat::pair(fabric);
    let (mut events, mut messages) = (0, 0);
    for at in 0..50 {
        b.post_receive(&[8]);
        b.receives.post_software(at).unwrap();
        a.post_send(b"message.");
        a.sent();
    }
    while events + messages < 100 {
        match b.receives.wait(soon()).unwrap() {
            Event::Software(number) => {
                assert_eq!(number, events);
                events += 1;
            }
            Event::Dto(_) => messages += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((events, messages), (50, 50));
}

fn a_wait_ends_at_its_deadline(fabric: &dyn Fabric) {
    let (mut a, mut b) = Dat::pair(fabric);
    b.post_receive(&[1]);
    let waited = b.receives.wait(shortly());
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    a.post_send(b"x");
    assert_eq!(b.received(), b"x", "the receive is still posted");
}

fn a_wait_is_for_as_many_as_it_says(fabric: &dyn Fabric) {
    let (mut a, mut b) = Dat::pair(fabric);
    (0..3).for_each(|_| b.post_receive(&[8]));
    (0..2).for_each(|_| a.post_send(b"message."));
    let waited = b.receives.wait_for(3, shortly());
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    a.post_send(b"message.");
    b.receives.wait_for(3, soon()).unwrap();
    assert_eq!(b.receives.len(), 2);
    for threshold in [0, usize::MAX] {
        let waited = b.receives.wait_for(threshold, Deadline::now());
        assert!(matches!(waited, Err(Error::InvalidParameter { .. })), "{waited:?}");
    }
}

fn who_waits_is_told_to_stop(fabric: &dyn Fabric) {
    let evd = dispatcher(fabric);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| evd.wait(soon()));
        thread::sleep(std::time::Duration::from_millis(3));
        evd.set_unwaitable(true);
        let waited = waiter.join().unwrap();
        assert!(matches!(waited, Err(Error::Aborted { .. })), "{waited:?}");
    });
    assert!(matches!(evd.wait(soon()), Err(Error::Aborted { .. })));
    evd.set_unwaitable(false);
    evd.post_software(1).unwrap();
    assert_eq!(number(evd.wait(soon()).unwrap()), 1);
}

fn one_waits_at_a_time(fabric: &dyn Fabric) {
    let (evd, stop) = (dispatcher(fabric), AtomicBool::new(false));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let event = evd.wait(soon());
            stop.store(true, Ordering::Relaxed);
            event
        });
        // The first thread is waiting as soon as a second one is refused.
        until("the second one is refused", || match evd.wait(Deadline::now()) {
            Err(Error::InUse { .. }) => Some(()),
            Err(Error::Timeout { .. }) => None,
            other => panic!("{other:?}"),
        });
        assert!(!stop.load(Ordering::Relaxed), "the first one goes on waiting");
        evd.post_software(7).unwrap();
        assert_eq!(number(waiter.join().unwrap().unwrap()), 7);
    });
}

/// Messages go back and forth; each end may be asleep or not when the other one posts.
fn no_post_is_slept_through(fabric: &dyn Fabric) {
    const ROUNDS: usize = 300;
    let Pair { mut a, mut b, door: _door } = Pair::new(fabric);
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            for round in 0..ROUNDS {
                b.post_receive(&[8]);
                assert_eq!(b.received(), round.to_le_bytes());
                b.post_send(&round.to_le_bytes());
                b.sent();
            }
            b
        });
        for round in 0..ROUNDS {
            if round % 30 == 0 {
                thread::sleep(std::time::Duration::from_millis(3));
            }
            a.post_receive(&[8]);
            a.post_send(&round.to_le_bytes());
            assert_eq!(a.received(), round.to_le_bytes());
            a.sent();
        }
        drop(other.join().unwrap());
    });
}
