//! Grants for incast, many senders to one receiver: SRP and SMSRP after Jiang, Dennison and Dally.
//!
//! The receiver schedules its time. A reservation of `size` bytes begins at `t = max(now, next_free)`, and
//! `next_free` becomes `t + size / rate`. The grant gives a delay and not a time, because clocks differ.
//!
//! A short message is sent at once, *speculatively*. A receiver over its threshold refuses it with a grant. The
//! sender keeps the message and sends it again at the granted time, when it is not refused. A long message reserves
//! first.

use std::time::Duration;

const NANOS: u128 = 1_000_000_000;

/// Permission to send a message, or a part of it, after a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Delay from now.
    pub after: Duration,
    /// Number of bytes: as requested, or the upper bound of a reservation.
    pub bytes: u64,
}

/// Result of the arrival of a message without a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The message is accepted, and counts as queued.
    Accepted,
    /// The message is dropped. The sender sends it again after the grant's delay.
    Refused(Grant),
}

/// Limits of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes a second that the receiver takes; 0 counts as 1.
    pub rate: u64,
    /// Queued bytes above which speculative messages are refused. While none are queued, each message is accepted.
    pub threshold: u64,
    /// Upper bound of a reservation in bytes, so that one does not keep all others waiting.
    pub largest: u64,
}

/// State of a receiver: the bytes that it has queued, and the end of its reserved time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    limits: Limits,
    queued: u64,
    /// End of the reserved time, in nanoseconds times the rate, so that nothing is rounded: a byte is `NANOS`.
    next_free: u128,
}

impl Receiver {
    /// Makes a receiver with nothing queued or reserved.
    pub fn new(limits: Limits) -> Self {
        let limits = Limits { rate: limits.rate.max(1), largest: limits.largest.max(1), ..limits };
        Self { limits, queued: 0, next_free: 0 }
    }

    /// Handles the arrival of a speculative message. `now` is any clock that does not go back.
    pub fn speculative(&mut self, now: Duration, bytes: u64) -> Arrival {
        if self.queued == 0 || self.queued.saturating_add(bytes) <= self.limits.threshold {
            self.queued = self.queued.saturating_add(bytes);
            return Arrival::Accepted;
        }
        Arrival::Refused(self.reserve(now, bytes))
    }

    /// Handles a reservation. It is always granted, perhaps with a long delay.
    pub fn reserve(&mut self, now: Duration, bytes: u64) -> Grant {
        let bytes = bytes.min(self.limits.largest);
        let rate = u128::from(self.limits.rate);
        let now = now.as_nanos().saturating_mul(rate);
        let begin = now.max(self.next_free);
        self.next_free = begin.saturating_add(u128::from(bytes) * NANOS);
        Grant { after: nanos((begin - now).div_ceil(rate)), bytes }
    }

    /// Sets the rate in bytes a second. Reserved time stays reserved.
    pub fn set_rate(&mut self, rate: u64) {
        let rate = rate.max(1);
        let time = self.next_free / u128::from(self.limits.rate);
        self.next_free = time.saturating_mul(u128::from(rate));
        self.limits.rate = rate;
    }

    /// Sets the reserved time by the granted bytes that are still to come: it is reserved for these from now on, and
    /// no longer.
    pub fn settle(&mut self, now: Duration, bytes: u64) {
        let now = now.as_nanos().saturating_mul(u128::from(self.limits.rate));
        self.next_free = now.saturating_add(u128::from(bytes) * NANOS);
    }

    /// Counts a granted message that has arrived.
    pub fn granted(&mut self, bytes: u64) {
        self.queued = self.queued.saturating_add(bytes);
    }

    /// Counts bytes that the program has taken.
    pub fn consumed(&mut self, bytes: u64) {
        self.queued = self.queued.saturating_sub(bytes);
    }

    /// Number of bytes that have arrived and were not consumed.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Time from now until the end of the reserved time.
    pub fn backlog(&self, now: Duration) -> Duration {
        let rate = u128::from(self.limits.rate);
        nanos(self.next_free.saturating_sub(now.as_nanos().saturating_mul(rate)).div_ceil(rate))
    }
}

