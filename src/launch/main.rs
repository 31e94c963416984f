//! `deckrun`: the command line over [`deckrun::Job`].

#![deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)]

mod cli;

use std::{
    env,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::Parser;
use deckrun::Job;
use udeck_sys::stderr_line;

fn main() -> ExitCode {
    if let Some(code) = deckrun::serve_node(env::args_os()) {
        return code;
    }
    let cli = cli::Cli::parse();
    if let Some(pid) = cli.status {
        return status(pid);
    }
    if cli.doctor {
        return doctor(&cli.job());
    }
    match cli.job().run() {
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
            // Who reads no further has read what it wanted.
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
            // Who reads no further has read what it wanted.
            let _ = io::stdout().write_all(diagnosis.text.as_bytes());
            if diagnosis.can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            stderr_line(format_args!("deckrun: {error}"));
            error.exit_code()
        }
    }
}
