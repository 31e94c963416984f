//! `deckperf clones`: what many clones (postboxes) of one mailbox cost its users.
//!
//! Idle clones: does it take longer to find the message of the busy one? Flooding clones: are all served alike, and how much
//! memory do they take?

mod flood;
mod idle;
mod report;

use std::time::Duration;

use crate::{
    experiment::{
        baseline::Baselines,
        plan::Format,
        plan::Pace,
        rank_pair::RankPair,
        rounds::{self, SMALL},
    },
    failure::Result,
    report::table_report::TableReport,
};
use udeck_cli::machine::Machine;

use idle::{CloneSets, IdleConductor, contenders};

/// Numbers of clones of the mailbox; one of them is busy.
pub const COUNTS: [usize; 4] = [1, 10, 100, 1000];

/// Message sizes of a flood, in bytes: the first travels inside its descriptor, the second lies in the arena.
pub const SIZES: [usize; 2] = [SMALL, 4 << 10];
/// Messages that are taken of each flooding clone, on average.
pub const EACH: usize = 200;

/// Plan of `deckperf clones`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClonesPlan {
    /// Numbers of clones, ascending, from 1.
    pub counts: Vec<usize>,
    /// Time and portions of the latency measurement.
    pub pace: Pace,
    /// Clones that flood the mailbox.
    pub flooding: usize,
    /// Messages that are taken of each flooding clone, on average.
    pub each: usize,
    /// Message sizes of the flood, in bytes.
    pub sizes: Vec<usize>,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

/// Measures as rank 0, and returns the text to print. `places` says where the ranks run.
pub fn measure(
    pair: &RankPair<'_>,
    plan: &ClonesPlan,
    places: String,
    raw: Option<Baselines>,
    progress: impl FnMut(Duration),
) -> Result<String> {
    let ends = CloneSets::open(pair, &plan.counts)?;
    let mut conductor = IdleConductor::new(pair, ends, raw);
    let results = rounds::measure(plan.pace, contenders(&plan.counts), &mut conductor, progress)?;
    conductor.stop()?;
    let floods = plan
        .sizes
        .iter()
        .map(|&size| flood::take(pair, plan.flooding, plan.each, size))
        .collect::<Result<Vec<_>>>()?;
    let machine = Machine::describe(places, pair.world().nic().attributes().name.clone());
    let report = TableReport {
        method: report::method(plan, &results),
        noise: results.noise(),
        command: "clones",
        series: report::series(machine.network(), &results),
        tables: vec![report::latencies(&plan.counts, &results), report::floods(&floods)],
        findings: report::findings(&plan.counts, &results),
        machine,
    };
    Ok(report.render(plan.format))
}

/// Serves as rank 1.
pub fn follow(pair: &RankPair<'_>, plan: &ClonesPlan) -> Result {
    idle::follow(pair, CloneSets::open(pair, &plan.counts)?)?;
    plan.sizes.iter().try_for_each(|&size| flood::keep_full(pair, plan.flooding, size))
}

/// Largest size of the raw limits, in bytes.
pub const LARGEST: usize = SMALL;
