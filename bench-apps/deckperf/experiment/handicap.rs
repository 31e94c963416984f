//! Artificial slowdown of a known size: `--handicap` makes runs for tests of `deckperf compare`.
//!
//! Rank 0 stands still for a share of the time that its last turns took, between two turns. So the share is the same whatever
//! the machine does meanwhile. Nothing overlaps the pause, because a round trip or a window has just ended.

use std::{
    hint,
    time::{Duration, Instant},
};

/// Pauses rank 0 every few turns.
#[derive(Debug)]
pub struct Handicap {
    share: f64,
    /// Turns between two pauses: so many that reading the clock costs next to nothing.
    stride: u64,
    turns: u64,
    since: Instant,
}

/// Fewest pauses in a batch. With fewer, the last pause, before which the batch may end, would be a large part of them.
const STOPS: u64 = 16;
const MAX_STRIDE: u64 = 64;

impl Handicap {
    /// Starts a batch of `turns` turns. `share` is the added share of time: 0.1 for a tenth.
    pub fn start(share: f64, turns: u64) -> Self {
        Self { share, stride: (turns / STOPS).clamp(1, MAX_STRIDE), turns: 0, since: Instant::now() }
    }

    /// Is called after each turn; at the end of a stride it blocks for the share of the time since the last pause.
    pub fn turn_is_over(&mut self) {
        self.turns += 1;
        if self.turns.is_multiple_of(self.stride) {
            let until = handicapped(self.since.elapsed(), self.share);
            while self.since.elapsed() < until {
                hint::spin_loop();
            }
            self.since = Instant::now();
        }
    }
}

fn handicapped(took: Duration, share: f64) -> Duration {
    took + took.mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_turn_is_left_out_and_none_paid_twice() {
        let started = Instant::now();
        let mut handicap = Handicap::start(1.0, 5);
        assert_eq!(handicap.stride, 1);
        let mut worked = Duration::ZERO;
        for _ in 0..5 {
            let turn = Instant::now();
            while turn.elapsed() < Duration::from_micros(200) {}
            worked += turn.elapsed();
            handicap.turn_is_over();
        }
        // At least twice the work; an upper bound cannot be asserted on a shared machine.
        assert!(started.elapsed() >= 2 * worked, "{:?} for {worked:?}", started.elapsed());
    }

    #[test]
    fn many_short_turns_share_a_stop() {
        assert_eq!([1, 31, 320, 1_000_000].map(|turns| Handicap::start(0.1, turns).stride), [1, 1, 20, 64]);
        assert_eq!(handicapped(Duration::from_micros(50), 0.1), Duration::from_micros(55));
    }
}
