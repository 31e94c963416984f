//! Errors of a program: the reasons why it gives no answer.

use std::{fmt, io};

/// A problem in a file, at a line if it is about one.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    /// Number of the line, from 1.
    pub line: Option<usize>,
    /// Reason, as a sentence.
    pub reason: String,
    /// Whether the file is valid, but its demands cannot be met.
    pub cannot_be: bool,
}

impl Problem {
    /// Makes the problem of an invalid file.
    pub fn wrong(line: impl Into<Option<usize>>, reason: impl fmt::Display) -> Self {
        Self { line: line.into(), reason: reason.to_string(), cannot_be: false }
    }

    /// Makes the problem of a valid file whose demands cannot be met.
    pub fn cannot(line: impl Into<Option<usize>>, reason: impl fmt::Display) -> Self {
        Self { cannot_be: true, ..Self::wrong(line, reason) }
    }
}

/// Reason why a program gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file cannot be read.
    #[error("{file} cannot be read: {why}")]
    Read {
        /// Name of the file.
        file: String,
        /// Reason that the system gave.
        why: io::Error,
    },
    /// A file has a problem.
    #[error("{file}:{}{}", .problem.line.map(|line| format!("{line}: ")).unwrap_or_else(|| " ".into()), .problem.reason)]
    File {
        /// Name of the file.
        file: String,
        /// Problem in the file.
        problem: Problem,
    },
    /// An output file cannot be written.
    #[error("{file} cannot be written: {why}")]
    Write {
        /// Name of the file.
        file: String,
        /// Reason that the system gave.
        why: io::Error,
    },
    /// Files and options are valid, but there is no answer, or not the required one.
    #[error("{0}")]
    Cannot(String),
    /// The program has a defect.
    #[error("{0}: this is a defect of the program")]
    Defect(String),
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Exit code: 1 if the demand cannot be met, 2 for all other failures.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::File { problem, .. } if problem.cannot_be => 1,
            Self::Cannot(_) => 1,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_file_and_line_and_whether_the_file_is_wrong() {
        let of = |problem| Failure::File { file: "a.toml".into(), problem };
        let (wrong, cannot) = (of(Problem::wrong(3, "no")), of(Problem::cannot(None, "no")));
        assert_eq!((wrong.to_string(), wrong.exit_code()), ("a.toml:3: no".into(), 2));
        assert_eq!((cannot.to_string(), cannot.exit_code()), ("a.toml: no".into(), 1));
        assert_eq!(Failure::Cannot("no".into()).exit_code(), 1);
    }
}
