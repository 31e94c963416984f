//! One host's check of its own ranks.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use rustix::process::Pid;
use udeck_boot::waits::Published;
use udeck_sys::thread;

use crate::{
    control::wire::{RankSample, RankState},
    ranks::Ranks,
};

/// Divisor: a rank that is in a wait and uses less than one part in 20 of a processor's time does not compute
/// beside the wait.
const IDLE_PART: u32 = 20;

/// Checks the ranks of this host, and remembers their state.
#[derive(Default)]
pub(crate) struct WaitSampler(HashMap<u32, Seen>);

/// State of a rank at the last check.
struct Seen {
    at: Instant,
    work: Work,
    waited: bool,
    /// When the rank was last seen to have made progress.
    moved: Instant,
}

/// Work done by a program's own threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Work {
    /// Time on a processor.
    time: Duration,
    /// Number of times that a thread got a processor.
    turns: u64,
}

impl WaitSampler {
    /// Returns the state of each rank. Does not block; reads some small files for each rank.
    pub(crate) fn sample(&mut self, ranks: &Ranks) -> Vec<RankSample> {
        let samples: Vec<_> = ranks
            .pages()
            .map(|(rank, pid, page)| {
                let (joined, waits) = page.read();
                // The rank's process may be a script that has started the process that joined.
                let worker = joined.and_then(|number| in_group(number, pid));
                let mut seen = self.note(rank, Instant::now(), work(worker.unwrap_or(pid)), &waits);
                if worker.is_none() && has_children(pid) {
                    seen = Duration::ZERO;
                }
                let still = waits.iter().map(|wait| wait.for_ms).min().unwrap_or(u64::MAX);
                let idle_ms = still.min(seen.as_millis() as u64);
                RankSample { rank, state: state(worker.unwrap_or(pid), joined.is_some()), idle_ms, waits }
            })
            .collect();
        self.0.retain(|rank, _| samples.iter().any(|sample| sample.rank == *rank));
        samples
    }

    /// Returns for how long the rank has made no progress, as far as the checks have seen.
    fn note(&mut self, rank: u32, now: Instant, work: Work, waits: &[Published]) -> Duration {
        let waited = !waits.is_empty();
        let seen = self.0.entry(rank).or_insert(Seen { at: now, work, waited, moved: now });
        let took = work.time.saturating_sub(seen.work.time);
        let moved = match waited {
            // A wait uses a little time now and then by itself.
            true => took > (now - seen.at) / IDLE_PART,
            false => seen.waited || work.turns != seen.work.turns || took > Duration::ZERO,
        };
        let moved = if moved { now } else { seen.moved };
        *seen = Seen { at: now, work, waited, moved };
        now - moved
    }
}

/// Returns the work of a process: zero if the process is gone or the kernel has no numbers. The library's own threads
/// are left out: they wake now and then, whatever the program does. A program may have such a name itself; its threads
/// are named like it.
fn work(pid: Pid) -> Work {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else {
        return Work::default();
    };
    let program = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
    let works = threads.flatten().filter_map(|thread| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let said = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        if name.starts_with(thread::PREFIX) && name != program { None } else { parse_work(&said) }
    });
    works.fold(Work::default(), |all, one| Work { time: all.time + one.time, turns: all.turns + one.turns })
}

/// Parses nanoseconds on a processor, nanoseconds of waiting for one, and the number of turns.
fn parse_work(schedstat: &str) -> Option<Work> {
    let mut words = schedstat.split_ascii_whitespace().map(str::parse::<u64>);
    let (time, _waited, turns) = (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
    Some(Work { time: Duration::from_nanos(time), turns })
}

/// Returns the process of this number, if it is in the rank's process group.
fn in_group(number: u32, rank: Pid) -> Option<Pid> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw)?;
    let group = field(&stat(pid), 2)?.parse::<i32>().ok()?;
    (group == rank.as_raw_nonzero().get()).then_some(pid)
}

/// Tells whether a process has children: one that is not seen to have joined may have started the one at work.
fn has_children(pid: Pid) -> bool {
    let number = pid.as_raw_nonzero();
    fs::read_to_string(format!("/proc/{number}/task/{number}/children")).is_ok_and(|all| !all.is_empty())
}

fn stat(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default()
}

fn state(pid: Pid, joined: bool) -> RankState {
    match field(&stat(pid), 0).and_then(|word| word.chars().next()) {
        Some('T' | 't') => RankState::Stopped,
        Some('Z' | 'X') => RankState::Ended,
        _ if !joined => RankState::NotJoined,
        Some('R') => RankState::Runs,
        Some('D') => RankState::InKernel,
        _ => RankState::Sleeps,
    }
}

/// Returns a field behind the name, which may have any characters: the state, the parent, the process group.
fn field(stat: &str, nth: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(nth)
}

#[cfg(test)]
mod tests {
    use udeck_boot::waits::{Call, Wait};

    use super::*;

    fn wait() -> Vec<Published> {
        let wait = Wait { call: Call::Post, name: "a".into(), ranks: vec![1], open: false };
        vec![Published { wait, for_ms: 60_000 }]
    }

    fn work(ms: u64, turns: u64) -> Work {
        Work { time: Duration::from_millis(ms), turns }
    }

    /// Returns the time without progress, seen one second after the first check, if the rank has done `more` in
    /// between.
    fn after_a_second(waits: [&[Published]; 2], more: Work) -> Duration {
        let (mut sampler, start) = (WaitSampler::default(), Instant::now());
        assert_eq!(sampler.note(0, start, work(500, 7), waits[0]), Duration::ZERO);
        let then = Work { time: Duration::from_millis(500) + more.time, turns: 7 + more.turns };
        sampler.note(0, start + Duration::from_secs(1), then, waits[1])
    }

    #[test]
    fn who_computes_or_ends_a_wait_moves_and_who_sleeps_or_waits_does_not() {
        let (second, waits) = (Duration::from_secs(1), wait());
        assert_eq!(after_a_second([&[], &[]], work(0, 0)), second);
        assert_eq!(after_a_second([&[], &[]], work(0, 1)), Duration::ZERO);
        assert_eq!(after_a_second([&waits, &waits], work(2, 10)), second);
        assert_eq!(after_a_second([&waits, &waits], work(900, 10)), Duration::ZERO);
        assert_eq!(after_a_second([&waits, &[]], work(0, 0)), Duration::ZERO);
    }

    #[test]
    fn what_the_kernel_says_is_read_whatever_the_program_is_called() {
        assert_eq!(field("7 (a) R 1) T 1 2", 0), Some("T"));
        assert_eq!(field("7 (prog) S 1 2", 2), Some("2"));
        assert_eq!(field("", 0), None);
        assert_eq!(parse_work("2000000 5 3\n"), Some(work(2, 3)));
        for bad in ["", "1 2", "a b c"] {
            assert_eq!(parse_work(bad), None);
        }
    }

    #[test]
    fn this_process_runs_and_has_worked() {
        let own = rustix::process::getpid();
        assert!(super::work(own).turns > 0);
        assert_ne!(state(own, true), RankState::Ended);
        assert_eq!(state(own, false), RankState::NotJoined);
        let group = rustix::process::getpgrp();
        assert_eq!(in_group(own.as_raw_nonzero().get() as u32, group), Some(own));
        for other in [0, 1, u32::MAX] {
            assert_eq!(in_group(other, group), None);
        }
    }
}
