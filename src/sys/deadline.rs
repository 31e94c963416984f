//! When a wait ends.

use std::time::{Duration, Instant};

/// The moment at which a wait gives up. Every blocking call in µDECK has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `limit` from now. Absurdly long limits are cut to a century.
    pub fn after(limit: Duration) -> Self {
        let now = Instant::now();
        Deadline(now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 86_400)))
    }

    /// Already over: try once, do not wait.
    pub fn now() -> Self {
        Deadline(Instant::now())
    }

    /// What is left, zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        Instant::now() >= self.0
    }

    /// As a point on the monotonic clock.
    pub fn instant(self) -> Instant {
        self.0
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Deadline(instant)
    }
}
