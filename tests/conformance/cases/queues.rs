//! Completion queues as a resource: their entries, their capacity, their owners, and waits on several.

use std::thread;

use std::sync::Mutex;
use udeck_via::{Cno, Cq, CqEntry, CqHandle, Error, Nic, Receive, Source, State, Status, Vi, ViAttributes};

use crate::kit::{Door, End, Pair, address, nics, shortly, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "queues";
pub const CASES: &[Case] = &[
    case!(the_table_of_completion_queues_fills_and_recovers),
    case!(a_size_that_can_never_be_is_refused),
    case!(a_full_queue_attaches_no_more),
    case!(resize_makes_room_and_never_drops),
    case!(a_failed_connect_gives_the_places_back),
    case!(a_refused_acceptor_tells_the_requester),
    case!(a_lost_connection_keeps_its_places_until_disconnect),
    case!(two_queues_have_a_place_each),
    case!(a_peer_request_has_places),
    case!(a_send_that_is_out_at_disconnect_is_named, HAND_OFF),
    case!(a_send_that_is_out_at_disconnect_keeps_one_place, HAND_OFF),
    case!(a_receive_queue_is_not_named_after_disconnect, HAND_OFF),
    case!(one_wait_on_three_queues),
    case!(a_wait_on_three_queues_ends_at_its_deadline),
    case!(threads_take_turns_on_one_queue),
    case!(vis_come_and_go_while_one_waits),
];

/// An end with a completion queue of `entries` entries.
fn end(nic: &Nic, entries: usize) -> End {
    let mut end = End::new(nic, |attributes| attributes.receive = Receive::Lent);
    end.cq = Cq::with_entries(nic, entries).expect("a completion queue");
    end
}

/// A VI that receives lent.
fn vi(nic: &Nic, context: u64) -> Vi {
    Vi::new(nic, ViAttributes { receive: Receive::Lent, context, ..ViAttributes::new(nic.ptag()) })
        .expect("a VI")
}

/// Two NICs, and an end on each; the first end's queue has `entries` entries, the other's has enough.
fn two(fabric: &dyn Fabric, entries: usize) -> (Door, End, End) {
    let (a, b) = nics(fabric);
    (Door::new(&b, b"door"), end(&a, entries), end(&b, 100))
}

/// Number of free entries, which is the number of events that can be posted. Takes them back.
fn free(cq: &mut Cq) -> usize {
    let handle = cq.handle();
    let mut posted = 0;
    while handle.post_event(0).is_ok() {
        posted += 1;
    }
    let mut taken = 0;
    until("the events", || {
        taken += usize::from(cq.poll().is_some_and(|entry| entry.source == Source::Software));
        (taken == posted).then_some(())
    });
    posted
}

#[track_caller]
fn assert_full<T: std::fmt::Debug>(result: udeck_via::Result<T>) {
    let error = result.expect_err("there is no room");
    assert!(matches!(error, Error::Full { what: "the completion queue", .. }), "{error}");
}

fn the_table_of_completion_queues_fills_and_recovers(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let most = nic.attributes().max_cq;
    for _ in 0..2 {
        let queues: Vec<_> = (0..most).map(|_| Cq::with_entries(&nic, 1).expect("not full yet")).collect();
        let one_more = Cq::with_entries(&nic, 1);
        assert!(matches!(one_more, Err(Error::Full { .. })), "{one_more:?}");
        drop(queues);
    }
}

fn a_size_that_can_never_be_is_refused(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let most = nic.attributes().max_cq_entries;
    assert_eq!(Cq::new(&nic).unwrap().entries(), most);
    let cq = Cq::with_entries(&nic, most).unwrap();
    for never in [0, most + 1] {
        let refused = Cq::with_entries(&nic, never);
        assert!(matches!(refused, Err(Error::InvalidParameter(_))), "{refused:?}");
        let refused = cq.resize(never);
        assert!(matches!(refused, Err(Error::InvalidParameter(_))), "{refused:?}");
        assert_eq!(cq.entries(), most);
    }
}

fn a_full_queue_attaches_no_more(fabric: &dyn Fabric) {
    let (door, mut a, mut b) = two(fabric, 2);
    door.join(&mut a, &mut b);
    assert_full(a.cq.handle().post_event(1));
    let (mut second, own) = (vi(&a.nic, 2), a.cq.handle());
    assert_full(second.connect(&door.address, &own, &own, b"", soon()));
    assert_eq!(second.state(), State::Idle);
    assert!(door.listener.wait(udeck_via::Deadline::now()).is_err(), "no request was made");
    a.vi.disconnect();
    assert_eq!(free(&mut a.cq), 2, "by disconnect");
    b.vi.disconnect();
    door.join(&mut a, &mut b);
    drop(a.vi);
    assert_eq!(free(&mut a.cq), 2, "by drop");
}

fn resize_makes_room_and_never_drops(fabric: &dyn Fabric) {
    let (door, mut a, mut b) = two(fabric, 3);
    door.join(&mut a, &mut b);
    a.cq.handle().post_event(7).unwrap();
    let refused = a.cq.resize(2);
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    assert_eq!(a.cq.entries(), 3);
    a.cq.resize(4).unwrap();
    a.cq.handle().post_event(8).expect("there is room now");
    assert_full(a.cq.handle().post_event(9));
    b.vi.send_inline(Some(1), b"", b"x").unwrap();
    let mut events = Vec::new();
    until("two events and the arrival", || {
        let entry = a.cq.wait(soon(), || false).expect("all of it is there");
        if entry.source == Source::Software {
            events.push(entry.context);
        }
        (events == [7, 8] && a.vi.arrival().unwrap().is_some()).then_some(())
    });
    a.cq.resize(2).expect("the events are taken");
}

fn a_failed_connect_gives_the_places_back(fabric: &dyn Fabric) {
    let (door, mut a, mut b) = two(fabric, 2);
    let nobody = address(&b.nic, b"nobody");
    for _ in 0..2 {
        let failed = a.connect(&nobody, b"");
        assert!(matches!(failed, Err(Error::NoMatch(_))), "{failed:?}");
        let (failed, ()) = door.connect(&mut a, b"", |request| request.reject("no"));
        assert!(matches!(failed, Err(Error::Rejected(_))), "{failed:?}");
        drop(door.stale(&mut a));
        assert_eq!(free(&mut a.cq), 2);
    }
    door.join(&mut a, &mut b);
    assert_eq!(free(&mut a.cq), 0);
}

fn a_refused_acceptor_tells_the_requester(fabric: &dyn Fabric) {
    let (door, mut a, mut b) = two(fabric, 2);
    b.cq.resize(1).unwrap();
    let (asked, answered) = door.connect(&mut a, b"", |request| b.accept(request, b""));
    assert_full(answered);
    assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
    assert_eq!((free(&mut a.cq), free(&mut b.cq)), (2, 1));
    b.cq.resize(2).unwrap();
    door.join(&mut a, &mut b);
}

fn a_lost_connection_keeps_its_places_until_disconnect(fabric: &dyn Fabric) {
    let (door, mut a, mut b) = two(fabric, 3);
    for _ in 0..2 {
        door.join(&mut a, &mut b);
        b.vi.disconnect();
        until("the end", || a.vi.arrival().err());
        assert_eq!((a.vi.state(), free(&mut a.cq)), (State::Error, 1));
        a.vi.disconnect();
        a.vi.disconnect();
        assert_eq!(free(&mut a.cq), 3, "given back, and once only");
    }
}

fn two_queues_have_a_place_each(fabric: &dyn Fabric) {
    let (door, mut a, mut b) = two(fabric, 1);
    let mut other = Cq::with_entries(&a.nic, 1).unwrap();
    let (send, receive) = (a.cq.handle(), other.handle());
    assert_full(a.connect(&door.address, b""));
    thread::scope(|scope| {
        let asker = scope.spawn(|| a.vi.connect(&door.address, &send, &receive, b"", soon()));
        b.accept(door.listener.wait(soon()).unwrap(), b"").unwrap();
        asker.join().unwrap().unwrap();
    });
    assert_eq!((free(&mut a.cq), free(&mut other)), (0, 0));
    let mut second = vi(&a.nic, 2);
    let roomy = Cq::with_entries(&a.nic, 1).unwrap().handle();
    assert_full(second.connect(&door.address, &roomy, &receive, b"", soon()));
    assert_full(second.connect(&door.address, &send, &roomy, b"", soon()));
    a.vi.disconnect();
    assert_eq!((free(&mut a.cq), free(&mut other)), (1, 1));
}

fn a_peer_request_has_places(fabric: &dyn Fabric) {
    let (_door, mut a, mut b) = two(fabric, 2);
    let ask = |end: &mut End, other: &Nic| {
        let cq = end.cq.handle();
        end.vi.peer_request(&address(other, b"we two"), &cq, &cq, b"", soon())
    };
    a.cq.handle().post_event(1).unwrap();
    assert_full(ask(&mut a, &b.nic));
    assert_eq!(a.vi.state(), State::Idle);
    assert_eq!(a.cq.poll().map(|entry| entry.context), Some(1));
    ask(&mut a, &b.nic).unwrap();
    assert_eq!(free(&mut a.cq), 0, "while the request is under way");
    a.vi.disconnect();
    assert_eq!(free(&mut a.cq), 2, "withdrawn");
    // A remainder of the withdrawn request does not hinder the next one for long.
    until("a request", || ask(&mut a, &b.nic).ok());
    ask(&mut b, &a.nic).unwrap();
    a.vi.peer_wait().unwrap();
    b.vi.peer_wait().unwrap();
    assert_eq!(free(&mut a.cq), 0, "connected");
    drop(a.vi);
    assert_eq!(free(&mut a.cq), 2);
}

/// The receiver reads the message in place, and gives it back after its sender has continued.
fn a_send_that_is_out_at_disconnect_is_named(fabric: &dyn Fabric) {
    for reconnected in [false, true] {
        let mut pair = Pair::with(fabric, &Options::default(), |attributes| {
            attributes.receive = Receive::Lent;
            attributes.context = 9;
        });
        pair.a.post_send(&[1; 5000]);
        let arrival = pair.b.arrival();
        pair.a.vi.disconnect();
        if reconnected {
            pair.b.vi.disconnect();
            pair.connect();
        }
        pair.a.drain_news();
        assert!(pair.a.vi.send_done().is_none(), "the peer still reads it");
        drop(arrival);
        let named = CqEntry { context: 9, source: Source::Send };
        assert_eq!(pair.a.cq.wait(soon(), || false), Some(named));
        let completion = pair.a.vi.send_done().expect("it is named when it is over");
        assert_eq!(completion.status, Status::Flushed);
    }
}

/// The send queue keeps its place until the receiver has given the message back; the receive queue has none.
fn a_send_that_is_out_at_disconnect_keeps_one_place(fabric: &dyn Fabric) {
    let (door, mut a, mut b) = two(fabric, 3);
    for dropped in [false, true] {
        door.join(&mut a, &mut b);
        a.post_send(&[1; 5000]);
        let arrival = b.arrival();
        a.vi.disconnect();
        assert_eq!(free(&mut a.cq), 2);
        if dropped {
            a.vi = vi(&a.nic, 0);
            assert_eq!(free(&mut a.cq), 3, "nobody is left to be told");
        }
        drop(arrival);
        if !dropped {
            until("its end", || a.vi.send_done());
            assert_eq!(free(&mut a.cq), 3);
        }
        b.vi.disconnect();
    }
}

/// The receive queue has no place any more, though the send queue has one, and whatever the peer does.
fn a_receive_queue_is_not_named_after_disconnect(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    pair.a.post_send(&[1; 5000]);
    let arrival = pair.b.arrival();
    pair.a.vi.disconnect();
    pair.a.drain_news();
    pair.b.vi.disconnect();
    let named: Vec<_> = std::iter::from_fn(|| pair.a.cq.poll()).collect();
    assert!(named.iter().all(|entry| entry.source == Source::Send), "{named:?}");
    drop(arrival);
    until("the send is over", || pair.a.vi.send_done());
}

/// Three connections from one NIC. Messages arrive on two of its completion queues, and on one of another NIC.
struct Three {
    senders: Vec<Vi>,
    receivers: Vec<Vi>,
    queues: Vec<Cq>,
    _send_cq: Cq,
}

impl Three {
    fn new(fabric: &dyn Fabric) -> Self {
        let (from, (b, c)) = (fabric.open(&Options::default()), nics(fabric));
        let send_cq = Cq::new(&from).unwrap();
        let (mut senders, mut receivers, mut queues) = (Vec::new(), Vec::new(), Vec::new());
        for (context, nic) in [(0, &b), (1, &b), (2, &c)] {
            let (cq, door) = (Cq::new(nic).unwrap(), Door::new(nic, &[context as u8]));
            let (left, right) = join(&door, (&from, &send_cq.handle()), (nic, &cq.handle()), context);
            senders.push(left);
            receivers.push(right);
            queues.push(cq);
        }
        Three { senders, receivers, queues, _send_cq: send_cq }
    }
}

fn join(door: &Door, (a, a_cq): (&Nic, &CqHandle), (b, b_cq): (&Nic, &CqHandle), context: u64) -> (Vi, Vi) {
    let (mut left, mut right) = (vi(a, context), vi(b, context));
    thread::scope(|scope| {
        let asker = scope.spawn(|| left.connect(&door.address, a_cq, a_cq, b"", soon()));
        let request = door.listener.wait(soon()).unwrap();
        request.accept(&mut right, b_cq, b_cq, b"").unwrap();
        asker.join().unwrap().unwrap();
    });
    (left, right)
}

fn one_wait_on_three_queues(fabric: &dyn Fabric) {
    const ROUNDS: u32 = 60;
    let Three { mut senders, mut receivers, mut queues, _send_cq } = Three::new(fabric);
    let taken = Mutex::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut cno, mut queues) = (Cno::default(), queues.iter_mut().collect::<Vec<_>>());
            for round in 0..ROUNDS {
                let arrival = until("a message", || {
                    let found = cno.wait(&mut queues, soon(), || false).unwrap();
                    let (at, entry) = found.expect("woken");
                    assert_eq!(entry.context, at as u64, "the entry is of the queue that it says");
                    receivers[at].arrival().unwrap()
                });
                assert_eq!(arrival.immediate, Some(round));
                *taken.lock().unwrap() += 1;
            }
        });
        for round in 0..ROUNDS {
            senders[round as usize % 3].send_inline(Some(round), b"", b"").unwrap();
            until("the waiter takes it", || (*taken.lock().unwrap() > round).then_some(()));
            if round % 4 == 0 {
                // The wait is so long that the waiter probably sleeps, but the test does not depend on that.
                let mut idle = Cq::new(senders[0].nic()).unwrap();
                assert_eq!(idle.wait(shortly(), || false), None);
            }
        }
    });
}

