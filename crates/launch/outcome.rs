//! The ends of ranks and jobs, and their exit codes.

use std::{
    fmt,
    os::unix::process::ExitStatusExt,
    process::{ExitCode, ExitStatus},
};

use rustix::process::WaitIdStatus;

/// How one rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The rank exited by itself, with this code.
    Exited(i32),
    /// A signal of this number killed the rank.
    Killed(i32),
    /// The rank's host is out of reach, or deckrun's process there has ended, and the rank with it.
    Lost,
}

/// The failure of a rank that the launcher had not told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankFailure {
    /// The rank.
    pub rank: u32,
    /// How the rank ended.
    pub end: End,
}

/// Why the launcher ended the job before the ranks did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// A rank failed, and the job aborts on failure.
    Failure,
    /// The launcher was sent this signal.
    Signal(i32),
    /// The job's time was up.
    Timeout {
        /// The ranks that were still running, sorted.
        running: Vec<u32>,
    },
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The ranks that failed, in the order in which the launcher noticed.
    pub failures: Vec<RankFailure>,
    /// The deaths that do not count because other ranks survived them
    /// ([`OnFailure::Survive`](crate::OnFailure::Survive)), in the same order.
    pub survived: Vec<RankFailure>,
    /// The reason for an early end, if there was one.
    pub stop: Option<Stop>,
}

impl Outcome {
    /// Returns the exit code for the job's program, as [`code`](Outcome::code) has it.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    /// Moves the deaths from the failures to [`survived`](Outcome::survived), unless all `size` ranks died.
    pub(crate) fn survive(&mut self, size: u32) {
        let is_death = |failure: &mut RankFailure| matches!(failure.end, End::Killed(_) | End::Lost);
        let deaths: Vec<_> = self.failures.extract_if(.., is_death).collect();
        match deaths.len() == size as usize {
            true => self.failures = deaths,
            false => self.survived = deaths,
        }
    }

    /// Returns the text for a job of `size` ranks that ended by itself after deaths that do not count.
    pub(crate) fn summary(&self, size: u32) -> Option<String> {
        if self.survived.is_empty() || self.stop.is_some() {
            return None;
        }
        let lost: Vec<_> =
            self.survived.iter().map(|RankFailure { rank, end }| format!("rank {rank} {end}")).collect();
        let (left, how) =
            (size as usize - lost.len(), if self.failures.is_empty() { "survived" } else { "were left" });
        Some(format!("{left} of {size} ranks {how}: {}", lost.join(", ")))
    }

    /// Returns 0 if all went well, 124 after a timeout, and 128 + its number after a signal to the launcher.
    /// Otherwise it is the code of the first failed rank: for a rank killed by a signal 128 + its number, for
    /// one lost with its host 137, as if killed.
    pub fn code(&self) -> u8 {
        match (&self.stop, self.failures.first()) {
            (Some(Stop::Timeout { .. }), _) => 124,
            (Some(Stop::Signal(number)), _) => End::Killed(*number).code(),
            (_, Some(failure)) => failure.end.code(),
            (_, None) => 0,
        }
    }
}

impl End {
    pub(crate) fn new(status: &WaitIdStatus) -> End {
        match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => End::Killed(signal),
            (None, code) => End::Exited(code.unwrap_or_default()),
        }
    }

    /// Converts the status of a process that the standard library has waited for.
    pub(crate) fn of(status: ExitStatus) -> End {
        match status.signal() {
            Some(signal) => End::Killed(signal),
            None => End::Exited(status.code().unwrap_or_default()),
        }
    }

    /// Tells whether this is anything but an exit with code 0.
    pub fn is_failure(self) -> bool {
        self != End::Exited(0)
    }

    pub(crate) fn code(self) -> u8 {
        // Both values are below 256 by the system's definition.
        match self {
            End::Exited(code) => code as u8,
            End::Killed(signal) => (128 + signal) as u8,
            End::Lost => (128 + libc::SIGKILL) as u8,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exited(code) => write!(f, "exited with code {code}"),
            End::Killed(signal) => write!(f, "killed by {}", SignalName(*signal)),
            End::Lost => f.write_str("lost with its host"),
        }
    }
}

/// A signal's name, or its number if it has no common name.
pub(crate) struct SignalName(pub i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            libc::SIGHUP => "SIGHUP",
            libc::SIGINT => "SIGINT",
            libc::SIGQUIT => "SIGQUIT",
            libc::SIGILL => "SIGILL",
            libc::SIGTRAP => "SIGTRAP",
            libc::SIGABRT => "SIGABRT",
            libc::SIGBUS => "SIGBUS",
            libc::SIGFPE => "SIGFPE",
            libc::SIGKILL => "SIGKILL",
            libc::SIGUSR1 => "SIGUSR1",
            libc::SIGSEGV => "SIGSEGV",
            libc::SIGUSR2 => "SIGUSR2",
            libc::SIGPIPE => "SIGPIPE",
            libc::SIGALRM => "SIGALRM",
            libc::SIGTERM => "SIGTERM",
            libc::SIGXCPU => "SIGXCPU",
            libc::SIGXFSZ => "SIGXFSZ",
            libc::SIGSYS => "SIGSYS",
            number => return write!(f, "signal {number}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(failures: &[End], stop: Option<Stop>) -> Outcome {
        let failures = failures.iter().map(|&end| RankFailure { rank: 0, end }).collect();
        Outcome { failures, stop, ..Outcome::default() }
    }

    #[test]
    fn deaths_that_some_ranks_survived_do_not_count() {
        let killed = End::Killed(libc::SIGKILL);
        let survived = |failures: &[End], size| {
            let mut outcome = outcome(failures, None);
            outcome.survive(size);
            (outcome.code(), outcome.survived.len())
        };
        assert_eq!(survived(&[killed, End::Lost], 3), (0, 2));
        assert_eq!(survived(&[killed, End::Exited(3)], 3), (3, 1), "an exit code is the rank's own word");
        assert_eq!(survived(&[killed, End::Lost], 2), (137, 0), "nobody is left to succeed");
        assert_eq!(survived(&[], 2), (0, 0));
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        let segv = End::Killed(libc::SIGSEGV);
        assert_eq!(outcome(&[], None).code(), 0);
        assert_eq!(outcome(&[End::Exited(3), segv], Some(Stop::Failure)).code(), 3);
        assert_eq!(outcome(&[segv, End::Exited(3)], None).code(), 139);
        assert_eq!(outcome(&[segv], Some(Stop::Timeout { running: vec![1] })).code(), 124);
        assert_eq!(outcome(&[segv], Some(Stop::Signal(libc::SIGINT))).code(), 130);
        assert_eq!(outcome(&[End::Lost, segv], None).code(), 137);
    }

    #[test]
    fn ends_are_said_in_words() {
        assert_eq!(End::Killed(libc::SIGSEGV).to_string(), "killed by SIGSEGV");
        assert_eq!(End::Killed(40).to_string(), "killed by signal 40");
        assert_eq!(End::Exited(3).to_string(), "exited with code 3");
    }
}
