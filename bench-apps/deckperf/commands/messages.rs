//! `deckperf`, `deckperf latency` and `deckperf bandwidth`: messages between the mailboxes of two ranks.

mod report;

use crate::{
    experiment::{messages::Messages, places::Stage, plan::Plan, rounds::contenders},
    failure::Result,
};
use udeck_cli::machine::Machine;

#[cfg(test)]
pub use report::sample;

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &Plan) -> Result<String> {
    let pair = stage.pair;
    let Some(results) = stage.run(plan.pace, contenders(plan), &mut Messages(pair))? else {
        return Ok(String::new());
    };
    let window = pair.world().config().copy_window;
    let machine = stage.machine(&format!("; copy has {window} fragments of at most 64 KiB under way"));
    let machine = Machine { off_cache: plan.off_cache, ..machine };
    let memory = pair.rotation().map(|rotation| rotation.sentence(&plan.sizes));
    Ok(report::report(machine, plan, &results, memory.as_deref()).render(plan.format))
}
