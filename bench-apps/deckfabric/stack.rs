//! The library itself over a simulated network, in virtual time: ranks are threads of this process, of which one runs at a time.
//!
//! Nothing of it is played but what lies below its NICs: worlds, groups, mailboxes and protocols are those of any job. What they
//! compute takes no time, so a figure is what the network and the order of messages cost.

mod job;
mod network;
#[cfg(test)]
mod tests;
mod work;

pub use work::LEAST_OF_INCAST;

use crate::input::{Operation, Order};
use cli_common::progress;
use indicatif::ProgressBar;
use network::Switches;
use std::{
    fs,
    io::{self, Write},
    time::{Duration, Instant},
};
use udeck::IncastControl;
use udeck_fabric::{config::Config, topology::Network};
use udeck_sim::trace::Event;

/// What ranks do.
pub struct Task {
    pub operation: Operation,
    /// For each other rank: of all, or of a row and of a column.
    pub bytes: usize,
    /// Of transposes through mailboxes.
    pub order: Order,
    /// Of an incast.
    pub incast: IncastControl,
}

/// In cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// When the first and the last rank were done.
    pub cycles: (u64, u64),
    /// Of an incast: from a message's post to its retrieve, the median, 99 % and the most.
    pub waits: Option<[u64; 3]>,
}

impl Figures {
    /// First and last end, and waits.
    pub fn all(self) -> [Option<u64>; 5] {
        let [median, p99, most] = self.waits.map_or([None; 3], |waits| waits.map(Some));
        [Some(self.cycles.0), Some(self.cycles.1), median, p99, most]
    }
}

/// What has come of it.
#[derive(Debug, PartialEq)]
pub struct Ended {
    pub figures: Figures,
    pub trace: Vec<Event>,
}

/// So many ranks do it so many times, one after another, over a network.
///
/// # Errors
/// In words: what the system refused, or which ranks failed, and why.
pub fn play(
    task: &Task,
    ranks: usize,
    times: u16,
    network: &Network,
    config: &Config,
) -> Result<Ended, String> {
    let bar = progress::bar(ranks as u64, "library");
    let begun = Instant::now();
    let ended = play_with(task, ranks, times, network, config, &bar)?;
    bar.finish_and_clear();
    // Not among the figures: it is another one each time.
    let told = format!(
        "deckfabric: the library: {ranks} ranks, {:.1} s, {}\n",
        begun.elapsed().as_secs_f64(),
        memory()
    );
    let _ = io::stderr().write_all(told.as_bytes());
    Ok(ended)
}

fn play_with(
    task: &Task,
    ranks: usize,
    times: u16,
    network: &Network,
    config: &Config,
    bar: &ProgressBar,
) -> Result<Ended, String> {
    // For the rest of the process: NICs own what carries their frames, and that borrows the network.
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
    let figures = Figures { cycles: (cycles(took().min()), cycles(took().max())), waits };
    Ok(Ended { figures, trace: ended.trace })
}

/// The most that this process has had.
fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    most.map_or_else(|| "memory unknown".into(), |most| format!("at most {} of memory", most.trim()))
}
