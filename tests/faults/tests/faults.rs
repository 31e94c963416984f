//! Tests of faults: what goes wrong, and what must not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::queues;
use super::script::{Script, hello, ready, woken};
use crate::{BrokenPromises, Fault, PermittedFaults, When, Wrapped};
use udeck_sys::Deadline;
use udeck_via::mem::Fill;
use udeck_via::transport::{
    Body, Device, Notifier, PostedBuffer, Queue, Refused, TransferStatus, ViEndpoint, Waiter,
};
use udeck_via::{NetAddress, Reliability};

const LEVELS: [Reliability; 3] = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];

struct Rig {
    script: Script,
    device: Arc<Wrapped>,
    endpoint: Box<dyn ViEndpoint>,
    waiter: Box<dyn Waiter>,
    notifier: Arc<dyn Notifier>,
}

fn rig(fault: Fault, reliability: Reliability) -> Rig {
    let script = Script::default();
    let device = Wrapped::new(script.device(), fault);
    let waiter = device.waiter().unwrap();
    let notifier = waiter.notifier();
    let endpoint = connect(&device, &notifier, reliability);
    script.take_calls();
    Rig { script, device, endpoint, waiter, notifier }
}

fn connect(
    device: &Arc<Wrapped>,
    notifier: &Arc<dyn Notifier>,
    reliability: Reliability,
) -> Box<dyn ViEndpoint> {
    let queues = queues(notifier, notifier, 9);
    let to = NetAddress { host: vec![1], discriminator: vec![2] };
    device.connect(&to, None, &hello(reliability), queues, Deadline::now()).unwrap().0
}

fn lucky(luck: PermittedFaults) -> Rig {
    rig(Fault::honest(luck, 7), Reliability::Delivery)
}

fn lying(lies: BrokenPromises) -> Rig {
    rig(Fault::lying(lies, 7), Reliability::Delivery)
}

/// Receives one message after another, as text, until there is none.
fn received(endpoint: &mut dyn ViEndpoint) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    std::iter::from_fn(|| endpoint.receive().unwrap())
        .map(|arrival| match arrival.body {
            Body::Inline(bytes) => text(bytes.bytes()),
            Body::Lent(head, lent) => text(head.bytes()) + &text(lent.as_slice().unwrap()),
            Body::Written(len) => format!("{len} written"),
        })
        .collect()
}

#[test]
fn busy_is_no_more_than_a_refusal_and_room_is_named() {
    let Rig { script, mut endpoint, mut waiter, notifier, .. } =
        lucky(PermittedFaults { busy: When::Numbers(vec![0, 1, 3]), ..PermittedFaults::default() });
    assert!(matches!(endpoint.send(None, b"", b"x"), Err(Refused::Busy)));
    assert_eq!(woken(&notifier), 0, "nobody has asked");
    endpoint.request_send_notify();
    assert!(woken(&notifier) > 0);
    assert_eq!(waiter.poll(), Some(ready(Queue::Send)));
    // The last poll comes after the request for room: the refusal must be followed by news, too.
    let refused = endpoint.lend(None, b"", &[(64, 5)], PostedBuffer::Caller(3));
    assert!(matches!(refused, Err((Refused::Busy, PostedBuffer::Caller(3)))), "{refused:?}");
    assert_eq!(waiter.poll(), Some(ready(Queue::Send)));
    assert_eq!(waiter.poll(), None);
    assert_eq!(script.take_calls(), ["request_send_notify", "poll"], "nothing was posted");
    endpoint.send(None, b"", b"x").unwrap();
    assert!(matches!(endpoint.send(None, b"", b"x"), Err(Refused::Busy)));
    assert_eq!(waiter.poll(), None, "room was asked for before the last post that was taken, not since");
}

