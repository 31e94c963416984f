//! Tests of transfers and their completions.

#![allow(unsafe_code, reason = "it calls the C interface")]

mod kit;

use kit::*;
use udeck_mock_verbs::abi::*;

#[test]
fn a_send_is_gathered_and_scattered_with_its_immediate_data() {
    let (mut a, mut b) = connected(Wish::default());
    let (mut out, mut place) = (*b"0123456789", [0u8; 16]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut place, WRITABLE));
    let mut scatter = [piece(&place[..3], theirs), piece(&place[8..16], theirs)];
    assert_eq!(b.receive(5, &mut scatter), 0);
    let mut gather = [piece(&out[5..], ours), piece(&out[..2], ours)];
    let mut send = request(6, IBV_WR_SEND_WITH_IMM, &mut gather);
    send.imm_data = 0x1234_5678u32.to_be();
    assert_eq!(a.post(send), 0);
    let arrived = b.poll();
    assert_eq!((arrived.wr_id, arrived.status, arrived.opcode), (5, IBV_WC_SUCCESS, IBV_WC_RECV));
    assert_eq!((arrived.byte_len, u32::from_be(arrived.imm_data)), (7, 0x1234_5678));
    assert_eq!((arrived.wc_flags, arrived.qp_num, arrived.src_qp), (IBV_WC_WITH_IMM, b.number(), a.number()));
    assert_eq!(&place, b"567\0\0\0\0\08901\0\0\0\0");
    let sent = a.poll();
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (6, IBV_WC_SUCCESS, IBV_WC_SEND));
}

#[test]
fn an_rdma_write_with_immediate_data_takes_a_receive_and_touches_only_its_target() {
    let (mut a, mut b) = connected(Wish::default());
    let (mut out, mut target) = ([7u8; 5000], [1u8; 6000]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut target, WRITABLE));
    assert_eq!(b.receive(1, &mut []), 0);
    let mut gather = [piece(&out, ours)];
    let mut write = rdma(2, IBV_WR_RDMA_WRITE_WITH_IMM, &mut gather, target[500..].as_ptr() as u64, theirs);
    write.imm_data = 9;
    assert_eq!(a.post(write), 0);
    let arrived = b.poll();
    assert_eq!((arrived.opcode, arrived.byte_len, arrived.imm_data), (IBV_WC_RECV_RDMA_WITH_IMM, 5000, 9));
    assert!(target[..500].iter().all(|byte| *byte == 1) && target[5500..].iter().all(|byte| *byte == 1));
    assert!(target[500..5500].iter().all(|byte| *byte == 7));
    assert_eq!((a.poll().opcode, b.poll_once().is_none()), (IBV_WC_RDMA_WRITE, true));
}

#[test]
fn an_rdma_read_brings_what_is_there() {
    let (mut a, mut b) = connected(Wish::default());
    let (mut place, mut source) = ([0u8; 8], *b"elsewhere");
    let (ours, theirs) = (a.register(&mut place, IBV_ACCESS_LOCAL_WRITE), b.register(&mut source, READABLE));
    let mut scatter = [piece(&place, ours)];
    assert_eq!(a.post(rdma(3, IBV_WR_RDMA_READ, &mut scatter, source[1..].as_ptr() as u64, theirs)), 0);
    let read = a.poll();
    assert_eq!((read.opcode, read.byte_len, read.status), (IBV_WC_RDMA_READ, 8, IBV_WC_SUCCESS));
    assert_eq!(&place, b"lsewhere");
}

#[test]
fn a_region_may_be_addressed_from_zero() {
    let (mut a, b) = connected(Wish::default());
    let mut out = [3u8; 4];
    let ours = a.register(&mut out, 0);
    let mut pages = vec![0u8; 3 * 4096];
    let start = pages.as_ptr().align_offset(4096);
    let address = pages[start..].as_mut_ptr().cast();
    // SAFETY: As the header says.
    let region = unsafe { (library().ibv_reg_mr_iova)(b.domain, address, 4096, 0, WRITABLE as i32) };
    assert!(!region.is_null());
    // SAFETY: It is there.
    let key = unsafe { (*region).rkey };
    let mut gather = [piece(&out, ours)];
    assert_eq!(a.post(rdma(1, IBV_WR_RDMA_WRITE, &mut gather, 100, key)), 0);
    assert_eq!(a.poll().status, IBV_WC_SUCCESS);
    assert_eq!(pages[start + 99..start + 105], [0, 3, 3, 3, 3, 0]);
    // SAFETY: As the header says.
    unsafe {
        let crooked = (library().ibv_reg_mr_iova)(b.domain, address, 4096, 8, WRITABLE as i32);
        assert!(crooked.is_null(), "an address has to keep its place in its page");
        assert_eq!((library().ibv_dereg_mr)(region), 0);
    }
}

