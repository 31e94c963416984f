//! Layout of a connection's control segment.
//!
//! ```text
//! 0       cells of direction 0 (requester to acceptor), 64 × 64 bytes
//! 4096    cells of direction 1
//! 8192    direction 0:  +0    consumer's line, and at +128 how far it has read (written by the reader)
//!                       +256  64 returned tokens (written by the reader)
//!                       +512  sender's line     (written by the writer)
//! 9216    direction 1: the same
//! 12288   end
//! ```

use std::sync::Arc;

use udeck_sys::atomic::{AtomicU32, Shared};
use udeck_sys::ring::{Cell, ConsumerLine, Storage};
use udeck_sys::segment::{Mapping, SharedRef};
use udeck_sys::tokens::{Lane, SLOTS};
use udeck_sys::window::Gate;

/// Capacity of a ring, in messages of one direction that are not yet read.
pub const CELLS: u32 = 64;
/// Bytes of a control segment, which is the memory cost of an idle connection.
pub const CONTROL_BYTES: usize = 12_288;

const LINES: usize = 2 * CELLS as usize * size_of::<Cell>();
const DIRECTION_LINES: usize = 1024;
const TOKENS: usize = size_of::<ConsumerLine>();
const SENDER: usize = TOKENS + SLOTS as usize * 4;

const _: () = assert!(SENDER + size_of::<SenderLine>() <= DIRECTION_LINES);
const _: () = assert!(LINES + 2 * DIRECTION_LINES <= CONTROL_BYTES);

/// Words that the writer of a direction shares with the reader.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct SenderLine {
    /// Not 0 while the writer waits for room or for a lent buffer; then the reader rings its doorbell.
    pub waiting: AtomicU32,
    /// [`OPEN`], [`CLOSED`] or [`BROKEN`].
    pub state: AtomicU32,
    /// The window of the reader that the writer is inside, by RDMA.
    pub gate: Gate,
}

// SAFETY: atomics only.
unsafe impl Shared for SenderLine {}

/// State of a direction: more messages may come.
pub const OPEN: u32 = 0;
/// State of a direction: nothing follows the messages in the ring.
pub const CLOSED: u32 = 1;
/// State of a direction: as [`CLOSED`], because the writer found a receive descriptor missing or too short.
pub const BROKEN: u32 = 2;

/// One direction of a connection, as seen from either side.
#[derive(Clone, Debug)]
pub struct Direction {
    cells: SharedRef<[Cell; CELLS as usize]>,
    consumer: SharedRef<ConsumerLine>,
    tokens: SharedRef<[AtomicU32; SLOTS as usize]>,
    sender: SharedRef<SenderLine>,
}

impl Direction {
    /// Maps one direction. Direction 0 is written by the requester, 1 by the acceptor.
    pub fn new(control: &Arc<Mapping>, number: usize) -> Self {
        assert!(number < 2 && control.len() == CONTROL_BYTES);
        let lines = LINES + number * DIRECTION_LINES;
        Direction {
            cells: SharedRef::new(control.clone(), number * size_of::<[Cell; CELLS as usize]>()),
            consumer: SharedRef::new(control.clone(), lines),
            tokens: SharedRef::new(control.clone(), lines + TOKENS),
            sender: SharedRef::new(control.clone(), lines + SENDER),
        }
    }

    /// The writer's line.
    #[inline]
    pub fn sender(&self) -> &SenderLine {
        &self.sender
    }
}

impl Storage for Direction {
    #[inline]
    fn cells(&self) -> u32 {
        CELLS
    }
    #[inline]
    fn cell(&self, index: u32) -> &Cell {
        &self.cells[(index % CELLS) as usize]
    }
    #[inline]
    fn line(&self) -> &ConsumerLine {
        &self.consumer
    }
}

impl Lane for Direction {
    fn entry(&self, index: u32) -> &AtomicU32 {
        &self.tokens[(index % SLOTS) as usize]
    }
}
