//! Peer-to-peer connection. The NICs' addresses determine which side connects and which listens: each case treats
//! both sides alike, or covers both orders.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use udeck_via::{Deadline, Error, Listener, Reliability, State};

use crate::kit::{End, Pair, address, assert_bytes, pattern, shortly, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "peer";
pub const CASES: &[Case] = &[
    case!(both_ask_and_are_connected),
    case!(both_ask_at_once_and_one_connection_results),
    case!(a_peer_request_does_not_wait),
    case!(a_lone_peer_request_times_out),
    case!(a_peer_request_that_timed_out_connects_nobody),
    case!(a_side_that_gave_up_resets_the_other),
    case!(a_peer_request_is_withdrawn),
    case!(a_withdrawn_peer_request_asks_no_more),
    case!(a_dropped_vi_withdraws_its_peer_request),
    case!(peer_requests_need_an_idle_vi),
    case!(peers_meet_at_the_same_discriminator_only),
    case!(a_third_one_does_not_get_between),
    case!(a_listener_does_not_answer_peers),
    case!(peers_of_different_levels_never_connect, RELIABLE_DELIVERY, RELIABLE_RECEPTION),
    case!(two_vis_of_one_nic_are_peers),
    case!(names_of_peers_are_bounded),
    case!(private_data_of_peers_travel_both_ways),
];

const NAME: &[u8] = b"peers";

fn ask(end: &mut End, other: &End, name: &[u8], deadline: Deadline) -> udeck_via::Result {
    let cq = end.cq.handle();
    end.vi.peer_request(&address(&other.nic, name), &cq, &cq, b"", deadline)
}

/// Both sides request and wait; `first` requests first.
fn meet(first: &mut End, second: &mut End) {
    ask(first, second, NAME, soon()).unwrap();
    ask(second, first, NAME, soon()).unwrap();
    first.vi.peer_wait().unwrap();
    second.vi.peer_wait().unwrap();
}

fn idle(fabric: &dyn Fabric) -> Pair {
    Pair::idle(fabric, &Options::default(), |_| {})
}

/// Asserts that the two are connected with each other, by one connection.
fn assert_joined(pair: &mut Pair) {
    assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Connected, State::Connected));
    pair.check();
    std::mem::swap(&mut pair.a, &mut pair.b);
    pair.check();
}

fn part(pair: &mut Pair) {
    pair.a.vi.disconnect();
    pair.b.vi.disconnect();
}

/// Runs `case` with either side in the first place.
fn both_orders(fabric: &dyn Fabric, case: impl Fn(&mut Pair)) {
    let mut pair = idle(fabric);
    case(&mut pair);
    part(&mut pair);
    std::mem::swap(&mut pair.a, &mut pair.b);
    case(&mut pair);
}

fn both_ask_and_are_connected(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        meet(&mut pair.a, &mut pair.b);
        assert_joined(pair);
    });
}

fn both_ask_at_once_and_one_connection_results(fabric: &dyn Fabric) {
    let mut pair = idle(fabric);
    for _ in 0..50 {
        let (barrier, Pair { a, b }) = (Barrier::new(2), &mut pair);
        let (to_a, to_b) = (address(&a.nic, NAME), address(&b.nic, NAME));
        let join = |end: &mut End, to: &udeck_via::NetAddress| {
            let cq = end.cq.handle();
            barrier.wait();
            end.vi.peer_request(to, &cq, &cq, b"", soon()).unwrap();
            end.vi.peer_wait().unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| join(a, &to_b));
            join(b, &to_a);
        });
        assert_joined(&mut pair);
        pair.a.vi.disconnect();
        until("the other learns the end of its only connection", || {
            pair.b.vi.receive_done();
            (pair.b.vi.state() == State::Error).then_some(())
        });
        part(&mut pair);
    }
}

fn a_peer_request_does_not_wait(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        ask(&mut pair.a, &pair.b, NAME, soon()).unwrap();
        assert!(pair.a.vi.peer_done().unwrap().is_none(), "the other has not asked");
        assert_eq!(pair.a.vi.state(), State::ConnectPending);
        let error = pair.a.vi.send_inline(None, b"", b"x").unwrap_err();
        assert!(matches!(error, Error::InvalidState { state: State::ConnectPending, .. }), "{error}");
        ask(&mut pair.b, &pair.a, NAME, soon()).unwrap();
        for end in [&mut pair.b, &mut pair.a] {
            until("the connection", || end.vi.peer_done().unwrap());
        }
        assert_joined(pair);
    });
}

