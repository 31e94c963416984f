//! How long the way there and back takes: RFC 9002, section 5.

use std::time::Duration;

/// Least time that a clock and a scheduler are trusted to tell apart (RFC 9002, `kGranularity`).
pub const GRANULARITY: Duration = Duration::from_millis(1);
/// Before anything was measured (RFC 9002, `kInitialRtt`).
pub const INITIAL: Duration = Duration::from_millis(333);

/// The estimate.
#[derive(Debug)]
pub struct Rtt {
    latest: Duration,
    least: Duration,
    smooth: Duration,
    deviation: Duration,
    measured: bool,
    /// How much later than others packets came that had been given up, at most as long as a round trip.
    disorder: Duration,
}

impl Rtt {
    /// `first`: as long as it took to connect, where that is known. Never more than without: it may be the peer's word.
    pub fn new(first: Option<Duration>) -> Self {
        Rtt::of(first.map_or(INITIAL, |first| first.min(INITIAL)))
    }

    fn of(smooth: Duration) -> Self {
        Rtt {
            latest: smooth,
            least: smooth,
            smooth,
            deviation: smooth / 2,
            measured: false,
            disorder: Duration::ZERO,
        }
    }

    /// A packet was acknowledged after `latest`, of which the peer says it waited `delay` (at most `most`) by choice.
    pub fn measure(&mut self, latest: Duration, delay: Duration, most: Duration) {
        self.latest = latest;
        if !self.measured {
            *self = Rtt { least: latest, deviation: latest / 2, measured: true, ..Rtt::of(latest) };
            return;
        }
        self.least = self.least.min(latest);
        let delay = delay.min(most);
        let adjusted = if latest >= self.least + delay { latest - delay } else { latest };
        self.deviation = (self.deviation * 3 + self.smooth.abs_diff(adjusted)) / 4;
        self.smooth = (self.smooth * 7 + adjusted) / 8;
    }

    /// Whether anything was measured yet.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    pub fn smooth(&self) -> Duration {
        self.smooth
    }

    /// A packet was acknowledged after `took`, having been given up: the path disorders more than was thought.
    pub fn late(&mut self, took: Duration) {
        self.disorder = self.disorder.max(took.saturating_sub(self.smooth));
    }

    /// When a packet is given up after a later one was acknowledged (section 6.1.2; more patient where that turned out to
    /// be too early, as RFC 8985's reordering window).
    pub fn loss_delay(&self) -> Duration {
        let usual = self.smooth.max(self.latest);
        (usual + self.disorder.clamp(usual / 8, usual)).max(GRANULARITY)
    }

    /// When silence makes the sender probe (section 6.2.1), the peer's delay not counted.
    pub fn patience(&self) -> Duration {
        self.smooth + (self.deviation * 4).max(GRANULARITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_first_measurement_replaces_the_guess() {
        let mut rtt = Rtt::new(None);
        assert_eq!(rtt.smooth(), INITIAL);
        assert_eq!(Rtt::new(Some(9 * INITIAL)).smooth(), INITIAL, "a guess is never longer");
        rtt.measure(8 * MS, 5 * MS, MS);
        assert_eq!((rtt.smooth(), rtt.patience()), (8 * MS, 24 * MS), "smooth + 4 * smooth / 2");
    }

    #[test]
    fn chosen_delay_is_taken_off_but_never_below_the_least() {
        let mut rtt = Rtt::new(None);
        rtt.measure(8 * MS, Duration::ZERO, MS);
        rtt.measure(16 * MS, 9 * MS, 8 * MS);
        assert_eq!(rtt.smooth(), 8 * MS, "16 - 8, the most that it may have waited");
        rtt.measure(8 * MS, 5 * MS, 8 * MS);
        assert_eq!(rtt.smooth(), 8 * MS, "8 - 5 cannot have been");
    }

    #[test]
    fn disorder_makes_it_wait_longer_within_bounds() {
        let mut rtt = Rtt::new(None);
        rtt.measure(8 * MS, Duration::ZERO, MS);
        assert_eq!(rtt.loss_delay(), 9 * MS);
        rtt.late(11 * MS);
        assert_eq!(rtt.loss_delay(), 11 * MS);
        rtt.late(9 * MS);
        assert_eq!(rtt.loss_delay(), 11 * MS);
        rtt.late(100 * MS);
        assert_eq!(rtt.loss_delay(), 16 * MS);
    }

    #[test]
    fn a_path_that_takes_nothing_still_leaves_the_scheduler_its_time() {
        let mut rtt = Rtt::new(Some(Duration::ZERO));
        rtt.measure(Duration::ZERO, Duration::ZERO, MS);
        assert_eq!((rtt.loss_delay(), rtt.patience()), (GRANULARITY, GRANULARITY));
    }
}
