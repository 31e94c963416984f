//! What can go wrong in a run.

use std::{io, path::PathBuf};

use udeck::Protocol;

/// Why a rank gives up.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library refused or lost something.
    #[error(transparent)]
    Library(#[from] udeck::Error),
    /// The Virtual Interface layer refused or lost something.
    #[error("the virtual interfaces: {0}")]
    Via(#[from] udeck::via::Error),
    /// uDAPL's objects refused or lost something.
    #[error("uDAPL: {0}")]
    Dat(#[from] udeck_dat::Error),
    /// A dispatcher of uDAPL's told something else than what was waited for.
    #[error("uDAPL: unexpected: {0}")]
    BadEvent(String),
    /// A size that the transport does not carry as one message.
    #[error("uDAPL: a message of {wanted} bytes, and one has at most {most} here: name smaller --sizes")]
    TooLarge {
        /// In bytes.
        wanted: usize,
        /// In bytes.
        most: usize,
    },
    /// A descriptor did not end as it should have.
    #[error("a receive of {wanted} bytes ended as {status:?}, with {got} bytes")]
    BadCompletion {
        /// How it ended.
        status: udeck::via::Status,
        /// As posted, in bytes.
        wanted: usize,
        /// In bytes.
        got: usize,
    },
    /// Nothing came, and nobody said why.
    #[error("waited in vain for {0} (DECK_DEADLINE sets how long)")]
    Overdue(&'static str),
    /// A contender of `deckperf peers` that cannot be done without.
    #[error("{who}: {what}")]
    Contender {
        /// Its name.
        who: String,
        /// What went wrong, perhaps with what it said.
        what: String,
    },
    /// `deckperf peers`, `deckperf collectives` or `deckperf cpu` as a rank.
    #[error("{0}: starts its own ranks: run `deckperf {0}` without deckrun")]
    IsRank(&'static str),
    /// The same on one processor.
    #[error("{0}: compares on two processors, and this process may use one")]
    OneProcessor(&'static str),
    /// `--peers DIR`, where there are none.
    #[error(
        "peers: there is nothing to compare with in {folder}: looked for {places}; `cargo xtask peers {folder}` gets \
         today's releases", folder = folder.display()
    )]
    NoPeers {
        /// As it was given.
        folder: PathBuf,
        /// What was looked for.
        places: String,
    },
    /// Pinning or a raw measurement failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Started with more or fewer ranks than a measurement between two takes.
    #[error(
        "measures between exactly 2 ranks, this job has {0}: run `deckperf` alone (it starts both) \
         or `deckrun -n 2 deckperf`"
    )]
    WrongJobSize(usize),
    /// Started with fewer ranks than the command needs.
    #[error(
        "{command}: needs {wanted} ranks or more, this job has {got}: run `deckperf {command}` alone (it starts them)"
    )]
    FewRanks {
        /// The command.
        command: &'static str,
        /// That would do.
        wanted: usize,
        /// In this job.
        got: usize,
    },
    /// `--bind` cannot be done.
    #[error("--bind {0}")]
    Bind(String),
    /// Rank 1 got an order that it does not understand: the ranks run different builds.
    #[error("rank 0 sent an order that this build does not know ({0}): do both ranks run the same deckperf?")]
    BadOrder(String),
    /// A message is shorter or longer than what was posted.
    #[error("{protocol}: a message of {wanted} bytes arrived with {got} bytes")]
    WrongLength {
        /// How it travelled.
        protocol: Protocol,
        /// As posted, in bytes.
        wanted: usize,
        /// As retrieved, in bytes.
        got: usize,
    },
    /// A written+read message arrived with other data than were written.
    #[error("{protocol}: the words of a message of {size} bytes sum to {got:#x}, {wanted:#x} were written")]
    WrongSum {
        /// How it travelled.
        protocol: Protocol,
        /// In bytes.
        size: usize,
        /// Of what was written.
        wanted: u64,
        /// Of what was read.
        got: u64,
    },
    /// A number that a group has reduced is not what it is by hand.
    #[error("all-reduce: number {index} is {got}, not {wanted}")]
    WrongNumber {
        /// In the slice.
        index: usize,
        /// By hand.
        wanted: f64,
        /// From the group.
        got: f64,
    },
    /// A block arrived from a group with other data than were written.
    #[error(
        "{operation}: the words of a block of {size} bytes that were looked at sum to {got:#x}, {wanted:#x} were written"
    )]
    WrongBlock {
        /// Of the group.
        operation: &'static str,
        /// In bytes.
        size: usize,
        /// Of what was written.
        wanted: u64,
        /// Of what was read.
        got: u64,
    },
    /// `verify` found messages that are not what was posted.
    #[error("verify: {0} messages did not arrive as they were posted")]
    Mismatch(u64),
    /// The job that `costs` starts did not do what it was to do.
    #[error(
        "{ranks} ranks did not all start and pass a barrier ({status}): the lines above say why; \
         --ranks starts fewer, 0 none"
    )]
    StartTime {
        /// As many as were asked for.
        ranks: u32,
        /// Of the launcher.
        status: String,
    },
    /// deckrun could not start a job.
    #[error(transparent)]
    Launch(#[from] deckrun::LaunchError),
    /// A rank's report is not what was asked for.
    #[error("rank 1 reported {0} words: do both ranks run the same deckperf?")]
    BadReport(usize),
}

/// Of a rank's work.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl<M> From<udeck::PostError<M>> for Failure {
    fn from(error: udeck::PostError<M>) -> Self {
        Failure::Library(error.into())
    }
}

impl Failure {
    /// Names what was tried when the system said no.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Failure::System { what, source }
    }
}
