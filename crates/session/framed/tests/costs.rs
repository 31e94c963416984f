//! Allocations of a short message: none, once the queues have grown to the number in flight.

#![allow(unsafe_code, reason = "it counts allocations")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use udeck_via::Reliability;
use udeck_via::transport::{Landed, PostedBuffer, ViEndpoint};

use super::pair::Pair;
use crate::framed::connection::Pieces;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, and a count beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(act: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    act();
    ALLOCATIONS.with(Cell::get) - before
}

/// Moves bytes of the stream without the harness's buffers.
fn cross(pair: &mut Pair, from: usize, sent: &mut u64, buffer: &mut [u8]) {
    let len = pair.ends[from].link.with(|connection, _| {
        let mut pieces = Pieces::new();
        let gathered = connection.gather(*sent, buffer.len(), &mut pieces);
        pieces.copy_to(buffer);
        *sent += gathered as u64;
        connection.released(*sent);
        gathered
    });
    pair.ends[1 - from].link.with(|connection, _| {
        let direct = connection.direct();
        connection.on_receive(direct, 0, &buffer[..len]);
    });
}

#[test]
fn a_short_message_allocates_nothing() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    let (mut sent, mut buffer, mut place) = ([0, 0], vec![0; 10_000], [0; 4096]);
    let block = pair.ends[0].block(1000, 1);
    let mut round = |pair: &mut Pair| {
        for side in [0, 1] {
            for _ in 0..5 {
                pair.ends[side].endpoint().send(Some(1), b"head", b"body").unwrap();
            }
            if side == 0 {
                // A longer message goes to the place that was posted for it, too.
                let segments = [(block.offset(), 1000)];
                pair.ends[0].endpoint().lend(None, &[], &segments, PostedBuffer::Caller(1)).unwrap();
            }
            cross(pair, side, &mut sent[side], &mut buffer);
            for _ in 0..5 + usize::from(side == 0) {
                let landed = pair.ends[1 - side].endpoint().receive_into(&mut place).unwrap();
                assert!(matches!(landed, Some(Landed::Copied { .. })));
            }
            while pair.ends[side].endpoint().poll_completion().is_some() {}
        }
    };
    (0..100).for_each(|_| round(&mut pair));
    let count = allocations(|| (0..1000).for_each(|_| round(&mut pair)));
    assert_eq!(count, 0, "allocations for 11000 messages");
}
