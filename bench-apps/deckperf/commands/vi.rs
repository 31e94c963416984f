//! `--layer vi`: the cost of a message between two virtual interfaces, under the mailboxes.
//!
//! The rounds and the raw limits are the same as for mailboxes. The contenders differ: send/receive and RDMA write, and
//! the ways in which the receiver learns of a message.

mod contender;
mod ends;
mod experiment;
mod lane;
mod report;

use crate::{
    experiment::{places::Stage, plan::Plan, rounds},
    failure::Result,
};

pub use contender::{Detection, Traffic, Transfer, ViSetup};
pub use ends::ViEnds;
pub use experiment::{ViBatch, perform};

use contender::{contenders, setups};
use experiment::ViExperiment;

/// Numbers of the receiver's VIs in the overview's tables by number.
pub const COUNTS: [usize; 7] = [1, 10, 20, 30, 40, 100, 1000];

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &Plan) -> Result<String> {
    let (pair, mut plan) = (stage.pair, plan.clone());
    let nic = pair.world().nic().attributes();
    plan.pace.window = plan.pace.window.min(nic.max_descriptors_per_queue as u64);
    let setups = setups(&plan, nic.caps);
    let mut experiment =
        ViExperiment { pair, ends: ViEnds::open(pair, &setups, plan.largest().max(rounds::SMALL))? };
    let Some(results) = stage.run(plan.pace, contenders(&plan, &setups), &mut experiment)? else {
        return Ok(String::new());
    };
    let machine = stage.machine("; virtual interfaces, reliable delivery");
    Ok(report::report(machine, &plan, &results).render(plan.format))
}
