//! `deckperf costs`: what mailboxes and clones take to make and to keep, what waiting takes, and what many ranks take to
//! start.

mod creation;
mod idle;
mod report;
pub mod start_time;

use std::time::Duration;

use crate::{cli::Format, failure::Result, link::Link, machine::Machine, table_report::TableReport};

/// Mailboxes, and clones, in a round of making them.
pub const BATCH: usize = 50;

/// What is measured, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct CostsPlan {
    /// Mailboxes, and clones, in a round of making them.
    pub batch: usize,
    /// Connections that lie idle while their memory is looked at.
    pub connections: usize,
    /// For how long a rank is blocked.
    pub blocked: Duration,
    /// That are started and pass a barrier; 0: none.
    pub ranks: u32,
    /// How the result is written.
    pub format: Format,
    /// Each rank on a core of its own.
    pub pin: bool,
}

/// Rank 0: measures, and gives what is to be printed. `places` says where the ranks run; `progress` counts to
/// [`STEPS`].
pub fn measure(
    link: &Link<'_>,
    plan: &CostsPlan,
    places: String,
    mut progress: impl FnMut(),
) -> Result<String> {
    let creation = creation::measure(link, plan.batch)?;
    progress();
    let memory = idle::memory(link, plan.connections)?;
    progress();
    let blocked = idle::blocked(link, plan.blocked)?;
    progress();
    let start_time = (plan.ranks > 0).then(|| start_time::run(plan.ranks)).transpose()?;
    progress();
    link.send_words(&[])?;
    let machine = Machine::describe(places, link.world().nic().attributes().name.clone());
    let report = TableReport {
        method: report::method(plan),
        tables: report::tables(&machine, &creation, &memory, &blocked, start_time.as_ref()),
        machine,
        findings: Vec::new(),
    };
    Ok(report.render(plan.format))
}

/// Of [`measure`].
pub const STEPS: u64 = 4;

/// Rank 1.
pub fn follow(link: &Link<'_>, plan: &CostsPlan) -> Result {
    creation::serve(link)?;
    idle::serve_memory(link)?;
    idle::block(link, plan.blocked)?;
    link.receive_words().map(drop) // rank 0 is done
}
