//! Bootstrap of a job: ranks find one another before they can send messages.
//!
//! The launcher keeps one connected socket to each rank (a socketpair, inherited). Over it the launcher tells
//! the rank its number, serves names, a small key-value store and a fence, and sends the news of ranks that
//! ended. Messages never take this path.
//!
//! ```text
//!   rank: Client ──(wire: frames)── Service ─► Server        launcher, or local::Job in one process
//!         threads, deadlines          sockets     state only
//! ```
//!
//! [`server::Server`] holds the rules and no I/O: `(now, rank, request) -> actions`. [`serve::Service`] is the
//! one thread that moves bytes for it; [`client::Client`] is a rank's end. [`wire`] is the protocol of both.
//!
//! A connection *is* a rank: the launcher made the pair, so no peer can claim to be another rank, and the job's secret
//! travels over it instead of through the environment or a command line. A rank on another host has the same kind of
//! pair, with the node that started it; its bytes are relayed ([`serve::Connection::Relayed`]), its welcome without the
//! secret, which the node puts in.
//!
//! In a job that deckrun did not start, rank 0 runs the service, and the others connect to it over the network:
//! [`start`].

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

pub mod client;
mod error;
pub mod family;
pub mod local;
mod placement;
mod ranks;
pub mod serve;
pub mod server;
mod silence;
pub mod start;
pub mod waits;
pub mod wire;

pub use client::{Client, Question};
pub use error::BootError;
pub use placement::{Host, Placement};
pub use ranks::Ranks;
pub use silence::detect_silence;
pub use wire::{Event, Maker, Record, Welcome};

/// The environment variable with the number of the inherited descriptor on which the launcher serves.
pub const ENV_BOOT_FD: &str = "DECK_BOOT_FD";
/// The environment variable with the number of the inherited descriptor of the job's clock. Deadlines use this
/// clock, which stands while the job is stopped. Without it they use the system's.
pub const ENV_CLOCK_FD: &str = "DECK_CLOCK_FD";
/// The environment variable with the number of the inherited descriptor of this rank's page of long waits.
/// Without it the waits are not published.
pub const ENV_WAITS_FD: &str = "DECK_WAITS_FD";
/// The environment variable with this rank's number, 0 to size − 1. For people and scripts: the library uses
/// [`Welcome`].
pub const ENV_RANK: &str = "DECK_RANK";
/// The environment variable with the number of ranks in the job.
pub const ENV_SIZE: &str = "DECK_SIZE";
/// The environment variable with the number of the CPU a rank is bound to; absent when it is not bound.
pub const ENV_BIND: &str = "DECK_BIND";
/// The environment variable with the number of processors that the ranks of this host share: affinity mask and
/// cgroup quota of the launcher. A rank that is bound to one processor cannot find out by itself.
pub const ENV_CPUS: &str = "DECK_CPUS";

/// Maximum number of a job's ranks.
pub const MAX_RANKS: u32 = 4096;
