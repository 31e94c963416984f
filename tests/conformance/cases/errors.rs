//! Messages that find no place: the connection breaks, and both sides learn the reason.

use std::time::Duration;

use udeck_via::{Descriptor, Error, State, Status};

use crate::kit::{End, Pair, contents, pattern, regions, soon, until};
use crate::{Case, Fabric};

const TOPIC: &str = "errors";
pub const CASES: &[Case] = &[
    case!(a_receive_too_short_is_a_length_error),
    case!(a_message_without_a_receive_breaks_the_connection),
    case!(an_error_flushes_the_receives_behind_it),
    case!(an_error_reports_every_send),
    case!(a_broken_pair_connects_again),
    case!(one_broken_connection_leaves_the_others_alone),
    case!(errors_say_what_happened),
];

/// Asserts that the peer of a VI that broke the connection learns the reason when it sends.
fn assert_told_of_the_descriptor(pair: &mut Pair) {
    let mut pause = Duration::from_millis(1);
    let error = until("the sender learns it", || {
        // The pauses grow, so that the queue has room for all posts until the news has come over a network, however slow
        // the machine is: no completion is taken here.
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_secs(1));
        let descriptor = Descriptor::new([pair.a.region(b"x")]);
        pair.a.vi.post_send(descriptor).err().map(|(error, _)| error)
    });
    assert!(matches!(&error, Error::Lost(why) if why.contains("descriptor")), "{error}");
    assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Error, State::Error));
}

fn a_receive_too_short_is_a_length_error(fabric: &dyn Fabric) {
    for (room, len) in [(47, 48), (0, 1), (48, 49), (4096, 10_000)] {
        let mut pair = Pair::posted(fabric);
        let bytes = pattern(1, len);
        pair.b.post_receive(room);
        pair.a.post_send(&bytes);
        let completion = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((completion.status, completion.length), (Status::LengthError, room));
        assert_eq!(contents(&completion), bytes[..room], "what fitted is there");
        assert_told_of_the_descriptor(&mut pair);
    }
}

fn a_message_without_a_receive_breaks_the_connection(fabric: &dyn Fabric) {
    for len in [0, 10, 5000] {
        let mut pair = Pair::posted(fabric);
        pair.a.post_send(&pattern(1, len));
        until("the receiver finds it", || {
            assert!(pair.b.vi.receive_done().is_none());
            (pair.b.vi.state() == State::Error).then_some(())
        });
        assert_told_of_the_descriptor(&mut pair);
    }
}

fn an_error_flushes_the_receives_behind_it(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for room in [1, 100, 200] {
        pair.b.post_receive(room);
    }
    for len in [2, 100] {
        pair.a.post_send(&pattern(1, len));
    }
    assert_eq!(pair.b.vi.receive_wait(soon()).unwrap().status, Status::LengthError);
    for room in [100, 200] {
        let completion = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((completion.status, completion.length), (Status::Flushed, 0));
        assert_eq!(completion.descriptor.unwrap().len(), room);
    }
    assert!(pair.b.vi.receive_done().is_none(), "messages behind the error are not received");
}

fn an_error_reports_every_send(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let lengths = [5000, 6000, 10, 7000];
    for len in lengths {
        pair.a.post_send(&pattern(len, len));
    }
    until("the receiver finds the first", || {
        pair.b.vi.receive_done();
        (pair.b.vi.state() == State::Error).then_some(())
    });
    until("the sender learns it", || {
        pair.a.vi.receive_done();
        (pair.a.vi.state() == State::Error).then_some(())
    });
    for len in lengths {
        let completion = pair.a.vi.send_wait(soon()).expect("every send is reported");
        assert_eq!(regions(completion.descriptor.unwrap())[0][..], pattern(len, len));
    }
    assert!(pair.a.vi.send_done().is_none());
}

fn a_broken_pair_connects_again(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for _ in 0..5 {
        pair.a.post_send(b"nobody waits for this");
        until("the receiver finds it", || {
            pair.b.vi.receive_done();
            (pair.b.vi.state() == State::Error).then_some(())
        });
        pair.a.vi.disconnect();
        pair.b.vi.disconnect();
        while pair.a.vi.send_done().is_some() {}
        pair.connect();
        pair.check();
    }
}

fn one_broken_connection_leaves_the_others_alone(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut other = Pair { a: End::new(&pair.a.nic, |_| {}), b: End::new(&pair.b.nic, |_| {}) };
    other.connect();
    pair.a.post_send(b"nobody waits for this");
    until("the receiver finds it", || {
        pair.b.vi.receive_done();
        (pair.b.vi.state() == State::Error).then_some(())
    });
    other.check();
    assert_told_of_the_descriptor(&mut pair);
    other.check();
}

fn errors_say_what_happened(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    pair.a.vi.disconnect();
    let closed = until("the end", || pair.b.vi.arrival().err());
    assert!(closed.is_final() && closed.to_string().contains("closed"), "{closed}");
    let idle = pair.a.vi.send_inline(None, b"", b"x").unwrap_err();
    assert!(!idle.is_final() && idle.to_string().contains("Idle"), "{idle}");
    fn is_for_threads<T: Send + Sync + std::error::Error + 'static>(_: &T) {}
    is_for_threads(&closed);
}
