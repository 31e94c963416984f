//! `deckperf costs`: the price of making and keeping mailboxes and clones, of waiting, and of starting many ranks.

mod creation;
mod idle;
mod report;
pub mod start_time;

use std::time::Duration;

use crate::{
    experiment::{plan::Format, rank_pair::RankPair},
    failure::Result,
    report::table_report::TableReport,
};
use udeck_cli::machine::Machine;

/// Mailboxes, and clones, that one round makes.
pub const BATCH: usize = 50;

/// Plan of `deckperf costs`.
#[derive(Clone, Debug, PartialEq)]
pub struct CostsPlan {
    /// Mailboxes, and clones, that one round makes.
    pub batch: usize,
    /// Connections that lie idle while their memory is measured.
    pub connections: usize,
    /// Time for which a rank is blocked.
    pub blocked: Duration,
    /// Ranks that are started and pass a barrier; 0: none.
    pub ranks: u32,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

/// Measures as rank 0, and returns the text to print. `places` says where the ranks run; `progress` is called once in each
/// of the [`STEPS`] steps.
pub fn measure(
    pair: &RankPair<'_>,
    plan: &CostsPlan,
    places: String,
    mut progress: impl FnMut(),
) -> Result<String> {
    let creation = creation::measure(pair, plan.batch)?;
    progress();
    let memory = idle::memory(pair, plan.connections)?;
    progress();
    let blocked = idle::blocked(pair, plan.blocked)?;
    progress();
    let start_time = (plan.ranks > 0).then(|| start_time::run(plan.ranks)).transpose()?;
    progress();
    pair.send_words(&[])?;
    let machine = Machine::describe(places, pair.world().nic().attributes().name.clone());
    let report = TableReport {
        method: report::method(plan),
        tables: report::tables(&machine, &creation, &memory, &blocked, start_time.as_ref()),
        machine,
        noise: None,
        command: "costs",
        series: Vec::new(),
        findings: Vec::new(),
    };
    Ok(report.render(plan.format))
}

/// Steps of [`measure`].
pub const STEPS: u64 = 4;

/// Serves as rank 1.
pub fn follow(pair: &RankPair<'_>, plan: &CostsPlan) -> Result {
    creation::serve(pair)?;
    idle::serve_memory(pair)?;
    idle::block(pair, plan.blocked)?;
    pair.receive_words().map(drop) // rank 0 is done
}
