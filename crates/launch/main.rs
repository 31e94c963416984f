//! `deckrun`: the command line over [`deckrun::Job`].

#![deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)]

mod cli;

use std::{
    env,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::Parser;
use deckrun::{Allocation, Job};
use udeck_sys::stderr_line;

/// Exit code for a wrong command line.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    if let Some(code) = deckrun::serve_node(env::args_os()) {
        return code;
    }
    let cli = cli::Cli::parse();
    if let Some(text) = cli.generate.text::<cli::Cli>() {
        // A reader that closes the pipe early has read what it wanted.
        let _ = io::stdout().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    if let Some(pid) = cli.status {
        return status(pid);
    }
    let found = if cli.has_no_hosts() { Allocation::find() } else { Ok(None) };
    if cli.doctor {
        // A fault of the allocation stands in the report.
        return doctor(&cli.job(found.ok().flatten()));
    }
    let allocation = match found {
        Ok(allocation) => allocation,
        Err(error) => {
            stderr_line(format_args!("deckrun: {error}"));
            return ExitCode::from(WRONG_USAGE);
        }
    };
    match cli.job(allocation).run() {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => {
            stderr_line(format_args!("deckrun: {error}"));
            error.exit_code()
        }
    }
}

fn status(pid: u32) -> ExitCode {
    match deckrun::status(pid) {
        Ok(report) => {
            // A reader that closes the pipe early has read what it wanted.
            let _ = io::stdout().write_all(report.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => {
            stderr_line(format_args!("deckrun: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn doctor(job: &Job) -> ExitCode {
    match job.examine(io::stdout().is_terminal()) {
        Ok(diagnosis) => {
            // A reader that closes the pipe early has read what it wanted.
            let _ = io::stdout().write_all(diagnosis.text.as_bytes());
            if diagnosis.can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            stderr_line(format_args!("deckrun: {error}"));
            error.exit_code()
        }
    }
}
