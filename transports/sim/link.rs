//! Faults and delays of one direction between two NICs.

use std::ops::Range;
use std::time::Duration;

use rand_xoshiro::{SplitMix64, rand_core::Rng};

/// Selects the frames of a link that a fault hits.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum When {
    /// No frame.
    #[default]
    Never,
    /// Each frame with this probability.
    Chance(f64),
    /// The frames with these numbers. They are counted from 0 over all connections of the link, from when it was
    /// last set.
    Frames(Vec<u64>),
}

/// Settings of one direction between two NICs. The default is a perfect link without delay: a frame arrives before
/// the post returns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// Frames that are lost. Reliable connections break; unreliable ones do not notice.
    pub lose: When,
    /// Frames that arrive twice. Every level delivers them once.
    pub duplicate: When,
    /// Frames that are held back until later ones may have overtaken them. Reliable connections put them back
    /// in order; unreliable ones deliver them as they come.
    pub reorder: When,
    /// Frames of which one bit flips; a duplicate of the frame has the same flip. The receiver's checksum notices:
    /// reliable connections break; unreliable ones drop the frame.
    pub corrupt: When,
    /// Range of the time that a frame travels.
    pub delay: Range<Duration>,
    /// While set, nothing arrives. Setting the link again without it delivers the frames that waited.
    pub stalled: bool,
}

/// Faults and times of one frame.
#[derive(Debug, PartialEq)]
pub struct FramePlan {
    pub number: u64,
    pub lost: bool,
    pub held_back: bool,
    /// The bit that flips, modulo the number of bits.
    pub flipped: Option<u64>,
    /// Time until the frame arrives.
    pub travels: Duration,
    /// Time until its duplicate arrives.
    pub again: Option<Duration>,
}

/// A link, and its count of frames.
#[derive(Debug, Default)]
pub struct Wire {
    pub link: Link,
    frames: u64,
}

impl Wire {
    pub fn new(link: Link) -> Self {
        Wire { link, frames: 0 }
    }

    /// Draws the faults of the next frame. It draws equally many random numbers whatever comes of them, so that one
    /// setting does not shift the frames that another one hits.
    pub fn next_plan(&mut self, random: &mut SplitMix64) -> FramePlan {
        let number = self.frames;
        self.frames += 1;
        let Link { lose, duplicate, reorder, corrupt, .. } = &self.link;
        let [lost, twice, held_back, corrupted] = [lose, duplicate, reorder, corrupt].map(|when| {
            let thrown = unit(random);
            match when {
                When::Never => false,
                When::Chance(chance) => thrown < *chance,
                When::Frames(numbers) => numbers.contains(&number),
            }
        });
        let bit = random.next_u64();
        let delay = &self.link.delay;
        let (travels, more) = (time(random, delay), time(random, delay));
        let overtaken = if held_back { self.held_back() } else { Duration::ZERO };
        let travels = travels + overtaken;
        let (flipped, again) = (corrupted.then_some(bit), twice.then_some(travels + more));
        FramePlan { number, lost, held_back, flipped, travels, again }
    }

    /// Delay of a frame that is held back, which is longer than any frame travels.
    pub fn held_back(&self) -> Duration {
        2 * self.link.delay.start.max(self.link.delay.end) + Duration::from_micros(10)
    }
}

/// Draws a time in `range`; an empty range gives its start.
pub fn time(random: &mut SplitMix64, range: &Range<Duration>) -> Duration {
    range.start + range.end.saturating_sub(range.start).mul_f64(unit(random))
}

/// Draws a number in `[0, 1)`.
fn unit(random: &mut SplitMix64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::rand_core::SeedableRng;

    fn plans(link: Link, count: usize) -> Vec<FramePlan> {
        let (mut wire, mut random) = (Wire::new(link), SplitMix64::seed_from_u64(5));
        (0..count).map(|_| wire.next_plan(&mut random)).collect()
    }

    #[test]
    fn chosen_frames_are_hit_and_no_others() {
        let link = Link { lose: When::Frames(vec![1, 3]), ..Link::default() };
        let lost: Vec<_> = plans(link, 5).iter().map(|plan| plan.lost).collect();
        assert_eq!(lost, [false, true, false, true, false]);
    }

    #[test]
    fn a_chance_is_met_about_as_often_as_it_says() {
        let link = Link { lose: When::Chance(0.25), ..Link::default() };
        let lost = plans(link, 10_000).iter().filter(|plan| plan.lost).count();
        assert!((2000..3000).contains(&lost), "{lost} of 10000");
    }

    #[test]
    fn one_fault_does_not_shift_what_another_hits() {
        let alone = Link { lose: When::Chance(0.5), ..Link::default() };
        let some = When::Chance(0.5);
        let all = Link { duplicate: some.clone(), corrupt: some, ..alone.clone() };
        let lost = |link| plans(link, 100).into_iter().map(|plan| plan.lost).collect::<Vec<_>>();
        assert_eq!(lost(alone), lost(all));
    }

    #[test]
    fn times_lie_in_their_range() {
        let mut random = SplitMix64::seed_from_u64(1);
        let range = Duration::from_micros(3)..Duration::from_micros(5);
        assert!((0..1000).all(|_| range.contains(&time(&mut random, &range))));
        let point = Duration::from_micros(3)..Duration::ZERO;
        assert_eq!(time(&mut random, &point), Duration::from_micros(3));
    }
}
