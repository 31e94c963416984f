//! Pacing: incast control where the network drops nothing, by grants over connections that have credits.
//!
//! [`crate::incast`] follows the literature: a message over the threshold is dropped, and comes again at its grant.
//! Here dropping gains nothing: a message that has arrived has already used the network, and has its place. So a
//! poster does not send a message that would be refused. It may have a *window* of bytes in flight without asking;
//! beyond that it reserves, and waits for its grant. When the mailbox has read all that it has sent, its window is
//! whole again. A message may begin while anything is left of a window or a grant, and may be longer than that.
//!
//! | who | has |
//! |---|---|
//! | a mailbox | a [`Scheduler`] of its time; for each postbox an [`Account`] of its grants |
//! | a postbox | a [`Poster`], which says whether the next message may go |
//!
//! Sizes are weights: a message's bytes plus [`OVERHEAD`].

use std::time::Duration;

use crate::incast::{Grant, Limits, Receiver};

/// Weight of a message in addition to its bytes.
pub const OVERHEAD: u64 = 64;
/// Upper bound of a grant's delay: a rate that was measured wrong, or peers that reserve and do not send, hold
/// nobody up for longer.
pub const LONGEST: Duration = Duration::from_secs(1);
/// Time after a grant's begin at which its unused bytes are no longer counted: the poster stands still, or lies. The
/// poster itself forgets them after twice as long. Its time begins later than the mailbox's, so it never holds the
/// poster to less than the mailbox knows of.
const LAPSE: Duration = Duration::from_secs(1);

/// Lower bound of a rate sample's duration: shorter samples say little.
const SAMPLE: Duration = Duration::from_millis(2);
/// Upper bound of a rate sample's duration: a rate over a longer time is that of the posters.
const STALE: Duration = Duration::from_secs(1);
/// Number of rate samples, of which the highest counts: a mailbox that waits for its posters now and then is no
/// slower for it.
const SAMPLES: usize = 8;
/// Factor between the measured rate and the rate by which reservations are scheduled. Without it, messages held up
/// by their delays would be measured as slow, and be delayed for longer. A message that is scheduled too early does
/// not come in time, and moves the next reservation ([`Receiver::settle`]).
const GAIN: u64 = 2;

/// Time that one grant covers at the mailbox's rate: where processors are shared, posters of smaller grants are
/// woken too often.
const SLICE: Duration = Duration::from_millis(1);
/// Time that one grant covers while more than the threshold is outstanding. It is shorter, because a postbox waits
/// until the mailbox has taken the grants of all others.
const CROWDED_SLICE: Duration = Duration::from_micros(250);

/// Returns the weight of `messages` messages with `bytes` bytes together.
pub fn weight(messages: u64, bytes: u64) -> u64 {
    bytes.saturating_add(messages.saturating_mul(OVERHEAD))
}

/// Limits of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Weight that may be granted and outstanding without a delay.
    pub threshold: u64,
    /// Upper bound of one reservation from a slow mailbox. From a quick one a reservation gets a slice of time.
    pub usual: u64,
    /// Upper bound of such a slice in bytes while more than the threshold is outstanding: each of many postboxes may
    /// have as much at the same time.
    pub crowded: u64,
    /// Upper bound of such a slice in bytes while less is outstanding.
    pub largest: u64,
    /// Rate at which the mailbox takes messages, in bytes a second. `None`: it is measured, and until then nothing
    /// is delayed.
    pub rate: Option<u64>,
}

/// Schedule of a mailbox's time, which its postboxes reserve.
#[derive(Clone, Debug)]
pub struct Scheduler {
    terms: Terms,
    receiver: Receiver,
    measured: DrainRate,
    /// Rate of the schedule in bytes a second, once it is known.
    rate: Option<u64>,
}

impl Scheduler {
    /// Makes a schedule without reservations at the time `now`.
    pub fn new(terms: Terms, now: Duration) -> Self {
        let limits =
            Limits { rate: terms.rate.unwrap_or(u64::MAX), threshold: terms.threshold, largest: u64::MAX };
        Self { terms, receiver: Receiver::new(limits), measured: DrainRate::new(now), rate: terms.rate }
    }

    /// Handles a reservation. `outstanding` is the weight that was granted so far and has not come, `drained` the
    /// weight of all that the program has taken since the mailbox was made.
    pub fn reserve(&mut self, now: Duration, asked: u64, outstanding: u64, drained: u64) -> Grant {
        self.reserve_whole(now, asked.clamp(1, self.largest(outstanding)), outstanding, drained)
    }

