//! Schedule of the checks on all ranks, and the receivers of their reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::{
    control::wire::RankSample,
    hosts::Share,
    watch::{report::report, status::Asker},
};

/// How long other hosts may take to report.
const HOSTS_LIMIT: Duration = Duration::from_secs(2);

/// Divisor: the time between two checks is the watchdog's limit divided by it, within these bounds.
const CHECKS_PER_LIMIT: u32 = 4;
const CHECK_BOUNDS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

pub(super) struct Watchdog {
    /// How long all ranks may make no progress; `None` for no limit.
    limit: Option<Duration>,
    hosts: Vec<Share>,
    /// Time since which the job has run without being stopped.
    since: Instant,
    next_check: Instant,
    /// The standstill has been reported.
    reported: bool,
    asked: Asked,
    round: Option<Round>,
    serial: u32,
}

/// The users who asked for a report.
#[derive(Default)]
struct Asked {
    by_signal: bool,
    askers: Vec<Asker>,
}

/// A check of all hosts.
struct Round {
    asked: Asked,
    samples: BTreeMap<u32, RankSample>,
    /// Hosts that have not answered.
    awaited: BTreeSet<usize>,
    until: Instant,
}

impl Watchdog {
    pub(super) fn new(limit: Option<Duration>, hosts: &[Share], now: Instant) -> Watchdog {
        let mut watchdog = Watchdog {
            limit,
            hosts: hosts.to_vec(),
            since: now,
            next_check: now,
            reported: false,
            asked: Asked::default(),
            round: None,
            serial: 0,
        };
        watchdog.plan(now);
        watchdog
    }

