//! Windows that are opened to peers.

use super::*;

fn bound(end: &End) -> (Rmr, u64, Status) {
    match next(&end.work) {
        Event::Bind { rmr, cookie, status } => (rmr, cookie, status),
        other => panic!("{other:?}"),
    }
}

/// A message behind a bind tells the peer where it may write, and one behind an unbind that it may not.
#[test]
fn a_window_opens_and_closes_in_order_with_messages() {
    for transport in TRANSPORTS {
        let (here, there) = pair(transport);
        let memory = SharedLmr::new(&there.pz, 4096, Rights::NONE).unwrap();
        here.ep.post_receive(here.lmr(&[0; 16]), 1).unwrap();
        there.ep.post_receive(there.lmr(&[0; 1]), 2).unwrap();
        let rmr = Rmr::new(&there.pz);
        let (id, none) = (rmr.id(), rmr.remote());
        let window = there.ep.post_bind(rmr, &memory, 100..200, Rights::WRITE, 7, Flags::NONE).unwrap();
        there.ep.post_send(there.lmr(&window.to_bytes()), 8).unwrap();
        let (rmr, cookie, status) = bound(&there);
        assert_eq!((rmr.id(), none, cookie, status), (id, None, 7, Status::Success), "{transport}");
        assert_eq!((rmr.remote(), window.len), (Some(window), 100));
        assert_eq!(there.completion().cookie, 8);

        let told = RemoteMemory::from_bytes(here.completion().done().unwrap()[..].try_into().unwrap());
        here.ep.post_rdma_write(here.lmr(&[9; 100]), told, 3, Flags::NONE).unwrap();
        here.ep.post_send(here.lmr(b"!"), 4).unwrap();
        assert_eq!(there.completion().cookie, 2);
        let mut seen = [1; 102];
        memory.read(99, &mut seen).unwrap();
        assert_eq!(seen[..], [&[0][..], &[9; 100], &[0]].concat(), "{transport}");

        let memory = memory.into_bytes().expect_err("it is bound");
        there.ep.post_unbind(rmr, 5, Flags::NONE).unwrap();
        let (rmr, cookie, status) = bound(&there);
        assert_eq!((rmr.remote(), cookie, status), (None, 5, Status::Success));
        here.ep.post_rdma_write(here.lmr(&[8; 100]), told, 6, Flags::NONE).unwrap();
        assert_eq!(told_of(&there), Connection::Broken, "{transport}");
        assert_eq!(memory.into_bytes().unwrap()[100..200], [9; 100], "{transport}");
    }
}

fn told_of(end: &End) -> Connection {
    told(&end.connections, &end.ep)
}

#[test]
fn a_peer_has_the_windows_rights_and_no_more() {
    for (rights, write) in [(Rights::READ, true), (Rights::WRITE, false)] {
        let (here, there) = pair("shm");
        let memory = SharedLmr::new(&there.pz, 64, Rights::READ_WRITE).unwrap();
        let window = there.ep.post_bind(Rmr::new(&there.pz), &memory, 0..8, rights, 1, Flags::NONE).unwrap();
        let _bound = bound(&there);
        if write {
            here.ep.post_rdma_write(here.lmr(&[9; 8]), window, 1, Flags::NONE).unwrap();
        } else {
            here.ep.post_rdma_read(here.lmr(&[0; 8]), window, 1, Flags::NONE).unwrap();
        }
        assert_eq!(told_of(&here), Connection::Broken, "{rights:?}");
        let mut seen = [1; 8];
        memory.read(0, &mut seen).unwrap();
        assert_eq!(seen, [0; 8]);
    }
}

#[test]
fn a_peer_ends_a_window_by_its_message() {
    for transport in TRANSPORTS {
        let (here, there) = pair(transport);
        let memory = SharedLmr::new(&there.pz, 64, Rights::NONE).unwrap();
        there.ep.post_receive(there.lmr(&[0; 4]), 1).unwrap();
        let window =
            there.ep.post_bind(Rmr::new(&there.pz), &memory, 0..64, Rights::READ, 2, Flags::NONE).unwrap();
        let (rmr, ..) = bound(&there);
        here.ep.post_send_with_invalidate(here.lmr(b"done"), 3, window.context, Flags::NONE).unwrap();
        let came = there.completion();
        assert_eq!(came.operation, Operation::ReceiveWithInvalidate(window.context), "{transport}");
        assert_eq!(rmr.remote(), None, "{transport}");
        // The region can be bound again.
        let again = there.ep.post_bind(rmr, &memory, 8..64, Rights::READ, 4, Flags::NONE).unwrap();
        let (rmr, ..) = bound(&there);
        assert_eq!((rmr.remote(), again.len), (Some(again), 56));
        assert_ne!(again.context, window.context);
    }
}

