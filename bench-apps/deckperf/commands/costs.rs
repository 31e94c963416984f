//! `deckperf costs`: the price of making and keeping mailboxes and clones, of waiting, and of starting many ranks.

mod creation;
mod idle;
mod report;
pub mod start_time;

use std::time::Duration;

use udeck_cli::progress;

use crate::{
    experiment::{places::Stage, plan::Format},
    failure::Result,
    report::{Body, Report},
};

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

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &CostsPlan) -> Result<String> {
    let pair = stage.pair;
    if !pair.leads() {
        creation::serve(pair)?;
        idle::serve_memory(pair)?;
        idle::block(pair, plan.blocked)?;
        pair.receive_words()?; // rank 0 is done
        return Ok(String::new());
    }
    let bar = progress::bar(4, "measuring");
    let creation = creation::measure(pair, plan.batch)?;
    bar.inc(1);
    let memory = idle::memory(pair, plan.connections)?;
    bar.inc(1);
    let blocked = idle::blocked(pair, plan.blocked)?;
    bar.inc(1);
    let start_time = (plan.ranks > 0).then(|| start_time::run(plan.ranks)).transpose()?;
    bar.finish_and_clear();
    pair.send_words(&[])?;
    let machine = stage.machine("");
    let report = Report {
        method: report::method(plan),
        body: Body::of_tables(&report::tables(&machine, &creation, &memory, &blocked, start_time.as_ref())),
        machine,
        noise: None,
        command: "costs",
        series: Vec::new(),
        findings: Vec::new(),
    };
    Ok(report.render(plan.format))
}
