//! `deckperf cpu`: processor time that messages cost at both ends, over bare sockets, µDECK over each transport, its uDAPL over shm,
//! tcp and udp, and MPI.
//!
//! ```text
//!   conductor (this process) ── Unix socket per contender, of two processes on a core each
//!     "cpu …"  → both sides:    ours: deckperf cpu-rank                    cpu/mailboxes.rs
//!     user, system, messages    uDAPL:   deckperf cpu-rank --dat           cpu/dat.rs
//!                               bare sockets: deckperf cpu-rank --sockets  cpu/sockets.rs
//!                               each MPI: peers/peer.c                     peers/cpu.h
//! ```
//!
//! The loop of a batch is the same for all but the MPIs (`batch.rs`).
//! The jobs are started and conducted like those of `deckperf peers` (`../peers/job.rs`, `mpi.rs`, `library.rs`). All jobs live
//! from the beginning to the end, and all but one of them are blocked at any time; each runs one batch in each round
//! (`schedule.rs`). The figures follow measurements of 2004 for uDAPL beside sockets: messages per second, and processor time for
//! a message and for a megabit, by message size and number of buffers.

mod batch;
mod chapter9;
mod contenders;
mod cost;
mod dat;
mod mailboxes;
mod order;
mod report;
mod schedule;
mod sockets;
pub mod usage;

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;

use self::{contenders::Contenders, order::Waiting, report::CpuReport, usage::Accounting};
pub use self::{order::Way, sockets::serve as serve_sockets};
use crate::{
    commands::peers::{scratch::Scratch, two_cores},
    experiment::plan::{Format, Payload},
    failure::{PerfError, Result},
};
use udeck::World;
use udeck_cli::machine::Machine;

/// Default message sizes, in bytes.
pub const SIZES: [usize; 5] = [100, 500, 4_000, 16_000, 64_000];
/// Default numbers of messages under way.
pub const DEPTHS: [u64; 2] = [2, 64];
/// Most messages under way, streamed and paced: uDAPL's queues have room for them.
pub const MOST_UNDER_WAY: u64 = 1024;
/// Default rate of the paced messages, per second.
pub const RATE: u64 = 1000;
/// Default time for the rounds, in seconds; starting the jobs comes on top.
pub const SECONDS: u64 = 45;

/// Plan of `deckperf cpu`.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuPlan {
    /// Message sizes, ascending, in bytes.
    pub sizes: Vec<usize>,
    /// Numbers of messages under way, in the order of the tables.
    pub depths: Vec<u64>,
    /// Rate of the paced messages, per second; 0: none are measured.
    pub rate: u64,
    /// Payload mode of the messages.
    pub payload: Payload,
    /// Kinds of contenders.
    pub kinds: Vec<Kind>,
    /// Ways of waiting.
    pub waitings: Vec<Waiting>,
    /// Form of the tables.
    pub form: Form,
    /// Windows in a batch; `None`: calibrated.
    pub iterations: Option<u64>,
    /// Time for the rounds and what precedes them.
    pub time: Duration,
    /// Format of the report.
    pub format: Format,
    /// Folder of MPIs that are measured beside the installed ones.
    pub folder: Option<PathBuf>,
}

/// Forms of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Tables for each size and depth.
    #[default]
    Loads,
    /// The graphs of a published chapter.
    Published(Chapter),
}

/// Published chapters whose graphs the tables can have.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chapter {
    /// Graphs 9.1 to 9.9 of a thesis on uDAPL in a parallel database (2004): one table each
    #[value(name = "chapter-9")]
    Nine,
}

/// Kinds of contenders, in the order of the rows.
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
    /// µDECK's uDAPL over shared memory
    DatShm,
    /// µDECK's uDAPL over TCP
    DatTcp,
    /// µDECK's uDAPL over UDP
    DatUdp,
    /// MPICH and Open MPI, over shared memory and over TCP
    Mpi,
}

impl Form {
    /// Default numbers of messages under way.
    pub fn depths(self) -> Vec<u64> {
        match self {
            Form::Loads => DEPTHS.to_vec(),
            Form::Published(Chapter::Nine) => chapter9::DEPTHS.to_vec(),
        }
    }

    /// Default contenders.
    pub fn kinds(self) -> Vec<Kind> {
        match self {
            Form::Loads => Kind::value_variants().to_vec(),
            Form::Published(Chapter::Nine) => chapter9::KINDS.to_vec(),
        }
    }

    /// Rate of the paced messages, where the command line has `rate`.
    pub fn rate(self, rate: u64) -> u64 {
        if self == Form::Loads { rate } else { 0 }
    }

    /// Ways of waiting.
    pub fn waitings(self) -> Vec<Waiting> {
        match self {
            Form::Loads => Waiting::value_variants().to_vec(),
            Form::Published(Chapter::Nine) => vec![chapter9::WAITING],
        }
    }
}

impl Kind {
    /// Interface and transport of µDECK's kinds; `None` for the others.
    pub fn ours(self) -> Option<(Way, &'static str)> {
        match self {
            Kind::Shm => Some((Way::Mailbox, "shm")),
            Kind::Tcp => Some((Way::Mailbox, "tcp")),
            Kind::Udp => Some((Way::Mailbox, "udp")),
            Kind::Verbs => Some((Way::Mailbox, "verbs")),
            Kind::DatShm => Some((Way::Dat, "shm")),
            Kind::DatTcp => Some((Way::Dat, "tcp")),
            Kind::DatUdp => Some((Way::Dat, "udp")),
            Kind::UdpSockets | Kind::TcpSockets | Kind::Mpi => None,
        }
    }
}

/// Follows the conductor as a rank of µDECK's, by this interface, until it hangs up.
///
/// # Errors
/// Errors of the library, or a message that differs from the posted one.
pub fn serve(world: &World, way: Way) -> Result {
    if way == Way::Dat { dat::serve(world) } else { mailboxes::serve(world) }
}

/// Starts all jobs, measures, ends the jobs, and returns the text to print.
///
/// # Errors
/// This process cannot conduct, or µDECK or bare sockets failed. An MPI that fails is named in the report.
pub fn measure(plan: &CpuPlan) -> Result<String> {
    let [first, second] = two_cores("cpu")?;
    let accounting =
        Accounting::probe().map_err(PerfError::system("looking how processor time is divided"))?;

    let scratch = Scratch::new().map_err(PerfError::system("making a folder for temporary files"))?;
    let mut field = Contenders::start_all(scratch.path(), plan)?;
    let outcome = schedule::measure(plan, &mut field)?;

    let pinning = format!("sender on core {first}, receiver on core {second}");
    let machine = Machine::describe(pinning, "each contender's own".to_owned());
    let Contenders { rows, notes, .. } = field;
    Ok(CpuReport { machine, plan: plan.clone(), accounting, rows, notes, outcome }.render())
}
