//! Connections: listeners, requests, answers, the states of a VI, and the end of a connection.

use std::time::Duration;

use udeck_via::auth::{HostKey, Keys, RankKey, SealedTicket};
use udeck_via::{
    Deadline, Descriptor, Error, Listener, Nic, Receive, RejectKind, Rejection, Reliability, State, Status,
    ViAttributes,
};

use crate::kit::{Door, End, Pair, address, nics, pattern, regions, shortly, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "connection";
pub const CASES: &[Case] = &[
    case!(states_follow_connect_and_disconnect),
    case!(an_idle_vi_takes_receives_but_no_sends),
    case!(a_connected_vi_cannot_connect),
    case!(a_connected_vi_cannot_accept),
    case!(a_vi_of_another_nic_cannot_accept),
    case!(a_vi_in_error_takes_nothing_until_disconnected),
    case!(a_lent_vi_takes_no_receives),
    case!(private_data_travel_both_ways),
    case!(private_data_too_long_are_refused_by_connect),
    case!(private_data_too_long_are_refused_by_accept),
    case!(a_rejection_carries_its_reason),
    case!(a_long_reason_arrives_cut),
    case!(a_rejection_carries_private_data),
    case!(a_request_dropped_unanswered_is_refused),
    case!(nobody_listens),
    case!(nobody_listens_any_more),
    case!(a_closed_listener_refuses_what_waits),
    case!(an_unanswered_request_times_out),
    case!(an_answer_that_comes_too_late_connects_nobody),
    case!(a_listener_times_out),
    case!(a_listener_with_a_handler),
    case!(requests_wait_in_order),
    case!(a_discriminator_is_taken_once),
    case!(discriminators_are_compared_by_all_their_bytes),
    case!(an_empty_discriminator_is_one),
    case!(a_discriminator_too_long_is_refused),
    case!(a_nic_connects_to_itself),
    case!(different_reliability_levels_never_connect, RELIABLE_DELIVERY, RELIABLE_RECEPTION),
    case!(different_secrets_never_connect),
    case!(each_rank_learns_which_the_other_is),
    case!(no_rank_passes_for_another),
    case!(flushed_receives_come_before_what_arrives_later),
    case!(a_dropped_vi_disconnects),
    case!(a_vi_connects_again),
];

fn states_follow_connect_and_disconnect(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let states = |pair: &Pair| (pair.a.vi.state(), pair.b.vi.state());
    assert_eq!(states(&pair), (State::Idle, State::Idle));
    pair.connect();
    assert_eq!(states(&pair), (State::Connected, State::Connected));
    pair.a.vi.disconnect();
    assert_eq!(pair.a.vi.state(), State::Idle);
    until("the peer notices", || {
        assert!(pair.b.vi.receive_done().is_none());
        (pair.b.vi.state() == State::Error).then_some(())
    });
    pair.b.vi.disconnect();
    assert_eq!(pair.b.vi.state(), State::Idle);
    pair.b.vi.disconnect();
    assert_eq!(pair.b.vi.state(), State::Idle, "disconnecting an idle VI changes nothing");
}

fn an_idle_vi_takes_receives_but_no_sends(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let bytes = pattern(1, 100);
    let descriptor = Descriptor::new([pair.a.region(&bytes)]);
    let (error, descriptor) = pair.a.vi.post_send(descriptor).unwrap_err();
    assert!(matches!(error, Error::InvalidState { state: State::Idle, .. }), "{error}");
    assert_eq!(&regions(descriptor)[0][..], bytes, "the descriptor comes back untouched");
    assert!(pair.a.vi.send_done().is_none());
    let error = pair.a.vi.send_inline(None, b"", b"x").unwrap_err();
    assert!(matches!(error, Error::InvalidState { state: State::Idle, .. }), "{error}");
    pair.b.post_receive(bytes.len());
    pair.connect();
    pair.a.post_send(&bytes);
    assert_eq!(pair.b.received(), bytes, "into the descriptor posted while idle");
}

fn a_connected_vi_cannot_connect(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let door = Door::new(&pair.b.nic, b"again");
    let error = pair.a.connect(&door.address, b"").unwrap_err();
    assert!(matches!(error, Error::InvalidState { state: State::Connected, .. }), "{error}");
    assert!(door.listener.wait(Deadline::now()).is_err(), "no request was made");
    pair.check();
}

fn a_connected_vi_cannot_accept(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let door = Door::new(&pair.b.nic, b"again");
    let mut other = End::new(&pair.a.nic, |_| {});
    let (asked, answered) = door.connect(&mut other, b"", |request| pair.b.accept(request, b""));
    assert!(matches!(answered, Err(Error::InvalidState { state: State::Connected, .. })), "{answered:?}");
    assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
    assert_eq!(other.vi.state(), State::Idle);
    pair.check();
}

/// The VI cannot accept with a completion queue of the requested NIC either, which would connect it to that
/// NIC's memory.
fn a_vi_of_another_nic_cannot_accept(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let (mut asker, mut stranger) = (End::new(&a, |_| {}), End::new(&a, |_| {}));
    let mut asked_end = End::new(&b, |_| {});
    let door = Door::new(&b, b"nic");
    let cq = asked_end.cq.handle();
    let (asked, answered) =
        door.connect(&mut asker, b"", |request| request.accept(&mut stranger.vi, &cq, &cq, b""));
    assert!(matches!(answered, Err(Error::InvalidParameter(_))), "{answered:?}");
    assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
    assert_eq!((asker.vi.state(), stranger.vi.state()), (State::Idle, State::Idle));
    door.join(&mut asker, &mut asked_end);
}

fn a_vi_in_error_takes_nothing_until_disconnected(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    pair.a.vi.disconnect();
    let b = &mut pair.b;
    until("the peer notices", || {
        b.vi.receive_done();
        (b.vi.state() == State::Error).then_some(())
    });
    let in_error = |error: &Error| matches!(error, Error::InvalidState { state: State::Error, .. });
    let (error, descriptor) = b.vi.post_receive(Descriptor::new([b.region(b"abc")])).unwrap_err();
    assert!(in_error(&error), "{error}");
    let (error, descriptor) = b.vi.post_send(Descriptor::new(regions(descriptor))).unwrap_err();
    assert!(in_error(&error), "{error}");
    assert_eq!(&regions(descriptor)[0][..], b"abc");
    let nowhere = address(&b.nic, b"nowhere");
    let error = b.connect(&nowhere, b"").unwrap_err();
    assert!(in_error(&error), "{error}");
    b.vi.disconnect();
    b.post_receive(3);
    pair.connect();
    pair.a.post_send(b"abc");
    assert_eq!(pair.b.received(), b"abc");
}

fn a_lent_vi_takes_no_receives(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let descriptor = Descriptor::new([pair.a.region(b"abc")]);
    let (error, descriptor) = pair.a.vi.post_receive(descriptor).unwrap_err();
    assert!(matches!(error, Error::InvalidState { .. }), "{error}");
    assert_eq!(&regions(descriptor)[0][..], b"abc");
    pair.a.drain_news();
    pair.b.vi.send_inline(Some(5), b"", b"").unwrap();
    pair.a.cq.wait(soon(), || false).expect("it has arrived");
    assert!(pair.a.vi.receive_done().is_none());
    assert_eq!(pair.a.arrival().immediate, Some(5), "it was not taken");
}

fn private_data_travel_both_ways(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let limit = pair.a.nic.attributes().max_private_data;
    let door = Door::new(&pair.b.nic, b"private");
    for len in [0, 1, limit] {
        let (ours, theirs) = (pattern(1, len), pattern(2, len));
        let (asked, answered) = door.connect(&mut pair.a, &ours, |request| {
            assert_eq!(request.private_data(), ours);
            pair.b.accept(request, &theirs)
        });
        answered.unwrap();
        assert_eq!(asked.unwrap(), theirs);
        pair.a.vi.disconnect();
        pair.b.vi.disconnect();
    }
}

fn private_data_too_long_are_refused_by_connect(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let long = vec![0; pair.a.nic.attributes().max_private_data + 1];
    let door = Door::new(&pair.b.nic, b"private");
    let error = pair.a.connect(&door.address, &long).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_eq!(pair.a.vi.state(), State::Idle);
    door.join(&mut pair.a, &mut pair.b);
}

fn private_data_too_long_are_refused_by_accept(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let long = vec![0; pair.b.nic.attributes().max_private_data + 1];
    let door = Door::new(&pair.b.nic, b"private");
    let (asked, answered) = door.connect(&mut pair.a, b"", |request| pair.b.accept(request, &long));
    assert!(matches!(answered, Err(Error::InvalidParameter(_))), "{answered:?}");
    assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
    assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Idle, State::Idle));
    door.join(&mut pair.a, &mut pair.b);
}