#[test]
fn a_lost_connection_says_so_at_both_ends_and_names_its_queues() {
    let Rig { script, mut endpoint, mut waiter, .. } =
        lucky(PermittedFaults { lose_after: Some(3), ..PermittedFaults::default() });
    script.arrives_inline(b"one");
    script.arrives_inline(b"two");
    endpoint.send(None, b"", b"x").unwrap();
    assert!(endpoint.receive().unwrap().is_some());
    assert_eq!(waiter.poll(), None);
    endpoint.send(None, b"", b"x").unwrap();
    assert_eq!([waiter.poll(), waiter.poll()], [Queue::Send, Queue::Receive].map(|queue| Some(ready(queue))));
    let closed = script.take_calls().into_iter().find(|call| call.starts_with("close"));
    let why = closed.expect("the peer is told");
    assert!(why.contains("seed 7") && why.contains("connection 0 after 3 messages"), "{why}");
    for refused in [endpoint.send(None, b"", b"x"), endpoint.unread().map(drop)] {
        assert!(matches!(&refused, Err(Refused::Lost(words)) if words.contains("seed 7")), "{refused:?}");
    }
    let (_, held) = endpoint.lend(None, b"", &[(64, 5)], PostedBuffer::Caller(3)).unwrap_err();
    assert!(matches!(held, PostedBuffer::Caller(3)));
    assert!(endpoint.receive().unwrap().is_some(), "what came before the end comes before the end");
    assert!(matches!(endpoint.receive(), Err(Refused::Lost(_))));
    script.ended.lock().push_back((1, TransferStatus::Arrived));
    assert_eq!(
        endpoint.poll_completion(),
        Some((1, TransferStatus::Arrived)),
        "lent memory still comes back"
    );
}

#[test]
fn luck_loses_and_reorders_unreliable_messages_only() {
    for level in LEVELS {
        let messages = |luck: PermittedFaults| {
            let Rig { script, mut endpoint, .. } = rig(Fault::honest(luck, 7), level);
            ["a", "b", "c"].iter().for_each(|bytes| script.arrives_inline(bytes.as_bytes()));
            let mut came = received(&mut *endpoint);
            came.extend(received(&mut *endpoint)); // what comes after a lost one
            came
        };
        let unreliable = level == Reliability::Unreliable;
        let lost = messages(PermittedFaults { lose: When::Numbers(vec![1]), ..PermittedFaults::default() });
        assert_eq!(lost, if unreliable { vec!["a", "c"] } else { vec!["a", "b", "c"] }, "{level:?}");
        let late =
            messages(PermittedFaults { reorder: When::Numbers(vec![1]), ..PermittedFaults::default() });
        assert_eq!(late, if unreliable { ["a", "c", "b"] } else { ["a", "b", "c"] }, "{level:?}");
    }
}

#[test]
fn a_late_message_waits_for_none_that_is_not_there() {
    let Rig { script, mut endpoint, mut waiter, .. } =
        lying(BrokenPromises { reorder: When::Chance(1.0), ..BrokenPromises::default() });
    script.arrives_inline(b"alone");
    assert_eq!(received(&mut *endpoint), ["alone"]);
    script.arrives_inline(b"late");
    script.arrives_inline(b"soon");
    assert!(endpoint.receive().unwrap().is_some());
    assert_eq!(waiter.poll(), Some(ready(Queue::Receive)), "the transport knows no more of the other");
    assert_eq!(received(&mut *endpoint), ["late"]);
}

#[test]
fn dropped_and_doubled_messages_go_home_once() {
    let Rig { script, mut endpoint, .. } = lying(BrokenPromises {
        drop: When::Numbers(vec![0]),
        duplicate: When::Numbers(vec![1]),
        ..BrokenPromises::default()
    });
    script.arrives_lent(b"first");
    script.arrives_lent(b"second");
    // A scripted receipt returns with each of them.
    let home = || script.home.load(Ordering::Relaxed);
    assert!(endpoint.receive().unwrap().is_none());
    assert_eq!(home(), 2);
    assert_eq!(received(&mut *endpoint), ["headsecond", "headsecond"]);
    assert_eq!(home(), 4);
}

