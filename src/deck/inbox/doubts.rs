//! Ranks whose connections broke, until it is known whether they have finished in order.
//!
//! Who finishes tells the launcher before it leaves, but the launcher's word of that may come later than the connection's
//! end. So the launcher is asked, and nobody waits for its answer: the verdict is told at a later look.

use udeck_boot::Question;
use udeck_via::Deadline;

use crate::shared::{SIGN, Shared, WORD};

/// At most one of each rank.
#[derive(Default)]
pub(super) struct Doubts(Vec<Doubt>);

struct Doubt {
    rank: u32,
    /// What became of the connection.
    how: String,
    /// `None`: the launcher could not be asked yet.
    asked: Option<Question>,
    /// Without an answer until then, what is known has to do.
    until: Deadline,
}

enum Verdict {
    Open,
    Finished,
    Lost(String),
}

impl Doubts {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, rank: u32, how: String) {
        if self.0.iter().all(|doubt| doubt.rank != rank) {
            self.0.push(Doubt { rank, how, asked: None, until: Deadline::after(WORD) });
        }
    }

    /// A rank that turns out to be lost, and what became of it. Does not wait.
    pub fn settle(&mut self, world: &Shared) -> Option<(u32, String)> {
        let mut at = 0;
        while at < self.0.len() {
            match self.0[at].verdict(world) {
                Verdict::Open => at += 1,
                Verdict::Finished => drop(self.0.swap_remove(at)),
                Verdict::Lost(how) => return Some((self.0.swap_remove(at).rank, how)),
            }
        }
        None
    }
}

impl Doubt {
    fn verdict(&mut self, world: &Shared) -> Verdict {
        if self.asked.is_none() {
            self.asked = world.client().ask(self.rank, SIGN);
        }
        // In this order: what the launcher has to tell comes before its answer.
        let is_answered = self.asked.as_ref().is_some_and(Question::is_answered) || self.until.passed();
        if let Some(how) = world.ends().how_lost(self.rank) {
            return Verdict::Lost(how);
        }
        match (world.ends().is_done(self.rank), is_answered) {
            (true, _) => Verdict::Finished,
            (false, true) => Verdict::Lost(std::mem::take(&mut self.how)),
            (false, false) => Verdict::Open,
        }
    }
}

impl std::fmt::Debug for Doubts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|doubt| (doubt.rank, &doubt.how))).finish()
    }
}
