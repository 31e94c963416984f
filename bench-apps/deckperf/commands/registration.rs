//! `deckperf registration`: the cost of registering the program's own memory with the NIC, and the savings by the cache of
//! registrations.

mod operation;
mod report;

use std::time::Duration;

use crate::{
    experiment::{
        baseline::Baselines,
        plan::{Format, Pace},
        rank_pair::RankPair,
        rounds,
    },
    failure::Result,
    report::table_report::TableReport,
};
use udeck_cli::machine::Machine;

pub use operation::follow;
use operation::{Registrar, contenders, stop};

/// Default sizes of the memory, in bytes.
pub const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

/// Plan of `deckperf registration`.
#[derive(Clone, Debug, PartialEq)]
pub struct RegistrationPlan {
    /// Sizes of the memory, ascending, in bytes; none is 0.
    pub sizes: Vec<usize>,
    /// Time and portions of the measurement.
    pub pace: Pace,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

/// Measures as rank 0, and returns the text to print. `places` says where the ranks run.
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