fn a_rejection_carries_its_reason(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let door = Door::new(&pair.b.nic, b"strict");
    for reason in ["", "no, thank you: ñ µ"] {
        let (asked, ()) = door.connect(&mut pair.a, b"", |request| request.reject(reason));
        assert!(matches!(&asked, Err(Error::Rejected(why)) if why.to_string() == reason), "{asked:?}");
        assert_eq!(pair.a.vi.state(), State::Idle);
    }
    door.join(&mut pair.a, &mut pair.b);
}

fn a_long_reason_arrives_cut(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let door = Door::new(&pair.b.nic, b"strict");
    let reason = "µ".repeat(100_000);
    let (asked, ()) = door.connect(&mut pair.a, b"", |request| request.reject(&reason));
    let Err(Error::Rejected(why)) = asked else { panic!("{asked:?}") };
    let why = why.to_string();
    assert!(!why.is_empty() && reason.starts_with(&why), "a beginning of the reason");
    door.join(&mut pair.a, &mut pair.b);
}

fn a_rejection_carries_private_data(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let door = Door::new(&pair.b.nic, b"strict");
    for len in [0, 1, Rejection::MAX_DATA] {
        let data = [&[0xff, 0][..], &pattern(7, len)].concat()[..len].to_vec();
        let (asked, ()) = door.connect(&mut pair.a, b"", |request| request.reject_with(&data).unwrap());
        let Err(Error::Rejected(rejection)) = asked else { panic!("{asked:?}") };
        assert_eq!(rejection, Rejection { kind: RejectKind::Program, data });
    }
    let too_long = [0; Rejection::MAX_DATA + 1];
    let (asked, refused) = door.connect(&mut pair.a, b"", |request| request.reject_with(&too_long));
    assert!(matches!(refused, Err(Error::InvalidParameter(_))), "{refused:?}");
    let Err(Error::Rejected(rejection)) = asked else { panic!("{asked:?}") };
    assert_eq!(rejection, RejectKind::Unanswered.into());
    door.join(&mut pair.a, &mut pair.b);
}

