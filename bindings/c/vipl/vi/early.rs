//! A message that comes before the program has posted a receive for it, at the beginning of a connection.
//!
//! The peer may send as soon as it is connected, and this program hears of the connection later. A program that posts its receives behind
//! the connecting call, as programs of the literature do, has not been slow. So a message waits for its receive, and later messages wait
//! behind it, until the program asks for messages. From then on a message without a receive is an error.
//! Answers to the program's own descriptors pass the messages that wait (`ViplFace::may_hold_more`).

use std::time::{Duration, Instant};

use super::ViObject;

/// Time that the beginning of a connection lasts, if the program does not ask for messages.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most time between two polls of a waiting message that counts. A process that does not run for longer is not late by that time.
const LOOK: Duration = Duration::from_millis(50);

/// The beginning of a connection.
#[derive(Default)]
pub(super) struct Early {
    /// End of the beginning; `None`: the VI is not connected, or the beginning is over.
    until: Option<Instant>,
    looked: Option<Instant>,
}

impl Early {
    pub fn connected() -> Early {
        Early { until: Some(Instant::now() + PATIENCE), ..Early::default() }
    }

    #[inline]
    pub fn is_over(&self) -> bool {
        self.until.is_none()
    }

    /// Whether a message may wait for its receive; `has_waited`: it waits already.
    pub fn may_wait(&mut self, has_waited: bool) -> bool {
        self.may_wait_at(Instant::now(), has_waited)
    }

    fn may_wait_at(&mut self, now: Instant, has_waited: bool) -> bool {
        let Some(until) = &mut self.until else { return false };
        if let Some(looked) = self.looked.filter(|_| has_waited) {
            *until += now.saturating_duration_since(looked).saturating_sub(LOOK);
        }
        self.looked = Some(now);
        now < *until
    }
}

impl ViObject {
    /// Ends the beginning of the connection, because the program asks for messages.
    #[inline]
    pub(super) fn asked(&mut self) {
        if self.face.early.until.take().is_some() {
            self.find_way();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_waits_for_a_process_that_does_not_run() {
        let mut early = Early::connected();
        let start = early.until.unwrap() - PATIENCE;
        assert!(early.may_wait_at(start, false));
        let stopped = PATIENCE * 10;
        assert!(early.may_wait_at(start + stopped, true));
        let looks = (0..).find(|n| !early.may_wait_at(start + stopped + *n * LOOK, true)).expect("it ends");
        assert_eq!(u128::from(looks), (PATIENCE - LOOK).as_millis() / LOOK.as_millis());
    }
}
