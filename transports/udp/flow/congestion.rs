//! How much may be under way: NewReno, as RFC 9002, section 7 and appendix B, has it. Without pacing: what a cluster's
//! switches hold is a burst of one window, and a thread that sleeps between packets costs more than it saves.

use std::time::Instant;

/// Where it starts, in datagrams, and at most this many bytes unless two datagrams are more (section 7.2).
const INITIAL_DATAGRAMS: usize = 10;
const INITIAL_BYTES: usize = 14_720;
/// Where it never goes below, in datagrams.
const LEAST_DATAGRAMS: usize = 2;

/// The congestion window.
#[derive(Debug)]
pub struct Congestion {
    /// Bytes that may be under way.
    window: usize,
    /// Below it, the window grows by what is acknowledged; above, by a datagram per round trip.
    threshold: usize,
    /// What was sent before this moment tells nothing new by being lost.
    recovering: Option<Instant>,
    datagram: usize,
}

impl Congestion {
    pub fn new(datagram: usize) -> Self {
        let window = (INITIAL_DATAGRAMS * datagram).min(INITIAL_BYTES.max(LEAST_DATAGRAMS * datagram));
        Congestion { window, threshold: usize::MAX, recovering: None, datagram }
    }

    pub fn window(&self) -> usize {
        self.window
    }

    /// The path carries datagrams of this size from now on.
    pub fn set_datagram(&mut self, datagram: usize) {
        self.datagram = datagram;
        self.window = self.window.max(self.least());
    }

    /// `bytes` sent at `sent` arrived. `used`: the window was what held the sender back, or nearly so.
    pub fn arrived(&mut self, sent: Instant, bytes: usize, used: bool) {
        if !used || self.recovering.is_some_and(|since| sent <= since) {
            return;
        }
        if self.window < self.threshold {
            self.window += bytes;
        } else {
            self.window += (self.datagram * bytes / self.window).max(1);
        }
    }

    /// Something sent at `sent`, the last of what is found missing now, was lost.
    pub fn lost(&mut self, now: Instant, sent: Instant) {
        if self.recovering.is_some_and(|since| sent <= since) {
            return;
        }
        self.recovering = Some(now);
        self.threshold = (self.window / 2).max(self.least());
        self.window = self.threshold;
    }

    /// Nothing at all came through for long (section 7.6).
    pub fn collapsed(&mut self) {
        self.window = self.least();
        self.recovering = None;
    }

    fn least(&self) -> usize {
        LEAST_DATAGRAMS * self.datagram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_doubles_then_halves_then_grows_by_a_datagram_each_round() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut congestion = Congestion::new(1000);
        assert_eq!(congestion.window(), 10_000);
        congestion.arrived(at(0), 10_000, true);
        assert_eq!(congestion.window(), 20_000);
        congestion.lost(at(3), at(1));
        congestion.lost(at(4), at(2));
        assert_eq!(congestion.window(), 10_000, "one halving for one loss of a round");
        congestion.arrived(at(3), 5000, true);
        assert_eq!(congestion.window(), 10_000, "sent before: tells nothing new");
        (0..10).for_each(|_| congestion.arrived(at(5), 1000, true));
        assert!((10_900..=11_000).contains(&congestion.window()), "{}", congestion.window());
        congestion.arrived(at(6), 1 << 20, false);
        assert!(congestion.window() <= 11_000, "a window that is not used says nothing about the path");
        congestion.collapsed();
        assert_eq!(congestion.window(), 2000);
    }

    #[test]
    fn large_datagrams_start_with_two() {
        assert_eq!(Congestion::new(60_000).window(), 120_000);
        let mut congestion = Congestion::new(1200);
        congestion.collapsed();
        congestion.set_datagram(9000);
        assert_eq!(congestion.window(), 18_000);
    }
}
