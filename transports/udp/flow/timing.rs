//! What happens when nothing does.

use std::time::{Duration, Instant};

use super::arrivals::MAX_DELAY;
use super::{Flow, LEAST_ASKED, State};

impl Flow {
    /// It is `now`, which is what [`Flow::timer`] said or later.
    pub fn time(&mut self, now: Instant) {
        if self.state != State::Open {
            return;
        }
        let due = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        if due(self.death()) {
            self.state = State::Silent;
            return;
        }
        if due(self.sent.loss_time()) {
            self.find_losses(now);
        }
        if due(self.mtu.deadline()) {
            self.mtu.failed();
        }
        if due(self.probe_time()) {
            self.probe();
        }
        if due(self.ping_time()) && !self.ping {
            self.ping = true;
            self.asked += 1;
            self.incoming.rest();
        }
    }

    /// Silence although something is under way: something is sent that has to be answered (RFC 9002, section 6.2.4).
    fn probe(&mut self) {
        self.probes = if self.backoff == 0 { 1 } else { 2 };
        self.backoff += 1;
        self.asked += 1;
        self.stats.probes += 1;
    }

    /// When [`Flow::time`] has to be called. May lie in the past: then now.
    pub fn timer(&self) -> Option<Instant> {
        if self.state != State::Open {
            return None;
        }
        let times = [
            self.sent.loss_time(),
            self.mtu.deadline(),
            self.probe_time(),
            self.ping_time(),
            self.death(),
            self.arrivals.due(),
        ];
        times.into_iter().flatten().min()
    }

    /// Whether [`Flow::time`] is about to find that the peer is [`State::Silent`].
    pub fn is_silent(&self, now: Instant) -> bool {
        self.state == State::Open && self.death().is_some_and(|death| death <= now)
    }

    /// The peer is known to be there although it is silent: its silence counts from now, and it is asked again.
    pub fn excuse(&mut self, now: Instant) {
        (self.heard, self.asked) = (now, 0);
    }

    fn death(&self) -> Option<Instant> {
        (self.asked >= LEAST_ASKED).then(|| self.heard + self.dead_after)
    }

    fn ping_time(&self) -> Option<Instant> {
        self.sent.waiting_since().is_none().then(|| self.heard + self.keep_alive())
    }

    fn probe_time(&self) -> Option<Instant> {
        let patience = self.patience();
        let longest = patience.max(self.keep_alive());
        let backed_off = patience.saturating_mul(1 << self.backoff.min(16)).min(longest);
        self.sent.waiting_since().map(|since| since + backed_off)
    }

    pub(super) fn patience(&self) -> Duration {
        self.rtt.patience() + MAX_DELAY
    }

    fn keep_alive(&self) -> Duration {
        self.dead_after / 5
    }
}
