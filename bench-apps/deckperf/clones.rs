//! `deckperf clones`: what many clones (postboxes) of one mailbox cost those who use it.
//!
//! Idle ones: does the message of the one that is busy take longer to find? Ones that flood: are all served alike, and
//! within which memory?

mod flood;
mod idle;
mod report;

use std::time::Duration;

use crate::{
    baseline::Baselines,
    failure::Result,
    plan::Format,
    plan::Pace,
    rank_pair::RankPair,
    rounds::{self, SMALL},
    table_report::TableReport,
};
use cli_common::machine::Machine;

use idle::{CloneSets, IdleConductor, contenders};

/// Clones of the mailbox, one of them busy.
pub const COUNTS: [usize; 4] = [1, 10, 100, 1000];

/// Of a flood's messages: one that travels inside its descriptor, and one that lies in the arena.
pub const SIZES: [usize; 2] = [SMALL, 4 << 10];
/// Messages of each flooding clone.
pub const EACH: usize = 200;

/// What is measured, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct ClonesPlan {
    /// Ascending, from 1.
    pub counts: Vec<usize>,
    /// How long, and in which portions; of the latencies.
    pub pace: Pace,
    /// Clones that flood the mailbox.
    pub flooding: usize,
    /// Messages that it then takes of each clone, on average.
    pub each: usize,
    /// Of the flood's messages, in bytes.
    pub sizes: Vec<usize>,
    /// How the result is written.
    pub format: Format,
    /// Each rank on a core of its own.
    pub pin: bool,
}

/// Rank 0: measures, and gives what is to be printed. `places` says where the ranks run.
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

/// Rank 1.
pub fn follow(pair: &RankPair<'_>, plan: &ClonesPlan) -> Result {
    idle::follow(pair, CloneSets::open(pair, &plan.counts)?)?;
    plan.sizes.iter().try_for_each(|&size| flood::pour(pair, plan.flooding, size))
}

/// In memory, for the raw limits.
pub const LARGEST: usize = SMALL;
