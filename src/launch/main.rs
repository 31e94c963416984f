//! `deckrun`: the command line over [`deckrun::Job`].

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Cli::parse().job().run() {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => {
            eprintln!("deckrun: {error}");
            error.exit_code()
        }
    }
}
