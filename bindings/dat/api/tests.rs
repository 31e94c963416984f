//! Two ends in one process, over shm, tcp and udp.

mod accept;
mod cno;
mod qos;
mod rmr;
mod rsp;
mod srq;

use std::time::Duration;

use udeck::NicOptions;
use udeck::via::auth::Keys;
use udeck::via::{Deadline, Nic};

use super::*;
use crate::core::event::flags;

const LIMIT: Duration = Duration::from_secs(20);

/// One end of a connection, and all that it needs.
struct End {
    pz: Pz,
    work: Evd,
    connections: Evd,
    ep: Ep,
}

const TRANSPORTS: [&str; 3] = ["shm", "tcp", "udp"];

fn nic(transport: &str) -> Nic {
    udeck::open_nic(&format!("{transport}0"), &NicOptions::new(Keys::from([3; 32]))).unwrap()
}

/// The next event, and a failure if there is none.
fn next(evd: &Evd) -> Event {
    evd.wait(Deadline::after(LIMIT)).unwrap()
}

fn request(evd: &Evd) -> ConnectionRequest {
    match next(evd) {
        Event::Request(request) => request,
        other => panic!("{other:?}"),
    }
}

/// Takes the next event, and returns the change of that end point's connection.
fn told(evd: &Evd, ep: &Ep) -> Connection {
    match next(evd) {
        Event::Connection { ep: of, what } if of == ep.id() => what,
        other => panic!("{other:?}"),
    }
}

fn end(nic: &Nic) -> End {
    let ia = Ia::on_nic(nic).unwrap();
    let (pz, work, connections) = (Pz::new(&ia), Evd::new(&ia, 0), Evd::new(&ia, 0));
    let ep = Ep::new(&pz, &work, &work, &connections, EpAttributes::default()).unwrap();
    End { pz, work, connections, ep }
}

impl End {
    fn established(&self) {
        match self.connections.wait(Deadline::after(LIMIT)).unwrap() {
            Event::Connection { ep, what: Connection::Established } => assert_eq!(ep, self.ep.id()),
            other => panic!("{other:?}"),
        }
    }

    fn completion(&self) -> Completion {
        match self.work.wait(Deadline::after(LIMIT)).unwrap() {
            Event::Dto(completion) => completion,
            other => panic!("{other:?}"),
        }
    }

    fn lmr(&self, bytes: &[u8]) -> Lmr {
        Lmr::of(&self.pz, bytes.into()).unwrap()
    }
}

fn pair(transport: &str) -> (End, End) {
    let (here, there) = (end(&nic(transport)), end(&nic(transport)));
    let psp = Psp::any(&there.connections).unwrap();
    here.ep.connect(&psp.address(), LIMIT, b"question").unwrap();
    let Event::Request(request) = there.connections.wait(Deadline::after(LIMIT)).unwrap() else { panic!() };
    assert_eq!((request.private_data(), request.service()), (&b"question"[..], psp.id()));
    there.ep.accept(request, b"answer").map_err(|(error, _)| error).unwrap();
    there.established();
    here.established();
    assert_eq!(here.ep.peer().unwrap().private_data, b"answer");
    (here, there)
}

#[test]
fn a_message_goes_from_several_parts_into_several_and_the_memory_comes_back() {
    for transport in ["shm", "tcp", "udp"] {
        let (here, there) = pair(transport);
        let mut tail = there.lmr(&[0; 8]);
        tail.select(2..8).unwrap();
        there.ep.post_receive([there.lmr(&[0; 3]), tail], 5).unwrap();
        here.ep.post_send([here.lmr(b"abcd"), here.lmr(b"efg")], 6).unwrap();
        let sent = here.completion();
        assert_eq!(
            (sent.ep, sent.cookie, sent.operation, sent.status, sent.length),
            (here.ep.id(), 6, Operation::Send, Status::Success, 7)
        );
        assert_eq!(
            sent.iov.into_vec().iter().map(|lmr| lmr.to_vec()).collect::<Vec<_>>(),
            [b"abcd".to_vec(), b"efg".to_vec()]
        );
        let came = there.completion();
        assert_eq!((came.cookie, came.operation, came.length), (5, Operation::Receive, 7));
        let parts: Vec<Vec<u8>> =
            came.iov.into_vec().into_iter().map(|lmr| lmr.into_bytes().into_vec()).collect();
        assert_eq!(parts, [b"abc".to_vec(), b"\0\0defg\0\0".to_vec()], "{transport}");
    }
}

