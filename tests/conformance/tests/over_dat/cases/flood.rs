//! Floods: more messages than a receiver can take, from many senders at once, and from senders that never wait.

use std::thread;

use udeck_conformance::both::{End as _, PostStatus};
use udeck_conformance::kit::{assert_bytes, pattern, soon, until};
use udeck_conformance::{Case, Fabric, Options};
use udeck_dat::{Connection, Ep, EpAttributes, Evd, Event, Ia, Lmr, Pz, Status};
use udeck_via::Deadline;

use crate::end::{End, Pair};

const TOPIC: &str = "flood";
pub const CASES: &[Case] = &[
    case!(many_to_one_all_arrive_in_order),
    case!(a_flood_of_short_messages_is_held_back),
    case!(a_flood_of_long_messages_is_held_back),
];

/// Number of NICs that send, of end points on each, and of messages of each.
const NICS: usize = 3;
const EPS: usize = 5;
const EACH: usize = 40;

/// A message: some fit into their descriptor, some do not.
fn message(sender: usize, number: usize) -> Vec<u8> {
    pattern(sender * EACH + number, [0, 7, 48, 49, 700][(sender + number) % 5])
}

/// Each end point's messages keep their order whichever end points send as well, and the one dispatcher omits
/// none.
fn many_to_one_all_arrive_in_order(fabric: &dyn Fabric) {
    let ia = Ia::on_nic(&fabric.open(&Options::default())).unwrap();
    let (pz, evd, requests) = (Pz::new(&ia), Evd::new(&ia, 0), Evd::new(&ia, 0));
    let psp = udeck_dat::Psp::any(&requests).unwrap();
    let mut receivers = Vec::new();
    let senders: Vec<Vec<End>> = (0..NICS)
        .map(|_| {
            let nic = fabric.open(&Options::default());
            let connected = |_| {
                let sender = End::on(&nic);
                let connections = Evd::new(&ia, 0);
                let ep = Ep::new(&pz, &evd, &evd, &connections, EpAttributes::default()).unwrap();
                for number in 0..EACH {
                    let room = message(receivers.len(), number).len();
                    let cookie = (receivers.len() * EACH + number) as u64;
                    ep.post_receive(Lmr::new(&pz, room).unwrap(), cookie).unwrap();
                }
                sender.request_connection(&psp.address(), b"");
                let Event::Request(request) = requests.wait(soon()).unwrap() else { panic!() };
                ep.accept(request, b"").map_err(|(error, _)| error).unwrap();
                assert_eq!(sender.told(), Connection::Established);
                receivers.push(ep);
                sender
            };
            (0..EPS).map(connected).collect()
        })
        .collect();
    thread::scope(|scope| {
        for (nic, ends) in senders.into_iter().enumerate() {
            scope.spawn(move || {
                let mut ends = ends;
                for number in 0..EACH {
                    for (end, own) in ends.iter_mut().zip(nic * EPS..) {
                        end.post_send(&message(own, number));
                    }
                }
                ends.iter_mut().for_each(|end| (0..EACH).for_each(|_| drop(end.sent())));
                // Sent messages arrive, even after the end of the connection.
            });
        }
        let mut next = vec![0; receivers.len()];
        while next.iter().sum::<usize>() < receivers.len() * EACH {
            let Event::Dto(finished) = evd.wait(soon()).expect("messages are still to come") else {
                panic!()
            };
            let at = receivers.iter().position(|ep| ep.id() == finished.ep).expect("one of ours");
            assert_eq!((finished.status, finished.cookie), (Status::Success, (at * EACH + next[at]) as u64));
            assert_bytes(&finished.iov.into_lmr()[..finished.length], &message(at, next[at]));
            next[at] += 1;
        }
    });
}

const MESSAGES: usize = 3000;

/// Takes the next message, whose number is `taken`.
fn take(b: &mut End, taken: &mut usize, len: usize) {
    b.post_receive(&[len]);
    assert_bytes(&b.received(), &pattern(*taken, len));
    *taken += 1;
}

/// The receiver takes one message whenever the sender cannot continue: the sender learns that it is too fast.
fn is_held_back(fabric: &dyn Fabric, len: usize) {
    let Pair { a, mut b, .. } = Pair::with(fabric, EpAttributes::default().max_receives(64).max_requests(64));
    let (mut sent, mut taken, mut held_back) = (0, 0, 0);
    let deadline = soon();
    while sent < MESSAGES {
        match a.ep.post_send(a.lmr(&pattern(sent, len)), 0) {
            Ok(()) => sent += 1,
            Err((error, _)) => {
                assert!(error.is_full(), "{error}");
                held_back += 1;
                if taken < sent {
                    take(&mut b, &mut taken, len);
                } else {
                    // Over a network, news of the room may come late.
                    assert!(!deadline.passed(), "everything was taken, and there is no room");
                    thread::yield_now();
                }
            }
        }
        while let Some(Event::Dto(finished)) = a.requests.dequeue() {
            assert_eq!((finished.status, finished.length), (Status::Success, len));
        }
    }
    assert!(held_back > 0, "{MESSAGES} messages fit queues of 64");
    while taken < sent {
        take(&mut b, &mut taken, len);
    }
    b.post_receive(&[len]);
    assert!(b.receive_by(Deadline::now()).is_none(), "no more than was sent");
    let mut a = a;
    a.disconnect();
    let flushed = until("the end", || b.receive_by(soon()));
    assert_eq!(flushed.status, PostStatus::Flushed, "no more than was sent");
}

fn a_flood_of_short_messages_is_held_back(fabric: &dyn Fabric) {
    is_held_back(fabric, 8);
}

fn a_flood_of_long_messages_is_held_back(fabric: &dyn Fabric) {
    is_held_back(fabric, 600);
}
