//! Table of the members of a segment: its head, and a row for each process that shares it (its *members*, by number from 0).
//!
//! Everything here is atomics, to which any member can write anything: a lie makes a call return early, late (by its
//! deadline) or with an error. No access to memory depends on it.

use crate::sync::atomic::{AtomicU32, Ordering, Shared};
use crate::sync::event_count::EventCount;
use crate::sync::robust_lock::RobustLock;

/// Head of a segment. All zeros when it is made, apart from the words that its maker writes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Head {
    /// The segment's lock, or the semaphore's.
    pub lock: RobustLock,
    /// Raised when a barrier is complete.
    pub barriers: EventCount,
    /// Raised when a permit comes back.
    pub permits: EventCount,
    /// Permits of a semaphore, held ones included; as `i32`.
    pub total: AtomicU32,
    /// The use of the segment, by the maker's number.
    pub kind: AtomicU32,
}

// SAFETY: atomics only, and types that consist of them.
unsafe impl Shared for Head {}

/// A member's row. Only the member writes it, except for `held`, once the member is dead.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Row {
    state: AtomicU32,
    /// Number of barriers that the member has come to.
    pub arrived: AtomicU32,
    /// Permits that the member holds; as `i32`.
    pub held: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl Shared for Row {}

/// State of a member, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The member has not come yet.
    Absent,
    /// The member uses the segment, or it is dead: the kernel knows.
    Present,
    /// The member has dropped the segment.
    Left,
}

impl Row {
    /// The member's state.
    pub fn state(&self) -> MemberState {
        match self.state.load(Ordering::Acquire) {
            0 => MemberState::Absent,
            1 => MemberState::Present,
            _ => MemberState::Left,
        }
    }

    /// Sets the member's state. Only the member calls this.
    pub fn set_state(&self, state: MemberState) {
        self.state.store(state as u32, Ordering::Release);
    }
}

/// Head and rows of a segment.
#[derive(Clone, Copy, Debug)]
pub struct MemberTable<'a> {
    /// The head.
    pub head: &'a Head,
    /// A row for each member.
    pub rows: &'a [Row],
}
