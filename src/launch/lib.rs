//! Starts the ranks of a job, watches over them, and leaves nothing behind.
//!
//! ```text
//!   deckrun ── socketpair, PDEATHSIG, process group ──► rank 0, rank 1, ...
//!     │ calling thread   signals, deaths, time limits        (supervise.rs)
//!     │ one thread       name service for all ranks          (udeck-boot)
//!     └ one thread       output, only when it is tagged      (output.rs)
//! ```
//!
//! The binary `deckrun` is a command line over [`Job`]; a program that would rather start itself calls
//! [`launch_self`]. Three things keep a job from leaving processes: each rank is killed by the kernel when the launcher
//! dies, each rank leads its own process group that is ended with it, and what escapes its group is adopted by the
//! launcher (`PR_SET_CHILD_SUBREAPER`) and ended last. After a `kill -9` of the launcher the first of the three remains:
//! the ranks end, but a process that a rank had started may outlive them.

mod descriptors;
mod error;
mod input;
mod job;
mod orphans;
mod outcome;
mod output;
mod ranks;
mod signals;
mod supervise;

pub use error::LaunchError;
pub use job::{Bind, Job, OnFailure, launch_self};
pub use outcome::{End, Failure, Outcome, Stop};
