//! The end of a connection: what is posted ends in order.

use udeck_via::Vi;

use super::{QueuePair, Stage};
use crate::face::{Face, Outcome};
use crate::frame::Reason;
use crate::link;

impl<F: Face> QueuePair<F> {
    /// Ends all that is posted: the oldest operation under way by `first`, the others and the receives as flushed.
    pub fn flush(&mut self, face: &mut F, first: Outcome) {
        self.answers.clear();
        self.taken = 0;
        let may_be_blamed = |stage| match (first, stage) {
            (_, Stage::Over(_)) => false,
            _ if F::BLAMES_ANY => true,
            (Outcome::Remote(_), _) => stage == Stage::Untaken,
            _ => stage != Stage::Unsent,
        };
        let blamed = self.posted.iter().position(|posted| may_be_blamed(posted.stage));
        for (at, posted) in self.posted.iter_mut().enumerate() {
            if !matches!(posted.stage, Stage::Over(_)) {
                posted.stage = Stage::Over(if Some(at) == blamed { first } else { Outcome::Flushed });
            }
        }
        (self.unsent, self.reads) = (0, 0);
        self.complete_in_order(face);
        self.held.clear();
        self.since = None;
        let mut receives = std::mem::take(&mut self.receives);
        while let Some(receive) = receives.pop_front() {
            face.flush_receive(receive);
        }
    }

    /// Tells the peer that an error ends the connection, if there is room for the frame.
    pub fn say_broken(&mut self, reason: Reason) {
        // Without TAKEN the peer would blame an operation that was taken.
        let is_said = self.taken == 0 || self.say_taken().is_ok() || {
            self.vi.iter_mut().for_each(Vi::reclaim);
            self.say_taken().is_ok()
        };
        link::say_broken(&mut self.vi, if is_said { reason } else { Reason::Own });
    }
}
