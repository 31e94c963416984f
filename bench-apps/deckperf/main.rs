//! `deckperf`: what a message costs between two ranks on this host, beside what the machine itself can do.
//!
//! Without a job around it, deckperf starts itself twice. Rank 0 conducts: it schedules the batches, holds the
//! clock and prints. Rank 1 follows its orders.

mod cli;
mod commands;
mod distinct;
mod experiment;
mod failure;
mod named;
mod parent;
mod report;
mod stats;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use udeck::World;
use udeck_cli::load;

use crate::{
    cli::{Cli, Task},
    commands::{
        clones, compare, costs, cpu, dat, explain, ft, jobs, messages, overlap, page, peers, percentiles,
        registration, verify, vi,
    },
    experiment::{
        binding::{self, BindPlace},
        off_cache::{Extent, Rotation},
        places::{Places, Stage},
        plan,
        rank_pair::RankPair,
    },
    failure::{PerfError, Result},
};

fn main() -> ExitCode {
    page::end_with_the_report();
    load::begin();
    // Options are parsed before anything starts, so that a mistyped option is reported once, not by two ranks.
    let cli = Cli::parse();
    if let Some(text) = cli.generated() {
        return print(Ok::<_, PerfError>(text));
    }
    let transport = cli.transport();
    let bind_places = cli.binding();
    let task = cli.task().unwrap_or_else(|error| error.exit());
    let ranks = match task {
        Task::StartTime(order) => {
            return costs::start_time::play(order).unwrap_or_else(|error| exit_code(Err(error)));
        }
        Task::FtJob(order) => return ft::play(order).unwrap_or_else(|error| exit_code(Err(error))),
        Task::Ft(plan) => return print(ft::measure(&plan)),
        Task::Peers(plan) => return print(peers::measure(&plan)),
        Task::Cpu(plan) => return print(cpu::measure(&plan)),
        Task::CpuSockets(port) => return exit_code(cpu::serve_sockets(port)),
        Task::Compare(args, format) => return print_comparison(&args, format),
        Task::Page(plan) => return print(page::make(&plan, cli::has_command)),
        Task::PeerRank(ranks, _) => ranks,
        Task::Jobs(ref plan) => plan.kind.ranks() as u32,
        _ => 2,
    };
    // Places are checked before anything starts, too, unless the ranks may be on other hosts.
    if std::env::var_os("DECK_RANK").is_none()
        && let Err(error) = binding::check(&bind_places, ranks as usize)
    {
        return exit_code(Err(error));
    }
    let mut job = deckrun::Job::new(ranks);
    if let Some(transport) = transport {
        job = job.env("DECK_TRANSPORT", transport);
    }
    if !bind_places.is_empty() {
        job = job.bind(deckrun::Bind::None);
    }
    match deckrun::launch_self(job) {
        Ok(Some(outcome)) => outcome.exit_code(),
        Ok(None) => exit_code(
            udeck::init().map_err(PerfError::from).and_then(|world| be_a_rank(world, &task, &bind_places)),
        ),
        Err(error) => exit_code(Err(error)),
    }
}

fn print<E: std::fmt::Display + From<PerfError>>(printed: Result<String, E>) -> ExitCode {
    exit_code(printed.and_then(|text| {
        Ok(io::stdout().write_all(text.as_bytes()).map_err(PerfError::system("writing the report"))?)
    }))
}

/// Prints a comparison. Exit code 1 means that something got slower; 2 means that the runs cannot be compared.
fn print_comparison(args: &compare::CompareArgs, format: plan::Format) -> ExitCode {
    let (text, code, to_stdout) = match compare::compare(args, format) {
        Ok(printed) => {
            for note in &printed.notes {
                let _ = io::stderr().write_all(format!("deckperf: compare: {note}\n").as_bytes());
            }
            (printed.text, u8::from(printed.slower), true)
        }
        Err(error) => (format!("deckperf: compare: {error}\n"), 2, false),
    };
    let written = match to_stdout {
        true => io::stdout().write_all(text.as_bytes()),
        false => io::stderr().write_all(text.as_bytes()),
    };
    ExitCode::from(if written.is_ok() { code } else { 2 })
}

