//! µDECK beside other libraries, in the same minutes on the same two processors: messages (`deckperf peers`), and the collective
//! operations of groups (`deckperf collectives`).
//!
//! ```text
//!   conductor (this process, no rank)
//!     ├ Unix socket per job ── ours: deckperf peer-rank, 2, 4 and 8 ranks       rank.rs, member.rs
//!     │   "batch …" → time  └─ each MPI: a C program built on the spot, as many  peer.c, collectives.h, mpi.rs, job.rs
//!     ├ two threads ────────── raw cache line, memcpy and a bare ring,            floor.rs, sockets.rs and
//!     │                        or raw TCP sockets (bare.rs)                       experiment/baseline.rs
//!     ├ two threads ────────── bare QUIC, where ours is UDP                        quinn.rs, bare.rs
//!     └ whole runs ─────────── ucx_perftest, fi_pingpong                         whole.rs
//! ```
//!
//! `../cpu.rs` starts the same jobs by the same means, and has them measure processor time.
//!
//! `library.rs` finds the other libraries: installed ones, and those in the folder of `--peers`.
//!
//! All jobs live from the beginning to the end, and all but one of them block in a system call at any time. The
//! conductor has one contender after another run a batch of milliseconds (`schedule.rs`), and compares only figures of
//! the same round (`confidence.rs`). The comparisons and their targets are data (`targets.rs`).

mod bare;
mod confidence;
mod contenders;
mod export;
mod floor;
pub mod job;
pub mod library;
mod member;
pub mod mpi;
mod quinn;
pub mod rank;
mod render;
mod report;
mod request;
mod schedule;
pub mod scratch;
pub mod sockets;
mod table;
mod targets;
mod whole;

use std::{env, path::PathBuf, time::Duration};

pub use rank::serve;

pub use self::targets::Setting;
use self::{contenders::Contenders, report::PeersReport, scratch::Scratch};
use crate::{
    experiment::plan::Format,
    failure::{PerfError, Result},
};
use udeck_cli::machine::Machine;

/// Plan of `deckperf peers` or `deckperf collectives`.
#[derive(Clone, Debug, PartialEq)]
pub struct PeersPlan {
    /// Time for the whole run, without its start.
    pub time: Duration,
    /// Format of the report.
    pub format: Format,
    /// Transport of the messages, or the collective operations.
    pub setting: Setting,
    /// Numbers of ranks of the jobs, ascending.
    pub sizes: Vec<usize>,
    /// Folder of libraries that are measured beside the installed ones.
    pub folder: Option<PathBuf>,
}

/// Default time in seconds. Ten programs are run whole, and each of them gets one turn in a round: with fewer rounds
/// they would have no bounds.
pub const SECONDS: u64 = 60;

/// Starts all jobs, measures, ends the jobs, and returns the text to print.
///
/// # Errors
/// This process cannot conduct, or µDECK failed. A peer that fails is named in the report.
pub fn measure(plan: &PeersPlan) -> Result<String> {
    let cores @ [first, second] = two_cores(plan.setting.command())?;
    let scratch = Scratch::new().map_err(PerfError::system("making a folder for temporary files"))?;
    let folder = plan.folder.as_ref().map(|folder| std::path::absolute(folder).unwrap_or(folder.clone()));
    let mut field =
        Contenders::start_all(scratch.path(), cores, plan.setting, &plan.sizes, folder.as_deref())?;
    let outcome = schedule::measure(plan.time, field.series(), &mut field)?;

    let crowd = if plan.setting.is_network() { "" } else { "; 4 and 8 share these cores" };
    let pinning = format!("one on core {first}, one on core {second}{crowd}");
    let machine = Machine::describe(pinning, plan.setting.transport().to_owned());
    let Contenders { peers, missing, .. } = field;
    Ok(PeersReport::new(machine, plan.setting, peers, missing, &outcome).render(plan.format))
}

/// Restricts this process to two cores, on which it conducts `command`. Processes that are started from here on inherit them:
/// more than two would be too many wherever this runs.
///
/// # Errors
/// This process is a rank, or may use one core only.
pub fn two_cores(command: &'static str) -> Result<[usize; 2]> {
    // deckrun sets this variable in each rank.
    if env::var_os("DECK_RANK").is_some() {
        return Err(PerfError::IsRank(command));
    }
    let &[first, second, ..] = &udeck::sys::usable_cpus()[..] else {
        return Err(PerfError::OneProcessor(command));
    };
    udeck::sys::restrict_to_cpus(&[first, second])
        .map_err(PerfError::system("restricting this process to two processors"))?;
    Ok([first, second])
}
