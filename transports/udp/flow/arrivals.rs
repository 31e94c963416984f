//! Which packets came, and when to say so (RFC 9000, section 13.2): at once for every second packet, for one that came out
//! of order and for one that asks; for one that none follows at once too, unless an answer of the user's usually follows and carries
//! the acknowledgement for nothing.

use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use super::ranges::Ranges;
use crate::wire::{AckRanges, HEADER, MAX_RANGES};

/// Longest that an acknowledgement waits for company.
pub const MAX_DELAY: Duration = Duration::from_millis(1);
/// So many packets are acknowledged at once.
const MANY: u32 = 2;
/// Ranges of an acknowledgement from which on it is worth a packet to make the next ones shorter.
const LONG: usize = 4;

/// What a packet's sender wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Nothing,
    /// That it came. Others follow.
    Soon,
    /// That it came. None follows for now.
    Last,
    /// That it came, at once.
    Now,
}

/// What a packet that was sent tells the peer, once it has arrived there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which acknowledgement it is, from 1.
    nth: u64,
    /// It says of all packets below whether they came.
    below: u64,
}

#[derive(Debug, Default)]
pub struct Arrivals {
    /// Packet numbers that came; at most [`MAX_RANGES`] ranges.
    came: Ranges,
    /// Packets below are counted as come, whether they did or not.
    floor: u64,
    /// The peer knows which packets below came: they are not acknowledged again (RFC 9000, section 13.2.4).
    told: u64,
    /// Acknowledgements sent.
    acknowledgements: u64,
    /// The least number that came after larger ones, and how many acknowledgements had been sent then: none of these has it.
    late: Option<(u64, u64)>,
    /// When the largest came.
    largest_at: Option<Instant>,
    /// Packets that want an acknowledgement and had none.
    pending: u32,
    /// When it has to go, and whether it was put off.
    due: Option<(Instant, bool)>,
    /// When the last packet came that wants an acknowledgement.
    asked: Option<Instant>,
    /// The user answered the last ones within [`MAX_DELAY`].
    answers: bool,
}

impl Arrivals {
    /// Whether a packet of that number came before, or is so old that it may have.
    pub fn knows(&self, number: u64) -> bool {
        number < self.floor || self.came.contains(number)
    }

    /// A packet came that was not known.
    pub fn note(&mut self, now: Instant, number: u64, wish: Wish) {
        let next = self.came.last().map_or(0, |last| last.end);
        if number >= next {
            self.largest_at = Some(now);
        } else {
            self.told = self.told.min(number);
            let least = self.late.map_or(number, |(least, _)| least.min(number));
            self.late = Some((least, self.acknowledgements));
        }
        self.came.insert(number..number + 1);
        if self.came.len() > MAX_RANGES {
            self.floor = self.came.pop_first().map_or(self.floor, |oldest| oldest.end);
        }
        let patient = match wish {
            Wish::Nothing => return,
            Wish::Soon => true,
            Wish::Last => self.answers,
            Wish::Now => false,
        };
        self.pending += 1;
        self.asked = Some(now);
        let at_once = !patient || number != next || self.pending >= MANY;
        match self.due {
            _ if at_once => self.due = Some((now, false)),
            None => self.due = Some((now + MAX_DELAY, true)),
            Some(_) => {}
        }
    }

    /// When an acknowledgement has to go, if one has to.
    pub fn due(&self) -> Option<Instant> {
        self.due.map(|(at, _)| at)
    }