fn a_request_dropped_unanswered_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let door = Door::new(&pair.b.nic, b"careless");
    let (asked, ()) = door.connect(&mut pair.a, b"", drop);
    assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
    door.join(&mut pair.a, &mut pair.b);
}

fn nobody_listens(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let to = address(&pair.b.nic, b"nobody is here");
    let error = pair.a.connect(&to, b"").unwrap_err();
    assert!(matches!(error, Error::NoMatch(_)), "{error}");
    assert!(error.to_string().contains("nobody is here"), "{error}");
    assert_eq!(pair.a.vi.state(), State::Idle);
    pair.connect();
}

fn nobody_listens_any_more(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let door = Door::new(&pair.b.nic, b"passing");
    let to = door.address.clone();
    drop(door);
    let asked = pair.a.connect(&to, b"");
    assert!(matches!(asked, Err(Error::NoMatch(_))), "{asked:?}");
    Door::new(&pair.b.nic, b"passing").join(&mut pair.a, &mut pair.b);
}

fn a_closed_listener_refuses_what_waits(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let (a, b) = (&mut pair.a, &mut pair.b);
    let mut second = End::new(&a.nic, |_| {});
    let door = Door::new(&b.nic, b"passing");
    let to = door.address.clone();
    std::thread::scope(|scope| {
        // Requests of one NIC stay in order: when the second one has arrived, the first one is waiting.
        let first = scope.spawn(|| a.connect(&to, b"1"));
        let request = door.listener.wait(soon()).unwrap();
        let waiting = scope.spawn(|| second.connect(&to, b"2"));
        let next = door.listener.wait(soon()).unwrap();
        drop(door);
        b.accept(request, b"").unwrap();
        first.join().unwrap().expect("a request that was taken can be answered");
        drop(next);
        assert!(matches!(waiting.join().unwrap(), Err(Error::Rejected(_))));
    });
}

fn an_unanswered_request_times_out(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let door = Door::new(&pair.b.nic, b"busy");
    drop(door.stale(&mut pair.a));
    assert_eq!(pair.a.vi.state(), State::Idle);
    door.join(&mut pair.a, &mut pair.b);
}

