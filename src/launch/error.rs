//! Why a job did not start, or could not be brought to an end.

use std::{ffi::OsString, io, process::ExitCode};

use udeck_boot::{MAX_RANKS, Ranks};

/// Why [`Job::run`](crate::Job::run) has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A job of no ranks.
    #[error("a job needs at least one rank (-n 1)")]
    NoRanks,
    /// More ranks than a launcher serves.
    #[error("{asked} ranks are too many: one deckrun starts at most {MAX_RANKS}")]
    TooManyRanks {
        /// How many were asked for.
        asked: u32,
    },
    /// Nothing to run.
    #[error("no program given: deckrun -n 4 PROGRAM [ARGUMENTS]")]
    NoProgram,
    /// An environment variable that cannot be set.
    #[error("the environment variable {}: {why}", name.display())]
    BadVariable {
        /// Its name.
        name: OsString,
        /// What is wrong.
        why: &'static str,
    },
    /// The program does not exist.
    #[error("{}: no such program (nor, for a script, its interpreter); looked {}", program.display(), looked(program))]
    NotFound {
        /// As given.
        program: OsString,
    },
    /// The program exists and cannot be run.
    #[error("{}: cannot be run ({source}); is it an executable file? (chmod +x)", program.display())]
    NotExecutable {
        /// As given.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// A rank could not be started for want of something.
    #[error("cannot start rank {rank} of {}: {source}", program.display())]
    Spawn {
        /// The first rank that could not; those before it have been ended again.
        rank: u32,
        /// As given.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// The hard limit on descriptors is too low.
    #[error(
        "{ranks} ranks need {needed} descriptors and the hard limit is {limit}: raise it (ulimit -Hn), or start fewer ranks"
    )]
    TooFewDescriptors {
        /// The ranks asked for.
        ranks: u32,
        /// The descriptors that they need.
        needed: u64,
        /// `RLIMIT_NOFILE`'s hard limit.
        limit: u64,
    },
    /// Ranks that do not end even when killed.
    #[error(
        "{} did not end after SIGKILL: stuck in the kernel, for instance on a dead file system",
        Ranks(ranks)
    )]
    Unkillable {
        /// Which.
        ranks: Vec<u32>,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl LaunchError {
    /// What a program should exit with: 2 for a wrong request, 127 and 126 as a shell has them for a program that is not
    /// there or cannot be run, 125 when the system refused.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            LaunchError::NoRanks
            | LaunchError::TooManyRanks { .. }
            | LaunchError::NoProgram
            | LaunchError::BadVariable { .. } => 2,
            LaunchError::NotFound { .. } => 127,
            LaunchError::NotExecutable { .. } => 126,
            LaunchError::Spawn { .. }
            | LaunchError::TooFewDescriptors { .. }
            | LaunchError::Unkillable { .. }
            | LaunchError::System { .. } => 125,
        })
    }

    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LaunchError {
        move |source| LaunchError::System { what, source: source.into() }
    }
}

fn looked(program: &OsString) -> &'static str {
    if program.as_encoded_bytes().contains(&b'/') {
        "there only"
    } else {
        "along PATH; for this folder write ./"
    }
}