    /// Returns the time of the next step, if no event comes before.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.round {
            Some(round) => Some(round.until),
            None => self.limit.map(|_| self.next_check),
        }
    }

    pub(super) fn signalled(&mut self) {
        self.asked.by_signal = true;
    }

    pub(super) fn ask(&mut self, askers: Vec<Asker>) {
        self.asked.askers.extend(askers);
    }

    /// Notes that the job goes on after it was stopped: no wait counts that time.
    pub(super) fn went_on(&mut self, now: Instant) {
        self.since = now;
        self.plan(now);
    }

    /// Returns the serial number of a check, if one is to begin now.
    pub(super) fn begins(&mut self, now: Instant) -> Option<u32> {
        let is_due = self.limit.is_some() && self.next_check <= now;
        let is_asked = self.asked.by_signal || !self.asked.askers.is_empty();
        if self.round.is_some() || !(is_due || is_asked) {
            return None;
        }
        self.serial = self.serial.wrapping_add(1);
        self.plan(now);
        Some(self.serial)
    }

    /// Begins the check, with the state of the ranks here, and the hosts that have been asked.
    pub(super) fn begin(&mut self, here: Vec<RankSample>, awaited: BTreeSet<usize>, now: Instant) {
        let samples = here.into_iter().map(|sample| (sample.rank, sample)).collect();
        let asked = std::mem::take(&mut self.asked);
        self.round = Some(Round { asked, samples, awaited, until: now + HOSTS_LIMIT });
    }

    /// Adds a host's report. (It has the host's own ranks only.)
    pub(super) fn add(&mut self, host: usize, serial: u32, samples: Vec<RankSample>, is_last: bool) {
        let Some(round) = self.round.as_mut().filter(|_| serial == self.serial) else { return };
        if round.awaited.contains(&host) {
            round.samples.extend(samples.into_iter().map(|sample| (sample.rank, sample)));
        }
        if is_last {
            round.awaited.remove(&host);
        }
    }

    /// Ends the check, if all hosts have answered or are late, and answers those who asked. Returns the text
    /// for the user. `runs` means that the job has not been ended. `others` are the hosts that were asked.
    pub(super) fn finish(&mut self, now: Instant, runs: bool, others: &[String]) -> Vec<String> {
        let is_over = |round: &mut Round| round.awaited.is_empty() || round.until <= now;
        let Some(Round { asked, samples, awaited, .. }) = self.round.take_if(is_over) else {
            return Vec::new();
        };
        let samples: Vec<_> = samples.into_values().collect();
        let silent: Vec<_> = awaited.iter().filter_map(|host| others.get(*host).cloned()).collect();
        let tell = |title: &str| report(title, &samples, &self.hosts, &silent);
        let mut said = Vec::new();
        if asked.by_signal {
            said.push(tell("what the ranks are doing:"));
        }
        for asker in asked.askers {
            asker.answer(&tell("what the ranks are doing:"));
        }
        let still = self.still(&samples, now).filter(|_| runs && silent.is_empty());
        if still.is_some() && !self.reported {
            said.push(tell(&format!("no rank has made progress for {:.1} s:", still.unwrap_or_default())));
        }
        self.reported = still.is_some();
        said
    }

    /// Returns for how many seconds no rank has made progress, if that is too long.
    fn still(&self, samples: &[RankSample], now: Instant) -> Option<f32> {
        let limit = self.limit?;
        let running = u64::try_from((now - self.since).as_millis()).unwrap_or(u64::MAX);
        let still = samples.iter().map(|sample| sample.idle_ms).min()?.min(running);
        (Duration::from_millis(still) >= limit).then_some(still as f32 / 1000.0)
    }

    fn plan(&mut self, now: Instant) {
        let [least, most] = CHECK_BOUNDS;
        self.next_check =
            now + self.limit.map_or(most, |limit| (limit / CHECKS_PER_LIMIT).clamp(least, most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::RankState;

    const LIMIT: Duration = Duration::from_secs(4);

    fn sample(rank: u32, idle_ms: u64) -> RankSample {
        RankSample { rank, state: RankState::Sleeps, idle_ms, waits: Vec::new() }
    }

    /// Returns the number of reports at this second, if the ranks have made no progress for these times.
    fn said(watchdog: &mut Watchdog, start: Instant, at: u64, still: [u64; 2]) -> usize {
        let now = start + Duration::from_secs(at);
        assert!(watchdog.due().unwrap() <= now && watchdog.begins(now).is_some());
        let here = still.iter().zip(0..).map(|(still, rank)| sample(rank, *still)).collect();
        watchdog.begin(here, BTreeSet::new(), now);
        watchdog.finish(now, true, &[]).len()
    }

    #[test]
    fn a_standstill_is_told_once_and_the_next_one_again() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Some(LIMIT), &[], start);
        assert_eq!(watchdog.begins(start), None);
        assert_eq!(said(&mut watchdog, start, 5, [5000, 3999]), 0);
        assert_eq!(said(&mut watchdog, start, 6, [5000, 4000]), 1);
        assert_eq!(said(&mut watchdog, start, 7, [6000, 5000]), 0);
        assert_eq!(said(&mut watchdog, start, 8, [7000, 0]), 0);
        assert_eq!(said(&mut watchdog, start, 20, [7000, 9000]), 1);
    }

    #[test]
    fn the_time_for_which_the_job_was_stopped_does_not_count() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Some(LIMIT), &[], start);
        watchdog.went_on(start + Duration::from_secs(100));
        assert_eq!(said(&mut watchdog, start, 102, [102_000, 102_000]), 0);
        assert_eq!(said(&mut watchdog, start, 104, [104_000, 104_000]), 1);
    }

    #[test]
    fn a_host_that_does_not_answer_is_waited_for_and_named_and_is_no_standstill() {
        let (start, others) = (Instant::now(), ["b".to_string(), "c".to_string()]);
        let mut watchdog = Watchdog::new(Some(LIMIT), &[], start);
        watchdog.signalled();
        let serial = watchdog.begins(start + LIMIT).unwrap();
        watchdog.begin(vec![sample(0, 9000)], [0, 1].into(), start + LIMIT);
        watchdog.add(0, serial, vec![sample(1, 9000)], true);
        watchdog.add(1, serial + 1, vec![sample(2, 9000)], true);
        assert_eq!(watchdog.finish(start + LIMIT, true, &others), [""; 0]);
        let said = watchdog.finish(start + LIMIT + HOSTS_LIMIT, true, &others);
        assert!(said.len() == 1 && said[0].contains("host c does not answer"), "{said:?}");
        assert!(said[0].contains("rank 1 ") && !said[0].contains("rank 2 "), "{said:?}");
    }

    #[test]
    fn without_a_limit_nothing_is_looked_at_until_somebody_asks() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(None, &[], start);
        assert_eq!((watchdog.due(), watchdog.begins(start + LIMIT)), (None, None));
        watchdog.signalled();
        assert!(watchdog.begins(start).is_some());
    }
}
