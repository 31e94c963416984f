//! Tests over a waiter that sleeps until it is woken, however long: a lost wake-up is not made good by the bounded sleeps of
//! real transports, but ends at the deadline and fails the test.

mod cno;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::*;
use crate::transport::Notifier;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[derive(Debug, Default)]
struct Fake {
    state: Mutex<WaiterState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WaiterState {
    news: VecDeque<Ready>,
    woken: bool,
    asleep: bool,
    sleeps: usize,
    polls: usize,
}

impl Fake {
    fn cq(entries: usize) -> (Cq, Arc<Fake>) {
        let fake = Arc::<Fake>::default();
        let waiter = Box::new(FakeWaiter { fake: fake.clone(), on_poll: None });
        let shared = Arc::new(Shared::new(fake.clone(), entries, entries));
        (
            Cq {
                waiter,
                shared,
                events_turn: false,
                oversubscribed: true,
                costly_poll: false,
                spin_history: SpinHistory::default(),
            },
            fake,
        )
    }

    fn announce(&self, context: u64) {
        self.state.lock().news.push_back(Ready { context, queue: Queue::Receive });
        self.changed.notify_all();
    }

    fn until_asleep(&self) {
        let mut state = self.state.lock();
        while !state.asleep {
            assert!(!self.changed.wait_until(&mut state, soon().instant()).timed_out(), "it never sleeps");
        }
    }
}

impl Notifier for Fake {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
    fn wake(&self) {
        self.state.lock().woken = true;
        self.changed.notify_all();
    }
}

struct FakeWaiter {
    fake: Arc<Fake>,
    /// A call in the middle of the next poll.
    on_poll: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for FakeWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FakeWaiter({:?})", self.fake)
    }
}

impl Waiter for FakeWaiter {
    /// Takes a wake-up, as the poll of shared memory does.
    fn poll(&mut self) -> Option<Ready> {
        if let Some(work) = self.on_poll.take() {
            work();
        }
        let mut state = self.fake.state.lock();
        state.woken = false;
        state.polls += 1;
        state.news.pop_front()
    }

    fn park(&mut self, limit: Duration) {
        let until = Deadline::after(limit).instant();
        let mut state = self.fake.state.lock();
        (state.asleep, state.sleeps) = (true, state.sleeps + 1);
        self.fake.changed.notify_all();
        while !state.woken && state.news.is_empty() {
            if self.fake.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        (state.asleep, state.woken) = (false, false);
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.fake.clone()
    }
}

fn received(context: u64) -> CqEntry {
    CqEntry { context, source: Source::Receive }
}

fn event(context: u64) -> CqEntry {
    CqEntry { context, source: Source::Software }
}

#[test]
fn an_event_wakes_a_sleeper() {
    let (mut cq, fake) = Fake::cq(1);
    let (handle, deadline) = (cq.handle(), soon());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| cq.wait(deadline, || false));
        fake.until_asleep();
        handle.post_event(5).unwrap();
        assert_eq!(waiting.join().unwrap(), Some(event(5)));
        assert!(!deadline.passed(), "it slept on");
    });
}

/// Waits in slices, as a mailbox's wait that polls other messages in between.
#[test]
fn waits_that_follow_a_fruitless_one_sleep_at_once() {
    /// A sleep takes up to six polls, spinning hundreds.
    const FEW: usize = 20;
    type Wait = fn(&mut Cq) -> Option<CqEntry>;
    fn slice() -> Deadline {
        Deadline::after(Duration::from_millis(1))
    }
    let alone: Wait = |cq| cq.wait(slice(), || false);
    let among: Wait = |cq| Cno::default().wait(&mut [cq], slice(), || false).unwrap().map(|(_, entry)| entry);
    for wait in [alone, among] {
        let (mut cq, fake) = Fake::cq(1);
        let polls = |cq: &mut Cq| {
            let before = fake.state.lock().polls;
            assert_eq!(wait(cq), None);
            fake.state.lock().polls - before
        };
        while fake.state.lock().sleeps == 0 {
            polls(&mut cq);
        }
        assert!((0..10).all(|_| polls(&mut cq) <= FEW), "it spins in each slice");
        fake.announce(7);
        assert_eq!(wait(&mut cq), Some(received(7)));
        assert!(polls(&mut cq) > FEW, "it is awake again");
    }
}

#[test]
fn an_event_whose_wake_up_a_poll_took_is_not_slept_through() {
    let (mut cq, fake) = Fake::cq(1);
    let handle = cq.handle();
    let on_poll: Box<dyn FnOnce() + Send> = Box::new(move || handle.post_event(5).unwrap());
    cq.waiter = Box::new(FakeWaiter { fake: fake.clone(), on_poll: Some(on_poll) });
    assert_eq!(cq.poll_queue(), None, "it came after the look for events");
    cq.park(soon().remaining());
    assert_eq!(fake.state.lock().sleeps, 0);
    assert_eq!(cq.poll(), Some(event(5)));
}

#[test]
fn events_and_work_queues_take_turns() {
    let (mut cq, fake) = Fake::cq(10);
    for number in 0..10 {
        fake.announce(number);
        cq.handle().post_event(number).unwrap();
    }
    for number in 0..10 {
        let mut two = [cq.poll().unwrap(), cq.poll().unwrap()];
        two.sort_by_key(|entry| entry.source == Source::Software);
        assert_eq!(two, [received(number), event(number)]);
    }
    assert_eq!(cq.poll(), None);
}
