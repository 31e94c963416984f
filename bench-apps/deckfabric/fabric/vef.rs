//! Traces of MPI programs and of networks on a chip, in the formats VEF3 and VEF2, and their replay: a message goes when
//! those that it depends on have left or arrived.
//!
//! ```text
//! VEF3 nNodes nMsgs nCOMM nCollComm nLocalCollComm noRecvDep clock_ps
//! C0 0 1 2 3                                      communicators, a line each
//! ID src dst length Dep dTime IDdep               messages, lengths in bytes, times in clocks of clock_ps picoseconds
//! GID COMM op task send recv Dep dTime IDdep      a task's part of the group operation GID; bytes that it sends and receives
//! ```
//!
//! | Dep | a record goes |
//! |---|---|
//! | 0 | at dTime |
//! | 1 | dTime after its task has sent the message IDdep |
//! | 2 | dTime after its task has received the message IDdep |
//! | 3 | dTime after its task has done its part of the group operation IDdep, written `G5` |
//! | + 4 | the same, and others depend on it (not needed for a replay) |
//!
//! The first line of a VEF2 trace is `VEF2`, or `VEF`, and has no clock: times are in nanoseconds. `Dep` is 0 to 3 there.
//! `noRecvDep` is not read.
//!
//! [`groups`] has the messages of group operations, [`names`] the files that put several nodes on one host.

pub mod groups;
pub mod names;
mod read;
mod replay;
#[cfg(test)]
mod tests;

pub use read::parse;
pub use replay::Replay;

use groups::Operation;
use thiserror::Error;

/// Bytes of a flit, if a replay has no other size.
const FLIT: u64 = 64;
/// Upper bound of a trace's nodes, and of its hosts.
const MOST_NODES: u64 = 1 << 16;

/// An invalid line of a trace, or of a file of names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct BadTrace {
    /// Number of the line, from 1.
    pub line: usize,
    /// Reason as text.
    pub reason: String,
}

/// Event after which a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The beginning of the run.
    Begin,
    /// Its task has sent another message, which is named by its index in the trace.
    Sent(u32),
    /// Its task has received another message, which is named by its index in the trace.
    Received(u32),
    /// Its task has done a part of a group operation, which is named by its index in the trace.
    Done(u32),
}

/// Start of a record: an event, and a time after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Event after which it goes.
    pub after: After,
    /// Number of clocks after that event.
    pub clocks: u64,
}

/// A message of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Node of the sender.
    pub from: u32,
    /// Node of the receiver.
    pub to: u32,
    /// Length in bytes.
    pub bytes: u64,
    /// Start of the message.
    pub start: Start,
}

/// A task's part of a group operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the operation.
    pub operation: u32,
    /// The task's place in the communicator.
    pub member: u32,
    /// Start of the part.
    pub start: Start,
}

/// A trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Number of nodes.
    pub nodes: u32,
    /// Length of a clock in picoseconds.
    pub clock_ps: u64,
    /// Nodes of each communicator.
    pub communicators: Vec<Vec<u32>>,
    /// Messages in the order of the file.
    pub records: Vec<Record>,
    /// Group operations in the order of their first lines.
    pub operations: Vec<Operation>,
    /// Parts of group operations in the order of the file.
    pub parts: Vec<Part>,
}

/// Flits of a message. `flit`: bytes of one.
fn flits(bytes: u64, flit: u64) -> u32 {
    bytes.div_ceil(flit).max(1) as u32
}

fn number(word: &str, name: &str) -> Result<u64, String> {
    let shown: String = word.chars().take(30).collect();
    word.parse().map_err(|_| format!("{name} is {shown:?}, and no number"))
}
