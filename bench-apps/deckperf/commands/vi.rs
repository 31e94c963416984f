//! `--layer vi`: the cost of a message between two virtual interfaces, under the mailboxes.
//!
//! The rounds and the raw limits are the same as for mailboxes. The contenders differ: send/receive and RDMA write, and
//! the ways in which the receiver learns of a message.

mod contender;
mod ends;
mod experiment;
mod lane;
mod order;
mod report;

use std::time::Duration;

use crate::{
    experiment::{
        baseline::Baselines,
        plan::Pace,
        plan::{Format, Test},
        rank_pair::RankPair,
        rounds,
    },
    failure::Result,
};
use udeck_cli::machine::Machine;

pub use contender::{Detection, Traffic, Transfer, ViSetup};
pub use ends::ViEnds;
pub use experiment::{follow, prepare};
pub use order::ViBatch;

use contender::{contenders, setups};
use experiment::ViConductor;
use order::ViOrder;
use report::ViReport;

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

/// Measures as rank 0, and returns the text to print. `places` says where the ranks run.
pub fn measure(
    pair: &RankPair<'_>,
    plan: &ViPlan,
    places: String,
    raw: Option<Baselines>,
    progress: impl FnMut(Duration),
) -> Result<String> {
    let mut plan = plan.clone();
    let nic = pair.world().nic().attributes();
    plan.pace.window = plan.pace.window.min(nic.max_descriptors_per_queue as u64);
    let setups = setups(&plan, nic.caps);
    let ends = ViEnds::open(pair, &setups, plan.largest())?;
    let mut conductor = ViConductor { pair, raw, ends };
    let results = rounds::measure(plan.pace, contenders(&plan, &setups), &mut conductor, progress)?;
    pair.send_words(&ViOrder::Stop.encode())?;
    let transport = format!("{}; virtual interfaces, reliable delivery", nic.name);
    Ok(ViReport::new(Machine::describe(places, transport), plan, results).render())
}