#[test]
fn a_written_place_is_there_before_the_message_behind_it_and_can_be_read_back() {
    for transport in ["shm", "tcp", "udp"] {
        let (here, there) = pair(transport);
        let place = SharedLmr::new(&there.pz, 100_000, Rights::READ_WRITE).unwrap();
        let remote = RemoteMemory::from_bytes(place.remote().to_bytes());
        there.ep.post_receive(there.lmr(&[0; 1]), 0).unwrap();
        here.ep
            .post_rdma_write(here.lmr(&[9; 70_000]), remote.part(10..100_000).unwrap(), 1, Flags::NONE)
            .unwrap();
        here.ep.post_send(here.lmr(b"!"), 2).unwrap();
        assert_eq!(there.completion().length, 1);
        let mut seen = vec![0; 70_001];
        place.read(9, &mut seen).unwrap();
        assert!(seen[0] == 0 && seen[1..].iter().all(|byte| *byte == 9), "{transport}");
        here.ep.post_rdma_read(here.lmr(&[0; 20]), remote, 3, Flags::FENCE).unwrap();
        assert_eq!(
            (here.completion().operation, here.completion().operation),
            (Operation::RdmaWrite, Operation::Send)
        );
        let read = here.completion().done().unwrap();
        assert_eq!(&read[..], [[0; 10], [9; 10]].concat(), "{transport}");
        assert!(place.into_bytes().unwrap()[10..70_010].iter().all(|byte| *byte == 9));
    }
}

#[test]
fn what_peers_may_not_reach_they_do_not_reach() {
    let (here, there) = pair("shm");
    let place = SharedLmr::new(&there.pz, 8, Rights::READ).unwrap();
    let own = there.lmr(&[0; 8]);
    there.ep.post_receive(own, 1).unwrap();
    here.ep.post_rdma_write(here.lmr(&[9; 8]), place.remote(), 1, Flags::NONE).unwrap();
    let Event::Connection { what, .. } = here.connections.wait(Deadline::after(LIMIT)).unwrap() else {
        panic!()
    };
    assert_eq!(what, Connection::Broken);
    let flushed = there.completion();
    assert_eq!((flushed.cookie, flushed.status), (1, Status::Flushed));
    assert_eq!(&flushed.iov.into_lmr()[..], [0; 8]);
    let mut seen = [1; 8];
    place.read(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 8]);
}

#[test]
fn what_is_refused_comes_back_with_what_was_tried() {
    let one = end(&nic("shm"));
    let (error, iov) = one.ep.post_send(one.lmr(b"early"), 1).unwrap_err();
    assert_eq!(error.to_string(), "dat_ep_post_send: the end point is Unconnected");
    assert_eq!(&iov.into_lmr()[..], b"early");
    let remote = RemoteMemory { address: 0, len: 3, context: 1 };
    let (error, _) = one.ep.post_rdma_write(one.lmr(b"long"), remote, 1, Flags::NONE).unwrap_err();
    assert!(matches!(error, Error::Length { len: 4, room: 3, .. }), "{error}");
    let other = end(&nic("shm"));
    assert!(Ep::new(&one.pz, &one.work, &other.work, &one.work, EpAttributes::default()).is_err());
    let (start, limit) = (std::time::Instant::now(), Duration::from_millis(30));
    assert!(matches!(one.work.wait(Deadline::after(limit)), Err(Error::Timeout { .. })));
    assert!(start.elapsed() >= limit);
    one.work.post_software(77).unwrap();
    assert!(matches!(one.work.dequeue(), Some(Event::Software(77))));
}

/// Without a thread that could ask, a call to connect has done nothing.
#[test]
fn an_end_point_that_could_not_ask_is_as_before() {
    let one = end(&nic("shm"));
    one.ep.post_receive(one.lmr(b"kept"), 1).unwrap();
    let mut held = one.ep.slot().lock();
    let ep = held.as_mut().unwrap();
    let attempt = ep.begin_connecting([0; 16], 1, Some(crate::core::qos::Qos::Premium), b"").unwrap();
    assert_eq!(ep.state(), EpState::ActivePending);
    ep.not_asked(attempt.number);
    assert!(ep.face.peer.is_none());
    assert!(ep.begin_connecting([0; 16], 1, None, b"").is_ok(), "it may ask again");
    ep.not_asked(attempt.number);
    assert_eq!(ep.state(), EpState::ActivePending, "that was another attempt");
    drop(held);
    assert_eq!((one.ep.receives_posted(), one.work.len(), one.connections.len()), (1, 0, 0));
}

