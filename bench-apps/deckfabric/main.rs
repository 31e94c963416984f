//! `deckfabric`: runs scenarios on simulated networks. What moves packets is `udeck-fabric`; here are files, options and what is printed.

#[path = "../deckqos/columns.rs"]
mod columns;
mod dependent;
mod failure;
mod grid;
mod input;
mod network;
mod options;
mod papers;
mod progress;
mod report;
mod run;
mod stack;
#[cfg(test)]
mod tests;
mod topologies;

use clap::Parser;
use failure::{Failure, Problem};
use options::{Command, Example, Options};
use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
    process::ExitCode,
};

fn main() -> ExitCode {
    let options = Options::parse();
    let text = match (options.generate.text::<Options>(), options.command) {
        (Some(text), _) => Ok(text),
        (None, Some(command)) => perform(&command),
        (None, None) => Ok(String::new()),
    };
    match text.and_then(|text| written(io::stdout().write_all(text.as_bytes()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = io::stderr().write_all(format!("deckfabric: {failure}\n").as_bytes());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Who reads no further has read what it wanted.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// What is to be printed.
fn perform(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Run { example: Some(example), .. } => Ok(example.text().into()),
        Command::Run { file, format, seed, .. } => {
            let file = file.as_deref().unwrap_or(Path::new("-"));
            about(file, |text, folder| {
                let scenario = input::read(text, *seed)?;
                if scenario.traffic.is_empty() {
                    return dependent::run(&scenario, folder, *format);
                }
                let outcome = run::all(&scenario, folder)?;
                Ok(report::print(&scenario, &outcome, *format))
            })
        }
        Command::Papers { quick, output } => compare(*quick, output.as_deref()),
        Command::Topologies { file: None } => topologies::known().map_err(Failure::Run),
        Command::Topologies { file: Some(file) } => about(file, |text, folder| {
            let scenario = input::read(text, None)?;
            topologies::table(&[network::build(&scenario.topology, folder)?])
                .map_err(|why| Problem::wrong(None, why))
        }),
    }
}

/// The literature's figures and ours.
fn compare(quick: bool, output: Option<&Path>) -> Result<String, Failure> {
    let (extent, words) = match quick {
        true => (papers::Extent::Quick, "quick: small networks"),
        false => (papers::Extent::Reduced, "the published networks, for fewer cycles"),
    };
    let unwritable =
        |why| Failure::Write { file: output.unwrap_or(Path::new("")).display().to_string(), why };
    // Before minutes are spent on figures that have no place to go to.
    let file = output.map(fs::File::create).transpose().map_err(unwritable)?;
    let sections = papers::play(extent).map_err(Failure::Run)?;
    let text = papers::text(&sections);
    if let Some(mut file) = file {
        file.write_all(papers::html(&sections, words).as_bytes()).map_err(unwritable)?;
    }
    if papers::holds(&sections) { Ok(text) } else { Err(Failure::Claims(text)) }
}

/// Reads a file, and says whose problem it is. Files that it names are beside it.
fn about<Answer>(
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

impl Example {
    fn text(self) -> &'static str {
        match self {
            Self::Uniform => include_str!("uniform.toml"),
            Self::HotSpot => include_str!("hot-spot.toml"),
            Self::Classes => include_str!("classes.toml"),
            Self::Transpose => include_str!("transpose.toml"),
            Self::Trace => include_str!("trace.toml"),
            Self::Vef => include_str!("sample.vef"),
            Self::Mix => include_str!("mix.toml"),
        }
    }
}