fn a_lone_peer_request_times_out(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        ask(&mut pair.a, &pair.b, NAME, shortly()).unwrap();
        let error = pair.a.vi.peer_wait().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("peers"), "{error}");
        assert_eq!(pair.a.vi.state(), State::Idle);
        ask(&mut pair.a, &pair.b, NAME, shortly()).unwrap();
        let error = until("the time-out", || pair.a.vi.peer_done().err());
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        meet(&mut pair.a, &mut pair.b);
        assert_joined(pair);
    });
}

fn a_peer_request_that_timed_out_connects_nobody(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        ask(&mut pair.a, &pair.b, NAME, shortly()).unwrap();
        pair.a.vi.peer_wait().unwrap_err();
        ask(&mut pair.b, &pair.a, NAME, shortly()).unwrap();
        let error = pair.b.vi.peer_wait().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Idle, State::Idle));
    });
}

fn a_side_that_gave_up_resets_the_other(fabric: &dyn Fabric) {
    let mut pair = idle(fabric);
    for round in 0..60u64 {
        // The deadlines lie about when the other side requests: before and after it.
        let limits = [round * 7 % 10, round * 3 % 10].map(|ms| Duration::from_micros(500 * ms));
        ask(&mut pair.a, &pair.b, NAME, Deadline::after(limits[0])).unwrap();
        ask(&mut pair.b, &pair.a, NAME, Deadline::after(limits[1])).unwrap();
        let joined = [&mut pair.a, &mut pair.b].map(|end| match end.vi.peer_wait() {
            Ok(_) => true,
            Err(Error::Timeout { .. }) => false,
            Err(other) => panic!("nobody refused, and nobody is gone: {other}"),
        });
        match joined {
            [true, true] => assert_joined(&mut pair),
            [false, false] => {}
            [a_joined, _] => {
                let end = if a_joined { &mut pair.a } else { &mut pair.b };
                until("the one that is connected learns that the other is not", || {
                    end.vi.receive_done();
                    (end.vi.state() == State::Error).then_some(())
                });
            }
        }
        part(&mut pair);
        assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Idle, State::Idle));
    }
    meet(&mut pair.a, &mut pair.b);
    assert_joined(&mut pair);
}

fn a_peer_request_is_withdrawn(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        ask(&mut pair.a, &pair.b, NAME, soon()).unwrap();
        pair.a.vi.disconnect();
        assert_eq!(pair.a.vi.state(), State::Idle);
        let error = pair.a.vi.peer_done().unwrap_err();
        assert!(matches!(error, Error::InvalidState { state: State::Idle, .. }), "{error}");
        meet(&mut pair.b, &mut pair.a);
        assert_joined(pair);
    });
}

/// If this side starts a connecting thread, the thread ends long before the deadline.
fn a_withdrawn_peer_request_asks_no_more(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        // Several requests are made: a thread of an earlier case may be about to end.
        let before = threads();
        for number in 0..20 {
            ask(&mut pair.a, &pair.b, &[number], Deadline::after(Duration::from_secs(3600))).unwrap();
            pair.a.vi.disconnect();
        }
        until("no thread asks", || (threads() <= before).then_some(()));
    });
}

/// Number of threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("a mounted /proc").count()
}

fn a_dropped_vi_withdraws_its_peer_request(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        let mut passing = End::new(&pair.a.nic, |_| {});
        ask(&mut passing, &pair.b, NAME, soon()).unwrap();
        drop(passing);
        meet(&mut pair.a, &mut pair.b);
        assert_joined(pair);
    });
}

fn peer_requests_need_an_idle_vi(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let error = ask(&mut pair.a, &pair.b, NAME, soon()).unwrap_err();
    assert!(matches!(error, Error::InvalidState { state: State::Connected, .. }), "{error}");
    for error in [pair.a.vi.peer_done().unwrap_err(), pair.a.vi.peer_wait().unwrap_err()] {
        assert!(matches!(error, Error::InvalidState { state: State::Connected, .. }), "{error}");
    }
    pair.check();
    part(&mut pair);
    ask(&mut pair.a, &pair.b, NAME, soon()).unwrap();
    for error in [
        ask(&mut pair.a, &pair.b, b"another", soon()).unwrap_err(),
        pair.a.connect(&address(&pair.b.nic, b"pair"), b"").unwrap_err(),
    ] {
        assert!(matches!(error, Error::InvalidState { state: State::ConnectPending, .. }), "{error}");
    }
    ask(&mut pair.b, &pair.a, NAME, soon()).unwrap();
    pair.a.vi.peer_wait().unwrap();
    pair.b.vi.peer_wait().unwrap();
    assert_joined(&mut pair);
}

