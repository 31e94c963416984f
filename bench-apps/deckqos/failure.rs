//! Why there is no answer.

use std::{fmt, io};

/// Something in a file, at a line if it is about one.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    pub line: Option<usize>,
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

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{file} cannot be read: {why}")]
    Read { file: String, why: io::Error },
    #[error("{file}:{}{}", .problem.line.map(|line| format!("{line}: ")).unwrap_or_else(|| " ".into()), .problem.reason)]
    File { file: String, problem: Problem },
    #[error("the options that were made cannot be read again ({0}): this is a defect of deckqos")]
    Unreadable(String),
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// 1 if a plan cannot be, 2 if something is wrong.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::File { problem, .. } if problem.cannot_be => 1,
            _ => 2,
        }
    }
}