fn exit_code<E: std::fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The line goes out in one write, so that ranks' lines stay whole: the first rank to end ends the others.
            let _ = io::stderr().write_all(format!("deckperf: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Runs a task as a rank of a job. Both ranks leave the job before rank 0 reports what was wrong.
fn be_a_rank(world: World, task: &Task, bind_places: &[BindPlace]) -> Result {
    let (rank, size) = (world.rank(), world.size());
    if size != 2 && !task.takes_any_job() {
        world.finish()?;
        return if rank == 0 { Err(PerfError::WrongJobSize(size)) } else { Ok(()) };
    }
    let printed = play(&world, task, bind_places)?;
    world.finish()?;
    let text = printed?;
    io::stdout().write_all(text.as_bytes()).map_err(PerfError::system("writing the report"))
}

/// Does the task's work. The outer result is about the work, the inner one about what rank 0 found (rank 1 finds nothing).
fn play(world: &World, task: &Task, bind_places: &[BindPlace]) -> Result<Result<String>> {
    let (protocols, pin) = match task {
        Task::Measure(plan) => (&plan.protocols[..], plan.pin),
        Task::MeasureVi(plan) => (&[][..], plan.pin),
        Task::MeasureDat(plan) => (&[][..], plan.pin),
        Task::VerifyDat(checks) => (&[][..], checks.pin),
        Task::Verify(checks) => (&checks.protocols[..], checks.pin),
        Task::Overlap(plan) => (&plan.protocols[..], plan.pin),
        Task::Clones(plan) => (&[][..], plan.pin),
        Task::Costs(plan) => (&[][..], plan.pin),
        Task::Registration(plan) => (&[][..], plan.pin),
        Task::StartTime(_) | Task::FtJob(_) => unreachable!("it has a job of its own"),
        // Ranks of `peers` and `cpu` have other links, and follow another process.
        Task::PeerRank(_, setting) => return peers::serve(world, *setting).map(|()| Ok(String::new())),
        Task::CpuRank(way) => return cpu::serve(world, *way).map(|()| Ok(String::new())),
        Task::Peers(_) | Task::Cpu(_) | Task::Ft(_) | Task::Compare(..) | Task::Page(_) => {
            unreachable!("it is no rank")
        }
        Task::CpuSockets(_) => unreachable!("it has no world"),
        Task::Jobs(plan) => return jobs::play(world, plan, bind_places).map(Ok),
        Task::Explain(_) => (&[][..], false),
    };
    let mut pair = RankPair::open(world, protocols)?;
    if let Task::Measure(plan) = task {
        pair.set_handicap(plan.handicap.map(|percent| f64::from(percent) / 100.0));
        pair.set_rotation(plan.off_cache.then(|| Rotation::new(Extent::of_this_host(world.config().arena))));
    }
    let stage = Stage { places: Places::take(&pair, pin, bind_places)?, pair: &pair };
    match task {
        Task::Measure(plan) if plan.percentiles => percentiles::play(&stage, plan).map(Ok),
        Task::Measure(plan) => messages::play(&stage, plan).map(Ok),
        Task::MeasureVi(plan) => vi::play(&stage, plan).map(Ok),
        Task::MeasureDat(plan) => dat::play(&stage, plan).map(Ok),
        Task::Verify(checks) => verify::play(&pair, checks),
        Task::VerifyDat(checks) => dat::verify(&pair, checks),
        Task::Overlap(plan) => overlap::play(&stage, plan).map(Ok),
        Task::Clones(plan) => clones::play(&stage, plan).map(Ok),
        Task::Costs(plan) => costs::play(&stage, plan).map(Ok),
        Task::Registration(plan) => registration::play(&stage, plan).map(Ok),
        Task::Explain(sizes) => explain::table(&pair, sizes).map(Ok),
        _ => unreachable!("it has no pair of ranks"),
    }
}

#[cfg(test)]
mod tests;
