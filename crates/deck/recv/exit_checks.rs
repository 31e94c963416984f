//! Checks of the ranks whose connections to a mailbox broke: each is pending until it is known whether the
//! rank has finished ([`crate::exit_check`]). No call waits for the verdict: a later poll reports it.

use crate::exit_check::{ExitCheck, Verdict};
use crate::world_state::WorldState;

/// Pending checks, at most one for each rank.
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
