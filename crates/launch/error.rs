//! Errors: why a job did not start, or could not be brought to an end.

use std::{ffi::OsString, fmt, io, path::PathBuf, process::ExitCode};

use udeck_boot::{MAX_RANKS, Ranks};

use crate::End;

/// Why [`Job::run`](crate::Job::run) has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The job has no ranks.
    #[error("a job needs at least one rank (-n 1)")]
    NoRanks,
    /// The job has more ranks than a launcher serves.
    #[error("{asked} ranks are too many: one deckrun starts at most {MAX_RANKS}")]
    TooManyRanks {
        /// The number of ranks asked for.
        asked: u32,
    },
    /// The job has no program.
    #[error("no program given: deckrun -n 4 PROGRAM [ARGUMENTS]")]
    NoProgram,
    /// Another job of this process is running.
    #[error("this process runs a job already: one at a time")]
    Busy,
    /// An environment variable cannot be set.
    #[error("the environment variable {}: {why}", name.display())]
    BadVariable {
        /// The variable's name.
        name: OsString,
        /// The fault of its name or value.
        why: &'static str,
    },
    /// The program does not exist.
    #[error("{}: no such program (nor, for a script, its interpreter); looked {}", program.display(), looked(program))]
    NotFound {
        /// The program, as given.
        program: OsString,
    },
    /// The program exists and cannot be run.
    #[error("{}: cannot be run ({source}); is it an executable file? (chmod +x)", program.display())]
    NotExecutable {
        /// The program, as given.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// A rank could not be started, for lack of a resource.
    #[error("cannot start rank {rank} of {}: {source}", program.display())]
    Spawn {
        /// The first rank that could not be started. The ranks before it have been ended again.
        rank: u32,
        /// The program, as given.
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
    /// Some ranks did not end even when killed.
    #[error(
        "{} did not end after SIGKILL: stuck in the kernel, for instance on a dead file system",
        Ranks(ranks)
    )]
    Unkillable {
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// The job has more ranks than the hosts have slots.
    #[error("{ranks} ranks and only {slots} slots: {hosts}. Give the hosts more (a:4), or start fewer ranks")]
    TooFewSlots {
        /// The ranks asked for.
        ranks: u32,
        /// All hosts' slots together.
        slots: u32,
        /// The hosts, as they were given.
        hosts: String,
    },
    /// The job has more ranks than the batch system has given slots.
    #[error(
        "{ranks} ranks and only {slots} slots in {hosts}. Start fewer ranks, {more}, or say by --hosts where they run: \
         a:2,b:2, or localhost:{ranks} for this host alone"
    )]
    SmallAllocation {
        /// The ranks asked for.
        ranks: u32,
        /// All slots together.
        slots: u32,
        /// The batch system's job, and its hosts.
        hosts: String,
        /// How to get more slots.
        more: String,
    },
    /// The hosts' names are unreasonably long.
    #[error("the names of the hosts together have {length} bytes: at most {limit} are possible")]
    HostNamesTooLong {
        /// Length of all names together, in bytes.
        length: usize,
        /// Upper bound of `length`, in bytes.
        limit: usize,
    },
    /// The interface that was asked for is not on this host, or cannot be used.
    #[error("--iface {asked}: {why}. This host has: {existing}")]
    Interface {
        /// The interface, as given.
        asked: String,
        /// The reason.
        why: String,
        /// This host's interfaces and their addresses.
        existing: String,
    },
    /// Another host could not be brought into the job.
    #[error("host {host}, {step}: {why}")]
    Host {
        /// The host's name.
        host: String,
        /// The step that failed.
        step: Step,
        /// The reason, and what the user can do.
        why: String,
    },
    /// The ranks of another host could not be started.
    #[error("host {host}: {source}")]
    OnHost {
        /// The host's name.
        host: String,
        /// The error, as that host sees it.
        source: Box<LaunchError>,
    },
    /// A host does not have the folder in which the job was started.
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
        /// The bound that is exceeded.
        why: String,
    },
    /// The process that watched over the job ended before the job did. Everything that the job had started was
    /// ended.
    #[error(
        "the process that watches over the job was lost ({how}); everything that it had started has been ended"
    )]
    WatcherLost {
        /// How it ended.
        how: End,
    },
    /// An error of the process that watched over the job.
    #[error("{words}")]
    Told {
        /// Its text.
        words: String,
        /// See [`exit_code`](LaunchError::exit_code).
        code: u8,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Steps of bringing another host into a job, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Finding the host's address.
    Resolve,
    /// Starting deckrun on the host, through the agent.
    Agent,
    /// Connecting back, by the host's deckrun.
    Connect,
    /// Proving that it knows the key that it shares with the launcher, by the host's deckrun.
    Prove,
    /// Starting the ranks, by the host's deckrun.
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
    /// Returns the exit code for a program with this error: 2 for a wrong request; 127 for a program that is
    /// not there and 126 for one that cannot be run, as in a shell; 125 when the system refused. For a lost
    /// watcher, 128 and the number of the signal that killed it.
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