fn nanos(nanos: u128) -> Duration {
    let seconds = u64::try_from(nanos / NANOS).unwrap_or(u64::MAX);
    Duration::new(seconds, (nanos % NANOS) as u32)
}

/// Messages that reserve first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// None: all messages are sent at once, and none is refused.
    Off,
    /// All messages.
    Srp,
    /// None: each message is speculative first.
    Smsrp,
    /// Messages longer than this many bytes; shorter ones are speculative first.
    BySize(u64),
}

/// Next step of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Send {
    /// The whole message, without a reservation. It cannot be refused.
    Plain,
    /// The whole message, which may be refused.
    Speculative,
    /// A request to reserve this many bytes.
    Reserve(u64),
    /// This many bytes of the message, as granted.
    Granted(u64),
}

/// State of a message at its sender, until all of it is sent for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderState {
    left: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// An answer is awaited.
    Asked,
    /// A grant has come, and its time is awaited.
    Until {
        time: Duration,
        bytes: u64,
    },
    Done,
}

impl SenderState {
    /// Makes the state of a message of `bytes` bytes, and returns what to send first.
    pub fn new(mode: Mode, bytes: u64) -> (Self, Send) {
        let speculative = match mode {
            Mode::Off => return (Self { left: 0, state: State::Done }, Send::Plain),
            Mode::Srp => false,
            Mode::Smsrp => true,
            Mode::BySize(most) => bytes <= most,
        };
        let send = if speculative { Send::Speculative } else { Send::Reserve(bytes) };
        (Self { left: bytes, state: State::Asked }, send)
    }

    /// Notes that the speculative message was accepted.
    pub fn accepted(&mut self) {
        if self.state == State::Asked {
            *self = Self { left: 0, state: State::Done };
        }
    }

    /// Handles a grant, by which a message was refused or a reservation answered. An answer that is not awaited (the
    /// same one twice) changes nothing.
    pub fn grant(&mut self, now: Duration, grant: Grant) {
        if self.state == State::Asked {
            let time = now.saturating_add(grant.after);
            // At least one byte is granted: a peer that grants nothing would be asked for ever.
            self.state = State::Until { time, bytes: grant.bytes.clamp(1.min(self.left), self.left) };
        }
    }

    /// Time at which [`Self::poll`] has something to send.
    pub fn wakes_at(&self) -> Option<Duration> {
        match self.state {
            State::Until { time, .. } => Some(time),
            State::Asked | State::Done => None,
        }
    }

    /// Returns what to send at this time. After a part of a message, [`Self::rest`] gives the request for the rest.
    pub fn poll(&mut self, now: Duration) -> Option<Send> {
        let State::Until { time, bytes } = self.state else { return None };
        if now < time {
            return None;
        }
        self.left -= bytes;
        self.state = if self.left == 0 { State::Done } else { State::Asked };
        Some(Send::Granted(bytes))
    }

    /// Returns the reservation for the rest, after a part was sent.
    pub fn rest(&self) -> Option<Send> {
        (self.state == State::Asked).then_some(Send::Reserve(self.left))
    }

    /// Whether the whole message was sent.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use std::collections::VecDeque;

    const fn limits(rate: u64, threshold: u64) -> Limits {
        Limits { rate, threshold, largest: u64::MAX }
    }

    const fn at(nanos: u64) -> Duration {
        Duration::from_nanos(nanos)
    }

    #[test]
    fn reservations_follow_one_another() {
        // The rate is a byte a nanosecond: t = max(now, next_free), next_free = t + size / rate.
        let mut receiver = Receiver::new(limits(1_000_000_000, 0));
        let after = |grant: Grant| grant.after.as_nanos();
        assert_eq!(after(receiver.reserve(at(100), 50)), 0);
        assert_eq!(after(receiver.reserve(at(100), 50)), 50);
        assert_eq!(after(receiver.reserve(at(120), 10)), 80);
        assert_eq!(receiver.backlog(at(120)), at(90));
        assert_eq!(after(receiver.reserve(at(500), 10)), 0, "time that nobody has reserved is over");
    }

