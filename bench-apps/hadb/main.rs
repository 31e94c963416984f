//! `hadb`: a highly available database's message flows, over mailboxes, uDAPL's end points, or UDP sockets alone.
//!
//! Two servers run, each the primary of one half of the rows and the hot standby of the other half, and one to four
//! clients, each of which talks to one of them: the first and the third to server 0, the others to server 1. The messages of a transaction, as counted at run time:
//!
//! | transaction | messages | who says what |
//! |---|---|---|
//! | `1tup-read`, the tuple is the coordinator's | 2 | client: Read; coordinator: Found |
//! | `1tup-read`, the tuple is the other server's | 6 | client: Read; coordinator: Fetch (begin, lock); owner: Fetched; coordinator: Release (commit); owner: Released; coordinator: Found |
//! | `4tup-run`, all tuples are the coordinator's | 12 | four times client: Statement, coordinator: Noted; client: Commit; coordinator: Log; standby: Logged; coordinator: Committed |
//! | `4tup-run`, some are the other server's | 14 | as above, and before the log coordinator: Prepare; owner: Prepared |
//! | `tpcb` | 4 or 6 | client: Run; with an account elsewhere Prepare, Prepared; Log, Logged; coordinator: Committed |
//! | `blob-insert`, `blob-update` | 4 or 6 | as `tpcb`; the BLOB is beside Run, and beside Log or Prepare |
//! | `blob-read` | 2 or 6 | as `1tup-read`; the BLOB is beside Found, and beside Fetched |
//! | `blob-delete` | 4 or 6 | as `tpcb` |
//!
//! While a server is alone, it copies its data to a spare, if there is one (`copy`); the spare then takes the dead server's
//! place.
//!
//! `node`, `server`, `copy`, `client`, `locks`, `table`, `link::dat::stream` and `link::window` are state machines without I/O;
//! `simulation` plays them against each other and kills servers and spares at any message. `serve` and `drive` are the
//! processes; `conduct` has the additional work of the first client.

mod availability;
mod client;
mod conduct;
mod copy;
mod cpu;
mod drive;
mod failure;
mod link;
mod locks;
mod message;
mod node;
mod options;
mod oracle;
mod ranks;
mod report;
mod row;
mod serve;
mod server;
#[cfg(test)]
mod simulation;
mod table;
mod tables;
mod verdict;
mod workload;

use clap::Parser;
use conduct::LEADER;
use deckrun::{End, Job, OnFailure, Outcome};
use failure::{HadbError, Result};
use link::Link;
use options::{Options, Transport};
use ranks::Servers;
use std::io::{self, Write};
use std::process::ExitCode;
use udeck::Config;
use udeck_boot::start::{Launcher, detect};

/// Exit code: a check has failed.
const UNSOUND: u8 = 1;
/// Exit code: there is no result.
const FAILED: u8 = 2;
/// Number of the signal in the kernel.
const SIGKILL: i32 = 9;

fn main() -> ExitCode {
    // The options are parsed before anything starts: a mistyped option is reported once, not by every rank.
    let options = Options::parse();
    if let Some(text) = options.generate.text::<Options>() {
        // A reader that closes the pipe early has read all that it wanted.
        let _ = io::stdout().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    let run = options.check().map_err(HadbError::Options).and_then(|options| run(&options));
    run.unwrap_or_else(|failure| {
        // The line is written in one call, so that ranks' lines stay whole.
        let _ = io::stderr().write_all(format!("hadb: {failure}\n").as_bytes());
        ExitCode::from(FAILED)
    })
}

fn run(options: &Options) -> Result<ExitCode> {
    let alone = detect(&|name| std::env::var(name).ok()).is_ok_and(|found| found.launcher == Launcher::None);
    if options.tables {
        if !alone {
            let what = "--tables: starts jobs of its own; run it without a launcher";
            return Err(HadbError::Options(what.to_owned()));
        }
        let tables = tables::measure(options)?;
        io::stdout().write_all(tables.as_bytes()).map_err(HadbError::system("writing the tables"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !alone {
        return be_a_rank(options);
    }
    let then = if options.outlives_deaths() { OnFailure::Continue } else { OnFailure::Abort };
    match deckrun::launch_self(Job::new(options.ranks() as u32).on_failure(then))? {
        Some(outcome) => Ok(ExitCode::from(code(outcome, options))),
        None => be_a_rank(options),
    }
}

/// Exit code of the outcome. The death of a victim that was to be killed is no failure.
fn code(mut outcome: Outcome, options: &Options) -> u8 {
    let victims = options.victims();
    let is_victim = |rank: u32| victims.contains(&(rank as usize));
    outcome.failures.retain(|failure| !is_victim(failure.rank) || failure.end != End::Killed(SIGKILL));
    outcome.code()
}

fn be_a_rank(options: &Options) -> Result<ExitCode> {
    let mut config = Config::from_env()?;
    if let Some(Transport::Deck(transport)) = options.transport {
        config = config.over(transport);
    }
    let world = udeck::init_with(config)?;
    let (rank, size) = (world.rank(), world.size());
    if let Err(refusal) = options.check_ranks(size) {
        world.finish()?;
        return Err(HadbError::Options(refusal));
    }
    let servers = Servers::of_job(size, options.spares);
    let mut link = Link::connect(world, options.links(), servers)?;
    if servers.has(rank) {
        serve::serve(&mut link, rank, servers, options.time)?;
        link.finish(Some(LEADER))?;
    } else if rank > LEADER {
        conduct::follow(link, rank, servers, options)?.finish(Some(LEADER))?;
    } else {
        let (report, link) = conduct::lead(link, size, servers, options)?;
        link.finish(None)?;
        io::stdout()
            .write_all(report.render().as_bytes())
            .map_err(HadbError::system("writing the report"))?;
        if !report.is_good() {
            return Ok(ExitCode::from(UNSOUND));
        }
    }
    Ok(ExitCode::SUCCESS)
}
