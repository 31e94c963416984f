//! `deckperf registration`: what it costs to make memory of the program's own known to the NIC, and what the cache of
//! registrations saves.

mod operation;
mod report;

use std::time::Duration;

use crate::{
    baseline::Baselines,
    failure::Result,
    plan::{Format, Pace},
    rank_pair::RankPair,
    rounds,
    table_report::TableReport,
};
use cli_common::machine::Machine;

pub use operation::follow;
use operation::{Registrar, contenders, stop};

/// Of the memory, in bytes.
pub const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

/// What is measured, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct RegistrationPlan {
    /// Ascending, in bytes; none is 0.
    pub sizes: Vec<usize>,
    /// How long, and in which portions.
    pub pace: Pace,
    /// How the result is written.
    pub format: Format,
    /// Each rank on a core of its own.
    pub pin: bool,
}

/// Rank 0: measures, and gives what is to be printed. `places` says where the ranks run.
pub fn measure(
    pair: &RankPair<'_>,
    plan: &RegistrationPlan,
    places: String,
    raw: Option<Baselines>,
    progress: impl FnMut(Duration),
) -> Result<String> {
    let mut registrar = Registrar::new(pair, raw);
    let results = rounds::measure(plan.pace, contenders(&plan.sizes), &mut registrar, progress)?;
    stop(pair)?;
    let nic = pair.world().nic().attributes();
    let machine = Machine::describe(places, nic.name.clone());
    let report = TableReport {
        method: report::method(plan, nic.pins_memory, &results),
        noise: results.noise(),
        command: "registration",
        series: report::series(machine.network(), &results),
        tables: report::tables(&plan.sizes, &results),
        findings: report::findings(&plan.sizes, &results),
        machine,
    };
    Ok(report.render(plan.format))
}
