//! Notification: completion queues that are served by a thread of their own.

use std::ops::ControlFlow::{Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use udeck_via::{Cq, CqEntry, Deadline, Error, Notify, Source, Status, Vi};

use crate::kit::{End, Pair, contents, pattern, shortly, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "notify";
pub const CASES: &[Case] = &[
    case!(a_handler_sees_each_receive),
    case!(a_handler_sees_the_end_of_a_send),
    case!(a_handler_sees_all_entries_of_a_queue),
    case!(a_handler_that_breaks_was_called_once),
    case!(stop_gives_queue_and_state_back),
    case!(stop_ends_a_flood),
    case!(stop_does_not_wait_beyond_its_deadline),
    case!(a_panic_of_the_handler_is_the_stoppers),
    case!(dropping_it_ends_it_without_waiting),
];

/// Upper bound of the wait for a handler's message: only a lost message takes so long.
const SOON: Duration = Duration::from_secs(60);

fn queue(fabric: &dyn Fabric) -> Cq {
    Cq::new(&fabric.open(&Options::default())).expect("a completion queue")
}

/// Starts a thread that serves the VI of `end` until it is stopped.
fn serve(end: End, mut handler: impl FnMut(&mut Vi, CqEntry) + Send + 'static) -> Notify<Vi> {
    let End { cq, vi, .. } = end;
    cq.notify(vi, move |vi, entry| {
        handler(vi, entry);
        Continue(())
    })
    .map_err(|(error, ..)| error)
    .expect("a thread")
}

fn stop<T>(notify: Notify<T>) -> (Cq, T) {
    notify.stop(soon()).map_err(|(error, _)| error).expect("it stops")
}

/// Corresponds to `VipRecvNotify`.
fn a_handler_sees_each_receive(fabric: &dyn Fabric) {
    let Pair { mut a, mut b } = Pair::posted(fabric);
    (0..30).for_each(|len| b.post_receive(len));
    let (tell, told) = mpsc::channel();
    let notify = serve(b, move |vi, entry| {
        if entry.source == Source::Receive {
            std::iter::from_fn(|| vi.receive_done()).for_each(|completion| tell.send(completion).unwrap());
        }
    });
    for len in 0..30 {
        a.post_send(&pattern(len, len));
        if len % 3 == 0 {
            // The next message perhaps finds the thread asleep.
            assert_eq!(contents(&told.recv_timeout(SOON).unwrap()), pattern(len / 3, len / 3));
        }
    }
    for len in 10..30 {
        assert_eq!(contents(&told.recv_timeout(SOON).unwrap()), pattern(len, len));
    }
    let (_cq, mut vi) = stop(notify);
    assert!(vi.receive_done().is_none());
}

/// Corresponds to `VipSendNotify`.
fn a_handler_sees_the_end_of_a_send(fabric: &dyn Fabric) {
    let Pair { mut a, mut b } = Pair::posted(fabric);
    b.post_receive(5000);
    a.post_send(&pattern(1, 5000));
    a.vi.request_send_notify();
    let (tell, told) = mpsc::channel();
    let notify = serve(a, move |vi, entry| {
        if entry.source == Source::Send {
            std::iter::from_fn(|| vi.send_done()).for_each(|completion| tell.send(completion).unwrap());
            vi.request_send_notify();
        }
    });
    assert_eq!(b.received(), pattern(1, 5000));
    let completion = told.recv_timeout(SOON).unwrap();
    assert_eq!((completion.status, completion.length), (Status::Done, 5000));
    stop(notify);
}

/// Corresponds to `VipCQNotify`.
fn a_handler_sees_all_entries_of_a_queue(fabric: &dyn Fabric) {
    let cq = queue(fabric);
    let handle = cq.handle();
    let (tell, told) = mpsc::channel();
    let notify = cq
        .notify(0u64, move |count, entry| {
            *count += 1;
            tell.send(entry.context).unwrap();
            Continue(())
        })
        .unwrap();
    for number in 0..100 {
        handle.post_event(number).unwrap();
        if number % 10 == 0 {
            notify.handle().wake();
        }
    }
    (0..100).for_each(|number| assert_eq!(told.recv_timeout(SOON), Ok(number)));
    let (mut cq, count) = stop(notify);
    assert_eq!((count, cq.poll()), (100, None));
}

/// One call in VIA means one notification.
fn a_handler_that_breaks_was_called_once(fabric: &dyn Fabric) {
    let mut cq = queue(fabric);
    let handle = cq.handle();
    (0..10).for_each(|number| handle.post_event(number).unwrap());
    for number in 0..10 {
        let one_shot = cq.notify(Vec::new(), |seen, entry| {
            seen.push(entry.context);
            Break(())
        });
        let (back, seen) = one_shot.unwrap().join(soon()).map_err(|(error, _)| error).unwrap();
        assert_eq!(seen, [number]);
        cq = back;
    }
    assert_eq!(cq.poll(), None);
}

fn stop_gives_queue_and_state_back(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let End { cq, vi, .. } = pair.b;
    let notify = cq.notify(vi, |_, _| Continue(())).map_err(|(error, ..)| error).unwrap();
    let joined = notify.join(shortly());
    let Err((error, notify)) = joined else { panic!("it has no reason to end") };
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let (cq, vi) = stop(notify);
    let (nic, ptag) = (vi.nic().clone(), vi.attributes().ptag);
    pair.b = End { cq, vi, nic, ptag };
    pair.check();
}

/// There is always one more entry: the thread stops nevertheless, and no entry is lost.
fn stop_ends_a_flood(fabric: &dyn Fabric) {
    let cq = queue(fabric);
    let handle = cq.handle();
    let flood = handle.clone();
    let notify = cq
        .notify(0u64, move |next, entry| {
            assert_eq!(entry.context, *next);
            *next += 1;
            flood.post_event(*next).unwrap();
            Continue(())
        })
        .unwrap();
    handle.post_event(0).unwrap();
    let (mut cq, next) = stop(notify);
    assert_eq!(cq.poll().map(|entry| entry.context), Some(next));
}

fn stop_does_not_wait_beyond_its_deadline(fabric: &dyn Fabric) {
    let cq = queue(fabric);
    let handle = cq.handle();
    let gate = Arc::new(Barrier::new(2));
    let theirs = gate.clone();
    let notify = cq
        .notify((), move |_, _| {
            theirs.wait();
            theirs.wait();
            Continue(())
        })
        .unwrap();
    handle.post_event(1).unwrap();
    gate.wait();
    let Err((error, notify)) = notify.stop(Deadline::now()) else { panic!("its handler is at work") };
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    gate.wait();
    stop(notify);
}

fn a_panic_of_the_handler_is_the_stoppers(fabric: &dyn Fabric) {
    let cq = queue(fabric);
    let handle = cq.handle();
    let (state, gone) = mpsc::channel::<()>();
    let notify = cq.notify(state, |_, _| resume_unwind(Box::new("on purpose"))).unwrap();
    handle.post_event(1).unwrap();
    assert_eq!(gone.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected), "its state is dropped");
    let stopped = catch_unwind(AssertUnwindSafe(|| notify.stop(soon()).is_ok()));
    assert_eq!(stopped.unwrap_err().downcast_ref(), Some(&"on purpose"));
}

fn dropping_it_ends_it_without_waiting(fabric: &dyn Fabric) {
    let cq = queue(fabric);
    let handle = cq.handle();
    let gate = Arc::new(Barrier::new(2));
    let theirs = gate.clone();
    let (state, gone) = mpsc::channel::<()>();
    let notify = cq
        .notify(state, move |_, _| {
            theirs.wait();
            theirs.wait();
            Continue(())
        })
        .unwrap();
    handle.post_event(1).unwrap();
    gate.wait();
    drop(notify); // with the handler at work: this returns all the same
    assert_eq!(gone.try_recv(), Err(mpsc::TryRecvError::Empty));
    gate.wait();
    assert_eq!(gone.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    // A sleeping thread ends as well.
    let (state, gone) = mpsc::channel::<()>();
    drop(queue(fabric).notify(state, |_, _| Continue(())).unwrap());
    until("the end of the thread", || {
        (gone.try_recv() == Err(mpsc::TryRecvError::Disconnected)).then_some(())
    });
}
