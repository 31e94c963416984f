//! Deadlines: the end of a wait.

use std::time::{Duration, Instant};

#[cfg(not(loom))]
use crate::os::job_clock::job_time;

/// The moment at which a wait gives up. Every blocking call in µDECK has one. It is a moment of the job's time: while the
/// launcher has the job stopped (Ctrl-Z), it comes no nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `limit` from now. Absurdly long limits are cut to a century.
    pub fn after(limit: Duration) -> Self {
        let now = job_time();
        Deadline(now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 86_400)))
    }

    /// A deadline that has passed already: try once, do not wait.
    pub fn now() -> Self {
        Deadline(job_time())
    }

    /// The deadline that is `more` later.
    #[inline]
    pub fn later_by(self, more: Duration) -> Self {
        Deadline(self.0.checked_add(more).unwrap_or(self.0))
    }

    /// Time since the deadline; zero before it.
    pub fn since(self) -> Duration {
        job_time().saturating_duration_since(self.0)
    }

    /// Time until the deadline; zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(job_time())
    }

    /// Whether the deadline has passed.
    pub fn passed(self) -> bool {
        job_time() >= self.0
    }

    /// The deadline as a point on the monotonic clock, if the job is not stopped before. A thread that has slept until then
    /// checks whether the deadline has [passed](Deadline::passed).
    pub fn instant(self) -> Instant {
        let left = self.remaining();
        let now = Instant::now();
        now.checked_add(left).unwrap_or(now)
    }
}

impl From<Instant> for Deadline {
    /// The deadline at a point on the monotonic clock, if the job is not stopped before.
    fn from(instant: Instant) -> Self {
        Deadline::after(instant.saturating_duration_since(Instant::now()))
    }
}

#[cfg(loom)]
fn job_time() -> Instant {
    Instant::now()
}