    #[test]
    fn nothing_is_rounded_away() {
        // At 12.5 GB/s, 64 bytes take 5.12 ns; 100 of these take 512.
        let mut receiver = Receiver::new(limits(12_500_000_000, 0));
        (0..100).for_each(|_| _ = receiver.reserve(at(0), 64));
        assert_eq!(receiver.backlog(at(0)), at(512));
        assert_eq!(receiver.reserve(at(0), 64).after, at(512));
    }

    #[test]
    fn what_came_late_or_early_moves_the_next_grant() {
        let mut receiver = Receiver::new(limits(1_000_000_000, 0));
        receiver.reserve(at(0), 100);
        receiver.settle(at(20), 30);
        assert_eq!(receiver.reserve(at(20), 10).after, at(30), "70 of 100 have come in 20 ns");
        receiver.settle(at(500), 40);
        assert_eq!(receiver.reserve(at(500), 10).after, at(40), "its time is over, and 40 have not come");
        receiver.set_rate(500_000_000);
        assert_eq!(receiver.backlog(at(500)), at(50), "reserved time stays as it is");
        assert_eq!((receiver.reserve(at(500), 10).after, receiver.backlog(at(500))), (at(50), at(70)));
    }

    #[test]
    fn over_the_threshold_a_message_is_refused_until_its_grant() {
        let mut receiver = Receiver::new(limits(1_000_000_000, 100));
        assert_eq!(receiver.speculative(at(0), 1000), Arrival::Accepted, "an empty mailbox takes any");
        receiver.consumed(1000);
        assert_eq!(receiver.speculative(at(0), 60), Arrival::Accepted);
        assert_eq!(receiver.speculative(at(0), 40), Arrival::Accepted);
        assert_eq!(receiver.speculative(at(0), 40), Arrival::Refused(Grant { after: at(0), bytes: 40 }));
        assert_eq!(receiver.speculative(at(0), 40), Arrival::Refused(Grant { after: at(40), bytes: 40 }));
        assert_eq!(receiver.queued(), 100);
    }

    #[test]
    fn a_long_message_reserves_part_by_part() {
        let mut receiver = Receiver::new(Limits { rate: 1_000_000_000, threshold: 0, largest: 100 });
        let (mut message, first) = SenderState::new(Mode::BySize(64), 250);
        let mut send = first;
        let (mut now, mut parts) = (at(0), Vec::new());
        while !message.is_done() {
            let Send::Reserve(bytes) = send else { panic!("{send:?}") };
            message.grant(now, receiver.reserve(now, bytes));
            now = message.wakes_at().expect("granted");
            parts.push((now, message.poll(now)));
            send = message.rest().unwrap_or(Send::Plain);
        }
        let part = |nanos, bytes| (at(nanos), Some(Send::Granted(bytes)));
        assert_eq!(parts, [part(0, 100), part(100, 100), part(200, 50)]);
    }

    #[test]
    fn who_starts_how() {
        let first = |mode, bytes| SenderState::new(mode, bytes).1;
        assert_eq!(first(Mode::Off, 10), Send::Plain);
        assert_eq!(first(Mode::Srp, 10), Send::Reserve(10));
        assert_eq!(first(Mode::Smsrp, 1 << 30), Send::Speculative);
        assert_eq!(first(Mode::BySize(64), 64), Send::Speculative);
        assert_eq!(first(Mode::BySize(64), 65), Send::Reserve(65));
        assert!(SenderState::new(Mode::Off, 10).0.is_done());
    }