    /// Upper bound of a reservation now: a slice of the mailbox's time. A long slice as far as that is within the
    /// threshold, otherwise a short one.
    fn largest(&self, outstanding: u64) -> u64 {
        let free = self.terms.threshold.saturating_sub(outstanding);
        let alone = self.taken_in(SLICE).min(self.terms.largest).min(free);
        let crowded = self.taken_in(CROWDED_SLICE).min(self.terms.crowded);
        alone.max(crowded).max(self.terms.usual).max(1)
    }

    /// Upper bound of a request now, where data in flight beyond the threshold may be lost.
    pub fn within_threshold(&self, outstanding: u64) -> u64 {
        self.terms.threshold.saturating_sub(outstanding).max(self.terms.usual)
    }

    /// Returns how many bytes the mailbox takes in the time `slice`, by the rate of the schedule.
    fn taken_in(&self, slice: Duration) -> u64 {
        let bytes = u128::from(self.rate.unwrap_or(0)) * slice.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Handles a reservation as [`Self::reserve`], for a message that is granted as a whole.
    pub fn reserve_whole(&mut self, now: Duration, asked: u64, outstanding: u64, drained: u64) -> Grant {
        if self.terms.rate.is_none() {
            if outstanding <= self.terms.threshold {
                // The program may have waited for its posters, so this time says nothing of its rate.
                self.measured.restart(now, drained);
            } else if let Some(rate) = self.measured.observe(now, drained) {
                let rate = rate.saturating_mul(GAIN);
                self.rate = Some(rate);
                self.receiver.set_rate(rate);
            }
        }
        self.receiver.settle(now, outstanding.saturating_sub(self.terms.threshold));
        let grant = self.receiver.reserve(now, asked);
        Grant { after: grant.after.min(LONGEST), ..grant }
    }
}

/// Measured rate at which a mailbox's program takes messages. It is sampled when a postbox asks, between two
/// requests at which more than the threshold was granted and had not come: so, mostly while the program has messages
/// to take.
#[derive(Clone, Debug)]
struct DrainRate {
    since: Duration,
    drained: u64,
    samples: [u64; SAMPLES],
    next: usize,
}

impl DrainRate {
    fn new(now: Duration) -> Self {
        Self { since: now, drained: 0, samples: [0; SAMPLES], next: 0 }
    }

    /// Begins the next sample now.
    fn restart(&mut self, now: Duration, drained: u64) {
        (self.since, self.drained) = (now, drained);
    }

    /// Returns the rate in bytes a second, if there is a new sample.
    fn observe(&mut self, now: Duration, drained: u64) -> Option<u64> {
        let elapsed = now.saturating_sub(self.since);
        if elapsed < SAMPLE {
            return None;
        }
        let bytes = u128::from(drained.saturating_sub(self.drained));
        self.restart(now, drained);
        if elapsed > STALE || bytes == 0 {
            return None;
        }
        let rate = bytes * 1_000_000_000 / elapsed.as_nanos();
        self.samples[self.next] = u64::try_from(rate).unwrap_or(u64::MAX);
        self.next = (self.next + 1) % SAMPLES;
        self.samples.iter().max().copied()
    }
}

/// Grants of a postbox, counted at its mailbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    granted: u64,
    /// Size of the last grant.
    last: u64,
    /// Weight that had come from the postbox by its last grant.
    arrived: u64,
    lapses: Duration,
}

impl Account {
    /// Returns the granted weight that is still expected, when `arrived` has come in all.
    pub fn outstanding(&self, now: Duration, arrived: u64) -> u64 {
        if now >= self.lapses {
            return 0;
        }
        self.granted.saturating_sub(arrived.saturating_sub(self.arrived))
    }

    /// Whether the postbox may ask for more: no more is outstanding than its last grant. So it has at most two
    /// grants, however small they are.
    pub fn may_ask(&self, now: Duration, arrived: u64) -> bool {
        self.outstanding(now, arrived) <= self.last.max(1)
    }

    /// Counts a grant.
    pub fn grant(&mut self, now: Duration, arrived: u64, grant: Grant) {
        let lapses = now.saturating_add(grant.after).saturating_add(LAPSE);
        let granted = self.outstanding(now, arrived).saturating_add(grant.bytes);
        *self = Self { granted, last: grant.bytes, arrived, lapses };
    }
}

/// Whether the next message of a postbox may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendDecision {
    /// The message may go now.
    Now,
    /// A reservation is needed first.
    Ask,
    /// The message waits until this time; `None`: until the mailbox answers.
    Wait(Option<Duration>),
}

