//! Runs of the library itself over a simulated network, in virtual time. Ranks are threads of this process, and one
//! runs at a time.
//!
//! Only the part below the NICs is simulated: worlds, groups, mailboxes and protocols are those of any job. Their
//! computation takes no time, so a figure is the cost of the network and of the order of messages.

mod job;
mod network;
#[cfg(test)]
mod tests;
mod work;

pub use work::LEAST_OF_INCAST;

use crate::input::{Operation, Order};
use indicatif::ProgressBar;
use network::Switches;
use std::{
    fs,
    io::{self, Write},
    time::{Duration, Instant},
};
use udeck::IncastControl;
use udeck_cli::progress;
use udeck_fabric::{config::Config, topology::Network};
use udeck_sim::trace::Event;

/// Task of all ranks.
pub struct Task {
    pub operation: Operation,
    /// Bytes for each other rank: of all ranks, or of a row and of a column.
    pub bytes: usize,
    /// Order of the exchanges in a transpose through mailboxes.
    pub order: Order,
    /// Congestion control of an incast.
    pub incast: IncastControl,
}

/// Times of a run, in cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// End times of the first and of the last rank.
    pub cycles: (u64, u64),
    /// Time from a message's post to its retrieve in an incast: median, 99 % quantile and maximum.
    pub waits: Option<[u64; 3]>,
}

impl Times {
    /// First end, last end, and the three waits.
    pub fn all(self) -> [Option<u64>; 5] {
        let [median, p99, most] = self.waits.map_or([None; 3], |waits| waits.map(Some));
        [Some(self.cycles.0), Some(self.cycles.1), median, p99, most]
    }
}

/// Results of a run.
#[derive(Debug, PartialEq)]
pub struct StackResult {
    pub times: Times,
    pub trace: Vec<Event>,
}

/// Runs a task `times` times, one after another, on `ranks` ranks over a network.
///
/// # Errors
/// Text about the failure: the system's refusal, or the ranks that failed, and the reason.
pub fn run(
    task: &Task,
    ranks: usize,
    times: u16,
    network: &Network,
    config: &Config,
) -> Result<StackResult, String> {
    let bar = progress::bar(ranks as u64, "library");
    let begun = Instant::now();
    let ended = run_with(task, ranks, times, network, config, &bar)?;
    bar.finish_and_clear();
    // The wall-clock time is not among the figures: it differs from run to run.
    let told = format!(
        "deckfabric: the library: {ranks} ranks, {:.1} s, {}\n",
        begun.elapsed().as_secs_f64(),
        memory()
    );
    let _ = io::stderr().write_all(told.as_bytes());
    Ok(ended)
}

fn run_with(
    task: &Task,
    ranks: usize,
    times: u16,
    network: &Network,
    config: &Config,
    bar: &ProgressBar,
) -> Result<StackResult, String> {
    // The network is leaked for the rest of the process: NICs own the carrier of their frames, and it borrows the
    // network.
    let network: &'static Network = Box::leak(Box::new(network.clone()));
    let switches = Switches::new(network, config).map_err(|bad| bad.to_string())?;
    let ended =
        job::run(ranks, task.incast, Some(Box::new(switches)), bar, |rank| work::perform(rank, task, times))?;
    let cycles = |time: Option<Duration>| network::cycle(time.unwrap_or_default());
    let took = || ended.results.iter().map(|part| part.took);
    let mut waits: Vec<Duration> = ended.results.iter().flat_map(|part| &part.waits).copied().collect();
    waits.sort_unstable();
    let quantile = |part: f64| cycles(waits.get(((waits.len() - 1) as f64 * part) as usize).copied());
    let waits = (!waits.is_empty()).then(|| [0.5, 0.99, 1.0].map(quantile));
    let times = Times { cycles: (cycles(took().min()), cycles(took().max())), waits };
    Ok(StackResult { times, trace: ended.trace })
}

/// Text about the peak memory of this process.
fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    most.map_or_else(|| "memory unknown".into(), |most| format!("at most {} of memory", most.trim()))
}
