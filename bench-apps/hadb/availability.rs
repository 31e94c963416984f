//! Availability of each half in a run: the share of time in which it answered.
//!
//! The thesis (equation 2.1) has availability = MTTF / (MTTF + MTTR), the times between failures and to repair one. With a hot
//! standby the take-over is the repair in this sense: from then on the half answers. In a run the sum of both times is the run's
//! time, so availability is 1 - (times of the take-overs) / (time of the run).

use crate::drive::Outage;

/// Time in microseconds in which each half did not answer, over all deaths. `None`: no client asked for rows of the half when a
/// server died.
///
/// `clients` has each client's outages, in order. A client waits for one answer at a time, so an outage tells of the halves of
/// that answer only. If several clients asked for rows of a half, the longest outage counts.
pub fn silent_times(clients: &[Vec<Outage>]) -> [Option<u64>; 2] {
    let deaths = clients.iter().map(Vec::len).max().unwrap_or(0);
    [0, 1].map(|half| {
        let of_death = |nth: usize| {
            let outages = clients.iter().filter_map(|outages| outages.get(nth));
            outages.filter(|outage| outage.halves[half]).map(|outage| outage.micros).max()
        };
        let known: Vec<u64> = (0..deaths).filter_map(of_death).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    })
}

/// Share of a run of this number of seconds in which a half answered, in percent.
pub fn percent(silent: u64, seconds: f64) -> f64 {
    let whole = seconds.max(1e-9) * 1e6;
    100.0 * (whole - silent as f64).max(0.0) / whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(micros: u64, halves: [bool; 2]) -> Outage {
        Outage { own: false, micros, halves }
    }

    #[test]
    fn each_death_counts_with_its_longest_outage_of_each_half() {
        let first = vec![outage(2_000, [true, false]), outage(500, [true, true])];
        let second = vec![outage(3_000, [true, false])];
        assert_eq!(silent_times(&[first, second]), [Some(3_500), Some(500)]);
        assert_eq!(silent_times(&[vec![outage(7, [false, true])], Vec::new()]), [None, Some(7)]);
    }

    #[test]
    fn availability_is_the_rest_of_the_time() {
        assert_eq!(percent(2_500, 10.0), 99.975);
        assert_eq!(percent(0, 10.0), 100.0);
    }
}
