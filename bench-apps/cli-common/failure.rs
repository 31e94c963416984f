//! Why there is no answer.

use std::{fmt, io};

/// Something in a file, at a line if it is about one.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    /// From 1.
    pub line: Option<usize>,
    /// In a sentence.
    pub reason: String,
    /// The file is right, but what it asks for cannot be had.
    pub cannot_be: bool,
}

impl Problem {
    /// The file is wrong.
    pub fn wrong(line: impl Into<Option<usize>>, reason: impl fmt::Display) -> Self {
        Self { line: line.into(), reason: reason.to_string(), cannot_be: false }
    }

    /// What it asks for cannot be.
    pub fn cannot(line: impl Into<Option<usize>>, reason: impl fmt::Display) -> Self {
        Self { cannot_be: true, ..Self::wrong(line, reason) }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file.
    #[error("{file} cannot be read: {why}")]
    Read {
        /// Its name.
        file: String,
        /// The system's reason.
        why: io::Error,
    },
    /// What is in it.
    #[error("{file}:{}{}", .problem.line.map(|line| format!("{line}: ")).unwrap_or_else(|| " ".into()), .problem.reason)]
    File {
        /// Its name.
        file: String,
        /// What is the matter.
        problem: Problem,
    },
    /// A file that was asked for.
    #[error("{file} cannot be written: {why}")]
    Write {
        /// Its name.
        file: String,
        /// The system's reason.
        why: io::Error,
    },
    /// Nothing is wrong with files and options, but there is no answer, or not the one that must be.
    #[error("{0}")]
    Cannot(String),
    /// A defect of the program.
    #[error("{0}: this is a defect of the program")]
    Defect(String),
    /// Standard output.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// 1 if it cannot be, 2 if something is wrong.
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
