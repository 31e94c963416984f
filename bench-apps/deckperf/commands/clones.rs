//! `deckperf clones`: what many clones (postboxes) of one mailbox cost its users.
//!
//! Idle clones: does it take longer to find the message of the busy one? Flooding clones: are all served alike, and how much
//! memory do they take?

mod flood;
mod idle;
mod report;

use crate::{
    experiment::{
        places::Stage,
        plan::{Format, Pace},
        rounds::SMALL,
    },
    failure::Result,
    report::{Body, Report},
};

use idle::{CloneSets, IdleExperiment, contenders};

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

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &ClonesPlan) -> Result<String> {
    let pair = stage.pair;
    let mut experiment = IdleExperiment { pair, sets: CloneSets::open(pair, &plan.counts)? };
    let results = stage.run(plan.pace, contenders(&plan.counts), &mut experiment)?;
    drop(experiment); // idle clones would be part of a flood's memory
    let Some(results) = results else {
        plan.sizes.iter().try_for_each(|&size| flood::keep_full(pair, plan.flooding, size))?;
        return Ok(String::new());
    };
    let flood = |&size: &usize| flood::take(pair, plan.flooding, plan.each, size);
    let floods = plan.sizes.iter().map(flood).collect::<Result<Vec<_>>>()?;
    let machine = stage.machine("");
    let report = Report {
        method: report::method(plan, &results),
        noise: results.noise(),
        command: "clones",
        series: report::series(machine.network(), &results),
        body: Body::of_tables(&[report::latencies(&plan.counts, &results), report::floods(&floods)]),
        findings: report::findings(&plan.counts, &results),
        machine,
    };
    Ok(report.render(plan.format))
}
