//! `--layer dat`: what uDAPL's send/receive, RDMA writes and RDMA reads cost between two endpoints through the Rust interface of
//! `udeck-dat`, beside the same operations of the virtual interfaces under them, in the same rounds.

mod contender;
mod ends;
mod experiment;
mod lane;
mod report;
mod verify;

use crate::{
    experiment::{
        places::Stage,
        plan::{Format, Pace, Test},
    },
    failure::Result,
};

pub use verify::verify;

use contender::contenders;
use experiment::Both;

/// Plan of a measurement of uDAPL.
#[derive(Clone, Debug, PartialEq)]
pub struct DatPlan {
    /// Tests, in the order of the tables.
    pub tests: Vec<Test>,
    /// Message sizes, ascending, in bytes.
    pub sizes: Vec<usize>,
    /// Time and portions of the measurement.
    pub pace: Pace,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

/// Plan of a check of uDAPL's data.
#[derive(Clone, Debug, PartialEq)]
pub struct DatChecks {
    /// Message sizes, ascending, in bytes.
    pub sizes: Vec<usize>,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

impl DatPlan {
    /// Largest message size, in bytes.
    pub fn largest(&self) -> usize {
        self.sizes.last().copied().unwrap_or(0)
    }
}

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &DatPlan) -> Result<String> {
    let mut plan = plan.clone();
    let nic = stage.pair.world().nic().attributes();
    plan.pace.window = plan.pace.window.min(nic.max_descriptors_per_queue as u64);
    let mut both = Both::open(stage.pair, &plan)?;
    let Some(results) = stage.run(plan.pace, contenders(&plan, nic.caps), &mut both)? else {
        return Ok(String::new());
    };
    let machine = stage.machine("; uDAPL's end points, beside virtual interfaces");
    Ok(report::report(machine, &plan, results).render(plan.format))
}
