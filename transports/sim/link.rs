//! What one direction between two NICs does to frames.

use std::ops::Range;
use std::time::Duration;

use rand_xoshiro::{SplitMix64, rand_core::Rng};

/// Which frames of a link something happens to.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum When {
    /// None.
    #[default]
    Never,
    /// Each with this probability.
    Chance(f64),
    /// These, counted from 0 over all connections of the link, from when the link was last set.
    Frames(Vec<u64>),
}

/// One direction between two NICs. The default is a perfect one without delay: a frame arrives before the post
/// returns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// Frames that vanish. Reliable connections break of it; unreliable ones do not notice.
    pub lose: When,
    /// Frames that arrive twice. Every level delivers them once.
    pub duplicate: When,
    /// Frames that are held back until later ones may have overtaken them. Reliable connections put them back
    /// in order; unreliable ones deliver them as they come.
    pub reorder: When,
    /// Frames of which one bit flips; the duplicate of one has it too. The receiver's checksum notices: reliable
    /// connections break of it; unreliable ones drop the frame.
    pub corrupt: When,
    /// How long a frame travels.
    pub delay: Range<Duration>,
    /// Nothing arrives until the link is set again without this.
    pub stalled: bool,
}

/// What happens to one frame.
#[derive(Debug, PartialEq)]
pub struct FramePlan {
    pub number: u64,
    pub lost: bool,
    pub held_back: bool,
    /// Which bit flips, modulo their number.
    pub flipped: Option<u64>,
    /// When it arrives, from now.
    pub travels: Duration,
    /// When its duplicate does.
    pub again: Option<Duration>,
}

/// A link, and how far it is.
#[derive(Debug, Default)]
pub struct Wire {
    pub link: Link,
    frames: u64,
}

impl Wire {
    pub fn new(link: Link) -> Self {
        Wire { link, frames: 0 }
    }

    /// Throws the dice for the next frame: equally often whatever comes of it, so that one setting does not shift
    /// what another one hits.
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

    /// Longer than any frame travels.
    pub fn held_back(&self) -> Duration {
        2 * self.link.delay.start.max(self.link.delay.end) + Duration::from_micros(10)
    }
}

/// A time in `range`; its start where it is empty.
pub fn time(random: &mut SplitMix64, range: &Range<Duration>) -> Duration {
    range.start + range.end.saturating_sub(range.start).mul_f64(unit(random))
}

/// A number in `[0, 1)`.
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
