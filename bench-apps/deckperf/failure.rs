//! Errors of a run.

use std::{io, path::PathBuf};

use udeck::Protocol;

/// Error with which a rank gives up.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The library refused or lost something.
    #[error(transparent)]
    Library(#[from] udeck::Error),
    /// The Virtual Interface layer refused or lost something.
    #[error("the virtual interfaces: {0}")]
    Via(#[from] udeck::via::Error),
    /// uDAPL's objects refused or lost something.
    #[error("uDAPL: {0}")]
    Dat(#[from] udeck_dat::Error),
    /// A dispatcher of uDAPL's reported another event than the one that was waited for.
    #[error("uDAPL: unexpected: {0}")]
    BadEvent(String),
    /// A size that the transport does not carry as one message.
    #[error(
        "uDAPL: {wanted} bytes exceed the transport's largest message ({most} bytes): use smaller --sizes"
    )]
    TooLarge {
        /// Bytes of the message.
        wanted: usize,
        /// Bytes of the longest message that the transport carries.
        most: usize,
    },
    /// A descriptor completed with another status or length than expected.
    #[error("a receive of {wanted} bytes ended as {status:?}, with {got} bytes")]
    BadCompletion {
        /// Completion status.
        status: udeck::via::Status,
        /// Bytes that were posted.
        wanted: usize,
        /// Bytes that arrived.
        got: usize,
    },
    /// Nothing arrived in time, and no error was reported.
    #[error("timed out waiting for {0} (DECK_DEADLINE sets how long)")]
    Overdue(&'static str),
    /// A contender of `deckperf peers` failed that the comparison needs.
    #[error("{who}: {what}")]
    Contender {
        /// Its name.
        who: String,
        /// The error, perhaps in the contender's own words.
        what: String,
    },
    /// A command that starts jobs of its own (`deckperf peers`, `ft`, `report` and so on) was started as a rank.
    #[error("{0}: starts its own ranks: run `deckperf {0}` without deckrun")]
    IsRank(&'static str),
    /// `deckperf peers`, `deckperf collectives` or `deckperf cpu` was started on one processor.
    #[error("{0}: compares on two processors, and this process may use one")]
    OneProcessor(&'static str),
    /// `--peers DIR` names a folder without peers.
    #[error(
        "peers: there is nothing to compare with in {folder}: looked for {places}; `cargo xtask peers {folder}` gets \
         today's releases", folder = folder.display()
    )]
    NoPeers {
        /// The folder, as the user gave it.
        folder: PathBuf,
        /// Places that were searched.
        places: String,
    },
    /// A program that a command runs does not lie beside this one.
    #[error(
        "ft: there is no {name} beside this program: looked for {looked}; `cargo build --release --bin {name}` makes it, and \
         an installation has both in one folder", looked = looked.display()
    )]
    NoProgram {
        /// Name of the program.
        name: &'static str,
        /// Path that was searched.
        looked: PathBuf,
    },
    /// Pinning or a raw measurement failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The job has more or fewer ranks than a measurement between two takes.
    #[error(
        "measures between exactly 2 ranks, this job has {0}: run `deckperf` alone (it starts both) \
         or `deckrun -n 2 deckperf`"
    )]
    WrongJobSize(usize),
    /// The job has fewer ranks than the command needs.
    #[error(
        "{command}: needs {wanted} ranks or more, this job has {got}: run `deckperf {command}` alone (it starts them)"
    )]
    FewRanks {
        /// The command.
        command: &'static str,
        /// Fewest ranks that suffice.
        wanted: usize,
        /// Ranks in this job.
        got: usize,
    },
    /// The list of `--bind` cannot be used.
    #[error("--bind {0}")]
    Bind(String),
    /// Rank 1 got an order that it does not understand: the ranks run different builds.
    #[error("rank 0 sent an order that this build does not know ({0}): do both ranks run the same deckperf?")]
    BadOrder(String),
    /// The program broke a rule of its own.
    #[error("an error in deckperf itself: {0}")]
    Internal(String),
    /// A message is shorter or longer than what was posted.
    #[error("{protocol}: a message of {wanted} bytes arrived with {got} bytes")]
    WrongLength {
        /// Protocol of the message.
        protocol: Protocol,
        /// Bytes as posted.
        wanted: usize,
        /// Bytes as retrieved.
        got: usize,
    },
    /// A written+read message arrived with other data than were written.
    #[error("{protocol}: the words of a message of {size} bytes sum to {got:#x}, {wanted:#x} were written")]
    WrongSum {
        /// Protocol of the message.
        protocol: Protocol,
        /// Bytes of the message.
        size: usize,
        /// Sum of the words that were written.
        wanted: u64,
        /// Sum of the words that were read.
        got: u64,
    },
    /// A number that a group reduced differs from the one computed by hand.
    #[error("all-reduce: number {index} is {got}, not {wanted}")]
    WrongNumber {
        /// Index of the number in the slice.
        index: usize,
        /// The number computed by hand.
        wanted: f64,
        /// The number from the group.
        got: f64,
    },
    /// A block arrived from a group with other data than were written.
    #[error(
        "{operation}: the words of a block of {size} bytes that were looked at sum to {got:#x}, {wanted:#x} were written"
    )]
    WrongBlock {
        /// The group's operation.
        operation: String,
        /// Bytes of the block.
        size: usize,
        /// Sum of the words that were written.
        wanted: u64,
        /// Sum of the words that were read.
        got: u64,
    },
    /// `verify` found messages that are not what was posted.
    #[error("verify: {0} messages did not arrive as they were posted")]
    Mismatch(u64),
    /// The job that `costs` started failed.
    #[error(
        "{ranks} ranks did not all start and pass a barrier ({status}): the lines above say why; \
         --ranks starts fewer, 0 none"
    )]
    StartTime {
        /// Ranks that were asked for.
        ranks: u32,
        /// Exit status of the launcher.
        status: String,
    },
    /// deckrun could not start a job.
    #[error(transparent)]
    Launch(#[from] deckrun::LaunchError),
    /// Rank 1's report has another length than the one that was asked for.
    #[error("rank 1 reported {0} words: do both ranks run the same deckperf?")]
    BadReport(usize),
}

/// Result of a rank's work.
pub type Result<T = (), E = PerfError> = std::result::Result<T, E>;

impl<M> From<udeck::PostError<M>> for PerfError {
    fn from(error: udeck::PostError<M>) -> Self {
        PerfError::Library(error.into())
    }
}

impl PerfError {
    /// Wraps a system error, and names the operation that failed.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| PerfError::System { what, source }
    }
}
