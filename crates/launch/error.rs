//! Why a job did not start, or could not be brought to an end.

use std::{ffi::OsString, fmt, io, path::PathBuf, process::ExitCode};

use udeck_boot::{MAX_RANKS, Ranks};

use crate::End;

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
    /// Another job of this process runs.
    #[error("this process runs a job already: one at a time")]
    Busy,
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
    /// More ranks than the hosts have slots for.
    #[error("{ranks} ranks and only {slots} slots: {hosts}. Give the hosts more (a:4), or start fewer ranks")]
    TooFewSlots {
        /// The ranks asked for.
        ranks: u32,
        /// All hosts' slots together.
        slots: u32,
        /// The hosts, as they were given.
        hosts: String,
    },
    /// More ranks than the batch system has given slots for.
    #[error(
        "{ranks} ranks and only {slots} slots in {hosts}. Start fewer ranks, {more}, or say by --hosts where they run: \
         a:2,b:2, or localhost:{ranks} for this host alone"
    )]
    SmallAllocation {
        /// The ranks asked for.
        ranks: u32,
        /// All slots together.
        slots: u32,
        /// Whose job it is, and its hosts.
        hosts: String,
        /// How to get more.
        more: String,
    },
    /// Hosts' names of an unreasonable length.
    #[error("the names of the hosts together have {length} bytes: at most {limit} are possible")]
    HostNamesTooLong {
        /// Their length together in bytes.
        length: usize,
        /// The bound.
        limit: usize,
    },
    /// What was asked for as interface is none of this host's, or of no use.
    #[error("--iface {asked}: {why}. This host has: {existing}")]
    Interface {
        /// As given.
        asked: String,
        /// What is wrong with it.
        why: String,
        /// Its interfaces and their addresses.
        existing: String,
    },
    /// Another host could not be brought into the job.
    #[error("host {host}, {step}: {why}")]
    Host {
        /// Which.
        host: String,
        /// What was being done.
        step: Step,
        /// What went wrong, and what to do.
        why: String,
    },
    /// The ranks of another host could not be started.
    #[error("host {host}: {source}")]
    OnHost {
        /// Which.
        host: String,
        /// Why, as that host sees it.
        source: Box<LaunchError>,
    },
    /// A host without the folder in which the job was started.
    #[error(
        "cannot enter the folder {} ({source}): ranks run everywhere in the folder in which deckrun was started; start it \
         in one that all hosts have",
        directory.display()
    )]
    NoDirectory {
        /// The folder.
        directory: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Command and environment are too long to be sent to other hosts.
    #[error(
        "the program's arguments and environment are too long for a job on several hosts ({why}): pass a file instead"
    )]
    JobSpecTooLong {
        /// The bound that they exceed.
        why: String,
    },
    /// The process that watched over the job ended in the middle of it. Everything that the job had started was ended.
    #[error(
        "the process that watches over the job was lost ({how}); everything that it had started has been ended"
    )]
    WatcherLost {
        /// How it ended.
        how: End,
    },
    /// As the process says it that watched over the job.
    #[error("{words}")]
    Told {
        /// In its words.
        words: String,
        /// See [`exit_code`](LaunchError::exit_code).
        code: u8,
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

/// What has to be done to bring another host into a job, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Finding its address.
    Resolve,
    /// Starting deckrun there, through the agent.
    Agent,
    /// That deckrun's connecting back.
    Connect,
    /// Its proof that it knows the key that it shares with the launcher.
    Prove,
    /// Its starting the ranks.
    Start,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Resolve => "resolve",
            Step::Agent => "agent",
            Step::Connect => "connect",
            Step::Prove => "prove",
            Step::Start => "start",
        })
    }
}

impl LaunchError {
    /// What a program should exit with: 2 for a wrong request, 127 and 126 as a shell has them for a program that is not
    /// there or cannot be run, 125 when the system refused.
    /// A job whose watcher was lost: 128 and the number of the signal that killed that.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            LaunchError::NoRanks
            | LaunchError::TooManyRanks { .. }
            | LaunchError::NoProgram
            | LaunchError::TooFewSlots { .. }
            | LaunchError::SmallAllocation { .. }
            | LaunchError::HostNamesTooLong { .. }
            | LaunchError::Interface { .. }
            | LaunchError::JobSpecTooLong { .. }
            | LaunchError::BadVariable { .. } => 2,
            LaunchError::OnHost { source, .. } => source.code(),
            LaunchError::Told { code, .. } => *code,
            LaunchError::WatcherLost { how: how @ End::Killed(_) } => how.code(),
            LaunchError::NotFound { .. } => 127,
            LaunchError::NotExecutable { .. } => 126,
            LaunchError::Spawn { .. }
            | LaunchError::TooFewDescriptors { .. }
            | LaunchError::Host { .. }
            | LaunchError::NoDirectory { .. }
            | LaunchError::Unkillable { .. }
            | LaunchError::Busy
            | LaunchError::WatcherLost { .. }
            | LaunchError::System { .. } => 125,
        }
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