    /// What to acknowledge, if there is anything that wants it.
    pub fn acknowledgement(
        &self,
        now: Instant,
    ) -> Option<AckRanges<impl Iterator<Item = RangeInclusive<u64>> + use<'_>>> {
        let delay = now.saturating_duration_since(self.largest_at?);
        let ranges = self.untold().map(|range| range.start..=range.end - 1);
        (self.pending > 0).then_some(AckRanges { delay, ranges })
    }

    /// What came, as far as the peer may not know it; at least the last of it.
    fn untold(&self) -> impl Iterator<Item = &Range<u64>> {
        let least = self.came.last().map_or(0, |last| last.end.min(self.told + 1));
        self.came.iter().rev().take_while(move |range| range.end >= least)
    }

    /// What [`Arrivals::acknowledgement`] tells now, if there is one.
    pub fn tells(&self) -> Option<Told> {
        let below = self.came.last()?.end;
        (self.pending > 0).then_some(Told { nth: self.acknowledgements + 1, below })
    }

    /// The packet that told so has arrived.
    pub fn confirmed(&mut self, told: Told) {
        let mut below = told.below;
        match self.late {
            Some((least, sent)) if told.nth <= sent => below = below.min(least),
            _ => self.late = None,
        }
        self.told = self.told.max(below);
    }

    /// Acknowledgements are long by now, and only those that the peer confirms become shorter.
    pub fn wants_confirmation(&self) -> bool {
        self.untold().count() > LONG
    }

    /// A packet goes, with [`Arrivals::acknowledgement`]. `answer`: it carries the user's bytes.
    pub fn sent(&mut self, now: Instant, answer: bool) {
        if answer {
            let waited = self.asked.map(|asked| now.saturating_duration_since(asked));
            self.answers = waited.is_some_and(|waited| waited <= MAX_DELAY);
        } else if self.due.is_some_and(|(_, put_off)| put_off) {
            self.answers = false;
        }
        self.acknowledgements += u64::from(self.pending > 0);
        (self.pending, self.due) = (0, None);
    }

    /// Bytes of a packet's header with [`Arrivals::acknowledgement`].
    pub fn header(&self) -> usize {
        HEADER + if self.pending > 0 { 8 + 8 * self.untold().count() } else { 0 }
    }

    pub fn ranges(&self) -> usize {
        self.came.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledged(arrivals: &Arrivals, now: Instant) -> Vec<RangeInclusive<u64>> {
        arrivals.acknowledgement(now).into_iter().flat_map(|acks| acks.ranges).collect()
    }

    #[test]
    fn a_lone_packet_is_acknowledged_at_once_until_answers_follow() {
        let now = Instant::now();
        let mut arrivals = Arrivals::default();
        arrivals.note(now, 0, Wish::Last);
        assert_eq!(arrivals.due(), Some(now));
        arrivals.sent(now, false);
        arrivals.sent(now + MAX_DELAY / 2, true);
        arrivals.note(now, 1, Wish::Last);
        assert_eq!(arrivals.due(), Some(now + MAX_DELAY), "an answer came soon");
        assert_eq!(acknowledged(&arrivals, now), [0..=1]);
        arrivals.sent(now + MAX_DELAY, false);
        arrivals.note(now, 2, Wish::Last);
        assert_eq!(arrivals.due(), Some(now), "it did not, last time");
        arrivals.sent(now, false);
        arrivals.note(now, 3, Wish::Soon);
        assert_eq!(arrivals.due(), Some(now + MAX_DELAY), "the next one is under way");
    }

    #[test]
    fn every_second_the_disordered_and_the_asking_are_acknowledged_at_once() {
        let now = Instant::now();
        let answering = || Arrivals { answers: true, ..Arrivals::default() };
        let mut arrivals = answering();
        arrivals.note(now, 0, Wish::Last);
        assert_ne!(arrivals.due(), Some(now));
        arrivals.note(now, 1, Wish::Last);
        assert_eq!(arrivals.due(), Some(now));
        let mut arrivals = answering();
        arrivals.note(now, 1, Wish::Last);
        assert_eq!(arrivals.due(), Some(now), "0 is missing");
        let mut arrivals = answering();
        arrivals.note(now, 0, Wish::Now);
        assert_eq!(arrivals.due(), Some(now));
        let mut arrivals = answering();
        arrivals.note(now, 0, Wish::Nothing);
        assert_eq!((arrivals.due(), acknowledged(&arrivals, now)), (None, vec![]), "nothing to say");
    }

    #[test]
    fn what_came_is_known_and_ranges_have_a_bound() {
        let now = Instant::now();
        let mut arrivals = Arrivals::default();
        for number in 0..2 * MAX_RANGES as u64 {
            assert!(!arrivals.knows(2 * number));
            arrivals.note(now, 2 * number, Wish::Last);
        }
        assert_eq!(arrivals.ranges(), MAX_RANGES);
        let top = 4 * MAX_RANGES as u64 - 2;
        assert!(arrivals.knows(1), "too old to tell");
        assert!(!arrivals.knows(top - 1));
        assert_eq!(acknowledged(&arrivals, now)[..2], [top..=top, top - 2..=top - 2]);
        arrivals.note(now, top - 1, Wish::Last);
        assert_eq!(acknowledged(&arrivals, now)[0], top - 2..=top);
    }

    #[test]
    fn what_the_peer_knows_is_not_told_again_but_what_came_late_is() {
        let now = Instant::now();
        let mut arrivals = Arrivals::default();
        let come = |arrivals: &mut Arrivals, number| arrivals.note(now, number, Wish::Now);
        let send = |arrivals: &mut Arrivals| {
            let told = arrivals.tells().expect("something came");
            arrivals.sent(now, false);
            told
        };
        [0, 2, 4].into_iter().for_each(|number| come(&mut arrivals, number));
        let first = send(&mut arrivals);
        come(&mut arrivals, 6);
        assert_eq!(acknowledged(&arrivals, now), [6..=6, 4..=4, 2..=2, 0..=0], "it may not have arrived");
        arrivals.confirmed(first);
        assert_eq!(acknowledged(&arrivals, now), [6..=6]);
        assert_eq!(arrivals.header(), HEADER + 16);
        let second = send(&mut arrivals);
        // Late, after it was said that they had not come.
        come(&mut arrivals, 3);
        assert_eq!(acknowledged(&arrivals, now), [6..=6, 2..=4]);
        arrivals.confirmed(second);
        assert_eq!(acknowledged(&arrivals, now), [6..=6, 2..=4], "it was said before");
        let third = send(&mut arrivals);
        come(&mut arrivals, 1);
        arrivals.confirmed(third);
        assert_eq!(acknowledged(&arrivals, now), [6..=6, 0..=4]);
        let fourth = send(&mut arrivals);
        arrivals.confirmed(fourth);
        come(&mut arrivals, 7);
        assert_eq!(acknowledged(&arrivals, now), [6..=7]);
        assert!(
            (0..8).filter(|number| *number != 5).all(|number| arrivals.knows(number)) && !arrivals.knows(5)
        );
    }
}
