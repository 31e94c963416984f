//! Receives that end points share.

use super::*;
use crate::core::memory as table;

/// A side that serves two askers, and the askers.
struct Served {
    zone: Pz,
    work: Evd,
    connections: Evd,
    srq: Srq,
    eps: [Ep; 2],
    askers: [End; 2],
}

fn served(transport: &str, asynchronous: Option<&dyn Fn(&Ia) -> Evd>) -> (Served, Option<Evd>) {
    let ia = Ia::on_nic(&nic(transport)).unwrap();
    let asynchronous = asynchronous.map(|make| make(&ia));
    let (zone, work, connections) = (Pz::new(&ia), Evd::new(&ia, 0), Evd::new(&ia, 0));
    let srq = Srq::new(&zone, 8).unwrap();
    let psp = Psp::any(&connections).unwrap();
    let askers = [end(&nic(transport)), end(&nic(transport))];
    let eps = [0, 1].map(|nth| {
        let attributes = EpAttributes::default();
        let ep = Ep::with_srq(&zone, &work, &work, &connections, &srq, attributes).unwrap();
        askers[nth].ep.connect(&psp.address(), LIMIT, b"").unwrap();
        ep.accept(request(&connections), b"").map_err(|(error, _)| error).unwrap();
        assert_eq!(told(&connections, &ep), Connection::Established);
        askers[nth].established();
        ep
    });
    (Served { zone, work, connections, srq, eps, askers }, asynchronous)
}

impl Served {
    fn lmr(&self, len: usize) -> Lmr {
        Lmr::new(&self.zone, len).unwrap()
    }

    fn completion(&self) -> Completion {
        match next(&self.work) {
            Event::Dto(completion) => completion,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn messages_of_several_connections_take_receives_of_one_queue() {
    for transport in TRANSPORTS {
        let (server, _) = served(transport, None);
        for nth in 0..3 {
            server.srq.post_receive(server.lmr(4), nth).unwrap();
        }
        assert_eq!((server.srq.posted(), server.eps[0].receives_posted()), (3, 3));
        for (nth, text) in [(1, b"one."), (0, b"two."), (1, b"tre.")] {
            let asker = &server.askers[nth];
            asker.ep.post_send(asker.lmr(text), 1).unwrap();
            let came = server.completion();
            assert_eq!((came.ep, came.operation), (server.eps[nth].id(), Operation::Receive), "{transport}");
            assert_eq!(&came.done().unwrap()[..], text);
        }
        // A message without a receive waits for the next receive, whichever thread posts it.
        server.askers[0].ep.post_send(server.askers[0].lmr(b"late"), 1).unwrap();
        assert!(matches!(
            server.work.wait(Deadline::after(Duration::from_millis(20))),
            Err(Error::Timeout { .. })
        ));
        server.srq.post_receive([server.lmr(1), server.lmr(3)], 9).unwrap();
        let came = server.completion();
        assert_eq!((came.cookie, came.length), (9, 4), "{transport}");
        let parts: Vec<Vec<u8>> = came.iov.into_vec().iter().map(|lmr| lmr.to_vec()).collect();
        assert_eq!(parts, [b"l".to_vec(), b"ate".to_vec()], "{transport}");
    }
}

#[test]
fn the_end_of_a_connection_leaves_the_receives_to_the_others() {
    for transport in TRANSPORTS {
        let make = |ia: &Ia| {
            let evd = Evd::new(ia, 0);
            evd.take_asynchronous().unwrap();
            evd
        };
        let (server, asynchronous) = served(transport, Some(&make));
        let asynchronous = asynchronous.unwrap();
        server.srq.post_receive(server.lmr(4), 1).unwrap();
        server.askers[0].ep.disconnect(false).unwrap();
        assert_eq!(told(&server.connections, &server.eps[0]), Connection::Disconnected, "{transport}");
        let Event::Asynchronous(Asynchronous::EpBroken(ep)) = next(&asynchronous) else { panic!() };
        assert_eq!((ep, server.srq.posted()), (server.eps[0].id(), 1));
        server.askers[1].ep.post_send(server.askers[1].lmr(b"next"), 1).unwrap();
        assert_eq!(server.completion().ep, server.eps[1].id());

        // The low-watermark event comes once, and again after the watermark was set again: at once where fewer receives are posted.
        let told = || {
            asynchronous.dequeue().is_some_and(|event| {
                matches!(event, Event::Asynchronous(Asynchronous::LowWatermark(srq)) if srq == server.srq.id())
            })
        };
        for nth in 0..4 {
            server.srq.post_receive(server.lmr(4), nth).unwrap();
        }
        server.srq.set_low_watermark(2).unwrap();
        assert!(!told(), "{transport}: four are posted");
        for nth in 0..4 {
            server.askers[1].ep.post_send(server.askers[1].lmr(b"more"), 1).unwrap();
            server.completion();
            assert_eq!(told(), nth == 2, "{transport}, {nth}");
        }
        server.srq.set_low_watermark(2).unwrap();
        assert!(told() && !told(), "{transport}: nothing is posted");
        server.srq.set_low_watermark(0).unwrap();
        assert!(!told(), "{transport}: never");
        assert!(server.srq.set_low_watermark(9).is_err(), "there is room for 8");
    }
}

#[test]
fn what_a_shared_queue_refuses_comes_back() {
    let (server, _) = served("shm", None);
    let (error, iov) = server.eps[0].post_receive(server.lmr(5), 1).unwrap_err();
    assert!(error.to_string().contains("shared queue"), "{error}");
    assert_eq!(iov.into_lmr().len(), 5);
    let others = Lmr::new(&Pz::new(server.zone.ia()), 6).unwrap();
    let (error, iov) = server.srq.post_receive([server.lmr(1), others], 1).unwrap_err();
    assert!(matches!(error, Error::Protection { call: "dat_srq_post_recv" }), "{error}");
    assert_eq!(iov.len(), 7);
    for nth in 0..8 {
        server.srq.post_receive(server.lmr(1), nth).unwrap();
    }
    let (error, _) = server.srq.post_receive(server.lmr(1), 8).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(matches!(server.srq.resize(7), Err(Error::InUse { .. })));
    server.srq.resize(9).unwrap();
    server.srq.post_receive(server.lmr(1), 8).unwrap();
    assert_eq!((server.srq.posted(), server.srq.room()), (9, 9));
    assert!(Srq::new(&server.zone, 0).is_err());
    let other = end(&nic("shm"));
    let (work, attributes) = (&other.work, EpAttributes::default());
    assert!(Ep::with_srq(&other.pz, work, work, work, &server.srq, attributes).is_err());
}

/// The queue lives as long as one of its end points. Posted receives go with the last one.
#[test]
fn memory_of_a_shared_queue_goes_with_its_last_end_point() {
    let (server, _) = served("shm", None);
    let lmr = Iov::from(server.lmr(4));
    let context = lmr.triplets()[0].key;
    server.srq.post_receive(lmr, 1).unwrap();
    let Served { srq, eps: [one, two], .. } = server;
    drop(srq);
    drop(one);
    assert!(table::find(context).is_some(), "an end point has the queue");
    drop(two);
    assert!(table::find(context).is_none(), "its registration has ended, and its memory");
}
