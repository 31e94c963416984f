//! Which packets came, and when to say so (RFC 9000, section 13.2): at once for every second packet, for one that came out
//! of order and for one that asks; for one that none follows at once too, unless an answer of the user's usually follows and carries
//! the acknowledgement for nothing.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::ranges::Ranges;
use crate::wire::{AckRanges, HEADER, MAX_RANGES};

/// Longest that an acknowledgement waits for company.
pub const MAX_DELAY: Duration = Duration::from_millis(1);
/// So many packets are acknowledged at once.
const MANY: u32 = 2;

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

#[derive(Debug, Default)]
pub struct Arrivals {
    /// Packet numbers that came; at most [`MAX_RANGES`] ranges.
    came: Ranges,
    /// Packets below are counted as come, whether they did or not.
    floor: u64,
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
        let ranges = self.came.iter().rev().map(|range| range.start..=range.end - 1);
        (self.pending > 0).then_some(AckRanges { delay, ranges })
    }

    /// A packet goes, with [`Arrivals::acknowledgement`]. `answer`: it carries the user's bytes.
    pub fn sent(&mut self, now: Instant, answer: bool) {
        if answer {
            let waited = self.asked.map(|asked| now.saturating_duration_since(asked));
            self.answers = waited.is_some_and(|waited| waited <= MAX_DELAY);
        } else if self.due.is_some_and(|(_, put_off)| put_off) {
            self.answers = false;
        }
        (self.pending, self.due) = (0, None);
    }

    /// Bytes of a packet's header with [`Arrivals::acknowledgement`].
    pub fn header(&self) -> usize {
        HEADER + if self.pending > 0 { 8 + 8 * self.came.len() } else { 0 }
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
}
