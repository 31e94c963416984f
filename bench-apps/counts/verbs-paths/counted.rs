//! Counted paths: one function each. Its name is the path's name in the record; `…_bare` is the same path by bare calls.
//!
//! No function is inlined, because callgrind counts by function. No two have the same body, because the compiler
//! would merge them.

use std::ptr::null_mut;
use udeck_mock_verbs::abi::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};
use udeck_via::{Completion, Cq, Descriptor, Source, Vi};

/// Bytes of the message that both ways carry.
pub const SMALL: usize = 8;

/// Posts a message of 8 bytes.
#[inline(never)]
pub fn verbs_post_send(vi: &mut Vi, send: Descriptor) {
    vi.post_send(send).expect("posting a send over verbs");
}

/// Polls until the message has come (one poll may pass over its queue), takes it out with its descriptor, and posts
/// the descriptor again. The polls also take the completion of the send.
#[inline(never)]
pub fn verbs_retrieve(cq: &mut Cq, vi: &mut Vi) -> usize {
    while !cq.poll().is_some_and(|entry| entry.source == Source::Receive) {
        // The NIC's helper may be at work there.
        std::thread::yield_now();
    }
    let came = vi.receive_done().expect("the message has come over verbs on this queue");
    let descriptor = came.descriptor.expect("it was posted by its owner");
    vi.post_receive(descriptor).expect("posting a receive over verbs");
    came.length
}

/// Takes the completion of a send.
#[inline(never)]
pub fn verbs_send_done(vi: &mut Vi) -> Completion {
    vi.send_done().expect("the send over verbs is over")
}

#[inline(never)]
pub fn verbs_cq_empty(cq: &mut Cq) -> bool {
    let nothing = cq.poll().is_none();
    assert!(nothing, "one message was sent over verbs");
    nothing
}

/// # Safety
/// A queue pair of an open context, and a request with its list.
#[inline(never)]
pub unsafe fn verbs_post_send_bare(pair: *mut ibv_qp, request: &mut ibv_send_wr) {
    let mut bad = null_mut();
    // SAFETY: The caller's contract.
    let result = unsafe { (*(*pair).context).ops.post_send.expect("post_send")(pair, request, &mut bad) };
    assert_eq!(result, 0, "ibv_post_send");
}

/// Takes both sides' completions, and posts the receive again.
///
/// # Safety
/// A completion queue and a queue pair of an open context, and a request with its list.
#[inline(never)]
pub unsafe fn verbs_retrieve_bare(
    queue: *mut ibv_cq,
    found: &mut [ibv_wc; 2],
    pair: *mut ibv_qp,
    request: &mut ibv_recv_wr,
) {
    let mut bad = null_mut();
    // SAFETY: The caller's contract, and room for two.
    let (polled, result) = unsafe {
        let ops = &(*(*queue).context).ops;
        let polled = ops.poll_cq.expect("poll_cq")(queue, 2, found.as_mut_ptr());
        (polled, ops.post_recv.expect("post_recv")(pair, request, &mut bad))
    };
    assert_eq!((polled, result), (2, 0), "a receive and a send, and the next receive");
}

/// # Safety
/// A completion queue of an open context.
#[inline(never)]
pub unsafe fn verbs_cq_empty_bare(queue: *mut ibv_cq, found: &mut [ibv_wc; 2]) -> bool {
    // SAFETY: The caller's contract, and room for one.
    let polled = unsafe { (*(*queue).context).ops.poll_cq.expect("poll_cq")(queue, 1, found.as_mut_ptr()) };
    polled == 0
}