/// An empty segment names no memory, whichever way the message goes.
#[test]
fn an_empty_segment_may_have_any_context() {
    let (here, there) = pair("shm");
    there.ep.post_receive(there.lmr(b"x"), 1).unwrap();
    let mut held = here.ep.slot().lock();
    let empty = crate::core::memory::Triplet::default();
    assert_eq!(held.as_mut().unwrap().post_send(empty, 0, flags::SUPPRESS), Ok(()));
    drop(held);
    assert_eq!(there.completion().length, 0);
}

#[test]
fn requests_that_are_dropped_or_rejected_are_told() {
    let (asks, serves) = (end(&nic("shm")), end(&nic("shm")));
    let psp = Psp::new(11, &serves.connections).unwrap();
    for rejects in [true, false] {
        asks.ep.connect(&psp.address(), LIMIT, &[]).unwrap();
        let Event::Request(request) = serves.connections.wait(Deadline::after(LIMIT)).unwrap() else {
            panic!()
        };
        if rejects {
            request.reject(b"no").unwrap()
        } else {
            drop(request)
        }
        let Event::Connection { what, .. } = asks.connections.wait(Deadline::after(LIMIT)).unwrap() else {
            panic!()
        };
        assert_eq!(what, Connection::PeerRejected);
        assert_eq!(asks.ep.peer().unwrap().private_data, if rejects { &b"no"[..] } else { b"" });
        asks.ep.reset().unwrap();
    }
}

#[test]
fn objects_go_in_any_order_and_take_posted_memory_with_them() {
    let (here, there) = pair("shm");
    for _ in 0..3 {
        here.ep.post_receive(here.lmr(&[0; 8]), 1).unwrap();
    }
    let End { pz, work, connections, ep } = here;
    drop((pz, connections));
    drop(ep);
    assert_eq!(work.len(), 3, "flushed, and with their memory");
    assert!(matches!(work.dequeue(), Some(Event::Dto(Completion { status: Status::Flushed, .. }))));
    drop(work);
    let Event::Connection { what, .. } = there.connections.wait(Deadline::after(LIMIT)).unwrap() else {
        panic!()
    };
    assert_eq!(what, Connection::Disconnected);
}

#[test]
fn an_end_point_connects_to_where_another_one_has() {
    for transport in ["shm", "tcp", "udp"] {
        let (here, there) = pair(transport);
        let again = Psp::any(&there.connections).unwrap();
        let make = |end: &End| {
            Ep::new(&end.pz, &end.work, &end.work, &end.connections, EpAttributes::default()).unwrap()
        };
        let (first, second, accepts) = (make(&here), make(&here), make(&there));
        let early = second.dup_connect(&first, LIMIT, b"");
        assert!(matches!(early, Err(Error::InvalidParameter { .. })), "{early:?}: it has asked nobody");
        assert!(second.dup_connect(&there.ep, LIMIT, b"").is_err(), "of another adapter");
        first.connect(&again.address(), LIMIT, b"first").unwrap();
        request(&there.connections).reject(b"").unwrap();
        assert_eq!(told(&here.connections, &first), Connection::PeerRejected);
        second.dup_connect(&first, LIMIT, b"second").unwrap();
        let asked = request(&there.connections);
        assert_eq!((asked.private_data(), asked.service()), (&b"second"[..], again.id()), "{transport}");
        accepts.accept(asked, b"").map_err(|(error, _)| error).unwrap();
        assert_eq!(told(&there.connections, &accepts), Connection::Established, "{transport}");
        assert_eq!(told(&here.connections, &second), Connection::Established, "{transport}");
        let twice = second.dup_connect(&first, LIMIT, b"");
        assert!(matches!(twice, Err(Error::InvalidState { state: EpState::Connected, .. })), "{twice:?}");
    }
}
