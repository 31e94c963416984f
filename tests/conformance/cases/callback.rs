//! The error callback: called when a connection ends by an error, once at each end, whether or not the program polls
//! there; and in no other case. (The transports' own tests produce the errors that a transport itself detects: a peer's
//! death and lost frames.)

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

use udeck_via::{
    Caps, Descriptor, ErrorCode, ErrorEvent, Receive, Reliability, Resource, State, ViAttributes,
};

use crate::kit::{End, Pair, address, pattern, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "callback";
pub const CASES: &[Case] = &[
    case!(a_missing_receive_is_told_at_both_ends, RELIABLE_DELIVERY),
    case!(a_missing_receive_is_told_at_both_ends_of_reliable_reception, RELIABLE_RECEPTION),
    case!(a_short_receive_is_told_at_both_ends, RELIABLE_DELIVERY),
    case!(immediate_data_without_a_receive_are_told, RELIABLE_DELIVERY, RDMA_WRITE),
    case!(peers_are_told, RELIABLE_DELIVERY),
    case!(each_connection_is_told_of, RELIABLE_DELIVERY),
    case!(one_connection_of_many_is_told_of, RELIABLE_DELIVERY),
    case!(an_orderly_end_is_not_told),
    case!(a_dropped_unreliable_message_is_not_told, UNRELIABLE),
    case!(refused_posts_are_not_told),
    case!(errors_go_on_without_a_callback),
];

const CONTEXTS: [u64; 2] = [0xa, 0xb];

/// Events that the callbacks of `a` and `b` received.
struct ErrorEvents([Receiver<ErrorEvent>; 2]);

impl ErrorEvents {
    /// Watches both NICs, and gives their VIs contexts. The pair is idle.
    fn watch(pair: &mut Pair) -> ErrorEvents {
        let ends = [&mut pair.a, &mut pair.b];
        let mut contexts = CONTEXTS.into_iter();
        ErrorEvents(ends.map(|end| {
            let context = contexts.next().expect("one for each");
            end.vi.set_attributes(ViAttributes { context, ..*end.vi.attributes() }).unwrap();
            let (tell, events) = channel();
            end.nic.on_error(move |event| drop(tell.send(event.clone()))).unwrap();
            events
        }))
    }

    /// Waits until both ends have received an event on their VI, while the program polls `b` only. Returns the
    /// reasons.
    fn at_both(&self, pair: &mut Pair, codes: [ErrorCode; 2]) -> [String; 2] {
        let mut why = [String::new(), String::new()];
        for side in [0, 1] {
            let event = until("told", || {
                assert!(pair.b.vi.receive_done().is_none_or(|c| c.status != udeck_via::Status::Done));
                self.0[side].try_recv().ok()
            });
            assert_eq!((event.context, event.resource), (CONTEXTS[side], Resource::Vi));
            assert_eq!(event.code, codes[side], "{}", event.why);
            why[side] = event.why;
        }
        why
    }

    /// Asserts that no further event was received, and none comes until the NICs are closed.
    fn nothing_more(self, pair: Pair) {
        drop(pair);
        for events in self.0 {
            let end = events.recv_timeout(Duration::from_secs(60));
            assert!(matches!(end, Err(RecvTimeoutError::Disconnected)), "{end:?}");
        }
    }
}

fn watched(fabric: &dyn Fabric, reliability: Reliability) -> (Pair, ErrorEvents) {
    let caps = fabric.open(&Options::default()).caps();
    let mut pair = Pair::idle(fabric, &Options::default(), |attributes| {
        attributes.reliability = reliability;
        attributes.enable_rdma_write = caps.has(Caps::RDMA_WRITE);
    });
    let events = ErrorEvents::watch(&mut pair);
    (pair, events)
}

const BROKEN_AT_B: [ErrorCode; 2] = [ErrorCode::ConnectionLost, ErrorCode::ReceiveQueueEmpty];

/// `a` sends a message for which `b` has no place: both ends are notified, exactly once, however often they
/// poll.
fn breaks(pair: &mut Pair, events: &ErrorEvents, len: usize) {
    pair.a.post_send(&pattern(1, len));
    let why = events.at_both(pair, BROKEN_AT_B);
    assert!(why[1].contains("descriptor"), "{why:?}");
    until("the sender finds it by looking, too", || {
        pair.a.vi.receive_done();
        (pair.a.vi.state() == State::Error).then_some(())
    });
    assert_eq!(pair.b.vi.state(), State::Error);
}

fn missing(fabric: &dyn Fabric, reliability: Reliability) {
    for len in [10, 5000] {
        let (mut pair, events) = watched(fabric, reliability);
        pair.connect();
        breaks(&mut pair, &events, len);
        events.nothing_more(pair);
    }
}

fn a_missing_receive_is_told_at_both_ends(fabric: &dyn Fabric) {
    missing(fabric, Reliability::Delivery);
}

fn a_missing_receive_is_told_at_both_ends_of_reliable_reception(fabric: &dyn Fabric) {
    missing(fabric, Reliability::Reception);
}

fn a_short_receive_is_told_at_both_ends(fabric: &dyn Fabric) {
    for len in [48, 5000] {
        let (mut pair, events) = watched(fabric, Reliability::Delivery);
        pair.connect();
        pair.b.post_receive(47);
        breaks(&mut pair, &events, len);
        events.nothing_more(pair);
    }
}

fn immediate_data_without_a_receive_are_told(fabric: &dyn Fabric) {
    let (mut pair, events) = watched(fabric, Reliability::Delivery);
    pair.connect();
    let window = pair.b.nic.window(100, pair.b.ptag).unwrap();
    let descriptor = Descriptor::rdma_write([pair.a.region(&[1; 100])], window.remote()).immediate(1);
    pair.a.vi.post_send(descriptor).unwrap();
    events.at_both(&mut pair, BROKEN_AT_B);
    drop(window);
    events.nothing_more(pair);
}

fn peers_are_told(fabric: &dyn Fabric) {
    let (mut pair, events) = watched(fabric, Reliability::Delivery);
    let addresses = [&pair.b, &pair.a].map(|end| address(&end.nic, b"told"));
    for (end, to) in [&mut pair.a, &mut pair.b].into_iter().zip(&addresses) {
        let cq = end.cq.handle();
        end.vi.peer_request(to, &cq, &cq, b"", soon()).unwrap();
    }
    for end in [&mut pair.a, &mut pair.b] {
        end.vi.peer_wait().unwrap();
    }
    breaks(&mut pair, &events, 10);
    events.nothing_more(pair);
}

fn each_connection_is_told_of(fabric: &dyn Fabric) {
    let (mut pair, events) = watched(fabric, Reliability::Delivery);
    for _ in 0..3 {
        pair.connect();
        breaks(&mut pair, &events, 10);
        pair.a.vi.disconnect();
        pair.b.vi.disconnect();
        while pair.a.vi.send_done().is_some() {}
    }
    pair.connect();
    pair.check();
    events.nothing_more(pair);
}

fn one_connection_of_many_is_told_of(fabric: &dyn Fabric) {
    let (mut pair, events) = watched(fabric, Reliability::Delivery);
    pair.connect();
    let mut other = Pair { a: End::new(&pair.a.nic, |_| {}), b: End::new(&pair.b.nic, |_| {}) };
    other.connect();
    breaks(&mut pair, &events, 10);
    other.check();
    drop(other);
    events.nothing_more(pair);
}

fn an_orderly_end_is_not_told(fabric: &dyn Fabric) {
    let (mut pair, events) = watched(fabric, Reliability::Delivery);
    pair.connect();
    pair.check();
    pair.a.post_send(b"what the peer does not read");
    pair.b.vi.disconnect();
    until("the other learns the end", || {
        pair.a.vi.receive_done();
        (pair.a.vi.state() == State::Error).then_some(())
    });
    events.nothing_more(pair);
}

fn a_dropped_unreliable_message_is_not_told(fabric: &dyn Fabric) {
    let (mut pair, events) = watched(fabric, Reliability::Unreliable);
    pair.connect();
    for len in [10, 5000] {
        pair.a.post_send(&pattern(1, len));
        until("the message has left", || {
            assert!(pair.b.vi.receive_done().is_none());
            pair.a.vi.send_done()
        });
        until("nothing is under way", || {
            assert!(pair.b.vi.receive_done().is_none());
            (pair.a.vi.unread().expect("the connection stands") == 0).then_some(())
        });
    }
    pair.check();
    events.nothing_more(pair);
}

fn refused_posts_are_not_told(fabric: &dyn Fabric) {
    let (mut pair, events) = watched(fabric, Reliability::Delivery);
    let early = Descriptor::new([pair.a.region(b"x")]);
    assert!(pair.a.vi.post_send(early).is_err(), "not connected");
    pair.connect();
    let foreign = pair.a.nic.region(8, pair.a.nic.ptag()).unwrap();
    assert!(pair.a.vi.post_send(Descriptor::new([foreign])).is_err(), "another tag");
    let lent = ViAttributes { receive: Receive::Lent, ..*pair.a.vi.attributes() };
    assert!(pair.a.vi.set_attributes(lent).is_err(), "not idle");
    pair.check();
    events.nothing_more(pair);
}

fn errors_go_on_without_a_callback(fabric: &dyn Fabric) {
    let (mut pair, events) = watched(fabric, Reliability::Delivery);
    pair.a.nic.clear_on_error();
    pair.connect();
    pair.a.post_send(b"nobody waits for this");
    let event = until("told", || {
        pair.b.vi.receive_done();
        events.0[1].try_recv().ok()
    });
    assert_eq!(event.code, ErrorCode::ReceiveQueueEmpty);
    until("the sender finds it by looking", || {
        pair.a.vi.receive_done();
        (pair.a.vi.state() == State::Error).then_some(())
    });
    assert!(matches!(events.0[0].try_recv(), Err(TryRecvError::Empty | TryRecvError::Disconnected)));
    events.nothing_more(pair);
}
