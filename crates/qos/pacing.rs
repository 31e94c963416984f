//! Incast control where the network drops nothing: grants over connections that have credits.
//!
//! [`crate::incast`] is the literature's: a message over the threshold is dropped, and comes again at its grant. Here nothing is gained by
//! dropping: what has arrived has used the network already, and has its place. So a poster does not send what would be refused. It may have a
//! *window* of bytes under way without asking; beyond that it reserves, and waits for its grant. When all that it has sent is read, its window is
//! whole again. A message begins where anything is left of a window or a grant, and may be longer than that.
//!
//! | who | has |
//! |---|---|
//! | a mailbox | a [`Scheduler`] of its time; for each postbox an [`Account`] of what it was granted |
//! | a postbox | a [`Poster`], which says of the next message whether it may go |
//!
//! Sizes are weights: a message's bytes and [`OVERHEAD`].

use std::time::Duration;

use crate::incast::{Grant, Limits, Receiver};

/// What a message counts beside its bytes.
pub const OVERHEAD: u64 = 64;
/// No grant is for a later time than that: a rate that was measured wrong, or peers that reserve and do not send, hold nobody up for longer.
pub const LONGEST: Duration = Duration::from_secs(1);
/// What was granted and has not come so long after its time is counted no longer: its poster stands still, or lies. The poster itself forgets
/// it after twice as long. Its count begins later than the mailbox's, so it never holds the poster to less than the mailbox knows of.
const LAPSE: Duration = Duration::from_secs(1);

/// Shorter looks at a rate say little.
const SAMPLE: Duration = Duration::from_millis(2);
/// A rate over a longer time is that of the posters.
const STALE: Duration = Duration::from_secs(1);
/// The rate is the highest of so many samples: a mailbox that waits for its posters now and then is no slower for it.
const SAMPLES: usize = 8;
/// Reservations are scheduled at so many times the rate that was measured. What was held up by its delays would be measured as slow, and be delayed for longer; what
/// is scheduled too early does not come in time, and moves the next reservation ([`Receiver::settle`]).
const GAIN: u64 = 2;

/// A grant is what the mailbox takes in so long: where the processors are shared, who is woken for less is woken too often.
const SLICE: Duration = Duration::from_millis(1);
/// And where more than the threshold is outstanding. Shorter, because a postbox waits until the mailbox has taken those of all others.
const CROWDED_SLICE: Duration = Duration::from_micros(250);

/// How heavy so many messages are, of so many bytes together.
pub fn weight(messages: u64, bytes: u64) -> u64 {
    bytes.saturating_add(messages.saturating_mul(OVERHEAD))
}

/// A mailbox's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What may be granted and on its way without a delay.
    pub threshold: u64,
    /// What one reservation gets at most of a mailbox that is slow. Of a quick one it gets a slice of time.
    pub usual: u64,
    /// The most bytes of such a slice where more than the threshold is outstanding: each of many postboxes may have as much at the same time.
    pub crowded: u64,
    /// The most bytes of such a slice where less is outstanding.
    pub largest: u64,
    /// What the mailbox takes, in bytes a second; `None`: it is measured. Until it is, nothing is delayed.
    pub rate: Option<u64>,
}

/// A mailbox's time, which its postboxes reserve.
#[derive(Clone, Debug)]
pub struct Scheduler {
    terms: Terms,
    receiver: Receiver,
    measured: DrainRate,
    /// By which it schedules, once it is known.
    rate: Option<u64>,
}

impl Scheduler {
    /// Nothing is reserved, and the clock stands at `now`.
    pub fn new(terms: Terms, now: Duration) -> Self {
        let limits =
            Limits { rate: terms.rate.unwrap_or(u64::MAX), threshold: terms.threshold, largest: u64::MAX };
        Self { terms, receiver: Receiver::new(limits), measured: DrainRate::new(now), rate: terms.rate }
    }

    /// A reservation. `outstanding`: what was granted so far and has not come. `drained`: the weight of all that the program has taken
    /// since the mailbox was made.
    pub fn reserve(&mut self, now: Duration, asked: u64, outstanding: u64, drained: u64) -> Grant {
        self.reserve_whole(now, asked.clamp(1, self.largest(outstanding)), outstanding, drained)
    }

    /// What one reservation gets at most, now: a slice of the mailbox's time. A long one, as far as that is within the threshold; else a short one.
    fn largest(&self, outstanding: u64) -> u64 {
        let free = self.terms.threshold.saturating_sub(outstanding);
        let alone = self.taken_in(SLICE).min(self.terms.largest).min(free);
        let crowded = self.taken_in(CROWDED_SLICE).min(self.terms.crowded);
        alone.max(crowded).max(self.terms.usual).max(1)
    }

    /// What a reservation may ask for at most, now, where what is under way beyond the threshold may be lost on its way.
    pub fn within_threshold(&self, outstanding: u64) -> u64 {
        self.terms.threshold.saturating_sub(outstanding).max(self.terms.usual)
    }

