//! `deckperf registration`: the cost of registering the program's own memory with the NIC, and the savings by the cache of
//! registrations.

mod operation;
mod report;

use crate::{
    experiment::{
        places::Stage,
        plan::{Format, Pace},
    },
    failure::Result,
    report::{Body, Report},
};

use operation::{Registrar, contenders};

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

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &RegistrationPlan) -> Result<String> {
    let mut registrar = Registrar::new(stage.pair);
    let Some(results) = stage.run(plan.pace, contenders(&plan.sizes), &mut registrar)? else {
        return Ok(String::new());
    };
    let machine = stage.machine("");
    let pins = stage.pair.world().nic().attributes().pins_memory;
    let report = Report {
        method: report::method(plan, pins, &results),
        noise: results.noise(),
        command: "registration",
        series: report::series(machine.network(), &results),
        body: Body::of_tables(&report::tables(&plan.sizes, &results)),
        findings: report::findings(&plan.sizes, &results),
        machine,
    };
    Ok(report.render(plan.format))
}
