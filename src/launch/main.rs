//! `deckrun`: the command line over [`deckrun::Job`].

mod cli;

use std::{env, process::ExitCode};

use clap::Parser;

fn main() -> ExitCode {
    if let Some(code) = deckrun::serve_node(env::args_os()) {
        return code;
    }
    match cli::Cli::parse().job().run() {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => {
            eprintln!("deckrun: {error}");
            error.exit_code()
        }
    }
}