fn a_wait_on_three_queues_ends_at_its_deadline(fabric: &dyn Fabric) {
    let Three { senders: _senders, receivers: _receivers, mut queues, _send_cq } = Three::new(fabric);
    let (mut cno, mut queues) = (Cno::default(), queues.iter_mut().collect::<Vec<_>>());
    while cno.poll(&mut queues).is_some() {}
    for _ in 0..2 {
        let deadline = shortly();
        assert_eq!(cno.wait(&mut queues, deadline, || false).unwrap(), None);
        assert!(deadline.passed());
    }
}

/// Each thread waits, takes the message that the entry names, and passes the queue on; messages come on several
/// VIs.
fn threads_take_turns_on_one_queue(fabric: &dyn Fabric) {
    const VIS: usize = 5;
    const EACH: u32 = 100;
    let (a, b) = nics(fabric);
    let (send_cq, cq) = (Cq::new(&a).unwrap(), Cq::new(&b).unwrap());
    let door = Door::new(&b, b"turns");
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for context in 0..VIS as u64 {
        let (left, right) = join(&door, (&a, &send_cq.handle()), (&b, &cq.handle()), context);
        senders.push(left);
        receivers.push((right, 0));
    }
    let shared = Mutex::new((cq, receivers, 0));
    let total = VIS as u32 * EACH;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let (cq, receivers, taken) = &mut *shared.lock().unwrap();
                    if *taken == total {
                        return;
                    }
                    let entry = cq.wait(soon(), || false).expect("there are messages to come");
                    let (vi, next) = &mut receivers[entry.context as usize];
                    if let Some(arrival) = vi.arrival().unwrap() {
                        assert_eq!(arrival.immediate, Some(*next));
                        *next += 1;
                        *taken += 1;
                    }
                }
            });
        }
        for number in 0..EACH {
            for sender in &mut senders {
                until("room", || sender.send_inline(Some(number), b"", b"").ok());
            }
        }
    });
}

