//! Why there is no answer.

use std::{fmt, io};

/// Something in a file, at a line if it is about one.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    pub line: Option<usize>,
    pub reason: String,
    /// The file is right, but what it asks for came to a stop.
    pub stopped: bool,
}

impl Problem {
    /// The file is wrong.
    pub fn wrong(line: impl Into<Option<usize>>, reason: impl fmt::Display) -> Self {
        Self { line: line.into(), reason: reason.to_string(), stopped: false }
    }

    /// The run has come to a stop.
    pub fn stopped(reason: impl fmt::Display) -> Self {
        Self { stopped: true, ..Self::wrong(None, reason) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{file} cannot be read: {why}")]
    Read { file: String, why: io::Error },
    #[error("{file}:{}{}", .problem.line.map(|line| format!("{line}: ")).unwrap_or_else(|| " ".into()), .problem.reason)]
    File { file: String, problem: Problem },
    #[error("{file} cannot be written: {why}")]
    Write { file: String, why: io::Error },
    #[error("{0}")]
    Run(String),
    #[error("not all that must hold does:\n\n{0}")]
    Claims(String),
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// 1 if a run came to a stop, 2 if something is wrong.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::File { problem, .. } if problem.stopped => 1,
            Self::Run(_) | Self::Claims(_) => 1,
            _ => 2,
        }
    }
}