fn an_answer_that_comes_too_late_connects_nobody(fabric: &dyn Fabric) {
    let lent = |attributes: &mut ViAttributes| attributes.receive = Receive::Lent;
    let mut pair = Pair::idle(fabric, &Options::default(), lent);
    let door = Door::new(&pair.b.nic, b"busy");
    let stale = door.stale(&mut pair.a);
    if pair.b.accept(stale, b"").is_ok() {
        let end = until("the acceptor learns that the requester gave up", || pair.b.vi.arrival().err());
        // The requester lives, so no peer is lost.
        assert!(matches!(end, Error::Closed), "{end}");
        assert_eq!(pair.b.vi.state(), State::Error);
        pair.b.vi.disconnect();
    }
    assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Idle, State::Idle));
    door.join(&mut pair.a, &mut pair.b);
}

fn a_listener_times_out(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let listener = Listener::new(&nic, b"quiet").unwrap();
    let error = listener.wait(shortly()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("quiet"), "{error}");
}

fn a_listener_with_a_handler(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let (tell, told) = std::sync::mpsc::channel();
    let _listener = Listener::with_handler(&pair.b.nic, b"handled", move |request| {
        tell.send(request.private_data().to_vec()).unwrap();
        request.reject("seen");
    })
    .unwrap();
    let to = address(&pair.b.nic, b"handled");
    for data in [&b"one"[..], b"two"] {
        let asked = pair.a.connect(&to, data);
        assert!(matches!(&asked, Err(Error::Rejected(why)) if why.to_string() == "seen"), "{asked:?}");
        assert_eq!(told.recv_timeout(Duration::from_secs(60)).unwrap(), data);
    }
}

/// Requests that time out stay in the listener's queue if they arrived: the slower the machine, the longer this takes.
fn requests_wait_in_order(fabric: &dyn Fabric) {
    const MANY: u8 = 5;
    let net = soon();
    for patience in (0..).map(|round| Duration::from_millis(10 << round)) {
        let (a, b) = nics(fabric);
        let door = Door::new(&b, b"counter");
        for number in 0..MANY {
            let mut end = End::new(&a, |_| {});
            let cq = end.cq.handle();
            let asked = end.vi.connect(&door.address, &cq, &cq, &[number], Deadline::after(patience));
            assert!(matches!(asked, Err(Error::Timeout { .. })), "{asked:?}");
        }
        // The last request has a generous deadline.
        let mut waiting = Vec::new();
        let mut last = End::new(&a, |_| {});
        let (asked, ()) = door.connect(&mut last, &[MANY], |first| {
            let mut next = first;
            while next.private_data() != [MANY] {
                waiting.push(next.private_data()[0]);
                next = door.listener.wait(soon()).expect("the last one");
            }
        });
        assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
        assert!(waiting.is_sorted_by(|one, next| one < next), "{waiting:?}");
        if waiting.len() == usize::from(MANY) {
            return;
        }
        assert!(!net.passed(), "requests never came");
    }
}

fn a_discriminator_is_taken_once(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let first = Listener::new(&a, b"mine").unwrap();
    let error = Listener::new(&a, b"mine").unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    let error = Listener::with_handler(&a, b"mine", drop).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    let _elsewhere = Listener::new(&b, b"mine").expect("each NIC has its own");
    let mut asker = End::new(&b, |_| {});
    let asked = std::thread::scope(|scope| {
        let to = address(&a, b"mine");
        let asker = scope.spawn(move || asker.connect(&to, b""));
        first.wait(soon()).expect("the first listener still listens").reject("here");
        asker.join().unwrap()
    });
    assert!(matches!(&asked, Err(Error::Rejected(why)) if why.to_string() == "here"), "{asked:?}");
    drop(first);
    Listener::new(&a, b"mine").expect("free again");
}

fn discriminators_are_compared_by_all_their_bytes(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let names = [&b"name"[..], b"name\0", b"nam", b"Name", b"\xff\x00\x80"];
    let doors: Vec<_> = names.iter().map(|name| Door::new(&b, name)).collect();
    for (door, name) in doors.iter().zip(names) {
        let mut end = End::new(&a, |_| {});
        let (asked, ()) = door.connect(&mut end, name, |request| {
            assert_eq!(request.private_data(), name);
            request.reject("right");
        });
        assert!(matches!(&asked, Err(Error::Rejected(why)) if why.to_string() == "right"), "{asked:?}");
    }
}

