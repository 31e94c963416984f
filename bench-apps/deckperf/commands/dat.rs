//! `--layer dat`: what uDAPL's send/receive, RDMA writes and RDMA reads cost between two endpoints through the Rust interface of
//! `udeck-dat`, beside the same operations of the virtual interfaces under them, in the same rounds.

mod contender;
mod ends;
mod experiment;
mod lane;
mod order;
mod report;
mod verify;

use std::time::Duration;

use crate::{
    experiment::{
        baseline::Baselines,
        plan::{Format, Pace, Test},
        rank_pair::RankPair,
        rounds,
    },
    failure::Result,
};
use udeck_cli::machine::Machine;

pub use experiment::follow;
pub use verify::{follow_checks, verify};

use contender::contenders;
use experiment::{Both, DatConductor};
use order::DatOrder;
use report::DatReport;

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

/// Measures as rank 0, and returns the text to print. `places` says where the ranks run.
pub fn measure(
    pair: &RankPair<'_>,
    plan: &DatPlan,
    places: String,
    raw: Option<Baselines>,
    progress: impl FnMut(Duration),
) -> Result<String> {
    let mut plan = plan.clone();
    let nic = pair.world().nic().attributes();
    plan.pace.window = plan.pace.window.min(nic.max_descriptors_per_queue as u64);
    let mut conductor = DatConductor { pair, raw, both: Both::open(pair, &plan)? };
    let results = rounds::measure(plan.pace, contenders(&plan, nic.caps), &mut conductor, progress)?;
    pair.send_words(&DatOrder::Stop.encode())?;
    let transport = format!("{}; uDAPL's end points, beside virtual interfaces", nic.name);
    Ok(DatReport::new(Machine::describe(places, transport), plan, results).render())
}
