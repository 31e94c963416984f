//! Messages that a completion queue's owner reads by itself: they are announced to nobody, and yet returned like any
//! other news.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Wake;
use std::time::Duration;

use udeck_via::transport::{Armed, Body};
use udeck_via::{Arrival, Cq, NetAddress, Receive, Source, Vi, ViAttributes, Watcher};

use super::*;

fn post(end: &mut LentEnd, number: u32) {
    end.vi.send_inline(Some(number), b"", b"short").unwrap();
}

/// Polls until a queue is returned.
fn named(end: &mut LentEnd) -> Source {
    let deadline = soon();
    loop {
        if let Some(entry) = end.cq.poll() {
            return entry.source;
        }
        assert!(!deadline.passed(), "nothing is named");
    }
}

/// Two connected ends, of which the second has read a message by itself before.
fn hot_pair() -> (LentEnd, LentEnd) {
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
    while right.cq.poll().is_some() {}
    (left, right)
}

#[test]
fn what_its_owner_has_read_is_named_until_it_was_taken() {
    let (mut left, mut right) = hot_pair();
    for number in 0..200 {
        post(&mut left, number);
        post(&mut left, number);
        for _ in 0..20 {
            assert_eq!(named(&mut right), Source::Receive);
        }
        for _ in 0..2 {
            let Arrival { immediate, body } = right.arrival().unwrap();
            assert_eq!(immediate, Some(number));
            assert!(matches!(body, Body::Inline(bytes) if bytes.bytes() == b"short"));
        }
    }
    while right.cq.poll().is_some() {}
}

/// A message that the owner slept over would lie there until the deadline.
#[test]
fn what_its_owner_has_read_keeps_it_from_sleeping() {
    let (mut left, mut right) = hot_pair();
    for number in 0..100 {
        post(&mut left, number);
        assert_eq!(named(&mut right), Source::Receive);
        assert_eq!(right.cq.arm(), Armed::News);
        assert_eq!(named(&mut right), Source::Receive);
        assert_eq!(right.arrival().unwrap().immediate, Some(number));
        while right.cq.poll().is_some() {}
    }
}

#[test]
fn who_is_read_first_does_not_keep_others_from_being_named() {
    let (a, b) = (nic(), nic());
    let (mut busy, mut right) = pair(&a, &b);
    check(&mut busy, &mut right);
    // A second connection has its queues at the same completion queue.
    let (listener, to) = super::listen(&b);
    let mut quiet = LentEnd::new(&a);
    let attributes = ViAttributes { context: 1, ..*right.vi.attributes() };
    let mut other = udeck_via::Vi::new(&b, attributes).unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| quiet.connect(&to));
        let cq = right.cq.handle();
        listener.wait(soon()).unwrap().accept(&mut other, &cq, &cq, b"").unwrap();
        asking.join().unwrap().unwrap();
    });
    post(&mut quiet, 9);
    let deadline = soon();
    loop {
        post(&mut busy, 1);
        let entry = right.cq.wait(soon(), || false).expect("the busy one has posted");
        if entry.context == 1
            && let Some(arrival) = other.arrival().unwrap()
        {
            assert_eq!(arrival.immediate, Some(9));
            break;
        }
        while right.vi.arrival().unwrap().is_some() {}
        assert!(!deadline.passed(), "the quiet one is never named");
    }
}

/// A queue is returned again as long as a message lies there. A message taken before the queue was armed does not count.
#[test]
fn what_was_taken_is_not_named_again() {
    let (mut left, mut right) = hot_pair();
    let events = right.cq.handle();
    for number in 0..100 {
        post(&mut left, number);
        assert_eq!(named(&mut right), Source::Receive);
        assert_eq!(right.arrival().unwrap().immediate, Some(number));
        let _ = right.cq.arm();
        // The event disarms the queue: while it is armed, messages that its owner reads are announced.
        events.post_event(1).unwrap();
        while let Some(entry) = right.cq.poll() {
            assert_eq!(entry.source, Source::Software);
        }
    }
}

