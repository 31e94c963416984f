//! Floods: more messages than a receiver can take, from many senders at once, and from senders that never wait.

use std::thread;

use udeck_via::{Arrival, Cq, Descriptor, Error, Nic, Vi, ViAttributes};

use crate::kit::{Door, Pair, assert_bytes, contents, pattern, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "flood";
pub const CASES: &[Case] = &[
    case!(many_to_one_all_arrive_in_order),
    case!(a_flood_of_short_messages_is_held_back),
    case!(a_flood_of_long_messages_is_held_back),
];

// ---- many to one ----

/// Number of NICs that send, of VIs on each, and of messages of each VI.
const NICS: usize = 4;
const VIS: usize = 10;
const EACH: usize = 40;

/// A message: some fit into their descriptor, some do not.
fn message(vi: usize, number: usize) -> Vec<u8> {
    pattern(vi * EACH + number, [0, 7, 48, 49, 700][(vi + number) % 5])
}

/// Posts a message as soon as there is room.
fn post(vi: &mut Vi, bytes: &[u8], immediate: usize) {
    let mut region = vi.nic().region(bytes.len(), vi.attributes().ptag).unwrap();
    region.copy_from_slice(bytes);
    let mut waiting = Some(Descriptor::new([region]).immediate(immediate as u32));
    until("room to send", || match vi.post_send(waiting.take().expect("not posted yet")) {
        Ok(()) => Some(()),
        Err((Error::Full { .. }, back)) => {
            waiting = Some(back);
            while vi.send_done().is_some() {}
            None
        }
        Err((error, _)) => panic!("{error}"),
    });
}

/// A VI with a receive posted for each message of its sender.
fn receiving_vi(nic: &Nic, context: usize) -> Vi {
    let attributes = ViAttributes { context: context as u64, ..ViAttributes::new(nic.ptag()) };
    let mut vi = Vi::new(nic, attributes).unwrap();
    for number in 0..EACH {
        let region = nic.region(message(context, number).len(), attributes.ptag).unwrap();
        vi.post_receive(Descriptor::new([region])).expect("a receive is taken");
    }
    vi
}

/// Each VI's messages keep their order whichever VIs send as well, and the completion queue omits none.
fn many_to_one_all_arrive_in_order(fabric: &dyn Fabric) {
    let receiver = fabric.open(&Options::default());
    assert!(receiver.attributes().max_descriptors_per_queue >= EACH, "a queue takes {EACH} descriptors");
    let senders: Vec<Nic> = (0..NICS).map(|_| fabric.open(&Options::default())).collect();
    let send_cqs: Vec<Cq> = senders.iter().map(|nic| Cq::new(nic).unwrap()).collect();
    let (mut cq, door) = (Cq::new(&receiver).unwrap(), Door::new(&receiver, b"all"));
    let (mut left, mut right): (Vec<Vec<Vi>>, Vec<Vi>) = Default::default();
    for (nic, send_cq) in senders.iter().zip(&send_cqs) {
        left.push(Vec::new());
        for _ in 0..VIS {
            let mut vi = Vi::new(nic, ViAttributes::new(nic.ptag())).unwrap();
            let mut peer = receiving_vi(&receiver, right.len());
            join(&door, (&mut vi, send_cq), (&mut peer, &cq));
            left.last_mut().expect("just pushed").push(vi);
            right.push(peer);
        }
    }
    thread::scope(|scope| {
        for (at, vis) in left.iter_mut().enumerate() {
            scope.spawn(move || {
                for number in 0..EACH {
                    for (vi, own) in vis.iter_mut().zip(at * VIS..) {
                        post(vi, &message(own, number), number);
                    }
                }
            });
        }
        let mut next = vec![0; right.len()];
        while next.iter().sum::<usize>() < right.len() * EACH {
            let at = cq.wait(soon(), || false).expect("messages are still to come").context as usize;
            while let Some(completion) = right[at].receive_done() {
                assert_eq!(completion.immediate, Some(next[at] as u32), "in order on each VI");
                assert_bytes(&contents(&completion), &message(at, next[at]));
                next[at] += 1;
            }
        }
    });
}

fn join(door: &Door, (asker, asker_cq): (&mut Vi, &Cq), (answerer, answerer_cq): (&mut Vi, &Cq)) {
    let (asker_cq, answerer_cq) = (asker_cq.handle(), answerer_cq.handle());
    thread::scope(|scope| {
        let asking = scope.spawn(|| asker.connect(&door.address, &asker_cq, &asker_cq, b"", soon()));
        let request = door.listener.wait(soon()).expect("a request");
        request.accept(answerer, &answerer_cq, &answerer_cq, b"").unwrap();
        asking.join().expect("no panic").unwrap();
    });
}

// ---- a sender that never waits ----

const MESSAGES: usize = 3000;

/// Takes the next message, whose number is `taken`.
fn take(pair: &mut Pair, taken: &mut usize) {
    let arrival: Arrival = pair.b.arrival();
    assert_eq!(arrival.immediate, Some(*taken as u32), "nothing is lost, and nothing overtakes");
    *taken += 1;
}

/// The receiver takes one message whenever the sender cannot continue. So the sender learns that it is too fast, and
/// the messages that wait for the receiver stay within the bounds of a queue.
fn is_held_back(fabric: &dyn Fabric, len: usize) {
    let mut pair = Pair::lent(fabric);
    let most = pair.a.nic.attributes().max_descriptors_per_queue;
    let (mut sent, mut taken, mut held_back) = (0, 0, 0);
    let deadline = soon();
    while sent < MESSAGES {
        let descriptor = Descriptor::new([pair.a.region(&pattern(sent, len))]).immediate(sent as u32);
        match pair.a.vi.post_send(descriptor) {
            Ok(()) => sent += 1,
            Err((Error::Full { .. }, _)) => {
                held_back += 1;
                if taken < sent {
                    take(&mut pair, &mut taken);
                } else {
                    // Over a network, news of the room may come late.
                    assert!(!deadline.passed(), "everything was taken, and there is no room");
                    thread::yield_now();
                }
                while let Some(completion) = pair.a.vi.send_done() {
                    assert_eq!(completion.length, len);
                }
            }
            Err((error, _)) => panic!("{error}"),
        }
        assert!(sent - taken <= 2 * most, "{sent} sent and {taken} taken, with queues of {most}");
        let blocks = pair.a.nic.outbox().usage().blocks;
        assert!(blocks <= most + 1, "{blocks} blocks for a queue of {most} descriptors");
    }
    assert!(held_back > 0, "{MESSAGES} messages fit queues of {most}");
    while taken < sent {
        take(&mut pair, &mut taken);
    }
    assert!(pair.b.vi.arrival().expect("the connection stands").is_none(), "no more than was sent");
}

fn a_flood_of_short_messages_is_held_back(fabric: &dyn Fabric) {
    is_held_back(fabric, 8);
}

fn a_flood_of_long_messages_is_held_back(fabric: &dyn Fabric) {
    is_held_back(fabric, 600);
}