fn an_empty_discriminator_is_one(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let to = address(&pair.b.nic, b"");
    assert!(matches!(pair.a.connect(&to, b""), Err(Error::NoMatch(_))));
    Door::new(&pair.b.nic, b"").join(&mut pair.a, &mut pair.b);
    pair.check();
}

fn a_discriminator_too_long_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let limit = pair.b.nic.attributes().max_discriminator;
    let (longest, long) = (pattern(3, limit), pattern(3, limit + 1));
    let error = Listener::new(&pair.b.nic, &long).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    let mut other = End::new(&pair.a.nic, |_| {});
    let error = other.connect(&address(&pair.b.nic, &long), b"").unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_eq!(other.vi.state(), State::Idle);
    let mut answerer = End::new(&pair.b.nic, |_| {});
    Door::new(&pair.b.nic, &longest).join(&mut other, &mut answerer);
    pair.check();
}

fn a_nic_connects_to_itself(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let mut pair = Pair { a: End::new(&nic, |_| {}), b: End::new(&nic, |_| {}) };
    pair.connect();
    pair.check();
}

fn different_reliability_levels_never_connect(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let mut reception = End::new(&a, |attributes| attributes.reliability = Reliability::Reception);
    let mut delivery = End::new(&b, |attributes| attributes.reliability = Reliability::Delivery);
    let door = Door::new(&b, b"level");
    let (asked, answered) = door.connect(&mut reception, b"", |request| delivery.accept(request, b""));
    assert!(matches!(answered, Err(Error::InvalidReliability)), "{answered:?}");
    assert!(matches!(asked, Err(Error::InvalidReliability)), "{asked:?}");
    assert_eq!((reception.vi.state(), delivery.vi.state()), (State::Idle, State::Idle));
    let mut same = End::new(&a, |attributes| attributes.reliability = Reliability::Delivery);
    door.join(&mut same, &mut delivery);
}

fn different_secrets_never_connect(fabric: &dyn Fabric) {
    let stranger = fabric.open(&Options { keys: [1; 32].into(), ..Options::default() });
    let nic = fabric.open(&Options { keys: [2; 32].into(), ..Options::default() });
    let door = Door::new(&nic, b"private");
    let error = End::new(&stranger, |_| {}).connect(&door.address, b"").unwrap_err();
    assert!(error.to_string().contains("secret"), "{error}");
    assert!(door.listener.wait(Deadline::now()).is_err(), "the request never came through");
    let mut pair = Pair { a: End::new(&nic, |_| {}), b: End::new(&nic, |_| {}) };
    door.join(&mut pair.a, &mut pair.b);
    pair.check();
}

const SECRET: [u8; 32] = [0x5a; 32];

fn rank_key(rank: u32) -> RankKey {
    HostKey::from_bytes([9; 32]).rank(rank)
}

/// Keys of the rank `knows` with tickets for all `callees`, presented as keys of the rank `says`, which may be another one.
fn keys(knows: u32, says: u32, callees: &[u32]) -> Keys {
    let keys = Keys::of_rank(SECRET, says, rank_key(knows));
    for callee in callees {
        keys.learn(*callee, &SealedTicket::new((knows, &rank_key(knows)), (*callee, &rank_key(*callee))));
    }
    keys
}

fn nic_with(fabric: &dyn Fabric, keys: Keys) -> Nic {
    fabric.open(&Options { keys, ..Options::default() })
}

fn to_rank(nic: &Nic, peer: Option<u32>) -> End {
    End::new(nic, |attributes| attributes.peer = peer)
}

