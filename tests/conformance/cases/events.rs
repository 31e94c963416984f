//! Software events on a completion queue.

use std::thread;

use udeck_via::{Cq, CqEntry, Error, Receive, Source};

use crate::kit::{Pair, shortly, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "events";
pub const CASES: &[Case] = &[
    case!(events_come_out_in_order),
    case!(events_are_bounded),
    case!(each_event_ends_a_wait),
    case!(events_of_many_threads_all_come),
    case!(events_and_messages_do_not_starve_each_other),
    case!(events_to_a_queue_that_is_gone_harm_nobody),
];

fn event(number: u64) -> CqEntry {
    CqEntry { context: number, source: Source::Software }
}

fn queue(fabric: &dyn Fabric, entries: usize) -> Cq {
    Cq::with_entries(&fabric.open(&Options::default()), entries).expect("a completion queue")
}

fn events_come_out_in_order(fabric: &dyn Fabric) {
    let mut cq = queue(fabric, 3);
    let handle = cq.handle();
    for round in 0..100 {
        let numbers = [round, u64::MAX, 0];
        numbers.iter().for_each(|&number| handle.post_event(number).unwrap());
        for number in numbers {
            assert_eq!(cq.poll(), Some(event(number)));
        }
        assert_eq!(cq.poll(), None);
    }
    assert_eq!(cq.wait(shortly(), || false), None);
}

fn events_are_bounded(fabric: &dyn Fabric) {
    let mut cq = queue(fabric, 4);
    let handle = cq.handle();
    for first in [0, 10] {
        (first..first + 4).for_each(|number| handle.post_event(number).unwrap());
        let refused = handle.post_event(99).unwrap_err();
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(refused.to_string().contains("4 entries"), "the bound is named: {refused}");
        assert_eq!(cq.poll(), Some(event(first)));
        handle.post_event(first + 4).expect("there is room again");
        (first + 1..first + 5).for_each(|number| assert_eq!(cq.poll(), Some(event(number))));
        assert_eq!(cq.poll(), None, "what was refused does not come");
    }
}

/// Posts happen before, during and after the moment when the waiter goes to sleep.
fn each_event_ends_a_wait(fabric: &dyn Fabric) {
    let (mut cq, mut back) = (queue(fabric, 1), queue(fabric, 1));
    let (there, here) = (cq.handle(), back.handle());
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200 {
                assert_eq!(cq.wait(soon(), || false), Some(event(number)));
                here.post_event(number).unwrap();
            }
        });
        for number in 0..200 {
            if number % 20 == 0 {
                assert_eq!(back.wait(shortly(), || false), None, "the other waits");
            }
            there.post_event(number).unwrap();
            assert_eq!(back.wait(soon(), || false), Some(event(number)));
        }
    });
}

fn events_of_many_threads_all_come(fabric: &dyn Fabric) {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let mut cq = queue(fabric, 7);
    let handle = cq.handle();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let handle = handle.clone();
            scope.spawn(move || {
                for number in 0..EACH {
                    until("room", || handle.post_event(thread << 32 | number).ok());
                }
            });
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let entry = cq.wait(soon(), || false).expect("there are more to come");
            let (thread, number) = ((entry.context >> 32) as usize, entry.context & 0xffff_ffff);
            assert_eq!((entry.source, number), (Source::Software, next[thread]), "in order of each thread");
            next[thread] += 1;
        }
        assert_eq!(next, [EACH; THREADS as usize]);
    });
    assert_eq!(cq.poll(), None);
}

/// Both kinds are always available: neither waits until the other is exhausted.
fn events_and_messages_do_not_starve_each_other(fabric: &dyn Fabric) {
    let mut pair = Pair::with(fabric, &Options::default(), |attributes| attributes.receive = Receive::Lent);
    pair.b.drain_news();
    let handle = pair.b.cq.handle();
    let (mut events, mut messages, mut polls) = (0u32, 0u32, 0u32);
    let deadline = soon();
    // Messages arrive at the transport's speed, which does not depend on polls; events are always available.
    while polls < 1000 || events < 100 || messages < 100 {
        polls += 1;
        assert!(!deadline.passed(), "{events} events and {messages} messages in {polls} polls");
        while handle.post_event(1).is_ok() {}
        while pair.a.vi.send_inline(None, b"", b"flood").is_ok() {}
        match pair.b.cq.poll().expect("there are both").source {
            Source::Software => events += 1,
            Source::Receive => messages += u32::from(pair.b.vi.arrival().unwrap().is_some()),
            Source::Send => {}
        }
    }
}

fn events_to_a_queue_that_is_gone_harm_nobody(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let gone = Cq::with_entries(&nic, 1).unwrap().handle();
    let mut cq = Cq::with_entries(&nic, 1).unwrap();
    gone.post_event(1).unwrap();
    assert!(gone.post_event(2).is_err(), "nobody takes them");
    gone.wake();
    assert_eq!(cq.wait(shortly(), || false), None);
}
