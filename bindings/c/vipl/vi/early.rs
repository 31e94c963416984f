//! A message that comes before the program has posted a receive for it, at the beginning of a connection.
//!
//! The peer may send as soon as it is connected, and this program hears of the connection later. A program that posts its receives behind
//! the connecting call, as programs of the literature do, has not been slow. So a message waits for its receive, and later messages wait
//! behind it, until the program asks for messages. From then on a message without a receive is an error.

use std::time::{Duration, Instant};

use udeck::via::Arrival;

use super::ViObject;
use crate::vipl::types::ViState;

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
    /// The waiting message; boxed, because few VIs ever have one.
    held: Option<Box<Arrival>>,
}

impl Early {
    pub fn connected() -> Early {
        Early { until: Some(Instant::now() + PATIENCE), ..Early::default() }
    }

    #[inline]
    pub fn is_over(&self) -> bool {
        self.until.is_none() && !self.is_held()
    }

    #[inline]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether a message may wait for its receive.
    pub fn may_wait(&mut self) -> bool {
        self.may_wait_at(Instant::now())
    }

    fn may_wait_at(&mut self, now: Instant) -> bool {
        let Some(until) = &mut self.until else { return false };
        if let Some(looked) = self.looked.filter(|_| self.held.is_some()) {
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
        if self.early.until.take().is_some() {
            self.find_way();
        }
    }

    /// Has a message wait. Messages behind it stay where they are.
    #[cold]
    pub(super) fn hold(&mut self, arrival: Arrival) {
        self.early.held = Some(Box::new(arrival));
        self.find_way();
        self.count_needs();
    }

    /// Takes the message that waits; `false`: it goes on waiting, or has ended the connection.
    #[cold]
    pub(super) fn take_early(&mut self) -> bool {
        if self.receives.is_empty() && self.early.may_wait() {
            return false;
        }
        let Some(arrival) = self.early.held.take() else { return true };
        self.find_way();
        self.take_arrival(*arrival);
        self.count_needs();
        self.state == ViState::CONNECTED && !self.early.is_held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udeck::via::transport::{Body, Inline};

    #[test]
    fn a_message_waits_for_a_process_that_does_not_run() {
        let mut early = Early::connected();
        let start = early.until.unwrap() - PATIENCE;
        assert!(early.may_wait_at(start));
        early.held = Some(Box::new(Arrival { immediate: None, body: Body::Inline(Inline::EMPTY) }));
        let stopped = PATIENCE * 10;
        assert!(early.may_wait_at(start + stopped));
        let looks = (0..).find(|n| !early.may_wait_at(start + stopped + *n * LOOK)).expect("it ends");
        assert_eq!(u128::from(looks), (PATIENCE - LOOK).as_millis() / LOOK.as_millis());
    }
}
