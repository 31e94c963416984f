//! Reports of a job's result, from a watcher to its guard, and from the guard to its caller.

use std::{ffi::OsString, path::Path};

use serde::{Deserialize, Serialize};
use udeck_boot::wire::{Frames, encode};

use crate::{
    End, LaunchError, Outcome, RankFailure, Stop, control::wire::NotStarted, node::refusal, remote::in_words,
};

#[derive(Serialize, Deserialize)]
enum Report {
    Outcome {
        failures: Vec<(u32, ReportedEnd)>,
        survived: Vec<(u32, ReportedEnd)>,
        stop: Option<Why>,
    },
    NotStarted(NotStarted),
    /// An error of which only the text and the exit code come back.
    Failed {
        words: String,
        code: u8,
    },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum ReportedEnd {
    Exited(i32),
    Killed(i32),
    Lost,
}

#[derive(Serialize, Deserialize)]
enum Why {
    Failure,
    Signal(i32),
    Timeout(Vec<u32>),
}

/// Encodes the result for the guard. The encoding is empty if it is too long, which no job's is.
pub(crate) fn encoded(result: Result<Outcome, LaunchError>) -> Vec<u8> {
    let report = match result {
        Ok(Outcome { failures, survived, stop }) => Report::Outcome {
            failures: reported(failures),
            survived: reported(survived),
            stop: stop.map(|stop| match stop {
                Stop::Failure => Why::Failure,
                Stop::Signal(number) => Why::Signal(number),
                Stop::Timeout { running } => Why::Timeout(running),
            }),
        },
        Err(error) => {
            let (words, code) = (error.to_string(), error.code());
            match refusal(error) {
                NotStarted::Other { .. } => Report::Failed { words, code },
                known => Report::NotStarted(known),
            }
        }
    };
    let mut bytes = Vec::new();
    let _ = encode(&report, &mut bytes);
    bytes
}

/// Returns the result of the job of `program`. A watcher that was killed by a signal that ends jobs counts as
/// stopped by that signal.
pub(crate) fn decoded(said: Result<Vec<u8>, End>, program: &OsString) -> Result<Outcome, LaunchError> {
    let bytes = match said {
        Ok(bytes) => bytes,
        Err(End::Killed(signal @ (libc::SIGINT | libc::SIGTERM | libc::SIGHUP))) => {
            return Ok(Outcome { stop: Some(Stop::Signal(signal)), ..Outcome::default() });
        }
        Err(how) => return Err(LaunchError::WatcherLost { how }),
    };
    let mut frames = Frames::default();
    frames.push(&bytes);
    match frames.decode() {
        Ok(Some(Report::Outcome { failures, survived, stop })) => Ok(Outcome {
            failures: read(failures),
            survived: read(survived),
            stop: stop.map(|why| match why {
                Why::Failure => Stop::Failure,
                Why::Signal(number) => Stop::Signal(number),
                Why::Timeout(running) => Stop::Timeout { running },
            }),
        }),
        Ok(Some(Report::NotStarted(why))) => Err(in_words(why, program, Path::new(""))),
        Ok(Some(Report::Failed { words, code })) => Err(LaunchError::Told { words, code }),
        Ok(None) | Err(_) => Err(LaunchError::WatcherLost { how: End::Exited(0) }),
    }
}

fn reported(failures: Vec<RankFailure>) -> Vec<(u32, ReportedEnd)> {
    failures.into_iter().map(|failure| (failure.rank, how(failure.end))).collect()
}

fn read(failures: Vec<(u32, ReportedEnd)>) -> Vec<RankFailure> {
    failures.into_iter().map(|(rank, how)| RankFailure { rank, end: end(how) }).collect()
}

fn how(end: End) -> ReportedEnd {
    match end {
        End::Exited(code) => ReportedEnd::Exited(code),
        End::Killed(signal) => ReportedEnd::Killed(signal),
        End::Lost => ReportedEnd::Lost,
    }
}

fn end(how: ReportedEnd) -> End {
    match how {
        ReportedEnd::Exited(code) => End::Exited(code),
        ReportedEnd::Killed(signal) => End::Killed(signal),
        ReportedEnd::Lost => End::Lost,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn told(result: Result<Outcome, LaunchError>) -> Result<Outcome, LaunchError> {
        decoded(Ok(encoded(result)), &"prog".into())
    }

    #[test]
    fn outcomes_come_back() {
        let failures =
            [End::Exited(3), End::Killed(11), End::Lost].map(|end| RankFailure { rank: 5, end }).to_vec();
        for stop in
            [None, Some(Stop::Failure), Some(Stop::Signal(2)), Some(Stop::Timeout { running: vec![1, 4] })]
        {
            let survived = vec![RankFailure { rank: 1, end: End::Killed(9) }];
            let outcome = Outcome { failures: failures.clone(), survived, stop };
            assert_eq!(told(Ok(outcome.clone())).unwrap(), outcome);
        }
    }

    #[test]
    fn errors_come_back_in_the_same_words_and_with_the_same_code() {
        let os = || io::Error::from_raw_os_error(libc::EACCES);
        let program = || OsString::from("prog");
        for error in [
            LaunchError::NotFound { program: program() },
            LaunchError::NotExecutable { program: program(), source: os() },
            LaunchError::Spawn { rank: 3, program: program(), source: os() },
            LaunchError::TooFewDescriptors { ranks: 9, needed: 90, limit: 10 },
            LaunchError::Unkillable { ranks: vec![1] },
            LaunchError::Interface { asked: "e0".into(), why: "down".into(), existing: "lo".into() },
            LaunchError::System { what: "waiting", source: os() },
        ] {
            let (words, code) = (error.to_string(), error.code());
            let again = told(Err(error)).unwrap_err();
            assert_eq!((again.to_string(), again.code()), (words, code));
        }
        let error = told(Err(LaunchError::NotFound { program: program() })).unwrap_err();
        assert!(matches!(error, LaunchError::NotFound { .. }), "a program can tell them apart");
    }

    #[test]
    fn a_watcher_that_says_nothing_was_ended() {
        let program = "prog".into();
        let interrupted = decoded(Err(End::Killed(libc::SIGTERM)), &program).unwrap();
        assert_eq!(interrupted.stop, Some(Stop::Signal(libc::SIGTERM)));
        let killed = decoded(Err(End::Killed(libc::SIGKILL)), &program).unwrap_err();
        assert!(killed.to_string().contains("killed by SIGKILL") && killed.code() == 137, "{killed}");
        for cut in [&b""[..], &[1, 0], &[1, 0, 0, 0, 9]] {
            assert!(matches!(decoded(Ok(cut.to_vec()), &program), Err(LaunchError::WatcherLost { .. })));
        }
    }
}
