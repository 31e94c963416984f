//! `deckfabric`: runs scenarios on simulated networks. The library beside it (`fabric/`) simulates the packets; this program has the
//! files, options and reports.

mod dependent;
mod grid;
mod input;
mod network;
mod options;
mod papers;
mod play;
mod report;
mod run;
mod stack;
#[cfg(test)]
mod tests;
mod topologies;

use clap::Parser;
use options::{Command, Example, Options};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};
use udeck_cli::{Failure, Problem, about, print};
use udeck_fabric::admission;

fn main() -> ExitCode {
    let options = Options::parse();
    udeck_cli::main::<Options, _>(options.generate, options.command, perform)
}

/// Runs a command, and returns its output.
fn perform(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Run { example: Some(example), .. } => Ok(example.text().into()),
        Command::Run { file, format, seed, .. } => {
            let file = file.as_deref().unwrap_or(Path::new("-"));
            about(file, |text, folder| {
                let scenario = input::read(text, *seed)?;
                if scenario.trace.is_some() || scenario.collective.is_some() {
                    return dependent::run(&scenario, folder, *format);
                }
                let outcome = run::all(&scenario, folder)?;
                Ok(report::print(&scenario, &outcome, *format))
            })
        }
        Command::Play { file, warm_up, measured, format } => about(file, |text, folder| {
            let (plan, cycles) = (admission::read(text, folder)?, (*warm_up, *measured));
            let played = play::play(&plan, &plan.admit(), cycles)?;
            let answer = play::print(&plan, &played, cycles, *format);
            match played.late() {
                0 => Ok(answer),
                late => {
                    Err(Problem::cannot(None, format!("{late} packets came after their deadline\n{answer}")))
                }
            }
        }),
        Command::Papers { quick, only, output } => {
            compare(*quick, only, output.as_deref()).map(|()| String::new())
        }
        Command::Topologies { file: None } => topologies::known().map_err(Failure::Cannot),
        Command::Topologies { file: Some(file) } => about(file, |text, folder| {
            let scenario = input::read(text, None)?;
            topologies::table(&[network::build(&scenario, folder)?]).map_err(|why| Problem::wrong(None, why))
        }),
    }
}

/// Prints the literature's figures beside ours, each part as soon as it is complete.
fn compare(quick: bool, only: &str, output: Option<&Path>) -> Result<(), Failure> {
    let (extent, words) = match quick {
        true => (papers::Extent::Quick, "quick: small networks"),
        false => (papers::Extent::Reduced, "the published networks, for fewer cycles"),
    };
    let unwritable =
        |why| Failure::Write { file: output.unwrap_or(Path::new("")).display().to_string(), why };
    // The file is created before minutes are spent on figures that could not be written.
    let unfinished = output.map(|output| {
        let mut name = output.as_os_str().to_owned();
        name.push(".part");
        PathBuf::from(name)
    });
    let file = unfinished.as_ref().map(fs::File::create).transpose().map_err(unwritable)?;
    let mut printed = Ok(());
    let sections = papers::run(extent, only, |section| {
        if printed.is_ok() {
            printed = print(&papers::text(section));
        }
    });
    if sections.is_empty() {
        return Err(Failure::Cannot(format!(
            "no part has a title with {only:?}: leave --only out to see all titles"
        )));
    }
    if let Some(mut file) = file {
        file.write_all(papers::html(&sections, words).as_bytes()).map_err(unwritable)?;
    }
    if let (Some(unfinished), Some(output)) = (unfinished, output) {
        fs::rename(unfinished, output).map_err(unwritable)?;
    }
    printed?;
    match papers::unmet(&sections) {
        unmet if unmet.is_empty() => Ok(()),
        unmet => Err(Failure::Cannot(format!("not all that must hold does:\n  {}", unmet.join("\n  ")))),
    }
}

impl Example {
    fn text(self) -> &'static str {
        match self {
            Self::Uniform => include_str!("uniform.toml"),
            Self::HotSpot => include_str!("hot-spot.toml"),
            Self::Classes => include_str!("classes.toml"),
            Self::OmniPath => include_str!("omni-path.toml"),
            Self::Transpose => include_str!("transpose.toml"),
            Self::Incast => include_str!("incast.toml"),
            Self::Trace => include_str!("trace.toml"),
            Self::Vef => include_str!("sample.vef"),
            Self::Mix => include_str!("mix.toml"),
        }
    }
}