#[test]
fn inline_data_may_be_overwritten_at_once_and_needs_no_key() {
    let (a, mut b) = connected(Wish::default());
    let (mut out, mut place) = ([5u8; 64], [0u8; 64]);
    let theirs = b.register(&mut place, WRITABLE);
    // Nothing is received before the data were overwritten.
    let mut gather = [piece(&out, 0)];
    let mut send = request(1, IBV_WR_SEND, &mut gather);
    send.send_flags = IBV_SEND_INLINE;
    assert_eq!(a.post(send), 0);
    out.fill(6);
    std::hint::black_box(&out);
    assert_eq!(b.receive(1, &mut [piece(&place, theirs)]), 0);
    assert_eq!((b.poll().byte_len, a.poll().status), (64, IBV_WC_SUCCESS));
    assert_eq!(place, [5; 64]);
}

#[test]
fn messages_keep_their_order_and_unsignalled_ones_do_not_complete() {
    let wish = Wish { all_signalled: false, ..Wish::default() };
    let (mut a, mut b) = connected(wish);
    let (mut out, mut places) = ([0u8; 12], [0u8; 12]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut places, WRITABLE));
    for index in 0..12 {
        assert_eq!(b.receive(index as u64, &mut [piece(&places[index..index + 1], theirs)]), 0);
        out[index] = index as u8;
    }
    for index in 0..12 {
        let mut gather = [piece(&out[index..index + 1], ours)];
        let mut send = request(100 + index as u64, IBV_WR_SEND, &mut gather);
        send.send_flags = if index == 11 { IBV_SEND_SIGNALED } else { 0 };
        assert_eq!(a.post(send), 0);
    }
    (0..12).for_each(|index| assert_eq!(b.poll().wr_id, index));
    assert_eq!((places, a.poll().wr_id), (out, 111));
    assert!(a.poll_once().is_none());
}

#[test]
fn a_pair_may_be_connected_to_itself() {
    let wish = Wish::default();
    let mut a = Side::new(wish);
    a.init(&wish);
    a.ready_to_receive(&wish, a.number(), a.gid(V2));
    a.ready_to_send(&wish);
    let mut memory = *b"over....";
    let key = a.register(&mut memory, WRITABLE);
    assert_eq!(a.receive(1, &mut [piece(&memory[4..], key)]), 0);
    let mut gather = [piece(&memory[..4], key)];
    assert_eq!(a.post(request(2, IBV_WR_SEND, &mut gather)), 0);
    let mut ids = [a.poll().wr_id, a.poll().wr_id];
    ids.sort_unstable();
    assert_eq!((ids, &memory), ([1, 2], b"overover"));
}

#[test]
fn a_fence_waits_for_reads() {
    let (mut a, mut b) = connected(Wish::default());
    let (mut middle, mut source, mut place) = (*b"old", *b"new", [0u8; 3]);
    let ours = a.register(&mut middle, WRITABLE);
    let (readable, theirs) = (b.register(&mut source, READABLE), b.register(&mut place, WRITABLE));
    assert_eq!(b.receive(1, &mut [piece(&place, theirs)]), 0);
    let mut scatter = [piece(&middle, ours)];
    let mut gather = [piece(&middle, ours)];
    let mut send = request(3, IBV_WR_SEND, &mut gather);
    send.send_flags = IBV_SEND_FENCE;
    assert_eq!(a.post(rdma(2, IBV_WR_RDMA_READ, &mut scatter, source.as_ptr() as u64, readable)), 0);
    assert_eq!(a.post(send), 0);
    assert_eq!((b.poll().status, &place), (IBV_WC_SUCCESS, b"new"));
    assert_eq!((a.poll().wr_id, a.poll().wr_id), (2, 3));
}

#[test]
fn a_shared_receive_queue_serves_its_pairs_and_tells_when_it_runs_low() {
    let wish = Wish { shared: true, ..Wish::default() };
    let (mut a, mut b) = (Side::new(Wish::default()), Side::new(wish));
    connect(&a, &b, &wish);
    let (mut out, mut places) = ([4u8; 8], [0u8; 8]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut places, WRITABLE));
    (0..2).for_each(|id| assert_eq!(b.receive(id, &mut [piece(&places, theirs)]), 0));
    let mut limit = ibv_srq_attr { srq_limit: 2, ..Default::default() };
    // SAFETY: As the header says.
    unsafe { assert_eq!((library().ibv_modify_srq)(b.shared, &mut limit, IBV_SRQ_LIMIT), 0) };
    let mut gather = [piece(&out, ours)];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut gather)), 0);
    assert_eq!((b.poll().wr_id, b.event().event_type), (0, IBV_EVENT_SRQ_LIMIT_REACHED));
    b.fail();
    assert_eq!(b.event().event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    assert!(b.poll_once().is_none(), "a shared queue's receives are not flushed");
}
