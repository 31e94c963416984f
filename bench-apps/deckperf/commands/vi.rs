//! `--layer vi`: the cost of a message between two virtual interfaces, under the mailboxes.
//!
//! The rounds and the raw limits are the same as for mailboxes. The contenders differ: send/receive and RDMA write, and
//! the ways in which the receiver learns of a message.

mod contender;
mod ends;
mod experiment;
mod lane;
mod report;

use crate::{
    experiment::{
        places::Stage,
        plan::{Format, Pace, Test},
        rounds,
    },
    failure::Result,
};

pub use contender::{Detection, Traffic, Transfer, ViSetup};
pub use ends::ViEnds;
pub use experiment::{ViBatch, perform};

use contender::{contenders, setups};
use experiment::ViExperiment;

/// Numbers of the receiver's VIs in the overview's tables by number.
pub const COUNTS: [usize; 7] = [1, 10, 20, 30, 40, 100, 1000];

/// Plan of a measurement of virtual interfaces.
#[derive(Clone, Debug, PartialEq)]
pub struct ViPlan {
    /// Tests, in the order of the tables.
    pub tests: Vec<Test>,
    /// Message sizes, ascending, in bytes.
    pub sizes: Vec<usize>,
    /// Numbers of the receiver's VIs in the tables by number, ascending; latency only.
    pub counts: Vec<usize>,
    /// Time and portions of the measurement.
    pub pace: Pace,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

impl ViPlan {
    /// Largest message size, in bytes.
    pub fn largest(&self) -> usize {
        self.sizes.last().copied().unwrap_or(0).max(rounds::SMALL)
    }
}

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &ViPlan) -> Result<String> {
    let (pair, mut plan) = (stage.pair, plan.clone());
    let nic = pair.world().nic().attributes();
    plan.pace.window = plan.pace.window.min(nic.max_descriptors_per_queue as u64);
    let setups = setups(&plan, nic.caps);
    let mut experiment = ViExperiment { pair, ends: ViEnds::open(pair, &setups, plan.largest())? };
    let Some(results) = stage.run(plan.pace, contenders(&plan, &setups), &mut experiment)? else {
        return Ok(String::new());
    };
    let machine = stage.machine("; virtual interfaces, reliable delivery");
    Ok(report::report(machine, &plan, results).render(plan.format))
}
