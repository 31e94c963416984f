//! Availability of each half in a run: the share of time in which it answered.
//!
//! The thesis (equation 2.1) has availability = MTTF / (MTTF + MTTR), the times between failures and to repair one. With a hot
//! standby the take-over is the repair in this sense: from then on the half answers. In a run the sum of both times is the run's
//! time, so availability is 1 - (times of the take-overs) / (time of the run).

use serde::{Deserialize, Serialize};

/// Effect of a server's death on a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// Number of the death in the run, from 1. After several deaths without an answer in between: of the last one.
    pub death: u32,
    /// Whether the dead server was the client's own.
    pub own: bool,
    /// Time from the last answer by either server to the first by the remaining one.
    pub micros: u64,
    /// Whether the first answer was about rows of each half.
    pub halves: [bool; 2],
}

/// Number of deaths of servers before an answer with this view.
fn deaths(view: u32) -> u32 {
    view.div_ceil(2)
}

/// The last death between two answers with these views, as its number in the run, from 1. `None`: no server has died in between.
pub fn new_death(before: u32, after: u32) -> Option<u32> {
    (deaths(after) > deaths(before)).then(|| deaths(after))
}

/// Time in which a half did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    /// Sum over the deaths for which the time is known, in microseconds.
    pub micros: u64,
    /// Number of these deaths: a client has asked for rows of the half.
    pub known: u32,
    /// Number of all deaths.
    pub deaths: u32,
}

impl Silence {
    /// Availability in a run of this number of seconds, in percent. `None`: the time is not known for each death.
    pub fn availability(self, seconds: f64) -> Option<f64> {
        (self.known == self.deaths).then(|| percent(self.micros, seconds))
    }
}

/// Time in which each half did not answer, from the outages of all clients.
///
/// A client waits for one answer at a time, so an outage tells of the halves of that answer only. If several clients asked for
/// rows of a half after a death, the longest outage counts.
pub fn silent_times(outages: &[Outage]) -> [Silence; 2] {
    let deaths = outages.iter().map(|outage| outage.death).max().unwrap_or(0);
    [0, 1].map(|half| {
        let of_death = |death: u32| {
            let of_half = outages.iter().filter(|outage| outage.death == death && outage.halves[half]);
            of_half.map(|outage| outage.micros).max()
        };
        let known = (1..=deaths).filter_map(of_death);
        known.fold(Silence { deaths, ..Silence::default() }, |sum, micros| Silence {
            micros: sum.micros + micros,
            known: sum.known + 1,
            ..sum
        })
    })
}

/// Share of a run of this number of seconds in which a half answered, in percent.
fn percent(silent: u64, seconds: f64) -> f64 {
    let whole = seconds.max(1e-9) * 1e6;
    100.0 * (whole - silent as f64).max(0.0) / whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(death: u32, micros: u64, halves: [bool; 2]) -> Outage {
        Outage { death, own: false, micros, halves }
    }

    #[test]
    fn each_death_counts_with_its_longest_outage_of_each_half() {
        let first = [outage(1, 2_000, [true, false]), outage(2, 500, [true, true])];
        let second = outage(1, 3_000, [true, true]);
        let silence = |micros| Silence { micros, known: 2, deaths: 2 };
        assert_eq!(silent_times(&[first[0], first[1], second]), [silence(3_500), silence(3_500)]);
    }

    /// Nobody asked for rows of half 1 after the first death: its time of silence is not known, and not 0.
    #[test]
    fn a_half_without_an_outage_at_each_death_has_no_availability() {
        let outages = [outage(1, 2_000, [true, false]), outage(2, 500, [true, true])];
        let [first, second] = silent_times(&outages);
        assert_eq!((first.micros, first.known, first.deaths), (2_500, 2, 2));
        assert_eq!((second.micros, second.known, second.deaths), (500, 1, 2));
        assert_eq!([first, second].map(|silence| silence.availability(10.0)), [Some(99.975), None]);
        assert_eq!(silent_times(&[outage(1, 7, [false, true])])[0].availability(10.0), None);
    }

    #[test]
    fn each_death_is_noticed_whatever_views_were_missed() {
        for (before, after, death) in [
            (0, 0, None),
            (0, 1, Some(1)),
            (1, 2, None),
            (0, 2, Some(1)),
            (2, 3, Some(2)),
            (1, 3, Some(2)),
            (0, 3, Some(2)),
            (1, 4, Some(2)),
        ] {
            assert_eq!(new_death(before, after), death, "from view {before} to {after}");
        }
    }

    #[test]
    fn availability_is_the_rest_of_the_time() {
        assert_eq!(percent(2_500, 10.0), 99.975);
        assert_eq!(percent(0, 10.0), 100.0);
    }
}
