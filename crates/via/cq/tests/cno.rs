use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

const QUEUES: usize = 3;

struct Several {
    queues: Vec<Cq>,
    fakes: Vec<Arc<Fake>>,
}

impl Several {
    fn new() -> Self {
        let (queues, fakes) = (0..QUEUES).map(|_| Fake::cq(1000)).unzip();
        Several { queues, fakes }
    }

    fn until_all_sleep(fakes: &[Arc<Fake>]) {
        fakes.iter().for_each(|fake| fake.until_asleep());
    }
}

fn all(queues: &mut [Cq]) -> Vec<&mut Cq> {
    queues.iter_mut().collect()
}

#[test]
fn each_queue_wakes_the_sleeper() {
    let Several { mut queues, fakes } = Several::new();
    let mut cno = Cno::default();
    for at in 0..QUEUES {
        let deadline = soon();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| cno.wait(&mut all(&mut queues), deadline, || false));
            Several::until_all_sleep(&fakes);
            fakes[at].announce(at as u64);
            assert_eq!(waiting.join().unwrap().unwrap(), Some((at, received(at as u64))));
            assert!(!deadline.passed(), "the others slept on");
        });
    }
}

#[test]
fn queues_that_are_asked_seldom_wake_the_sleeper_too() {
    let Several { mut queues, fakes } = Several::new();
    queues[1..].iter_mut().for_each(|cq| cq.set_costly_poll(true));
    for at in 0..QUEUES {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| Cno::default().wait(&mut all(&mut queues), soon(), || false));
            Several::until_all_sleep(&fakes);
            fakes[at].announce(at as u64);
            assert_eq!(waiting.join().unwrap().unwrap(), Some((at, received(at as u64))));
        });
    }
}

/// The wait spins in this test. (It yields: so many times that it does not sleep.)
#[test]
fn a_queue_that_is_asked_seldom_is_asked_at_every_sixteenth_look() {
    const LOOKS: usize = 64;
    let Several { mut queues, fakes } = Several::new();
    queues[1].set_costly_poll(true);
    let mut looks = 0;
    let until = || {
        looks += 1;
        looks == LOOKS
    };
    assert_eq!(Cno::default().wait(&mut all(&mut queues), soon(), until).unwrap(), None);
    let polls = fakes.iter().map(|fake| fake.state.lock().polls);
    assert_eq!(polls.collect::<Vec<_>>(), [2 * LOOKS, 2 * LOOKS / 16, 2 * LOOKS]);
    fakes[1].announce(7);
    assert_eq!(Cno::default().poll(&mut all(&mut queues)), Some((1, received(7))), "a single look asks all");
}

#[test]
fn an_event_on_any_queue_wakes_the_sleeper() {
    let Several { mut queues, fakes } = Several::new();
    let handles: Vec<_> = queues.iter().map(Cq::handle).collect();
    for (at, handle) in handles.iter().enumerate() {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| Cno::default().wait(&mut all(&mut queues), soon(), || false));
            Several::until_all_sleep(&fakes);
            handle.post_event(at as u64).unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), Some((at, event(at as u64))));
        });
    }
}

#[test]
fn a_wake_of_any_queue_asks_until() {
    let Several { mut queues, fakes } = Several::new();
    let handles: Vec<_> = queues.iter().map(Cq::handle).collect();
    for handle in &handles {
        let (stop, deadline) = (AtomicBool::new(false), soon());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let told = || stop.load(Ordering::Acquire);
                Cno::default().wait(&mut all(&mut queues), deadline, told)
            });
            Several::until_all_sleep(&fakes);
            stop.store(true, Ordering::Release);
            handle.wake();
            assert_eq!(waiting.join().unwrap().unwrap(), None);
            assert!(!deadline.passed(), "it was woken, and did not sleep on");
        });
    }
}

#[test]
fn a_sleep_ends_at_the_deadline() {
    let Several { mut queues, .. } = Several::new();
    let deadline = Deadline::after(Duration::from_millis(20));
    assert_eq!(Cno::default().wait(&mut all(&mut queues), deadline, || false).unwrap(), None);
    assert!(deadline.passed());
    assert!(Cno::default().wait(&mut [], soon(), || false).is_err());
}

#[test]
fn the_scan_rotates() {
    let Several { mut queues, fakes } = Several::new();
    for number in 0..4 {
        fakes.iter().for_each(|fake| fake.announce(number));
    }
    let mut cno = Cno::default();
    for number in 0..4 {
        for at in 0..QUEUES {
            assert_eq!(cno.poll(&mut all(&mut queues)), Some((at, received(number))));
        }
    }
    assert_eq!(cno.poll(&mut all(&mut queues)), None);
}

#[test]
fn the_scan_goes_on_behind_what_ended_a_sleep() {
    let Several { mut queues, fakes } = Several::new();
    let mut cno = Cno::default();
    for at in 0..QUEUES {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| cno.wait(&mut all(&mut queues), soon(), || false));
            Several::until_all_sleep(&fakes);
            fakes[at].announce(1);
            assert_eq!(waiting.join().unwrap().unwrap(), Some((at, received(1))));
        });
        fakes.iter().for_each(|fake| fake.announce(2));
        for step in 1..=QUEUES {
            let next = (at + step) % QUEUES;
            assert_eq!(cno.poll(&mut all(&mut queues)), Some((next, received(2))));
        }
    }
}

#[test]
fn a_panic_of_until_wakes_the_others() {
    let Several { mut queues, fakes } = Several::new();
    let (handle, stop, deadline) = (queues[0].handle(), AtomicBool::new(false), soon());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let panics = || {
                assert!(!stop.load(Ordering::Acquire), "on purpose");
                false
            };
            catch_unwind(AssertUnwindSafe(|| Cno::default().wait(&mut all(&mut queues), deadline, panics)))
        });
        Several::until_all_sleep(&fakes);
        stop.store(true, Ordering::Release);
        handle.wake();
        assert!(waiting.join().unwrap().is_err());
        assert!(!deadline.passed(), "the others slept on");
    });
}

/// News come before, into and after the moment in which the queues go to sleep, to several of them at once.
#[test]
fn nothing_is_lost_or_slept_through() {
    const EACH: usize = 300;
    let Several { mut queues, fakes } = Several::new();
    let taken = [const { AtomicUsize::new(0) }; QUEUES];
    thread::scope(|scope| {
        for (at, (fake, taken)) in fakes.iter().zip(&taken).enumerate() {
            scope.spawn(move || {
                for number in 0..EACH {
                    fake.announce(number as u64);
                    // News come in bursts and one by one: the next may find the taker asleep.
                    while number % 10 > at && taken.load(Ordering::Acquire) <= number {
                        thread::yield_now();
                    }
                }
            });
        }
        let mut cno = Cno::default();
        for _ in 0..QUEUES * EACH {
            let found = cno.wait(&mut all(&mut queues), soon(), || false).unwrap();
            let (at, entry) = found.expect("there is more to come");
            let number = taken[at].fetch_add(1, Ordering::Release);
            assert_eq!(entry, received(number as u64));
        }
    });
}