fn peers_meet_at_the_same_discriminator_only(fabric: &dyn Fabric) {
    let names = [&b"name"[..], b"name\0", b"nam", b""];
    both_orders(fabric, |pair| {
        for (mine, theirs) in names.iter().zip(&names[1..]) {
            ask(&mut pair.a, &pair.b, mine, shortly()).unwrap();
            ask(&mut pair.b, &pair.a, theirs, shortly()).unwrap();
            for end in [&mut pair.a, &mut pair.b] {
                let ended = end.vi.peer_wait();
                assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
            }
        }
    });
}

fn a_third_one_does_not_get_between(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        let third_nic = fabric.open(&Options::default());
        let mut third = End::new(&third_nic, |_| {});
        ask(&mut pair.a, &pair.b, NAME, soon()).unwrap();
        ask(&mut third, &pair.a, NAME, shortly()).unwrap();
        assert!(matches!(third.vi.peer_wait(), Err(Error::Timeout { .. })), "it was not named");
        ask(&mut pair.b, &pair.a, NAME, soon()).unwrap();
        pair.a.vi.peer_wait().unwrap();
        pair.b.vi.peer_wait().unwrap();
        assert_joined(pair);
    });
}

fn a_listener_does_not_answer_peers(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        let listener = Listener::new(&pair.b.nic, NAME).unwrap();
        ask(&mut pair.a, &pair.b, NAME, shortly()).unwrap();
        assert!(matches!(pair.a.vi.peer_wait(), Err(Error::Timeout { .. })));
        assert!(listener.wait(Deadline::now()).is_err(), "no request was made");
        let error = pair.b.connect(&address(&pair.a.nic, NAME), b"").unwrap_err();
        assert!(matches!(error, Error::NoMatch(_)), "{error}");
    });
}

fn peers_of_different_levels_never_connect(fabric: &dyn Fabric) {
    let mut pair = idle(fabric);
    pair.a = End::new(&pair.a.nic, |attributes| attributes.reliability = Reliability::Reception);
    for _ in 0..2 {
        ask(&mut pair.a, &pair.b, NAME, soon()).unwrap();
        ask(&mut pair.b, &pair.a, NAME, soon()).unwrap();
        for end in [&mut pair.a, &mut pair.b] {
            assert!(matches!(end.vi.peer_wait(), Err(Error::InvalidReliability)), "each side learns it");
            assert_eq!(end.vi.state(), State::Idle);
        }
        std::mem::swap(&mut pair.a, &mut pair.b);
    }
}

fn two_vis_of_one_nic_are_peers(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let mut pair = Pair { a: End::new(&nic, |_| {}), b: End::new(&nic, |_| {}) };
    for _ in 0..3 {
        meet(&mut pair.a, &mut pair.b);
        assert_joined(&mut pair);
        part(&mut pair);
    }
}

fn names_of_peers_are_bounded(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        let long = vec![7; pair.a.nic.attributes().max_discriminator + 1];
        let error = ask(&mut pair.a, &pair.b, &long, soon()).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
        let cq = pair.a.cq.handle();
        let long = vec![0; pair.a.nic.attributes().max_private_data + 1];
        let to = address(&pair.b.nic, NAME);
        let error = pair.a.vi.peer_request(&to, &cq, &cq, &long, soon()).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
        assert_eq!(pair.a.vi.state(), State::Idle);
    });
}

fn private_data_of_peers_travel_both_ways(fabric: &dyn Fabric) {
    both_orders(fabric, |pair| {
        let limit = pair.a.nic.attributes().max_private_data;
        let (ours, theirs) = (pattern(1, limit), pattern(2, limit / 2));
        let (to_a, to_b) = (address(&pair.a.nic, NAME), address(&pair.b.nic, NAME));
        let (a, b) = (pair.a.cq.handle(), pair.b.cq.handle());
        pair.a.vi.peer_request(&to_b, &a, &a, &ours, soon()).unwrap();
        pair.b.vi.peer_request(&to_a, &b, &b, &theirs, soon()).unwrap();
        assert_bytes(&pair.a.vi.peer_wait().unwrap(), &theirs);
        assert_bytes(&pair.b.vi.peer_wait().unwrap(), &ours);
    });
}
