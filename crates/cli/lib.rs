//! Parts that µDECK's command-line programs share: manual pages and completions, reading a file, errors with its name and
//! line, numbers with units, tables of words, exit codes, a progress bar, and the machine and its load as a report states them.
//!
//! Answers go to standard output, reasons for having none to standard error. The exit code is 0, or
//! [`Failure::exit_code`].

#![forbid(unsafe_code)]

pub mod columns;
mod failure;
pub mod load;
pub mod machine;
mod manual;
pub mod progress;
pub mod units;

pub use failure::{Failure, Problem};
pub use manual::Generate;

use clap::CommandFactory;
use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
    process::ExitCode,
};

/// Runs a program: prints its manual page or completions, or the text that `perform` returns for its command.
pub fn main<Options: CommandFactory, Command>(
    generate: Generate,
    command: Option<Command>,
    perform: impl FnOnce(&Command) -> Result<String, Failure>,
) -> ExitCode {
    let text = match (generate.text::<Options>(), command) {
        (Some(text), _) => Ok(text),
        (None, Some(command)) => perform(&command),
        (None, None) => Ok(String::new()),
    };
    match text.and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let name = Options::command().get_name().to_owned();
            let _ = io::stderr().write_all(format!("{name}: {failure}\n").as_bytes());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Writes to standard output. A closed pipe is no error: its reader has read what it wanted.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns the line, from 1, of a place in a text, in bytes.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// Reads a file (`-` for standard input) and passes its text to `answer`; a problem that `answer` returns gets the
/// file's name. `answer` also gets the file's folder: other files that the text names are relative to it.
///
/// # Errors
/// The file cannot be read, or `answer` returned a problem.
pub fn about<Answer>(
    file: &Path,
    answer: impl FnOnce(&str, &Path) -> Result<Answer, Problem>,
) -> Result<Answer, Failure> {
    let is_stdin = file == Path::new("-");
    let name = if is_stdin { "standard input".into() } else { file.display().to_string() };
    let mut text = String::new();
    let read =
        if is_stdin { io::stdin().read_to_string(&mut text).map(|_| text) } else { fs::read_to_string(file) };
    let text = read.map_err(|why| Failure::Read { file: name.clone(), why })?;
    let folder = file.parent().filter(|_| !is_stdin).unwrap_or(Path::new(""));
    answer(&text, folder).map_err(|problem| Failure::File { file: name, problem })
}
