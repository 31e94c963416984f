//! Start time of many ranks on this host, which all pass a barrier: a job of its own, started by deckrun's library.
//!
//! Rank 0 of the measurement starts this program once more (`deckperf start-time`), which starts the ranks. So the launcher
//! has a process that has no other threads, as it requires.

use std::{
    io::{self, Write},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::failure::{PerfError, Result};

/// Times of the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartTime {
    /// Number of ranks.
    pub ranks: u32,
    /// Time from the launcher's start until rank 0 has passed a barrier, so that all ranks are there.
    pub passed: Duration,
    /// Time of one further barrier, when all connections exist.
    pub barrier: Duration,
    /// Time until the launcher, and with it everything else, has ended.
    pub ended: Duration,
}

/// Arguments of the hidden subcommand.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartArgs {
    /// Number of ranks to start
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// This process is one of the ranks
    #[arg(long)]
    pub rank: bool,
}

const STARTING: &str = "starting deckperf once more, to start ranks";

/// Starts the ranks and waits until all have ended.
pub fn run(ranks: u32) -> Result<StartTime> {
    let program = std::env::current_exe().map_err(PerfError::system(STARTING))?;
    let (started, on_the_wall) = (Instant::now(), now());
    let output = Command::new(program)
        .args(["start-time", "--ranks", &ranks.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(PerfError::system(STARTING))?;
    let ended = started.elapsed();
    let found = String::from_utf8_lossy(&output.stdout);
    match (output.status.success(), read(&found)) {
        (true, Some([passed, barrier])) => {
            Ok(StartTime { ranks, passed: passed.saturating_sub(on_the_wall), barrier, ended })
        }
        _ => Err(PerfError::StartTime { ranks, status: output.status.to_string() }),
    }
}

/// `deckperf start-time`: the launcher, or one of the ranks.
pub fn play(order: StartArgs) -> Result<ExitCode> {
    if order.rank {
        return be_a_rank().map(|()| ExitCode::SUCCESS);
    }
    use_all_cpus().map_err(PerfError::system("letting the ranks use every processor"))?;
    let program = std::env::current_exe().map_err(PerfError::system(STARTING))?;
    let job = deckrun::Job::new(order.ranks).program(program);
    let job = job.args(["start-time", "--ranks", &order.ranks.to_string(), "--rank"]);
    Ok(job.bind(deckrun::Bind::None).run()?.exit_code())
}

/// Allows this process all cores: it inherited the pinning of the rank that started it.
fn use_all_cpus() -> io::Result<()> {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu)); // the kernel ignores cores that do not exist
    Ok(sched_setaffinity(None, &all)?)
}

fn be_a_rank() -> Result {
    let world = udeck::init()?;
    world.barrier()?;
    let (passed, started) = (now(), Instant::now());
    world.barrier()?;
    let barrier = started.elapsed();
    if world.rank() == 0 {
        let line = format!("{} {}\n", passed.as_nanos(), barrier.as_nanos());
        io::stdout().write_all(line.as_bytes()).map_err(PerfError::system("reporting the barrier"))?;
    }
    Ok(world.finish()?)
}

/// Parses two numbers of nanoseconds.
fn read(text: &str) -> Option<[Duration; 2]> {
    let numbers: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    let [passed, barrier] = <[u64; 2]>::try_from(numbers?).ok()?;
    Some([passed, barrier].map(Duration::from_nanos))
}

/// Time on a clock that two processes share.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_numbers_are_a_report() {
        assert_eq!(read("1500 7\n"), Some([Duration::from_nanos(1500), Duration::from_nanos(7)]));
        for text in ["", "1", "1 2 3", "1 x", "-1 2"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
