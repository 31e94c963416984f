//! What a root and a node say to each other, and how it lies in the stream.
//!
//! First, in fixed sizes, so that a stranger's bytes cannot make anything grow (all numbers little-endian):
//!
//! ```text
//!  byte 0        8         12        16                  48                  80
//!       +--------+---------+---------+-------------------+
//!  node | magic  | version | index   | nonce             |                          Hello, 48 bytes
//!       +--------+---------+---------+-------------------+-------------------+
//!  root | magic  | version | 0       | nonce             | HMAC              |      Challenge, 80 bytes
//!       +--------+---------+---------+-------------------+-------------------+
//!  node | HMAC                       |                                              Proof, 32 bytes
//!       +----------------------------+
//! ```
//!
//! Then frames as those between a rank and its launcher (`udeck_boot::wire`): a length, at most `MAX_FRAME`, and that many
//! bytes of postcard: [`ToNode`] downwards, [`ToRoot`] upwards; behind each its code ([`super::seal`]). A [`JobSpec`] does not
//! travel here: it is a frame without a code on the agent's standard input, behind the secret. The order of enum variants is part of the protocol:
//! changing anything here takes a new [`VERSION`]. The first 12 bytes keep their places for ever.

use serde::{Deserialize, Serialize};
use udeck_auth::HostKey;
use udeck_boot::waits::{MAX_WAITS, Published};
use udeck_boot::wire::bounded;

/// The version that this build speaks.
pub(crate) const VERSION: u32 = 7;

const MAGIC: [u8; 8] = *b"uDECKrun";

pub(crate) const HELLO_LEN: usize = 48;
pub(crate) const CHALLENGE_LEN: usize = 80;
pub(crate) const PROOF_LEN: usize = 32;

/// The longest piece of a stream (name service, output, input) in one frame, in bytes.
pub(crate) const MAX_PIECE: usize = 128 << 10;

/// The most ranks in one [`ToRoot::Looked`].
pub(crate) const MAX_LOOKS: usize = 16;

/// The most arguments, and separately variables, of a spec. (A list's items take more memory than bytes.)
const MAX_WORDS: usize = 1 << 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    /// Which of the job's hosts.
    pub(crate) index: u32,
    pub(crate) nonce: [u8; 32],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) version: u32,
    pub(crate) nonce: [u8; 32],
    pub(crate) mac: [u8; 32],
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&self.index.to_le_bytes());
        out[16..].copy_from_slice(&self.nonce);
        out
    }

    /// `None`: not this protocol.
    pub(crate) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Hello> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (index, rest) = rest.split_first_chunk()?;
        let hello = Hello {
            version: u32::from_le_bytes(*version),
            index: u32::from_le_bytes(*index),
            nonce: rest.try_into().ok()?,
        };
        (*magic == MAGIC).then_some(hello)
    }
}

impl Challenge {
    pub(crate) fn encode(&self) -> [u8; CHALLENGE_LEN] {
        let mut out = [0; CHALLENGE_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[16..48].copy_from_slice(&self.nonce);
        out[48..].copy_from_slice(&self.mac);
        out
    }

    /// `None`: not this protocol.
    pub(crate) fn decode(bytes: &[u8; CHALLENGE_LEN]) -> Option<Challenge> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (_reserved, rest) = rest.split_first_chunk::<4>()?;
        let (nonce, mac) = rest.split_first_chunk()?;
        let challenge =
            Challenge { version: u32::from_le_bytes(*version), nonce: *nonce, mac: mac.try_into().ok()? };
        (*magic == MAGIC).then_some(challenge)
    }
}