/// Sending side of a postbox: how much it may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poster {
    /// Weight that may be in flight without asking, and below, the rest of it.
    window: u64,
    left: u64,
    credit: u64,
    /// When the credit begins to count.
    from: Duration,
    /// Begin and size of the grant behind the current one.
    next: Option<(Duration, u64)>,
    /// Half of the last grant: when no more than this is left, the next grant is requested.
    ahead: u64,
    /// When all unused grants lapse.
    lapses: Duration,
    /// An answer is awaited.
    asked: bool,
}

impl Poster {
    /// Makes a poster with this window.
    pub fn new(window: u64) -> Self {
        let window = window.max(1);
        let (from, lapses) = (Duration::ZERO, Duration::ZERO);
        Self { window, left: window, credit: 0, from, next: None, ahead: 0, lapses, asked: false }
    }

    /// Whether the next message may go and nothing else is to be done: [`Self::turn`] would return [`SendDecision::Now`] and
    /// change nothing, and no grant has to be requested ahead. `now` is not called within the window.
    pub fn goes_at_once(&self, now: impl FnOnce() -> Duration) -> bool {
        if self.credit == 0 {
            return self.left > 0 && self.next.is_none() && !self.asked;
        }
        !self.asks_ahead() && (self.from..self.lapses).contains(&now())
    }

    /// Forgets old grants: they say nothing of the mailbox's present state.
    fn forget_lapsed(&mut self, now: Duration) {
        if now >= self.lapses {
            (self.credit, self.next, self.ahead) = (0, None, 0);
        }
    }

    /// Returns whether the next message may go. `all_read` says whether the mailbox has read all that was sent; then
    /// the window is whole again.
    pub fn turn(&mut self, now: Duration, all_read: impl FnOnce() -> bool) -> SendDecision {
        self.forget_lapsed(now);
        if self.credit == 0
            && let Some((from, bytes)) = self.next.take()
        {
            (self.from, self.credit) = (from, bytes);
        }
        if self.credit > 0 {
            return if now < self.from { SendDecision::Wait(Some(self.from)) } else { SendDecision::Now };
        }
        if self.asked {
            return SendDecision::Wait(None);
        }
        if self.left == 0 {
            if !all_read() {
                return SendDecision::Ask;
            }
            (self.left, self.ahead) = (self.window, 0);
        }
        SendDecision::Now
    }

    /// Counts a message that was sent. It may have been larger than the rest of the window or grant.
    pub fn sent(&mut self, weight: u64) {
        let from = if self.credit > 0 { &mut self.credit } else { &mut self.left };
        *from = from.saturating_sub(weight);
    }

    /// Returns the size of the next request, when `backlog` waits: at least a window, because a poster that waits
    /// for room has more to come, and twice the last grant. A poster has few messages in its queue, so its backlog
    /// says little of the messages that it posts before the answer.
    pub fn asks_for(&self, backlog: u64) -> u64 {
        backlog.max(self.window).max(self.ahead.saturating_mul(4))
    }

    /// Whether to send a request now, so that the next grant is there when this one is used up.
    pub fn asks_ahead(&self) -> bool {
        !self.asked && self.next.is_none() && (1..=self.ahead).contains(&self.credit)
    }

    /// Notes that a request was sent.
    pub fn asked(&mut self) {
        self.asked = true;
    }

    /// Handles the mailbox's answer. An answer that is not awaited changes nothing.
    pub fn grant(&mut self, now: Duration, grant: Grant) {
        if !self.asked {
            return;
        }
        self.asked = false;
        self.forget_lapsed(now);
        // At least one byte is granted: a peer that grants nothing would be asked for ever.
        let (from, bytes) = (now.saturating_add(grant.after.min(LONGEST)), grant.bytes.max(1));
        self.ahead = bytes / 2;
        self.lapses = from.saturating_add(LAPSE * 2);
        if self.credit == 0 {
            (self.from, self.credit) = (from, bytes);
        } else {
            self.next = Some((from, bytes));
        }
    }

    /// Whether the next message waits for its time or for an answer, as of the last call of [`Self::turn`].
    pub fn waits(&self, now: Duration) -> bool {
        if self.credit > 0 { now < self.from } else { self.asked && self.next.is_none() }
    }

    /// Time for which the next message waits, if there is one.
    pub fn wakes_at(&self) -> Option<Duration> {
        (self.credit > 0).then_some(self.from)
    }
}

#[cfg(test)]
mod tests;
