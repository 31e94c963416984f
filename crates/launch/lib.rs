//! Starts the ranks of a job, watches over them, and leaves nothing behind.
//!
//! ```text
//!   deckrun, the guard                                   what a user starts, and may kill (guard.rs)
//!     └── the watcher ── socketpair, PDEATHSIG, process group ──► rank 0, rank 1, ...
//!     │ calling thread   signals, deaths, time limits, nodes (supervise.rs, remote.rs)
//!     │ one thread       name service for all ranks          (udeck-boot)
//!     ├ one thread       reads what ranks write to pipes                     (output.rs)
//!     ├ two threads      write standard output and error                     (print.rs)
//!     └── agent (ssh) ··· TCP ··► deckrun as a node on another host ──► its ranks     (control.rs, node.rs)
//! ```
//!
//! The binary `deckrun` is a command line over [`Job`]; a program that would rather start itself calls
//! [`launch_self`]. Five mechanisms keep a job from leaving processes:
//!
//! * Each rank is killed by the kernel when the launcher dies.
//! * Each rank leads its own process group, which is ended with it.
//! * A process that escapes its group is adopted by the launcher (`PR_SET_CHILD_SUBREAPER`) and ended last.
//! * All of them are in a cgroup, where one may be had, which is killed as a whole (cgroup.rs).
//! * The launcher is two processes: if one is killed, the other one ends the processes that it leaves.
//!
//! A node on another host is two processes, too, and ends everything when its connection to the launcher ends.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod allocation;
mod cgroup;
mod control;
mod descriptors;
mod doctor;
mod error;
mod guard;
mod hosts;
mod input;
mod job;
mod left_trace;
mod node;
mod orphans;
mod outcome;
mod output;
mod print;
mod ranks;
mod remote;
mod run;
mod signals;
mod supervise;
mod wait;
mod watch;
mod words;

pub use allocation::{Allocation, AllocationError};
pub use doctor::Diagnosis;
pub use error::{LaunchError, Step};
pub use hosts::{Hosts, HostsError};
pub use job::{Bind, Job, OnFailure};
#[doc(hidden)]
pub use node::serve as serve_node;
pub use outcome::{End, Outcome, RankFailure, Stop};
pub use run::launch_self;
pub use watch::status::ask as status;
