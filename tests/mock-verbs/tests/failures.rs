//! Tests of failures: which side learns them, and how.

#![allow(unsafe_code, reason = "it calls the C interface")]

mod kit;

use kit::*;
use std::time::Duration;
use udeck_mock_verbs::abi::*;

const IMPATIENT: Wish = Wish { timeout: 8, rnr_retries: 1, ..Wish::USUAL };

/// Posts a write of four bytes to `address` of `key`, and returns its status.
fn write(a: &mut Side, address: u64, key: u32) -> u32 {
    let out = Box::leak(Box::new([9u8; 4]));
    let ours = a.register(out, 0);
    let mut gather = [piece(out, ours)];
    assert_eq!(a.post(rdma(1, IBV_WR_RDMA_WRITE, &mut gather, address, key)), 0);
    a.poll().status
}

#[test]
fn a_write_beyond_its_rights_fails_both_pairs_and_tells_the_responder() {
    for (access, offset) in [(READABLE, 0), (WRITABLE, 6), (WRITABLE, u64::MAX - 2)] {
        let (mut a, mut b) = connected(IMPATIENT);
        let mut target = [0u8; 8];
        let key = b.register(&mut target, access);
        let address = (target.as_ptr() as u64).wrapping_add(offset);
        assert_eq!(write(&mut a, address, key), IBV_WC_REM_ACCESS_ERR);
        assert_eq!(b.event().event_type, IBV_EVENT_QP_ACCESS_ERR);
        assert_eq!((a.state(), b.state(), target), (IBV_QPS_ERR, IBV_QPS_ERR, [0; 8]));
    }
}

#[test]
fn a_key_of_another_domain_or_of_nothing_is_refused() {
    let (mut a, mut b) = connected(IMPATIENT);
    let mut target = [0u8; 8];
    let mut stranger = Side::new(IMPATIENT);
    let foreign = stranger.register(&mut target, WRITABLE);
    assert_eq!(write(&mut a, target.as_ptr() as u64, foreign), IBV_WC_REM_ACCESS_ERR);
    let (mut a, _b) = connected(IMPATIENT);
    let mine = b.register(&mut target, WRITABLE);
    assert_eq!(write(&mut a, target.as_ptr() as u64, mine ^ 1), IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_pair_that_does_not_allow_rdma_refuses_the_request() {
    let (mut a, mut b) = connected(Wish { access: 0, ..IMPATIENT });
    let mut target = [0u8; 8];
    let key = b.register(&mut target, WRITABLE);
    assert_eq!(write(&mut a, target.as_ptr() as u64, key), IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(b.event().event_type, IBV_EVENT_QP_REQ_ERR);
}

#[test]
fn what_was_deregistered_is_neither_sent_nor_written() {
    let (mut a, b) = connected(IMPATIENT);
    let mut out = [0u8; 8];
    let key = a.register(&mut out, 0);
    let region = a.regions.pop().expect("it was registered");
    // SAFETY: As the header says.
    unsafe { assert_eq!((library().ibv_dereg_mr)(region), 0) };
    let mut gather = [piece(&out, key)];
    assert_eq!(b.receive(1, &mut []), 0);
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!((a.poll().status, a.state()), (IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR));
}

#[test]
fn a_message_that_is_too_long_fails_at_both_ends() {
    let (mut a, mut b) = connected(IMPATIENT);
    let (mut out, mut place) = ([1u8; 9], [0u8; 8]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut place, WRITABLE));
    assert_eq!(b.receive(1, &mut [piece(&place, theirs)]), 0);
    assert_eq!(b.receive(2, &mut [piece(&place, theirs)]), 0);
    let mut gather = [piece(&out, ours)];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!((b.poll().status, a.poll().status), (IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR));
    let flushed = b.poll();
    assert_eq!((flushed.wr_id, flushed.status), (2, IBV_WC_WR_FLUSH_ERR));
}

#[test]
fn a_receive_that_may_not_be_written_fails_at_both_ends() {
    let (mut a, mut b) = connected(IMPATIENT);
    let (mut out, mut place) = ([1u8; 8], [0u8; 8]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut place, 0));
    assert_eq!(b.receive(1, &mut [piece(&place, theirs)]), 0);
    let mut gather = [piece(&out, ours)];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!((b.poll().status, a.poll().status), (IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR));
}

#[test]
fn behind_a_failure_everything_is_flushed_even_unsignalled_and_later_posts() {
    let (mut a, b) = connected(Wish { all_signalled: false, ..IMPATIENT });
    let mut out = [1u8; 8];
    let ours = a.register(&mut out, 0);
    let mut bad = [piece(&out, ours ^ 1)];
    let mut good = [piece(&out, ours)];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut bad)), 0);
    assert_eq!(a.post(request(2, IBV_WR_SEND, &mut good)), 0);
    let failed = a.poll();
    assert_eq!((failed.wr_id, failed.status), (1, IBV_WC_LOC_PROT_ERR));
    let flushed = a.poll();
    assert_eq!((flushed.wr_id, flushed.status), (2, IBV_WC_WR_FLUSH_ERR));
    assert_ne!(flushed.opcode, IBV_WC_SEND, "the specification does not define it");
    assert_eq!(a.post(request(3, IBV_WR_SEND, &mut good)), 0);
    assert_eq!((a.poll().wr_id, b.poll_once().is_none()), (3, true));
    assert_eq!(a.receive(4, &mut []), 0);
    assert_eq!((a.poll().wr_id, a.poll_once().is_none()), (4, true));
}

