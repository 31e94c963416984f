//! A check whether a rank whose connection broke has finished in order, or is lost.
//!
//! Three things must not be confused:
//!
//! * The *end of a connection* says nothing of its rank: a rank that finishes closes its connections, too.
//! * An *exit report* comes from the launcher, and says how a rank has ended. [`crate::exits::log`] keeps them.
//! * An *exit check* ([`ExitCheck`]) begins when a connection breaks, and ends with a verdict: by an exit report, or without one
//!   when the launcher has none in time.
//!
//! A rank that finishes tells the launcher first and then closes its connections. The launcher's message may arrive after the end
//! of the connection, so the library asks the launcher. A call that has no time to wait for the answer gets it at a later poll.

use std::time::Duration;

use udeck_boot::Question;
use udeck_via::Deadline;

use crate::world_state::WorldState;

/// How long a check waits for the launcher's report of a rank's exit.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(1);
/// Longest wait while the launcher has no sign that the rank has exited.
const MAX_WAIT_WHILE_ALIVE: Duration = Duration::from_millis(100);
/// Interval after which a launcher that could not be asked is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// A rank whose connection broke, and the question to the launcher about it.
#[derive(Debug)]
pub(crate) struct ExitCheck {
    rank: u32,
    /// How the connection broke.
    how: String,
    /// The question; `None`: the launcher could not be asked yet.
    asked: Option<Question>,
    /// Deadline of the answer. After it, the check decides without the launcher.
    until: Deadline,
}

/// Result of a check.
pub(crate) enum Verdict {
    /// Not known yet.
    Pending,
    Finished,
    Lost(String),
}

impl ExitCheck {
    pub fn new(rank: u32, how: String) -> Self {
        ExitCheck { rank, how, asked: None, until: Deadline::after(MAX_WAIT) }
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How the connection broke.
    pub fn how(&self) -> &str {
        &self.how
    }

    /// The verdict so far. Does not wait.
    pub fn verdict(&mut self, world: &WorldState) -> Verdict {
        // Asks no question if the answer is known already.
        if let Some(verdict) = self.known(world) {
            return verdict;
        }
        if self.asked.is_none() {
            self.asked = world.client().ask(self.rank, MAX_WAIT_WHILE_ALIVE);
        }
        // In this order: an exit report arrives before the launcher's answer.
        let is_answered = self.asked.as_ref().is_some_and(Question::is_answered) || self.until.passed();
        self.known(world).unwrap_or_else(|| match is_answered {
            true => Verdict::Lost(self.how.clone()),
            false => Verdict::Pending,
        })
    }

    fn known(&self, world: &WorldState) -> Option<Verdict> {
        let lost = world.exit_log().how_lost(self.rank).map(Verdict::Lost);
        lost.or_else(|| world.exit_log().has_finished(self.rank).then_some(Verdict::Finished))
    }

    /// Waits for an event that may give a verdict, at most until the deadline.
    pub fn wait(&self, deadline: Deadline) {
        let until = deadline.min(self.until);
        match &self.asked {
            Some(question) => question.wait(until.instant()),
            None => std::thread::sleep(RETRY_PAUSE.min(until.remaining())),
        }
    }
}

/// Checks how a rank whose connection broke has ended. Waits for the launcher's report, at most until the
/// deadline: a second at most, and 100 ms if the rank seems to be alive. Without a report, the verdict is
/// made from what is known. [`Verdict::Pending`]: the deadline passed first.
#[cold]
pub(crate) fn check_exit(rank: u32, how: String, world: &WorldState, deadline: Deadline) -> Verdict {
    let mut exit_check = ExitCheck::new(rank, how);
    loop {
        match exit_check.verdict(world) {
            Verdict::Pending if !deadline.passed() => exit_check.wait(deadline),
            verdict => return verdict,
        }
    }
}

/// Names the launcher as the one that a call with a broken connection waits for.
pub(crate) fn awaited_launcher(rank: u32) -> String {
    format!("the launcher to say how rank {rank} ended")
}
