//! `--layer dat`: what uDAPL's send/receive, RDMA writes and RDMA reads cost between two endpoints through the Rust interface of
//! `udeck-dat`, beside the same operations of the virtual interfaces under them, in the same rounds.

mod contender;
mod ends;
mod experiment;
mod lane;
mod report;
mod verify;

use crate::{
    experiment::{places::Stage, plan::Plan},
    failure::Result,
};

pub use ends::{DatEnds, LmrPool};
pub use lane::{DatLane, DatPost, Work};
pub use verify::verify;

use contender::contenders;
use experiment::Both;

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &Plan) -> Result<String> {
    let mut plan = plan.clone();
    let nic = stage.pair.world().nic().attributes();
    plan.pace.window = plan.pace.window.min(nic.max_descriptors_per_queue as u64);
    let mut both = Both::open(stage.pair, &plan)?;
    let Some(results) = stage.run(plan.pace, contenders(&plan, nic.caps), &mut both)? else {
        return Ok(String::new());
    };
    let machine = stage.machine("; uDAPL's end points, beside virtual interfaces");
    Ok(report::report(machine, &plan, &results).render(plan.format))
}