fn each_rank_learns_which_the_other_is(fabric: &dyn Fabric) {
    let (zero, one) = (nic_with(fabric, keys(0, 0, &[])), nic_with(fabric, keys(1, 1, &[0])));
    assert_eq!((zero.attributes().identity, one.attributes().identity), (Some(0), Some(1)));
    let door = Door::new(&zero, b"ranks");
    let mut pair = Pair { a: to_rank(&one, Some(0)), b: to_rank(&zero, Some(1)) };
    let (asked, answered) = door.connect(&mut pair.a, b"", |request| {
        let peer = request.peer();
        pair.b.accept(request, b"").map(|()| peer)
    });
    assert_eq!((asked.expect("connected"), answered.expect("accepted")), (Vec::new(), Some(1)));
    pair.check();
    // A VI that names no rank proves only that it belongs to the job.
    let mut anybody = to_rank(&one, None);
    let (asked, answered) = door.connect(&mut anybody, b"", |request| {
        let peer = request.peer();
        (peer, to_rank(&zero, Some(1)).accept(request, b""))
    });
    assert_eq!(answered.0, None);
    assert!(matches!(answered.1, Err(Error::InvalidParameter(_))), "a VI for rank 1: {answered:?}");
    assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
    // A rank needs no ticket for itself.
    let mut own = Pair { a: to_rank(&zero, Some(0)), b: to_rank(&zero, Some(0)) };
    door.join(&mut own.a, &mut own.b);
    own.check();
}

fn no_rank_passes_for_another(fabric: &dyn Fabric) {
    let zero = nic_with(fabric, keys(0, 0, &[]));
    let door = Door::new(&zero, b"ranks");
    let refused = |keys: Keys, peer| {
        let asked = to_rank(&nic_with(fabric, keys), Some(peer)).connect(&door.address, b"");
        assert!(door.listener.wait(Deadline::now()).is_err(), "the request never came through");
        asked.expect_err("refused")
    };
    // Rank 1 presents itself, with all that it knows, as rank 2, and as ranks that do not exist.
    for posing in [2, 0, 77, u32::MAX - 1] {
        let error = refused(keys(1, posing, &[0]), 0);
        assert!(!matches!(error, Error::Timeout { .. }), "as rank {posing}: {error}");
    }
    // A VI that wants rank 2 does not accept rank 0, nor another rank that poses as rank 2.
    let error = refused(keys(1, 1, &[2]), 2);
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
    let posing = nic_with(fabric, keys(0, 2, &[]));
    let false_door = Door::new(&posing, b"ranks");
    let asked = to_rank(&nic_with(fabric, keys(1, 1, &[2])), Some(2)).connect(&false_door.address, b"");
    let error = asked.expect_err("it is not rank 2");
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
    assert!(false_door.listener.wait(Deadline::now()).is_err(), "it was not asked anything");
    // Without a ticket, no request is sent.
    for keys in [keys(1, 1, &[]), Keys::from(SECRET)] {
        let error = refused(keys, 0);
        assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    }
    // The failed attempts have not harmed the others.
    let one = nic_with(fabric, keys(1, 1, &[0]));
    let mut pair = Pair { a: to_rank(&one, Some(0)), b: to_rank(&zero, None) };
    door.join(&mut pair.a, &mut pair.b);
    pair.check();
}

fn flushed_receives_come_before_what_arrives_later(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    pair.b.post_receive(8);
    pair.a.vi.disconnect();
    pair.b.vi.disconnect();
    pair.connect();
    pair.b.post_receive(8);
    pair.b.drain_news();
    pair.a.post_send(b"later");
    pair.b.cq.wait(soon(), || false).expect("it has arrived");
    assert_eq!(pair.b.vi.receive_done().expect("the oldest").status, Status::Flushed);
    assert_eq!(pair.b.received(), b"later");
}

fn a_dropped_vi_disconnects(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let (mut left, mut right) =
        (End::new(&a, |_| {}), End::new(&b, |attributes| attributes.receive = Receive::Lent));
    Door::new(&b, b"drop").join(&mut left, &mut right);
    left.vi.send_inline(Some(9), b"", b"last words").unwrap();
    drop(left);
    let arrival = right.arrival();
    assert_eq!(arrival.immediate, Some(9));
    let end = until("the end", || right.vi.arrival().err());
    assert!(matches!(end, Error::Closed), "{end}");
    assert_eq!(right.vi.state(), State::Error);
}

fn a_vi_connects_again(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for round in 0..20 {
        pair.check();
        // Either side disconnects first; the other returns to idle from whatever state it is in.
        if round % 2 == 0 {
            pair.a.vi.disconnect();
            pair.b.vi.disconnect();
        } else {
            pair.b.vi.disconnect();
            pair.a.vi.disconnect();
        }
        assert!(pair.a.vi.send_done().is_none() && pair.b.vi.receive_done().is_none());
        pair.connect();
    }
}