#[test]
fn a_repeated_message_comes_without_end_and_nothing_silences_the_transport() {
    let Rig { script, mut endpoint, mut waiter, .. } =
        lying(BrokenPromises { repeat: When::Numbers(vec![1]), ..BrokenPromises::default() });
    for bytes in ["first", "second", "third"] {
        script.arrives_inline(bytes.as_bytes());
    }
    script.news.lock().push_back(ready(Queue::Send));
    let mut named = Vec::new();
    for number in 0..100 {
        let Body::Inline(bytes) = endpoint.receive().unwrap().unwrap().body else { panic!("it is inline") };
        assert_eq!(bytes.bytes(), if number == 0 { &b"first"[..] } else { b"second" });
        named.extend(waiter.poll());
    }
    assert!(named.contains(&ready(Queue::Receive)) && named.contains(&ready(Queue::Send)), "{named:?}");
    endpoint.leave();
}

#[test]
fn a_lent_message_goes_out_in_two_pieces() {
    let Rig { script, mut endpoint, .. } =
        lying(BrokenPromises { split: When::Numbers(vec![1]), ..BrokenPromises::default() });
    for segments in [&[(64, 5)][..], &[(64, 5)], &[(64, 5), (128, 1)]] {
        endpoint.lend(None, b"head", segments, PostedBuffer::Caller(3)).unwrap();
    }
    let calls = script.take_calls();
    let segments = ["[(64, 5)]", "[(64, 2), (66, 3)]", "[(64, 5), (128, 1)]"];
    assert!(calls.iter().zip(segments).all(|(call, segments)| call.contains(segments)), "{calls:?}");
    assert_eq!(calls.len(), 3);
}

#[test]
fn exactly_one_bit_is_altered() {
    let Rig { script, mut endpoint, .. } =
        lying(BrokenPromises { corrupt: When::Chance(1.0), ..BrokenPromises::default() });
    script.arrives_inline(b"inline");
    script.arrives_lent(b"message");
    script.arrives_lent(b"");
    script.arrives_inline(b"");
    let bits = |a: &[u8], b: &[u8]| {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
    };
    let mut next = || endpoint.receive().unwrap().unwrap().body;
    let Body::Inline(bytes) = next() else { panic!("it came inline") };
    assert_eq!(bits(bytes.bytes(), b"inline"), 1);
    let Body::Lent(head, lent) = next() else { panic!("it was lent") };
    assert_eq!((bits(head.bytes(), b"head"), bits(lent.as_slice().unwrap(), b"message")), (0, 1));
    let Body::Lent(head, lent) = next() else { panic!("it was lent") };
    assert_eq!((bits(head.bytes(), b"head"), lent.len()), (1, 0));
    let Body::Inline(bytes) = next() else { panic!("it came inline") };
    assert!(bytes.bytes().is_empty(), "there is nothing to alter");
}

#[test]
fn what_ends_early_is_a_copy_and_ends_once() {
    let Rig { script, device, mut endpoint, mut waiter, .. } =
        lying(BrokenPromises { complete_early: When::Numbers(vec![0]), ..BrokenPromises::default() });
    let mut block = device.outbox().block(10, Fill::Zero).unwrap();
    block.bytes_mut().copy_from_slice(b"0123456789");
    let segments = [(block.offset() + 1, 2), (block.offset() + 5, 3)];
    endpoint.lend(None, b"", &segments, PostedBuffer::Caller(4)).unwrap();
    let calls = script.take_calls();
    assert!(calls[0].starts_with("lend") && calls[0].contains("Block(5 of"), "{calls:?}");
    assert_eq!(waiter.poll(), Some(ready(Queue::Send)));
    assert_eq!(
        [endpoint.poll_completion(), endpoint.poll_completion()],
        [Some((4, TransferStatus::Arrived)), None]
    );
    endpoint.lend(None, b"", &segments, PostedBuffer::Caller(5)).unwrap();
    assert!(script.take_calls().iter().any(|call| call.contains("Caller(5)")), "the truth");
    assert_eq!(endpoint.poll_completion(), None);
}

