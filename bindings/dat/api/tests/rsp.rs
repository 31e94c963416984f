//! Reserved service points.

use super::*;

fn reserved(transport: &str, qualifier: u64) -> (End, Rsp) {
    let serves = end(&nic(transport));
    let rsp = Rsp::new(qualifier, &serves.connections, &serves.ep).unwrap();
    assert_eq!((rsp.ep(), rsp.qualifier()), (serves.ep.id(), qualifier));
    assert_eq!(serves.ep.state(), EpState::Reserved);
    (serves, rsp)
}

#[test]
fn a_reserved_end_point_takes_one_request_and_no_other_end_point_does() {
    for transport in TRANSPORTS {
        let (serves, rsp) = reserved(transport, 21);
        let (asks, late) = (end(&nic(transport)), end(&nic(transport)));
        asks.ep.connect(&rsp.address(), LIMIT, b"me").unwrap();
        let request = request(&serves.connections);
        assert_eq!((request.service(), request.private_data()), (rsp.id(), &b"me"[..]), "{transport}");
        assert_eq!(serves.ep.state(), EpState::TentativePending);
        late.ep.connect(&rsp.address(), LIMIT, b"me, too").unwrap();
        assert_eq!(told(&late.connections, &late.ep), Connection::NonPeerRejected, "{transport}");

        let other =
            Ep::new(&serves.pz, &serves.work, &serves.work, &serves.connections, EpAttributes::default())
                .unwrap();
        let (error, request) = other.accept(request, b"").unwrap_err();
        assert!(error.to_string().contains("reserved service point"), "{error}");
        drop(rsp); // a request that has come stays
        serves.ep.accept(request, b"welcome").map_err(|(error, _)| error).unwrap();
        serves.established();
        asks.established();
        assert_eq!(asks.ep.peer().unwrap().private_data, b"welcome");
        serves.ep.post_receive(serves.lmr(&[0; 2]), 1).unwrap();
        asks.ep.post_send(asks.lmr(b"hi"), 1).unwrap();
        assert_eq!(&serves.completion().done().unwrap()[..], b"hi", "{transport}");
    }
}

#[test]
fn a_refusal_reserves_it_again_and_the_end_of_the_service_point_frees_it() {
    let (serves, rsp) = reserved("shm", 22);
    assert!(serves.ep.connect(&rsp.address(), LIMIT, b"").is_err(), "it is reserved");
    let again = Rsp::new(23, &serves.connections, &serves.ep);
    assert!(matches!(again, Err(Error::InvalidState { state: EpState::Reserved, .. })), "{again:?}");
    let asks = end(&nic("shm"));
    asks.ep.connect(&rsp.address(), LIMIT, b"").unwrap();
    request(&serves.connections).reject(b"no").unwrap();
    assert_eq!(told(&asks.connections, &asks.ep), Connection::PeerRejected);
    assert_eq!(serves.ep.state(), EpState::Reserved);
    drop(rsp);
    assert_eq!(serves.ep.state(), EpState::Unconnected);
    let taken = Psp::new(24, &serves.connections).unwrap();
    let refused = Rsp::new(24, &serves.connections, &serves.ep);
    assert!(matches!(refused, Err(Error::QualifierInUse { qualifier: 24, .. })), "{refused:?}");
    assert_eq!((serves.ep.state(), taken.qualifier()), (EpState::Unconnected, 24), "as it was");
    let elsewhere = end(&nic("shm"));
    assert!(Rsp::new(25, &elsewhere.connections, &serves.ep).is_err(), "of another adapter");
}

/// End points may go in any order. The place of one that has gone is soon another's, which the request does not reach.
#[test]
fn a_request_for_an_end_point_that_has_gone_reaches_no_other() {
    let (serves, rsp) = reserved("shm", 26);
    let asks = end(&nic("shm"));
    asks.ep.connect(&rsp.address(), LIMIT, b"").unwrap();
    let request = request(&serves.connections);
    let End { pz, work, connections, ep } = serves;
    let place = ep.slot().handle();
    drop(ep);
    // The pool gives the place that was freed last, unless another test takes it.
    let mut all = Vec::new();
    let second = loop {
        let made = Ep::new(&pz, &work, &work, &connections, EpAttributes::default()).unwrap();
        if made.slot().handle() == place || all.len() > 100 {
            break made;
        }
        all.push(made);
    };
    let other = Rsp::new(27, &connections, &second).unwrap();
    let (error, request) = second.accept(request, b"").unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
    drop(rsp);
    assert_eq!(second.state(), EpState::Reserved, "the first service point does not free it");
    request.reject(b"").unwrap();
    assert_eq!(told(&asks.connections, &asks.ep), Connection::PeerRejected);
    assert_eq!(second.state(), EpState::Reserved);
    drop(other);
    assert_eq!(second.state(), EpState::Unconnected);
}

/// A service point whose request was accepted may be kept for long. Its end does not touch a later reservation by another service point.
#[test]
fn the_end_of_an_old_service_point_leaves_the_next_one_its_end_point() {
    let (serves, old) = reserved("shm", 28);
    let asks = end(&nic("shm"));
    asks.ep.connect(&old.address(), LIMIT, b"").unwrap();
    serves.ep.accept(request(&serves.connections), b"").map_err(|(error, _)| error).unwrap();
    serves.established();
    serves.ep.disconnect(false).unwrap();
    assert_eq!(told(&serves.connections, &serves.ep), Connection::Disconnected);
    serves.ep.reset().unwrap();
    let next = Rsp::new(29, &serves.connections, &serves.ep).unwrap();
    drop(old);
    assert_eq!(serves.ep.state(), EpState::Reserved, "by the next one");
    drop(next);
    assert_eq!(serves.ep.state(), EpState::Unconnected);
}

/// A request that meets a full dispatcher is repeated. The service point has its request then, and not before.
#[test]
fn a_full_dispatcher_leaves_the_service_point_its_request() {
    let (serves, rsp) = reserved("shm", 30);
    let mut told = 0;
    while serves.connections.post_software(told).is_ok() {
        told += 1;
    }
    let asks = end(&nic("shm"));
    asks.ep.connect(&rsp.address(), LIMIT, b"").unwrap();
    // Long enough for the request to be refused for now at least once.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(asks.ep.state(), EpState::ActivePending);
    for _ in 0..told {
        assert!(matches!(serves.connections.dequeue(), Some(Event::Software(_))));
    }
    serves.ep.accept(request(&serves.connections), b"").map_err(|(error, _)| error).unwrap();
    serves.established();
    asks.established();
}
