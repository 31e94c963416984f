//! `deckqos`: plans and examines arbitration tables. What it computes is `udeck-qos`; here are files, options and what is printed.

mod columns;
mod failure;
mod input;
mod options;
mod planning;
mod report;
#[cfg(test)]
mod tests;
mod units;

use clap::Parser;
use failure::{Failure, Problem};
use input::Input;
use options::{Command, Example, Format, Options};
use report::Traffic;
use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
    process::ExitCode,
};
use udeck_qos::{opensm, vl_arbiter::LowTurn};

const INFINIBAND: &str = include_str!("infiniband.toml");
const DTABLE: &str = include_str!("dtable.toml");

fn main() -> ExitCode {
    let options = Options::parse();
    let text = match (options.generate.text::<Options>(), options.command) {
        (Some(text), _) => Ok(text),
        (None, Some(command)) => run(&command),
        (None, None) => Ok(String::new()),
    };
    match text.and_then(|text| written(io::stdout().write_all(text.as_bytes()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = io::stderr().write_all(format!("deckqos: {failure}\n").as_bytes());
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
fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Plan { example: Some(Example::Infiniband), .. } => Ok(INFINIBAND.into()),
        Command::Plan { example: Some(Example::Dtable), .. } => Ok(DTABLE.into()),
        Command::Plan { file, format, .. } => {
            let file = file.as_deref().unwrap_or(Path::new("-"));
            about(file, |text| plan(text, *format))
        }
        Command::Analyse { file, rate, mtu, packet, low_turn, ports, format } => about(file, |text| {
            let traffic = Traffic {
                rate: *rate,
                mtu: *mtu,
                packet: packet.unwrap_or(*mtu),
                low_turn: (*low_turn).into(),
            };
            analyse(text, (*ports).into(), traffic, *format)
        }),
        Command::Export { file, ports } => {
            let options = about(file, planned_options)?;
            export(&options, (*ports).into())
        }
    }
}

/// Reads a file, and says whose problem it is.
fn about<Answer>(
    file: &Path,
    answer: impl FnOnce(&str) -> Result<Answer, Problem>,
) -> Result<Answer, Failure> {
    let is_stdin = file == Path::new("-");
    let name = if is_stdin { "standard input".into() } else { file.display().to_string() };
    let mut text = String::new();
    let read =
        if is_stdin { io::stdin().read_to_string(&mut text).map(|_| text) } else { fs::read_to_string(file) };
    let text = read.map_err(|why| Failure::Read { file: name.clone(), why })?;
    answer(&text).map_err(|problem| Failure::File { file: name, problem })
}

fn plan(text: &str, format: Format) -> Result<String, Problem> {
    Ok(match input::read(text)? {
        Input::InfiniBand { link, classes } => {
            let plan = planning::infiniband(&link, &classes)?;
            let (rate, mtu) = (plan.link.rate, plan.link.mtu);
            let traffic = Traffic { rate, mtu, packet: mtu, low_turn: LowTurn::Packet };
            match format {
                Format::Text => report::infiniband(&plan, traffic),
                Format::Json => json(&report::infiniband_json(&plan, traffic)),
            }
        }
        Input::DTable { table, classes } => {
            let plan = planning::dtable(&table, &classes)?;
            match format {
                Format::Text => report::dtable(&plan, &classes),
                Format::Json => json(&report::dtable_json(&plan, &classes)),
            }
        }
    })
}

fn analyse(text: &str, ports: opensm::Ports, traffic: Traffic, format: Format) -> Result<String, Problem> {
    let options = opensm::parse(text, ports).map_err(|bad| match bad {
        opensm::BadOptions::Line { line, reason } => Problem::wrong(line, reason),
        missing @ opensm::BadOptions::Missing { .. } => Problem::wrong(None, missing),
    })?;
    Ok(match format {
        Format::Text => report::tables(&options, traffic),
        Format::Json => json(&report::tables_json(&options, traffic)),
    })
}

fn json(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

fn planned_options(text: &str) -> Result<opensm::Options, Problem> {
    match input::read(text)? {
        Input::InfiniBand { link, classes } => planning::infiniband(&link, &classes).map(|plan| plan.options),
        Input::DTable { .. } => Err(Problem::wrong(
            None,
            "OpenSM has no options for tables with deficits: a plan with [link] can be exported",
        )),
    }
}

/// What is written is read again: who puts it into a subnet manager's file gets no surprise.
fn export(options: &opensm::Options, ports: opensm::Ports) -> Result<String, Failure> {
    let text =
        format!("# by deckqos export; OpenSM takes it with `qos TRUE`\n{}", opensm::write(options, ports));
    match opensm::parse(&text, ports) {
        Ok(again) if again == *options => Ok(text),
        Ok(_) => Err(Failure::Unreadable("they say something else".into())),
        Err(bad) => Err(Failure::Unreadable(bad.to_string())),
    }
}