#[test]
fn a_forgotten_queue_is_named_again_when_it_has_been_empty() {
    let Rig { script, mut waiter, .. } =
        lying(BrokenPromises { forget_wakeup: When::Numbers(vec![1]), ..BrokenPromises::default() });
    let names = |count: usize| script.news.lock().extend((0..count).map(|_| ready(Queue::Receive)));
    names(1);
    assert_eq!(waiter.poll(), Some(ready(Queue::Receive)));
    names(200);
    assert!((0..200).all(|_| waiter.poll().is_none()), "as long as the transport names it");
    script.news.lock().push_back(ready(Queue::Send));
    assert_eq!(waiter.poll(), Some(ready(Queue::Send)), "other queues are");
    while script.calls.lock().len() < 500 {
        assert_eq!(waiter.poll(), None);
    }
    names(1);
    assert_eq!(waiter.poll(), Some(ready(Queue::Receive)), "new news");
}

#[test]
fn rumours_name_what_was_named_before() {
    let Rig { script, mut waiter, .. } =
        lucky(PermittedFaults { spurious_news: When::Chance(1.0), ..PermittedFaults::default() });
    assert_eq!(waiter.poll(), None, "nothing was ever named");
    script.news.lock().push_back(ready(Queue::Receive));
    assert_eq!([waiter.poll(), waiter.poll()], [Some(ready(Queue::Receive)); 2]);
}

#[test]
fn a_waiter_with_something_at_hand_does_not_sleep() {
    let Rig { script, mut endpoint, mut waiter, .. } =
        lucky(PermittedFaults { busy: When::Chance(1.0), ..PermittedFaults::default() });
    let _ = endpoint.send(None, b"", b"x");
    endpoint.request_send_notify();
    waiter.park(Duration::from_millis(5));
    assert_eq!(script.take_calls(), ["request_send_notify"]);
    waiter.poll();
    waiter.park(Duration::from_millis(5));
    assert_eq!(script.take_calls(), ["park 5ms"]);
}

#[test]
fn a_port_that_was_left_is_named_no_more() {
    let luck = PermittedFaults {
        busy: When::Chance(1.0),
        spurious_news: When::Chance(1.0),
        ..PermittedFaults::default()
    };
    let Rig { script, device, mut endpoint, mut waiter, notifier } = lucky(luck);
    let mut other = connect(&device, &notifier, Reliability::Delivery);
    for endpoint in [&mut endpoint, &mut other] {
        let _ = endpoint.send(None, b"", b"x");
        endpoint.request_send_notify();
    }
    script.news.lock().push_back(ready(Queue::Receive));
    endpoint.leave();
    let named = [waiter.poll(), waiter.poll(), waiter.poll()];
    assert_eq!(named, [Queue::Send, Queue::Receive, Queue::Receive].map(|queue| Some(ready(queue))));
    other.leave();
    assert_eq!(waiter.poll(), None, "not as a rumour, either");
}

#[test]
fn each_queue_is_forgotten_where_it_reports() {
    let luck = PermittedFaults { busy: When::Chance(1.0), ..PermittedFaults::default() };
    let Rig { device, mut waiter, notifier, .. } = lucky(luck);
    let elsewhere = device.waiter().unwrap().notifier();
    let queues = queues(&notifier, &elsewhere, 9);
    let to = NetAddress { host: vec![1], discriminator: vec![2] };
    let mut endpoint =
        device.connect(&to, None, &hello(Reliability::Delivery), queues, Deadline::now()).unwrap().0;
    let _ = endpoint.send(None, b"", b"x");
    endpoint.request_send_notify();
    endpoint.leave();
    assert_eq!(waiter.poll(), None);
}

#[test]
fn a_seed_decides_for_each_connection() {
    let refused = |seed: u64| {
        let fault =
            Fault::honest(PermittedFaults { busy: When::Chance(0.5), ..PermittedFaults::default() }, seed);
        assert!(format!("{fault:?}").contains(&format!("seed: {seed}")));
        let Rig { device, endpoint, notifier, .. } = rig(fault, Reliability::Delivery);
        [endpoint, connect(&device, &notifier, Reliability::Delivery)]
            .map(|mut endpoint| (0..64).map(|_| endpoint.send(None, b"", b"x").is_err()).collect::<Vec<_>>())
    };
    let [first, second] = refused(1);
    assert_eq!(refused(1), [first.clone(), second.clone()]);
    assert_ne!(first, second);
    assert_ne!(first, refused(2)[0]);
}