#[test]
fn a_region_that_is_refused_comes_back_as_it_was() {
    let (here, there) = pair("shm");
    let memory = SharedLmr::new(&there.pz, 64, Rights::NONE).unwrap();
    let window =
        there.ep.post_bind(Rmr::new(&there.pz), &memory, 0..8, Rights::READ, 1, Flags::NONE).unwrap();
    let (rmr, ..) = bound(&there);
    let empty = there.ep.post_bind(rmr, &memory, 3..3, Rights::READ, 1, Flags::NONE);
    let (error, rmr) = empty.unwrap_err();
    assert_eq!(error.to_string(), "dat_rmr_bind: part 3..3 of 64 bytes of memory");
    let beyond = there.ep.post_bind(rmr, &memory, 3..65, Rights::READ, 1, Flags::NONE);
    let (error, rmr) = beyond.unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
    let others = SharedLmr::new(&Pz::new(there.ep.ia()), 64, Rights::NONE).unwrap();
    let (error, rmr) = there.ep.post_bind(rmr, &others, 0..8, Rights::READ, 1, Flags::NONE).unwrap_err();
    assert!(matches!(error, Error::Protection { .. }), "{error}");
    let (error, rmr) = here.ep.post_unbind(rmr, 1, Flags::NONE).unwrap_err();
    assert!(matches!(error, Error::Protection { .. }), "the end point is of another zone: {error}");
    let idle = Ep::new(&there.pz, &there.work, &there.work, &there.work, EpAttributes::default()).unwrap();
    let (error, rmr) = idle.post_bind(rmr, &memory, 0..8, Rights::READ, 1, Flags::NONE).unwrap_err();
    assert!(matches!(error, Error::InvalidState { state: EpState::Unconnected, .. }), "{error}");
    assert_eq!(rmr.remote(), Some(window), "as it was");
}

/// A peer does not reach what was bound before either, and memory is given back.
#[test]
fn a_bind_that_is_flushed_leaves_nothing_bound() {
    let (here, there) = pair("shm");
    let memory = SharedLmr::new(&there.pz, 64, Rights::NONE).unwrap();
    there.ep.post_bind(Rmr::new(&there.pz), &memory, 0..8, Rights::READ, 1, Flags::NONE).unwrap();
    let (rmr, ..) = bound(&there);
    here.ep.disconnect(false).unwrap();
    assert_eq!(told_of(&there), Connection::Disconnected);
    there.ep.post_bind(rmr, &memory, 0..8, Rights::READ, 2, Flags::NONE).unwrap();
    let (rmr, cookie, status) = bound(&there);
    assert_eq!((rmr.remote(), cookie, status), (None, 2, Status::Flushed));
    // An event that nobody takes gives it back, too.
    there.ep.post_bind(rmr, &memory, 0..8, Rights::READ, 3, Flags::NONE).unwrap();
    let End { ep, work, .. } = there;
    let memory = memory.into_bytes().expect_err("the event has it");
    drop((ep, work));
    memory.into_bytes().unwrap();
}

/// Memory that was bound before is reached until the next bind's turn, which waits behind a read.
#[test]
fn memory_stays_until_the_bind_that_ends_it_is_over() {
    for transport in TRANSPORTS {
        let (here, there) = pair(transport);
        let (first, second) = (
            SharedLmr::new(&there.pz, 8, Rights::NONE).unwrap(),
            SharedLmr::of(&there.pz, [5; 8].into(), Rights::NONE).unwrap(),
        );
        there.ep.post_bind(Rmr::new(&there.pz), &first, 0..8, Rights::READ, 1, Flags::NONE).unwrap();
        let (rmr, ..) = bound(&there);
        drop(first); // the region keeps it
        let before = rmr.remote().unwrap();
        here.ep.post_rdma_read(here.lmr(&[1; 8]), before, 1, Flags::NONE).unwrap();
        assert_eq!(here.completion().done().unwrap()[..], [0; 8], "{transport}");
        let after = there.ep.post_bind(rmr, &second, 0..8, Rights::READ, 2, Flags::FENCE).unwrap();
        let (rmr, ..) = bound(&there);
        here.ep.post_rdma_read(here.lmr(&[1; 8]), after, 2, Flags::NONE).unwrap();
        assert_eq!(here.completion().done().unwrap()[..], [5; 8], "{transport}");
        drop(rmr);
        here.ep.post_rdma_read(here.lmr(&[1; 8]), after, 3, Flags::NONE).unwrap();
        assert_eq!(here.completion().status, Status::RemoteAccess, "{transport}: it was dropped");
    }
}
