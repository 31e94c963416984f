//! The paths: one function each. Its name is the path's name in the record.
//!
//! None is inlined, because callgrind books by function. No two have the same body, because the compiler would merge them.

use crate::c::{Event, Handle, Triplet, ep_post_recv, ep_post_send, evd_dequeue, table_of};

/// `DAT_COMPLETION_DEFAULT_FLAG`.
const DEFAULT: u32 = 0;
/// `DAT_QUEUE_EMPTY`, without its subtype.
const QUEUE_EMPTY: u32 = 0x000d_0000;

/// Posts a send of 8 bytes. The completion is put into the event dispatcher's queue.
///
/// # Safety
/// A handle of an end point, and memory that is registered for it.
#[inline(never)]
pub unsafe fn dat_post_send(ep: Handle, from: &Triplet) {
    // SAFETY: the caller's contract.
    let code = unsafe { ep_post_send(table_of(ep), ep, 1, from, 1, DEFAULT) };
    assert_eq!(code, 0, "dat_ep_post_send");
}

/// # Safety
/// As [`dat_post_send`].
#[inline(never)]
pub unsafe fn dat_post_recv(ep: Handle, into: &Triplet) {
    // SAFETY: the caller's contract.
    let code = unsafe { ep_post_recv(table_of(ep), ep, 1, into, 2, DEFAULT) };
    assert_eq!(code, 0, "dat_ep_post_recv");
}

/// Dequeues the completion of a send, which is in the queue.
///
/// # Safety
/// A handle of an event dispatcher.
#[inline(never)]
pub unsafe fn dat_evd_dequeue(evd: Handle, event: &mut Event) {
    // SAFETY: the caller's contract.
    let code = unsafe { evd_dequeue(table_of(evd), evd, event) };
    assert_eq!(code, 0, "dat_evd_dequeue of a send");
}

/// Dequeues a message of 8 bytes that has come: the poll takes it, copies it to its receive, and makes the event.
///
/// # Safety
/// As [`dat_evd_dequeue`].
#[inline(never)]
pub unsafe fn dat_evd_dequeue_received(evd: Handle, event: &mut Event) {
    // SAFETY: the caller's contract.
    while unsafe { evd_dequeue(table_of(evd), evd, event) } != 0 {
        // The adapter's thread may be at the message.
        std::thread::yield_now();
    }
}

/// Dequeues from an empty queue: a poll without result.
///
/// # Safety
/// As [`dat_evd_dequeue`].
#[inline(never)]
pub unsafe fn dat_evd_dequeue_empty(evd: Handle, event: &mut Event) {
    // SAFETY: the caller's contract.
    let code = unsafe { evd_dequeue(table_of(evd), evd, event) };
    assert_eq!(code & 0x3fff_0000, QUEUE_EMPTY, "one message was sent");
}