    #[test]
    fn lies_of_the_other_side_neither_panic_nor_hang() {
        let (mut message, _) = SenderState::new(Mode::Srp, 10);
        message.grant(at(0), Grant { after: Duration::MAX, bytes: u64::MAX });
        assert_eq!(message.poll(Duration::MAX), Some(Send::Granted(10)));
        let (mut message, _) = SenderState::new(Mode::Srp, 2);
        message.grant(at(0), Grant { after: at(0), bytes: 0 });
        assert_eq!((message.poll(at(0)), message.rest()), (Some(Send::Granted(1)), Some(Send::Reserve(1))));
        let mut receiver = Receiver::new(Limits { rate: 0, threshold: u64::MAX, largest: u64::MAX });
        for _ in 0..3 {
            receiver.reserve(Duration::MAX, u64::MAX);
            receiver.speculative(Duration::MAX, u64::MAX);
            receiver.granted(u64::MAX);
        }
        let (mut empty, _) = SenderState::new(Mode::Srp, 0);
        empty.grant(at(0), Grant { after: at(0), bytes: 5 });
        assert_eq!((empty.poll(at(0)), empty.is_done()), (Some(Send::Granted(0)), true));
    }

    proptest! {
        /// Grants never overlap, leave no gap while somebody waits, and none begins before it was asked for.
        #[test]
        fn proptest_grants_are_disjoint_and_leave_no_gap(
            rate in 1u64..=100_000_000_000,
            asks in vec((0u64..1_000_000, 0u64..10_000_000), 1..200),
        ) {
            let mut receiver = Receiver::new(limits(rate, 0));
            let (mut now, mut free) = (0u64, 0u128);
            for (later, bytes) in asks {
                now += later;
                let grant = receiver.reserve(at(now), bytes);
                let now = u128::from(now) * u128::from(rate);
                let begin = now.max(free);
                prop_assert_eq!(grant.after.as_nanos(), (begin - now).div_ceil(u128::from(rate)));
                free = begin + u128::from(bytes) * NANOS;
            }
        }

        /// 64 senders send to one receiver, over a network that delays. Each message arrives once, and the queued
        /// bytes are bounded by the threshold, the granted bytes that may arrive together, and the first message.
        #[test]
        fn proptest_an_incast_delivers_all_and_the_queue_is_bounded(
            sizes in vec(1u64..1000, 64),
            delays in vec(1u64..50, 64),
            threshold in 0u64..5000,
        ) {
            // The rate is a byte a nanosecond, and the receiver's program is as fast.
            let mut receiver = Receiver::new(limits(1_000_000_000, threshold));
            let mut messages: Vec<_> = sizes.iter().map(|&bytes| SenderState::new(Mode::Smsrp, bytes).0).collect();
            let mut queue = VecDeque::new();
            let (mut now, mut delivered, mut most) = (0u64, 0, 0);
            let mut arrivals: Vec<(u64, usize, bool)> = (0..64).map(|who| (delays[who], who, false)).collect();
            while delivered < 64 {
                prop_assert!(now < 1_000_000, "{} of 64 delivered", delivered);
                for (_, who, granted) in arrivals.extract_if(.., |arrival| arrival.0 == now) {
                    let taken = granted || match receiver.speculative(at(now), sizes[who]) {
                        Arrival::Accepted => { messages[who].accepted(); true }
                        // The refusal takes no time here; the message sent again has its delay.
                        Arrival::Refused(grant) => { messages[who].grant(at(now), grant); false }
                    };
                    if granted {
                        receiver.granted(sizes[who]);
                    }
                    if taken {
                        prop_assert!(messages[who].is_done());
                        queue.push_back(sizes[who]);
                    }
                }
                for (who, message) in messages.iter_mut().enumerate() {
                    if message.wakes_at().is_some_and(|time| time <= at(now)) {
                        prop_assert_eq!(message.poll(at(now)), Some(Send::Granted(sizes[who])));
                        arrivals.push((now + delays[who], who, true));
                    }
                }
                most = most.max(receiver.queued());
                if let Some(first) = queue.front_mut() {
                    *first -= 1;
                    receiver.consumed(1);
                    if *first == 0 {
                        queue.pop_front();
                        delivered += 1;
                    }
                }
                now += 1;
            }
            prop_assert!(arrivals.is_empty());
            // Delays differ by up to 50 ns, so grants of 50 ns that follow one another may arrive together, and a
            // message.
            prop_assert!(most <= threshold.max(1000) + 50 + 2 * 1000, "{} queued, threshold {}", most, threshold);
        }
    }
}
