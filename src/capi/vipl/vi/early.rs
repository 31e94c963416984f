//! A message that comes before the program has posted a receive for it, at the beginning of a connection.
//!
//! The peer may send as soon as it is connected, and this program hears of the connection later: one that posts its receives behind the
//! connecting call, as programs of the literature do, has not been slow. So a message waits for its receive, and what comes behind it with
//! it, until the program asks for messages. From then on a message without a receive is an error.

use std::time::{Duration, Instant};

use udeck::via::Arrival;

use super::ViObject;
use crate::vipl::types::ViState;

/// How long the beginning of a connection lasts, if the program does not ask.
const PATIENCE: Duration = Duration::from_secs(5);

/// The beginning of a connection.
#[derive(Default)]
pub(super) struct Early {
    /// When the VI was connected; `None`: it is not, or the beginning is over.
    since: Option<Instant>,
    /// Boxed, because few ever have one.
    held: Option<Box<Arrival>>,
}

impl Early {
    pub fn connected() -> Early {
        Early { since: Some(Instant::now()), held: None }
    }

    /// The program asks for messages.
    #[inline]
    pub fn asked(&mut self) {
        self.since = None;
    }

    #[inline]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether a message may wait for its receive.
    pub fn may_wait(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() < PATIENCE)
    }
}

impl ViObject {
    /// A message waits, and what comes behind it stays where it is.
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