/// From the root. Ranks are numbered as in the whole job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToNode {
    /// All hosts are there: start the spec. The first message, once.
    Start,
    /// A piece of what the name service says to a rank.
    Boot { rank: u32, bytes: Vec<u8> },
    /// The name service has closed this rank's connection.
    BootEnd { rank: u32 },
    /// Send this signal to all ranks that run.
    Signal { number: i32 },
    /// So much output has been written: so much more may come.
    Written { sink: Sink, bytes: u32 },
    /// Nobody reads this output any more: whoever writes it gets a SIGPIPE.
    Unread { sink: Sink },
    /// For rank 0's standard input; empty: its end.
    Input { bytes: Vec<u8> },
    /// The name service has dealt with so much of what this rank said: so much more may come.
    BootConsumed { rank: u32, bytes: u32 },
    /// Say what your ranks are doing.
    Look { serial: u32 },
}

/// From a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToRoot {
    /// All ranks of the spec have been started.
    Started,
    /// None of them runs; the node ends.
    NotStarted(NotStarted),
    /// A piece of what a rank says to the name service.
    Boot { rank: u32, bytes: Vec<u8> },
    /// The rank closed its connection, or (`Some`) was cut off for this reason.
    BootEnd { rank: u32, why: Option<String> },
    /// To be written as it is.
    Output { sink: Sink, bytes: Vec<u8> },
    /// Rank 0 has been given so much input: so much more may come.
    Taken { bytes: u32 },
    /// Rank 0 reads no input any more.
    InputEnd,
    /// A rank ended. What it said to the name service came before.
    Ended { rank: u32, how: WireEnd },
    /// All ranks have ended, and everything that they started. Nothing follows.
    Bye,
    /// A rank has taken so much of what the name service says to it: so much more may come.
    BootTaken { rank: u32, bytes: u32 },
    /// What some of its ranks are doing; the last of these has the rest.
    Looked {
        serial: u32,
        #[serde(deserialize_with = "bounded::<_, _, MAX_LOOKS>")]
        looks: Vec<RankLook>,
        last: bool,
    },
}

/// What a rank is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankLook {
    pub(crate) rank: u32,
    pub(crate) state: RankState,
    /// For how many milliseconds it has made no progress, as far as its launcher has seen.
    pub(crate) still_ms: u64,
    /// Its calls that have waited for long, the oldest first.
    #[serde(deserialize_with = "bounded::<_, _, MAX_WAITS>")]
    pub(crate) waits: Vec<Published>,
}

/// What a rank's process does, as its kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RankState {
    /// It has not called the library.
    NotJoined,
    Runs,
    Sleeps,
    /// In a system call that nothing interrupts.
    InKernel,
    Stopped,
    Ended,
}

/// What a node has to start. From the root, over the agent's standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobSpec {
    /// The first rank of this host.
    pub(crate) first: u32,
    /// How many ranks this host has.
    pub(crate) count: u32,
    /// How many the job has.
    pub(crate) size: u32,
    pub(crate) program: Vec<u8>,
    #[serde(deserialize_with = "bounded::<_, _, MAX_WORDS>")]
    pub(crate) args: Vec<Vec<u8>>,
    /// Names and values.
    #[serde(deserialize_with = "bounded::<_, _, MAX_WORDS>")]
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the ranks run.
    pub(crate) directory: Vec<u8>,
    pub(crate) bind: WireBind,
    pub(crate) output: OutputForm,
    /// After how many milliseconds without a sign of life the root counts as gone.
    pub(crate) detect_ms: u32,
    /// From which the connection's key and the keys of this host's ranks follow: a spec never crosses the connection.
    pub(crate) key: HostKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireBind {
    Auto,
    Core,
    None,
}

/// How the root writes what ranks write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutputForm {
    /// Whether each line is led by its rank.
    pub(crate) tagged: bool,
    /// Whether standard output and error are one file: a rank has one pipe for both, so that its words stay in their order.
    pub(crate) joined: bool,
    /// Whether somebody may wait for an unfinished line, such as a prompt: of standard output and error. Of a file nobody does.
    pub(crate) watched: [bool; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sink {
    Stdout,
    Stderr,
}

/// Why a node could not start its ranks. `errno` is the system's number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NotStarted {
    /// No such program.
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
