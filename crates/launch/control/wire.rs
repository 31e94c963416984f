//! Messages between a root and a node: payloads of the frames of their [`SecureStream`](super::secure).
//!
//! A payload is a message in postcard, as between a rank and its launcher (`udeck_boot::wire`), at most
//! `MAX_FRAME` bytes: [`ToNode`] downwards, [`ToRoot`] upwards. A [`JobSpec`] does not travel here: it is a frame
//! in clear on the agent's standard input, behind the secret. The order of enum variants is part of the
//! protocol: any change here takes a new [`VERSION`].

use serde::{Deserialize, Serialize};
use udeck_auth::HostKey;
use udeck_boot::waits::{MAX_WAITS, Published};
use udeck_boot::wire::bounded;

/// The protocol version of this build.
pub(crate) const VERSION: u32 = 8;

/// Upper bound of a stream's piece (name service, output, input) in one frame, in bytes.
pub(crate) const MAX_PIECE: usize = 128 << 10;

/// Maximum number of ranks in one [`ToRoot::RankStates`].
pub(crate) const MAX_SAMPLES: usize = 16;

/// Maximum number of arguments, and separately of variables, in a spec. (A list's items take more memory than
/// bytes.)
const MAX_WORDS: usize = 1 << 16;

/// Messages from the root. Ranks are numbered as in the whole job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToNode {
    /// All hosts are there: start the spec. Sent once, as the first message.
    Start,
    /// A piece of the name service's stream to a rank.
    Boot { rank: u32, bytes: Vec<u8> },
    /// The name service has closed this rank's connection.
    BootEnd { rank: u32 },
    /// Send this signal to all running ranks.
    Signal { number: i32 },
    /// Credit: `bytes` of output have been written, and the same number more may come.
    Written { sink: Sink, bytes: u32 },
    /// The output has no reader any more: a rank that writes it gets a SIGPIPE.
    Unread { sink: Sink },
    /// A piece of rank 0's standard input; empty at its end.
    Input { bytes: Vec<u8> },
    /// Credit: the name service has dealt with `bytes` from this rank, and the same number more may come.
    BootConsumed { rank: u32, bytes: u32 },
    /// Report the state of your ranks.
    SampleRanks { serial: u32 },
}

/// Messages from a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToRoot {
    /// All ranks of the spec have been started.
    Started,
    /// No rank of the spec is running; the node ends.
    NotStarted(NotStarted),
    /// A piece of a rank's stream to the name service.
    Boot { rank: u32, bytes: Vec<u8> },
    /// The rank closed its connection, or (`Some`) was cut off for this reason.
    BootEnd { rank: u32, why: Option<String> },
    /// Output, to be written as it is.
    Output { sink: Sink, bytes: Vec<u8> },
    /// Credit: rank 0 has been given `bytes` of input, and the same number more may come.
    Taken { bytes: u32 },
    /// Rank 0 reads no input any more.
    InputEnd,
    /// A rank ended. Its messages to the name service came before.
    Ended { rank: u32, how: WireEnd },
    /// All ranks have ended, and all processes that they started. Nothing follows.
    Bye,
    /// Credit: a rank has taken `bytes` from the name service, and the same number more may come.
    BootTaken { rank: u32, bytes: u32 },
    /// State of some of its ranks; the last of these messages has the rest.
    RankStates {
        serial: u32,
        #[serde(deserialize_with = "bounded::<_, _, MAX_SAMPLES>")]
        samples: Vec<RankSample>,
        last: bool,
    },
}

/// State of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankSample {
    pub(crate) rank: u32,
    pub(crate) state: RankState,
    /// How long the rank has made no progress, as seen by its launcher, in milliseconds.
    pub(crate) idle_ms: u64,
    /// The rank's calls that have waited for long, the oldest first.
    #[serde(deserialize_with = "bounded::<_, _, MAX_WAITS>")]
    pub(crate) waits: Vec<Published>,
}

/// State of a rank's process, according to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RankState {
    /// The process has not called the library.
    NotJoined,
    Runs,
    Sleeps,
    /// The process is in a system call that nothing interrupts.
    InKernel,
    Stopped,
    Ended,
}

/// The job's part of a node. Sent by the root, over the agent's standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobSpec {
    /// The first rank of this host.
    pub(crate) first: u32,
    /// Number of this host's ranks.
    pub(crate) count: u32,
    /// Number of the job's ranks.
    pub(crate) size: u32,
    pub(crate) program: Vec<u8>,
    #[serde(deserialize_with = "bounded::<_, _, MAX_WORDS>")]
    pub(crate) args: Vec<Vec<u8>>,
    /// Names and values of environment variables.
    #[serde(deserialize_with = "bounded::<_, _, MAX_WORDS>")]
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    /// The folder in which the ranks run.
    pub(crate) directory: Vec<u8>,
    pub(crate) bind: WireBind,
    pub(crate) output: OutputForm,
    /// Time without a sign of life after which the root counts as lost, in milliseconds.
    pub(crate) detect_ms: u32,
    /// The key from which the connection's key and the keys of this host's ranks are derived: a spec never
    /// crosses the connection.
    pub(crate) key: HostKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireBind {
    Auto,
    Core,
    None,
}

/// The form in which the root writes the ranks' output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutputForm {
    /// Whether each line begins with its rank.
    pub(crate) tagged: bool,
    /// Whether standard output and error are one file. A rank then has one pipe for both, and its output stays
    /// in order.
    pub(crate) joined: bool,
    /// Whether a reader may wait for an unfinished line, such as a prompt: for standard output and for standard
    /// error. Nobody waits for a file's.
    pub(crate) watched: [bool; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sink {
    Stdout,
    Stderr,
}

/// Reasons why a node could not start its ranks. `errno` is the system's number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NotStarted {
    /// The program does not exist.
    NotFound,
    NotExecutable {
        errno: i32,
    },
    Directory {
        errno: i32,
    },
    Spawn {
        rank: u32,
        errno: i32,
    },
    TooFewDescriptors {
        ranks: u32,
        needed: u64,
        limit: u64,
    },
    Other {
        what: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireEnd {
    Exited(i32),
    Killed(i32),
}

#[cfg(test)]
mod tests;
