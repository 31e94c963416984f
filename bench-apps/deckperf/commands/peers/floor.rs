//! The floor under messages of 8 bytes ([`counts::floor`]): ping-pong, and windows that are acknowledged, between two threads on the
//! two processors, with the same turns as the contenders'.

use std::{
    io,
    time::{Duration, Instant},
};

use counts::floor::{Message, Receiver, Refused, Ring, Sender};

use crate::experiment::baseline::on_both_cores;

/// Time of one measurement: as long as a contender's batch.
const BUDGET: Duration = Duration::from_millis(2);
/// Turns between two reads of the clock.
const TURNS: u64 = 100;
/// Tag of every message.
const TAG: u64 = 7;
/// Message that ends the far side: the only one that is not 8 bytes long.
const STOP: &[u8] = &[];

/// Two rings: for messages there, and for messages back.
pub struct Floor(Box<[Ring; 2]>);

impl Floor {
    /// Makes the rings, which are kept, so that no figure pays for fresh pages.
    pub fn new() -> Self {
        Floor(Box::default())
    }

    /// One-way time of a message in µs: half of a message there and one back. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Errors of the system, when the threads are pinned.
    pub fn ping_pong(&mut self, cores: [usize; 2]) -> io::Result<f64> {
        Ok(self.turn(1, cores)? / 2.0)
    }

    /// Time per message in µs, in windows of `window` messages, each acknowledged. Blocks and fails as [`Floor::ping_pong`] does.
    pub fn stream(&mut self, window: u64, cores: [usize; 2]) -> io::Result<f64> {
        Ok(self.turn(window, cores)? / window as f64)
    }

    /// Time in µs of a window there, and a message back.
    fn turn(&mut self, window: u64, cores: [usize; 2]) -> io::Result<f64> {
        let [there, back] = &mut *self.0;
        let ((near_out, far_in), (far_out, near_in)) = (there.ends(), back.ends());
        let mut near = FloorEnd { out: near_out, inbox: near_in };
        let mut far = FloorEnd { out: far_out, inbox: far_in };
        let (turn, ()) = on_both_cores(Some(cores), || near.lead(window), || far.follow(window))?;
        Ok(turn)
    }
}

/// One end of both rings, on cache lines of its own: two ends lie side by side on one stack, and each side counts in its own.
#[repr(align(128))]
struct FloorEnd<'r> {
    out: Sender<'r>,
    inbox: Receiver<'r>,
}

impl FloorEnd<'_> {
    /// Time in µs of a turn: a window there, and one message back.
    fn lead(&mut self, window: u64) -> f64 {
        let mut turns = || {
            for turn in 0..TURNS {
                for message in 0..window {
                    self.post(&(turn + message).to_ne_bytes());
                }
                let answer = self.retrieve();
                assert_eq!(answer.payload[0], turn + window - 1, "the last message of the window comes back");
            }
        };
        turns();
        let (started, mut counted) = (Instant::now(), 0);
        while started.elapsed() < BUDGET {
            turns();
            counted += TURNS;
        }
        let elapsed = started.elapsed();
        self.post(STOP);
        elapsed.as_secs_f64() * 1e6 / counted as f64
    }

    fn follow(&mut self, window: u64) {
        loop {
            for message in 1..=window {
                let came = self.retrieve();
                if came.length == STOP.len() {
                    return;
                }
                if message == window {
                    self.post(&came.payload[0].to_ne_bytes());
                }
            }
        }
    }

    #[inline]
    fn post(&mut self, bytes: &[u8]) {
        loop {
            match self.out.post(bytes, TAG) {
                Ok(()) => return,
                Err(Refused::Full) => {}
                Err(refused) => panic!("the ring is intact: {refused:?}"),
            }
        }
    }

    #[inline]
    fn retrieve(&mut self) -> Message {
        loop {
            match self.inbox.poll() {
                Ok(Some(message)) => {
                    assert_eq!(message.tag, TAG, "the tag comes with the message");
                    return message;
                }
                Ok(None) => {}
                Err(refused) => panic!("the ring is intact: {refused:?}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tests_have_a_floor() {
        let cpus = udeck::sys::usable_cpus();
        let &[first, second, ..] = &cpus[..] else { return };
        let mut floor = Floor::new();
        for _ in 0..2 {
            for micros in [floor.ping_pong([first, second]), floor.stream(64, [first, second])] {
                let micros = micros.expect("two processors");
                assert!(micros > 0.0 && micros.is_finite(), "{micros}");
            }
        }
    }
}
