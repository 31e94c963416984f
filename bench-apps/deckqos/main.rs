//! `deckqos`: plans and examines arbitration tables. `udeck-qos` computes them, `udeck_fabric::admission` those of a whole
//! network; this crate has the files, options and reports.

mod admit;
mod input;
mod options;
mod planning;
mod report;
#[cfg(test)]
mod tests;

use clap::Parser;
use input::Input;
use options::{AdmitExample, Command, Example, Format, Options};
use report::Traffic;
use std::{path::Path, process::ExitCode};
use udeck_cli::{Failure, Problem, about, line_of};
use udeck_fabric::admission::CHAPTER_6;
use udeck_qos::{opensm, vl_arbiter::LowTurn};

const INFINIBAND: &str = include_str!("infiniband.toml");
const DTABLE: &str = include_str!("dtable.toml");
const CONNECTIONS: &str = include_str!("connections.toml");

fn main() -> ExitCode {
    let options = Options::parse();
    udeck_cli::main::<Options, _>(options.generate, options.command, run)
}

/// Runs a command, and returns its output.
fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Plan { example: Some(Example::Infiniband), .. } => Ok(INFINIBAND.into()),
        Command::Plan { example: Some(Example::Dtable), .. } => Ok(DTABLE.into()),
        Command::Plan { file, format, .. } => {
            let file = file.as_deref().unwrap_or(Path::new("-"));
            about(file, |text, _| plan(text, *format))
        }
        Command::Admit { example: Some(AdmitExample::Connections), .. } => Ok(CONNECTIONS.into()),
        Command::Admit { example: Some(AdmitExample::Chapter6), .. } => Ok(CHAPTER_6.into()),
        Command::Admit { file, format, .. } => {
            about(file.as_deref().unwrap_or(Path::new("-")), |text, folder| {
                admit::admit(text, folder, *format)
            })
        }
        Command::Analyse { file, rate, mtu, packet, low_turn, ports, format } => about(file, |text, _| {
            let traffic = Traffic {
                rate: *rate,
                mtu: *mtu,
                packet: packet.unwrap_or(*mtu),
                low_turn: (*low_turn).into(),
            };
            analyse(text, (*ports).into(), traffic, *format)
        }),
        Command::Export { file, ports } => {
            let options = about(file, |text, _| planned_options(text))?;
            export(&options, (*ports).into())
        }
    }
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
            let plan = planning::dtable(&table, &classes, |span| line_of(text, span.start))?;
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

/// Writes options, and parses them again as a check, so that a subnet manager's file gets what was planned.
fn export(options: &opensm::Options, ports: opensm::Ports) -> Result<String, Failure> {
    let text =
        format!("# by deckqos export; OpenSM takes it with `qos TRUE`\n{}", opensm::write(options, ports));
    let unreadable =
        |why: &str| Failure::Defect(format!("the options that were made cannot be read again ({why})"));
    match opensm::parse(&text, ports) {
        Ok(again) if again == *options => Ok(text),
        Ok(_) => Err(unreadable("the parsed options differ")),
        Err(bad) => Err(unreadable(&bad.to_string())),
    }
}