/// A NIC whose helper can be held up: then only the owner of a completion queue reads its sockets.
struct Stoppable {
    nic: Nic,
    door: NetAddress,
    is_held: mpsc::Receiver<()>,
    release: mpsc::Sender<()>,
}

impl Stoppable {
    fn new() -> Self {
        let device = crate::device::open(&options()).unwrap();
        let (started, is_held) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let hold = move |_| {
            let _ = started.send(());
            let _ = released.recv();
        };
        device.network().listeners.listen(b"hold", Box::new(hold)).unwrap();
        let nic = Nic::new(device);
        let door = NetAddress { host: nic.attributes().address.clone(), discriminator: b"hold".to_vec() };
        Stoppable { nic, door, is_held, release }
    }

    /// Holds the helper up while `work` runs. `asking` is another NIC.
    fn without_helper(self, asking: &Nic, work: impl FnOnce()) {
        let Stoppable { nic: _nic, door, is_held, release } = self;
        std::thread::scope(|scope| {
            // The release is dropped before the thread is joined, also by a panic.
            let release = release;
            scope.spawn(|| LentEnd::new(asking).connect(&door));
            is_held.recv_timeout(Duration::from_secs(60)).expect("the helper calls");
            work();
            drop(release);
        });
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// The owner polls although a sleeper is armed, and finds two messages in one read. It takes one of them, and the
/// sleeper is woken for the other.
#[test]
fn what_its_owner_reads_while_it_is_armed_wakes_the_sleeper() {
    let (a, b) = (nic(), Stoppable::new());
    let (mut left, mut right) = pair(&a, &b.nic);
    check(&mut left, &mut right);
    let watcher = Watcher::default();
    let watch = watcher.watch(&right.cq.handle()).unwrap();
    b.without_helper(&a, || {
        for number in 0..20 {
            // From here on the connection is read first, and is not on the list of announced ones.
            post(&mut left, number);
            let _ = right.arrival().unwrap();
            let deadline = soon();
            while right.cq.poll().is_some() || right.cq.arm() != Armed::Yes {
                assert!(!deadline.passed(), "it cannot be armed");
            }
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            watch.wake(&woken.clone().into(), None);
            post(&mut left, number);
            post(&mut left, number);
            assert_eq!(named(&mut right), Source::Receive);
            let _ = right.vi.arrival().unwrap().expect("it was named");
            while !woken.0.load(Ordering::Acquire) {
                assert!(!deadline.passed(), "one message lies there, and nobody is woken");
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = right.arrival().unwrap();
        }
    });
}

/// One VI has only its send queue at the completion queue, and a message lies in its receive queue elsewhere.
/// Messages for the other VI are read nevertheless.
#[test]
fn who_only_sends_here_does_not_keep_others_from_being_read() {
    let (a, b) = (nic(), Stoppable::new());
    let (listener, to) = listen(&b.nic);
    let (mut here, mut there) = (Cq::new(&b.nic).unwrap(), Cq::new(&b.nic).unwrap());
    let accepted = |context, receive: &Cq| {
        let attributes = ViAttributes { context, receive: Receive::Lent, ..ViAttributes::new(b.nic.ptag()) };
        let (mut end, mut vi) = (LentEnd::new(&a), Vi::new(&b.nic, attributes).unwrap());
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| end.connect(&to));
            let request = listener.wait(soon()).unwrap();
            request.accept(&mut vi, &here.handle(), &receive.handle(), b"").unwrap();
            asking.join().unwrap().unwrap();
        });
        (end, vi)
    };
    let (mut sends_here, _vi) = accepted(1, &there);
    let (mut both, _other) = accepted(2, &here);
    b.without_helper(&a, || {
        while there.poll().is_some() {}
        post(&mut sends_here, 1);
        let deadline = soon();
        while there.poll().is_none() {
            assert!(!deadline.passed(), "what came is not named at the other queue");
        }
        // The loop takes the first news of the send queue.
        while here.poll().is_some() {}
        post(&mut both, 2);
        while here.poll().is_none_or(|entry| (entry.context, entry.source) != (2, Source::Receive)) {
            assert!(!deadline.passed(), "what came is never read");
        }
    });
}
