//! Ranks whose connections to a mailbox broke, until it is known whether they have finished in order ([`crate::suspicion`]).
//! Nobody waits for that: the verdict is told at a later look.

use crate::suspicion::{Suspicion, Verdict};
use crate::world_state::WorldState;

/// At most one of each rank.
#[derive(Default)]
pub(super) struct Suspects(Vec<Suspicion>);

impl Suspects {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, rank: u32, how: String) {
        if self.0.iter().all(|doubt| doubt.rank() != rank) {
            self.0.push(Suspicion::new(rank, how));
        }
    }

    /// A rank that turns out to be lost, and what became of it. Does not wait.
    pub fn settle(&mut self, world: &WorldState) -> Option<(u32, String)> {
        let mut at = 0;
        while at < self.0.len() {
            match self.0[at].verdict(world) {
                Verdict::Open => at += 1,
                Verdict::Finished => drop(self.0.swap_remove(at)),
                Verdict::Lost(how) => return Some((self.0.swap_remove(at).rank(), how)),
            }
        }
        None
    }
}

impl std::fmt::Debug for Suspects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|doubt| (doubt.rank(), doubt.how()))).finish()
    }
}
