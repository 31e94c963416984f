//! Connections that wait: for memory, for a message that has almost arrived, or to be polled again.
//!
//! Connections that wait for the same memory are served in the order of their requests: small messages do not
//! overtake a large one for ever. A connection that was served queues again with its next announcement, so a
//! postbox that announces much does not delay the others.

use std::collections::VecDeque;

use crate::exits::check::{ExitCheck, Verdict};
use crate::world_state::WorldState;

/// Connections that wait, by context.
#[derive(Debug, Default)]
pub(super) struct WaitLists {
    /// Connections that wait for memory, by [`crate::memory::accounting::Memory`], in the order of their requests.
    /// Each is in one list at most.
    pub for_memory: [VecDeque<usize>; 2],
    /// Connections with a message that has almost arrived.
    pub unfinished: VecDeque<usize>,
    /// Checks of ranks whose connection broke: the launcher has been asked whether they have finished.
    pub exit_checks: ExitChecks,
    /// Connections that the completion queue reported while they were blocked, and that are not blocked any
    /// more.
    pub notified: VecDeque<usize>,
}

impl WaitLists {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.for_memory.iter().all(VecDeque::is_empty)
            && self.unfinished.is_empty()
            && self.notified.is_empty()
            && self.exit_checks.is_empty()
    }

    /// Removes a connection that has ended from all lists.
    pub fn forget(&mut self, connection: usize) {
        let lists = self.for_memory.iter_mut().chain([&mut self.unfinished, &mut self.notified]);
        lists.for_each(|list| list.retain(|other| *other != connection));
    }

    /// The connection that is served next.
    pub fn first(&self) -> Option<usize> {
        self.for_memory.iter().find_map(|list| list.front()).copied()
    }
}

/// Pending checks of ranks whose connections to a mailbox broke, at most one for each rank: each is pending
/// until it is known whether the rank has finished ([`crate::exits::check`]). No call waits for the verdict: a
/// later poll reports it.
#[derive(Default)]
pub(super) struct ExitChecks(Vec<ExitCheck>);

impl ExitChecks {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, rank: u32, how: String) {
        if self.0.iter().all(|check| check.rank() != rank) {
            self.0.push(ExitCheck::new(rank, how));
        }
    }

    /// Returns a rank that turns out to be lost, and how it ended. Does not wait.
    pub fn next_lost(&mut self, world: &WorldState) -> Option<(u32, String)> {
        let mut at = 0;
        while at < self.0.len() {
            match self.0[at].verdict(world) {
                Verdict::Pending => at += 1,
                Verdict::Finished => drop(self.0.swap_remove(at)),
                Verdict::Lost(how) => return Some((self.0.swap_remove(at).rank(), how)),
            }
        }
        None
    }
}

impl std::fmt::Debug for ExitChecks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|check| (check.rank(), check.how()))).finish()
    }
}
