//! Explicit congestion notification: a sender's gaps for each destination grow with each notification, and shrink
//! with time.

use super::{OutOfRange, within};
use std::collections::VecDeque;

/// Parameters of ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecn {
    /// Flits in an output's queue above which packets are marked. Half of a buffer is usual; with less, random
    /// arrivals on a link are taken for congestion.
    pub threshold: u32,
    /// Cycles that a notification adds to the gap.
    pub step: u32,
    /// Cycles after which the gap is a cycle shorter.
    pub decay: u32,
    /// Upper bound of the gap in cycles.
    pub largest: u32,
}

impl Default for Ecn {
    fn default() -> Self {
        // Gaps that shrink more slowly leave a hot spot half idle: senders learn of a queue when it is gone.
        Self { threshold: 32, step: 24, decay: 4, largest: 2000 }
    }
}

impl Ecn {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        within("ecn's threshold", self.threshold, 1, 1 << 20)?;
        within("ecn's step", self.step, 1, 1 << 20)?;
        within("ecn's decay", self.decay, 1, 1 << 20)?;
        within("ecn's largest gap", self.largest, 1, 1 << 20)
    }
}

/// Packets of a sender to one destination: one is leaving, the others wait here.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub waiting: VecDeque<u32>,
    /// A packet is leaving, or the end of a gap is awaited.
    pub busy: bool,
    gap: u64,
    /// Cycle at which `gap` was computed.
    since: u64,
}

impl Flow {
    /// Returns the gap at this time.
    pub fn gap(&mut self, now: u64, ecn: &Ecn) -> u64 {
        let steps = (now - self.since) / u64::from(ecn.decay);
        self.gap = self.gap.saturating_sub(steps);
        self.since = if self.gap == 0 { now } else { self.since + steps * u64::from(ecn.decay) };
        self.gap
    }

    /// Handles a notification.
    pub fn notified(&mut self, now: u64, ecn: &Ecn) {
        let gap = self.gap(now, ecn);
        self.gap = (gap + u64::from(ecn.step)).min(u64::from(ecn.largest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_grows_by_notifications_and_shrinks_with_time() {
        let ecn = Ecn { threshold: 1, step: 10, decay: 5, largest: 25 };
        let mut flow = Flow::default();
        assert_eq!(flow.gap(1000, &ecn), 0);
        flow.notified(1000, &ecn);
        assert_eq!(flow.gap(1004, &ecn), 10);
        assert_eq!(flow.gap(1007, &ecn), 9, "what is left of a step is not lost");
        assert_eq!(flow.gap(1010, &ecn), 8);
        (0..3).for_each(|_| flow.notified(1010, &ecn));
        assert_eq!(flow.gap(1010, &ecn), 25);
        assert_eq!(flow.gap(1_000_000, &ecn), 0);
    }
}