    /// What the mailbox takes in so long a time, by the rate that it schedules by.
    fn taken_in(&self, slice: Duration) -> u64 {
        let bytes = u128::from(self.rate.unwrap_or(0)) * slice.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// As [`Self::reserve`], of a message that is granted as a whole.
    pub fn reserve_whole(&mut self, now: Duration, asked: u64, outstanding: u64, drained: u64) -> Grant {
        if self.terms.rate.is_none() {
            if outstanding <= self.terms.threshold {
                // The program may have waited for its posters: this time says nothing of it.
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

/// How fast a mailbox's program takes messages. It is looked at when a postbox asks, between looks at which more than the threshold was granted
/// and had not come: so, mostly while the program has something to take.
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

    /// The next sample begins now.
    fn restart(&mut self, now: Duration, drained: u64) {
        (self.since, self.drained) = (now, drained);
    }

    /// The rate, in bytes a second, if there is a new sample of it.
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

/// What a postbox was granted, at its mailbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    granted: u64,
    /// The last grant.
    last: u64,
    /// What had come from it by its last grant.
    arrived: u64,
    lapses: Duration,
}

impl Account {
    /// What was granted and has not come, of `arrived` in all: what is still expected of it.
    pub fn outstanding(&self, now: Duration, arrived: u64) -> u64 {
        if now >= self.lapses {
            return 0;
        }
        self.granted.saturating_sub(arrived.saturating_sub(self.arrived))
    }

    /// Whether it may ask for more: it has no more left than its last grant. So it has two at most, however small they are.
    pub fn may_ask(&self, now: Duration, arrived: u64) -> bool {
        self.outstanding(now, arrived) <= self.last.max(1)
    }

    /// It gets a grant.
    pub fn grant(&mut self, now: Duration, arrived: u64, grant: Grant) {
        let lapses = now.saturating_add(grant.after).saturating_add(LAPSE);
        let granted = self.outstanding(now, arrived).saturating_add(grant.bytes);
        *self = Self { granted, last: grant.bytes, arrived, lapses };
    }
}

/// Whether a postbox's next message may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may.
    Now,
    /// Something has to be reserved first.
    Ask,
    /// It waits, until this time where that is known, for the mailbox's answer where not.
    Wait(Option<Duration>),
}

/// A postbox: what it may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poster {
    /// What may be under way without asking, and what is left of it.
    window: u64,
    left: u64,
    credit: u64,
    /// When the credit begins to count.
    from: Duration,
    /// The grant behind that.
    next: Option<(Duration, u64)>,
    /// Half of the last grant: when so much is left, the next one is asked for.
    ahead: u64,
    /// When all that was granted and not used lapses.
    lapses: Duration,
    /// An answer is awaited.
    asked: bool,
}

impl Poster {
    /// With so large a window.
    pub fn new(window: u64) -> Self {
        let window = window.max(1);
        let (from, lapses) = (Duration::ZERO, Duration::ZERO);
        Self { window, left: window, credit: 0, from, next: None, ahead: 0, lapses, asked: false }
    }

    /// Whether the next message may go and nothing has to be done for it: [`Self::turn`] would say so and change nothing, and nothing has to be
    /// asked ahead. `now` is not called within the window.
    pub fn goes_at_once(&self, now: impl FnOnce() -> Duration) -> bool {
        if self.credit == 0 {
            return self.left > 0 && self.next.is_none() && !self.asked;
        }
        !self.asks_ahead() && (self.from..self.lapses).contains(&now())
    }

    /// Old grants say nothing of what the mailbox wants now.
    fn forget_lapsed(&mut self, now: Duration) {
        if now >= self.lapses {
            (self.credit, self.next, self.ahead) = (0, None, 0);
        }
    }

    /// Whether the next message may go. `all_read`: whether the mailbox has read all that was sent; then the window is whole again.
    pub fn turn(&mut self, now: Duration, all_read: impl FnOnce() -> bool) -> Turn {
        self.forget_lapsed(now);
        if self.credit == 0
            && let Some((from, bytes)) = self.next.take()
        {
            (self.from, self.credit) = (from, bytes);
        }
        if self.credit > 0 {
            return if now < self.from { Turn::Wait(Some(self.from)) } else { Turn::Now };
        }
        if self.asked {
            return Turn::Wait(None);
        }
        if self.left == 0 {
            if !all_read() {
                return Turn::Ask;
            }
            (self.left, self.ahead) = (self.window, 0);
        }
        Turn::Now
    }

    /// A message has gone. It may have been more than was left.
    pub fn sent(&mut self, weight: u64) {
        let from = if self.credit > 0 { &mut self.credit } else { &mut self.left };
        *from = from.saturating_sub(weight);
    }

    /// What to ask for, where so much waits: a window at least, because who waits for room has more to come, and twice the last grant. A poster
    /// has few messages in its queue, so that its backlog says little of what it posts in the time that an answer takes.
    pub fn asks_for(&self, backlog: u64) -> u64 {
        backlog.max(self.window).max(self.ahead.saturating_mul(4))
    }

    /// Whether to ask now, so that the next grant is there when this one is used up.
    pub fn asks_ahead(&self) -> bool {
        !self.asked && self.next.is_none() && (1..=self.ahead).contains(&self.credit)
    }

    /// A reservation has gone.
    pub fn asked(&mut self) {
        self.asked = true;
    }

    /// The mailbox has answered. An answer that nobody awaits changes nothing.
    pub fn grant(&mut self, now: Duration, grant: Grant) {
        if !self.asked {
            return;
        }
        self.asked = false;
        self.forget_lapsed(now);
        // A peer that grants nothing would be asked for ever.
        let (from, bytes) = (now.saturating_add(grant.after.min(LONGEST)), grant.bytes.max(1));
        self.ahead = bytes / 2;
        self.lapses = from.saturating_add(LAPSE * 2);
        if self.credit == 0 {
            (self.from, self.credit) = (from, bytes);
        } else {
            self.next = Some((from, bytes));
        }
    }

    /// Whether the next message waits for its time, or for an answer, at the last call of [`Self::turn`].
    pub fn waits(&self, now: Duration) -> bool {
        if self.credit > 0 { now < self.from } else { self.asked && self.next.is_none() }
    }

    /// What waits for its time, if something does: when that is.
    pub fn wakes_at(&self) -> Option<Duration> {
        (self.credit > 0).then_some(self.from)
    }
}

#[cfg(test)]
mod tests;