/// One thread waits on a queue, while another connects and disconnects VIs there: the quiet VI among them is
/// heard.
fn vis_come_and_go_while_one_waits(fabric: &dyn Fabric) {
    const ROUNDS: u32 = 40;
    const QUIET: u64 = 1;
    const GUEST: u64 = 2;
    let (a, b) = nics(fabric);
    let (send_cq, mut cq) = (Cq::new(&a).unwrap(), Cq::with_entries(&b, 4).unwrap());
    let (send, receive) = (send_cq.handle(), cq.handle());
    let door = Door::new(&b, b"come and go");
    let (mut quiet, mut heard) = join(&door, (&a, &send), (&b, &receive), QUIET);
    let (taken, guest) = (Mutex::new(0), Mutex::new(None::<Vi>));
    thread::scope(|scope| {
        scope.spawn(|| {
            while *taken.lock().unwrap() < ROUNDS {
                let entry = cq.wait(soon(), || false).expect("there is more to come");
                if entry.context == GUEST {
                    drop(guest.lock().unwrap().as_mut().map(Vi::arrival));
                } else if let Some(arrival) = heard.arrival().unwrap() {
                    let mut taken = taken.lock().unwrap();
                    assert_eq!(arrival.immediate, Some(*taken));
                    *taken += 1;
                }
            }
        });
        for round in 0..ROUNDS {
            let (mut left, right) = join(&door, (&a, &send), (&b, &receive), GUEST);
            *guest.lock().unwrap() = Some(right);
            left.send_inline(None, b"", b"hello").unwrap();
            quiet.send_inline(Some(round), b"", b"").unwrap();
            if round % 2 == 0 {
                *guest.lock().unwrap() = None;
            }
            until("the waiter takes it", || (*taken.lock().unwrap() > round).then_some(()));
            *guest.lock().unwrap() = None;
        }
    });
}
