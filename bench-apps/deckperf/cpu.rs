//! `deckperf cpu`: what messages cost the processor, at both ends: bare sockets, µDECK over each transport, and MPI.
//!
//! ```text
//!   conductor (this process) ── Unix socket per contender, of two processes on a core each
//!     "cpu …"  → both sides:    ours: deckperf cpu-rank                    cpu/mailboxes.rs
//!     user, system, messages    bare sockets: deckperf cpu-rank --sockets  cpu/sockets.rs
//!                               each MPI: peers/peer.c                     peers/cpu.h
//! ```
//!
//! The jobs are started and told as those of `deckperf peers` are (`../peers/job.rs`, `mpi.rs`, `library.rs`). All live from
//! the beginning to the end, and all but one of them block at any time; each runs one batch in each round (`schedule.rs`).
//! Source of the question: messages a second, processor time for a message and for a megabit, by message size and buffers,
//! as measured for uDAPL beside sockets in 2004.

mod contenders;
mod cost;
mod mailboxes;
mod order;
mod report;
mod schedule;
mod sockets;
mod usage;

use std::{env, path::PathBuf, time::Duration};

use clap::ValueEnum;

use self::{contenders::Contenders, report::CpuReport, usage::Accounting};
pub use self::{mailboxes::serve, sockets::serve as serve_sockets};
use crate::{
    failure::{Failure, Result},
    peers::scratch::Scratch,
    plan::{Format, Payload},
};
use cli_common::machine::Machine;

/// Message sizes when nothing is said.
pub const SIZES: [usize; 5] = [100, 500, 4_000, 16_000, 64_000];
/// Messages under way when nothing is said.
pub const DEPTHS: [u64; 2] = [2, 64];
/// Of the paced messages, per second.
pub const RATE: u64 = 1000;
/// When nothing is said; what starts the jobs comes to it.
pub const SECONDS: u64 = 45;

/// What is measured, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuPlan {
    /// Ascending, in bytes.
    pub sizes: Vec<usize>,
    /// In the order of the tables.
    pub depths: Vec<u64>,
    /// Of the paced messages, per second; 0: none are measured.
    pub rate: u64,
    /// What happens to the data.
    pub payload: Payload,
    /// Who takes part.
    pub kinds: Vec<Kind>,
    /// Windows in a batch; `None`: calibrated.
    pub iterations: Option<u64>,
    /// For the rounds and what precedes them.
    pub time: Duration,
    /// How the result is written.
    pub format: Format,
    /// Where MPIs lie beside those that are installed.
    pub folder: Option<PathBuf>,
}

/// Contenders, in the order of the rows.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bare UDP sockets
    UdpSockets,
    /// A bare TCP connection
    TcpSockets,
    /// µDECK over shared memory
    Shm,
    /// µDECK over TCP
    Tcp,
    /// µDECK over UDP
    Udp,
    /// µDECK over an RDMA device
    Verbs,
    /// MPICH and Open MPI, over shared memory and over TCP
    Mpi,
}

/// All of them.
pub const KINDS: [Kind; 7] =
    [Kind::UdpSockets, Kind::TcpSockets, Kind::Shm, Kind::Tcp, Kind::Udp, Kind::Verbs, Kind::Mpi];

impl Kind {
    /// Of ours.
    pub fn transport(self) -> Option<&'static str> {
        match self {
            Kind::Shm => Some("shm"),
            Kind::Tcp => Some("tcp"),
            Kind::Udp => Some("udp"),
            Kind::Verbs => Some("verbs"),
            Kind::UdpSockets | Kind::TcpSockets | Kind::Mpi => None,
        }
    }
}

/// Starts everybody, measures, and ends everybody. What is printed.
///
/// # Errors
/// That this process cannot conduct, or that ours or bare sockets fail. An MPI that fails is named in the report.
pub fn measure(plan: &CpuPlan) -> Result<String> {
    // deckrun has set it.
    if env::var_os("DECK_RANK").is_some() {
        return Err(Failure::IsRank("cpu"));
    }
    let &[first, second, ..] = &udeck::sys::usable_cpus()[..] else {
        return Err(Failure::OneProcessor("cpu"));
    };
    udeck::sys::restrict_to_cpus(&[first, second])
        .map_err(Failure::system("restricting this process to two processors"))?;
    let accounting = Accounting::probe().map_err(Failure::system("looking how processor time is divided"))?;

    let scratch = Scratch::new().map_err(Failure::system("making a folder for temporary files"))?;
    let mut field = Contenders::assemble(scratch.path(), plan)?;
    let bar = cli_common::progress::bar(plan.time.as_millis() as u64, "measuring");
    let passed = |passed: Duration| bar.set_position(passed.as_millis() as u64);
    let outcome = schedule::measure(plan, &mut field, passed)?;
    bar.finish_and_clear();

    let pinning = format!("sender on core {first}, receiver on core {second}");
    let machine = Machine::describe(pinning, "each contender's own".to_owned());
    let Contenders { rows, notes, .. } = field;
    Ok(CpuReport { machine, plan: plan.clone(), accounting, rows, notes, outcome }.render())
}
