//! Memory of a run and of the machine: needed and available bytes, and speed.

use num_complex::Complex64;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Memory report of a rank: a hash that identifies its host, the bytes that it needs, and the bytes that the host has
/// available (0 if the system does not say).
pub type Report = [u64; 3];

/// Error: the ranks need more than their host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ranks on one host need {:.1} GB, and it has {:.1} GB available: take a smaller class, or more hosts",
    *needed as f64 / 1e9, *available as f64 / 1e9
)]
pub struct NotEnough {
    pub needed: u64,
    pub available: u64,
}

/// Report of this rank: two arrays, and the blocks of a transpose; with pencils each transpose may have blocks
/// of its own.
pub fn report(state_points: usize, spectrum_points: usize, transposes: usize) -> Report {
    let points = state_points + spectrum_points + transposes * state_points.max(spectrum_points);
    let mut host = DefaultHasher::new();
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().hash(&mut host);
    [host.finish(), (points * size_of::<Complex64>()) as u64, available()]
}

/// Checks that each host has as much memory as its ranks need.
pub fn check(reports: &[Vec<u64>]) -> Result<(), NotEnough> {
    let mut hosts = BTreeMap::new();
    for report in reports {
        if let &[host, needed, available] = report.as_slice() {
            let sum: &mut (u64, u64) = hosts.entry(host).or_insert((0, available));
            *sum = (sum.0 + needed, sum.1.min(available));
        }
    }
    let short = hosts.into_values().find(|(needed, available)| *available > 0 && needed > available);
    short.map_or(Ok(()), |(needed, available)| Err(NotEnough { needed, available }))
}

/// Memory that programs can still take, by Linux's estimate, in bytes.
fn available() -> u64 {
    let kilobytes = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    fs::read_to_string("/proc/meminfo").ok().and_then(kilobytes).map_or(0, |kilobytes| kilobytes * 1024)
}

/// Speed of copying data that no cache holds, in bytes per second, read plus written. All ranks measure at the
/// same time.
pub fn copy_rate() -> f64 {
    const BYTES: usize = 64 << 20;
    let from = vec![1_u8; BYTES];
    let mut into = vec![2_u8; BYTES];
    let copy = |_| {
        let start = Instant::now();
        into.copy_from_slice(black_box(&from));
        black_box(&mut into);
        start.elapsed()
    };
    let fastest = (0..5).map(copy).min().unwrap_or(Duration::MAX);
    2.0 * BYTES as f64 / fastest.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_to_have_what_its_ranks_need() {
        let reports = |available| [[1, 60, available], [2, 60, 70], [1, 50, available]].map(Vec::from);
        assert_eq!(check(&reports(110)), Ok(()));
        assert_eq!(check(&reports(0)), Ok(()), "the system does not say");
        let error = check(&reports(109)).unwrap_err();
        assert_eq!(error, NotEnough { needed: 110, available: 109 });
        assert!(error.to_string().contains("need 0.0 GB"), "{error}");
    }

    #[test]
    fn the_system_says_what_it_has() {
        let [_, needed, available] = report(10, 20, 1);
        assert_eq!(needed, 50 * 16);
        assert!(available > 1 << 20);
    }
}