#[test]
fn without_a_receive_a_send_waits_for_ever_or_until_it_has_tried_enough() {
    let (mut a, mut b) = connected(Wish { rnr_retries: 7, ..IMPATIENT });
    let (mut out, mut place) = ([2u8; 8], [0u8; 8]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut place, WRITABLE));
    let mut gather = [piece(&out, ours)];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
    // The sleep is far longer than the responder's timer: 0.64 ms.
    std::thread::sleep(Duration::from_millis(30));
    assert!(a.poll_once().is_none());
    assert_eq!(b.receive(1, &mut [piece(&place, theirs)]), 0);
    assert_eq!((a.poll().status, place), (IBV_WC_SUCCESS, [2; 8]));

    let (mut a, _b) = connected(IMPATIENT);
    let ours = a.register(&mut out, 0);
    let mut gather = [piece(&out, ours)];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!(a.poll().status, IBV_WC_RNR_RETRY_EXC_ERR);
}

#[test]
fn nobody_answers_for_a_pair_that_is_gone_failed_or_connected_elsewhere() {
    let send = |a: &mut Side| {
        let out = Box::leak(Box::new([2u8; 8]));
        let ours = a.register(out, 0);
        let mut gather = [piece(out, ours)];
        assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
        a.poll().status
    };
    let (mut a, b) = connected(IMPATIENT);
    drop(b);
    assert_eq!(send(&mut a), IBV_WC_RETRY_EXC_ERR);
    let (mut a, b) = connected(IMPATIENT);
    assert_eq!(b.receive(1, &mut []), 0);
    b.fail();
    assert_eq!((send(&mut a), b.poll().status), (IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR));
    let (a, b) = (Side::new(IMPATIENT), Side::new(IMPATIENT));
    connect(&a, &b, &IMPATIENT);
    let mut third = Side::new(IMPATIENT);
    third.init(&IMPATIENT);
    third.ready_to_receive(&IMPATIENT, b.number(), b.gid(V2));
    third.ready_to_send(&IMPATIENT);
    assert_eq!(send(&mut third), IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_pair_that_becomes_ready_in_time_is_sent_to() {
    let wish = Wish { timeout: 0, ..Wish::default() };
    let (mut a, mut b) = (Side::new(wish), Side::new(wish));
    [&a, &b].iter().for_each(|side| side.init(&wish));
    a.ready_to_receive(&wish, b.number(), b.gid(V2));
    a.ready_to_send(&wish);
    let (mut out, mut place) = ([2u8; 8], [0u8; 8]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut place, WRITABLE));
    let mut gather = [piece(&out, ours)];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!(b.receive(1, &mut [piece(&place, theirs)]), 0);
    std::thread::sleep(Duration::from_millis(10));
    assert!(a.poll_once().is_none());
    b.ready_to_receive(&wish, a.number(), a.gid(V2));
    assert_eq!((a.poll().status, b.poll().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(b.event().event_type, IBV_EVENT_COMM_EST);
}

#[test]
fn packets_of_the_wrong_version_of_roce_or_number_do_not_arrive() {
    for (index, psn) in [(2, 7), (V2, 8)] {
        let (mut a, b) = (Side::new(IMPATIENT), Side::new(IMPATIENT));
        [&a, &b].iter().for_each(|side| side.init(&IMPATIENT));
        let (mut attributes, mask) = b.to_rtr(&IMPATIENT, a.number(), a.gid(V2));
        attributes.ah_attr.grh.sgid_index = index;
        attributes.rq_psn = psn;
        assert_eq!(b.modify(attributes, mask), 0);
        a.ready_to_receive(&IMPATIENT, b.number(), b.gid(V2));
        a.ready_to_send(&IMPATIENT);
        assert_eq!(b.receive(1, &mut []), 0);
        let mut out = [2u8; 8];
        let ours = a.register(&mut out, 0);
        let mut gather = [piece(&out, ours)];
        assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
        assert_eq!(a.poll().status, IBV_WC_RETRY_EXC_ERR, "{index} {psn}");
    }
}

#[test]
fn an_unreliable_pair_loses_what_finds_no_place_and_never_learns_it() {
    let wish = Wish { kind: IBV_QPT_UC, ..IMPATIENT };
    let (mut a, mut b) = connected(wish);
    let (mut out, mut place) = ([2u8; 8], [0u8; 8]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut place, WRITABLE));
    let mut gather = [piece(&out, ours)];
    let mut read = [piece(&place, theirs)];
    assert_eq!(a.post(rdma(0, IBV_WR_RDMA_READ, &mut read, 0, 0)), libc::EINVAL);
    // The first message finds no receive; the second no such key; the third a receive that is too short, and
    // stays.
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!(a.poll().status, IBV_WC_SUCCESS);
    assert_eq!(a.post(rdma(2, IBV_WR_RDMA_WRITE, &mut gather, 0, 77)), 0);
    assert_eq!(a.poll().status, IBV_WC_SUCCESS);
    assert_eq!(b.receive(1, &mut [piece(&place[..4], theirs)]), 0);
    assert_eq!(a.post(request(3, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!(a.poll().status, IBV_WC_SUCCESS);
    let mut short = [piece(&out[..4], ours)];
    assert_eq!(a.post(request(4, IBV_WR_SEND, &mut short)), 0);
    assert_eq!((b.poll().byte_len, place, b.state()), (4, [2, 2, 2, 2, 0, 0, 0, 0], IBV_QPS_RTS));
    let peer = b.number();
    drop(b);
    assert_eq!(a.post(request(5, IBV_WR_SEND, &mut gather)), 0, "to {peer}");
    assert_eq!((a.poll().wr_id, a.poll().wr_id), (4, 5));
}

#[test]
fn an_unreliable_pairs_own_mistake_stops_its_sends_only() {
    let wish = Wish { kind: IBV_QPT_UC, ..IMPATIENT };
    let (mut a, mut b) = connected(wish);
    let mut memory = [2u8; 8];
    let ours = a.register(&mut memory, WRITABLE);
    let mut bad = [piece(&memory, ours ^ 1)];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut bad)), 0);
    assert_eq!((a.poll().status, a.state()), (IBV_WC_LOC_PROT_ERR, IBV_QPS_SQE));
    let mut out = [3u8; 8];
    let theirs = b.register(&mut out, 0);
    assert_eq!(a.receive(2, &mut [piece(&memory, ours)]), 0);
    let mut gather = [piece(&out, theirs)];
    assert_eq!(b.post(request(3, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!((a.poll().wr_id, memory), (2, [3; 8]));
}
