//! What those that share a segment tell each other in it: its head, and a row for each of them (its *members*, by number from 0).
//!
//! Everything here is atomics that any member can write, whatever it likes: a lie makes a call return early, late (by its deadline) or
//! with an error. It decides about no memory.

use crate::atomic::{AtomicU32, Ordering, Shared};
use crate::event_count::EventCount;
use crate::robust_lock::RobustLock;

/// The head of a segment. All zeros when it is made, but for what its maker writes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Head {
    /// The segment's lock, or the semaphore's.
    pub lock: RobustLock,
    /// Raised when a barrier is complete.
    pub barriers: EventCount,
    /// Raised when a permit comes back.
    pub permits: EventCount,
    /// Of a semaphore: permits, held ones included; as `i32`.
    pub total: AtomicU32,
    /// What the segment is for, in the maker's number of it.
    pub kind: AtomicU32,
}

// SAFETY: atomics only, and what consists of them.
unsafe impl Shared for Head {}

/// What one member says. Only it writes its row, but for `held`, once it is dead.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Row {
    state: AtomicU32,
    /// The barriers that it has come to.
    pub arrived: AtomicU32,
    /// Permits that it holds; as `i32`.
    pub held: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl Shared for Row {}

/// Where a member stands, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has not come yet.
    Absent,
    /// It uses the segment, or it is dead: the kernel knows.
    Present,
    /// It has dropped the segment.
    Left,
}

impl Row {
    /// Where the member stands.
    pub fn state(&self) -> MemberState {
        match self.state.load(Ordering::Acquire) {
            0 => MemberState::Absent,
            1 => MemberState::Present,
            _ => MemberState::Left,
        }
    }

    /// By the member.
    pub fn set_state(&self, state: MemberState) {
        self.state.store(state as u32, Ordering::Release);
    }
}

/// Both.
#[derive(Clone, Copy, Debug)]
pub struct MemberTable<'a> {
    /// The head.
    pub head: &'a Head,
    /// A row for each member.
    pub rows: &'a [Row],
}
