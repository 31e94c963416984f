//! Incast control of a channel: whether its first message may be sent ([`udeck_qos::pacing`]).

use std::time::{Duration, Instant};

use udeck_qos::incast::Grant;
use udeck_qos::pacing::{self, Poster, SendDecision};
use udeck_via::{Deadline, Error as ViaError, job_time};

use super::Channel;
use crate::incast::{IncastControl, Rules};
use crate::protocol::outgoing::Outgoing;
use crate::protocol::side::is_busy;
use crate::wire::{self, Kind};

/// State of a channel's pacing: how much it may send without a request for each message.
pub(super) struct Pacing {
    poster: Poster,
    begun: Instant,
}

impl Pacing {
    /// Makes the pacing of a postbox by its mailbox's rules; `None` if the rules pace nothing.
    pub fn new(rules: Rules) -> Option<Box<Self>> {
        let Rules::Smsrp { window } = rules else { return None };
        Some(Box::new(Pacing { poster: Poster::new(window.into()), begun: job_time() }))
    }

    pub fn on_grant(&mut self, bytes: u32, micros: u32) {
        self.poster.grant(self.elapsed(), Grant { after: delay(micros), bytes: bytes.into() });
    }

    pub fn sent(&mut self, weight: u64) {
        self.poster.sent(weight);
    }

    /// Whether the next message may be sent without any request.
    fn may_bypass_queue(&self) -> bool {
        self.poster.goes_at_once(|| self.elapsed())
    }

    /// Time since the beginning, in the job's time: while the job stands still, no grant comes nearer.
    fn elapsed(&self) -> Duration {
        job_time().saturating_duration_since(self.begun)
    }

    /// Time from which the granted bytes may be sent, if it is still to come.
    fn wakes_at(&self) -> Option<Instant> {
        self.poster.wakes_at().map(|at| self.begun + at)
    }
}

/// Converts a delay from a mailbox. It is never longer than a grant may be away, whatever the mailbox says.
pub(super) fn delay(micros: u32) -> Duration {
    Duration::from_micros(micros.into()).min(pacing::LONGEST)
}

impl Channel {
    /// Whether a message that is not announced may pass the queue by. The queue is empty then.
    pub(super) fn may_bypass_queue(&self) -> bool {
        self.queue.is_empty() && self.pacing.as_ref().is_none_or(|pacing| pacing.may_bypass_queue())
    }

    /// Notes that a message has passed the queue by.
    pub(super) fn note_sent(&mut self, len: usize) {
        if let Some(pacing) = &mut self.pacing {
            pacing.sent(pacing::weight(1, len as u64));
        }
    }

    /// Weight of the first message under incast control; `None` if the queue is empty, or the message has a
    /// reservation of its own.
    pub(super) fn first_weight(&self) -> Option<u64> {
        self.pacing.as_ref()?;
        let len = self.queue.first().and_then(Outgoing::unannounced_len)?;
        Some(pacing::weight(1, len as u64))
    }

    /// Whether the first message, of that weight, may be sent now. Makes a reservation if one is needed.
    pub(super) fn has_turn(&mut self, weight: u64) -> Result<bool, ViaError> {
        let Channel { pacing: Some(pacing), side, queue, .. } = self else { return Ok(true) };
        let (now, vi) = (pacing.elapsed(), &mut side.vi);
        let turn = pacing.poster.turn(now, || matches!(vi.unread(), Ok(0)));
        let backlog = pacing::weight(queue.len() as u64, queue.memory() as u64).max(weight);
        if turn == SendDecision::Ask || turn == SendDecision::Now && pacing.poster.asks_ahead() {
            let asked = pacing.poster.asks_for(backlog).to_le_bytes();
            match vi.send_inline(None, &wire::head(Kind::Reserve, 0), &asked) {
                Ok(()) => pacing.poster.asked(),
                Err(error) if is_busy(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(turn == SendDecision::Now)
    }

    /// Whether the mailbox schedules the first message, and its time has not come. That takes long, because
    /// others come before it.
    pub(super) fn waits_for_turn(&self) -> bool {
        let Some(first) = self.queue.first().filter(|_| self.route.incast != IncastControl::Off) else {
            return false;
        };
        if first.is_announced() {
            return first.is_asked() || first.granted_from().is_some_and(|from| job_time() < from);
        }
        self.pacing.as_ref().is_some_and(|pacing| pacing.poster.waits(pacing.elapsed()))
    }

    /// Shortens a deadline to the time when the first message may be sent, if that is known and still to
    /// come: no notification comes then.
    pub(super) fn until_turn(&self, deadline: Deadline) -> Deadline {
        let at = match self.queue.first().and_then(Outgoing::granted_from) {
            Some(at) => Some(at),
            None => self.pacing.as_ref().and_then(|pacing| pacing.wakes_at()),
        };
        let left = at.map(|at| at.saturating_duration_since(job_time())).filter(|left| !left.is_zero());
        left.map_or(deadline, |left| deadline.min(Deadline::after(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mailbox_makes_a_message_wait_for_long() {
        assert_eq!([7, u32::MAX].map(delay), [Duration::from_micros(7), pacing::LONGEST]);
    }
}
