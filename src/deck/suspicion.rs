//! A rank whose connection broke, until it is known whether it has finished in order.
//!
//! A rank that finishes tells the launcher first and then closes its connections. The launcher's message may arrive after the end
//! of the connection, so the library asks the launcher. A call that has no time to wait for the answer gets it at a later poll.

use std::time::Duration;

use udeck_boot::Question;
use udeck_via::Deadline;

use crate::world_state::WorldState;

/// How long the launcher's word of a rank's end is waited for.
pub(crate) const WORD: Duration = Duration::from_secs(1);
/// The same where the launcher has no sign of it.
const SIGN: Duration = Duration::from_millis(100);
/// How long a launcher that cannot be asked now is left alone.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Suspicion {
    rank: u32,
    /// What became of the connection.
    how: String,
    /// `None`: the launcher could not be asked yet.
    asked: Option<Question>,
    /// Without an answer until then, what is known has to do.
    until: Deadline,
}

pub(crate) enum Verdict {
    Open,
    Finished,
    Lost(String),
}

impl Suspicion {
    pub fn new(rank: u32, how: String) -> Self {
        Suspicion { rank, how, asked: None, until: Deadline::after(WORD) }
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// What became of the connection.
    pub fn how(&self) -> &str {
        &self.how
    }

    /// What is known now. Does not wait.
    pub fn verdict(&mut self, world: &WorldState) -> Verdict {
        // What is known already needs no question.
        if let Some(verdict) = self.known(world) {
            return verdict;
        }
        if self.asked.is_none() {
            self.asked = world.client().ask(self.rank, SIGN);
        }
        // In this order: what the launcher has to tell comes before its answer.
        let is_answered = self.asked.as_ref().is_some_and(Question::is_answered) || self.until.passed();
        self.known(world).unwrap_or_else(|| match is_answered {
            true => Verdict::Lost(self.how.clone()),
            false => Verdict::Open,
        })
    }

    fn known(&self, world: &WorldState) -> Option<Verdict> {
        let lost = world.exits().how_lost(self.rank).map(Verdict::Lost);
        lost.or_else(|| world.exits().is_done(self.rank).then_some(Verdict::Finished))
    }

    /// Waits for what may settle it, at most until then.
    pub fn wait(&self, deadline: Deadline) {
        let until = deadline.min(self.until);
        match &self.asked {
            Some(question) => question.wait(until.instant()),
            None => std::thread::sleep(PAUSE.min(until.remaining())),
        }
    }
}

/// What became of a rank whose connection broke. Waits for the launcher's word of that, at most until the deadline, a
/// second at most, and 100 ms if the rank seems to be there; without it, what is known has to do. [`Verdict::Open`]: the
/// deadline passed first.
#[cold]
pub(crate) fn fate_of(rank: u32, how: String, world: &WorldState, deadline: Deadline) -> Verdict {
    let mut suspicion = Suspicion::new(rank, how);
    loop {
        match suspicion.verdict(world) {
            Verdict::Open if !deadline.passed() => suspicion.wait(deadline),
            verdict => return verdict,
        }
    }
}

/// For whom a call waits whose connection broke.
pub(crate) fn unsettled(rank: u32) -> String {
    format!("the launcher to say what became of rank {rank}")
}
