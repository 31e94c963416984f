//! `deckperf ft`: the speed-up of NAS FT by ranks, transports and protocols, in the shape of table 7.1 of the thesis on DECK over
//! VIA (2005).
//!
//! Each run is a job of its own, which `job.rs` starts. All jobs run once in each round, one after another, in rotating order:
//! so a slow minute of the machine meets all of them alike. A speed-up is the ratio to the job of one rank of the same round.

mod job;
mod report;

use std::time::Duration;

use clap::ValueEnum;
use udeck::Protocol;
use udeck_cli::machine::Machine;

use self::{job::FtRun, report::FtReport};
pub use self::{
    job::{FtJobArgs, play},
    report::{CLASS, TEST},
};
use crate::{
    experiment::{
        field::{self, Field},
        plan::Format,
        rounds::rotation,
    },
    failure::{PerfError, Result},
};

/// Default numbers of ranks, beside one.
pub const RANKS: [u32; 3] = [2, 4, 8];
/// Default protocols: the library's choice, and the thesis's.
pub const PROTOCOLS: [Protocol; 2] = [Protocol::Auto, Protocol::Handshake];
/// Default time for the rounds, in seconds; there are at least five rounds.
pub const SECONDS: u64 = 120;

/// Plan of `deckperf ft`.
#[derive(Clone, Debug, PartialEq)]
pub struct FtPlan {
    /// Size of the problem.
    pub class: Class,
    /// Numbers of ranks, ascending, from 2.
    pub ranks: Vec<u32>,
    /// Transports, in the order of the columns.
    pub transports: Vec<&'static str>,
    /// Protocols, in the order of the columns.
    pub protocols: Vec<Protocol>,
    /// Time of all rounds together.
    pub time: Duration,
    /// Format of the report.
    pub format: Format,
}

/// Size of the problem, by NPB's letters.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 64 x 64 x 64 points
    #[value(name = "S")]
    S,
    /// 128 x 128 x 32 points
    #[value(name = "W")]
    W,
    /// 256 x 256 x 128 points
    #[value(name = "A")]
    A,
    /// 512 x 256 x 256 points
    #[value(name = "B")]
    B,
}

/// Job that a run starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtContender {
    /// Number of ranks.
    pub ranks: u32,
    /// Way of the messages; `None` for one rank, which sends nothing.
    pub way: Option<Way>,
}

/// Transport and protocol of the blocks that the ranks exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Name of the transport.
    pub transport: &'static str,
    /// Protocol of the blocks.
    pub protocol: Protocol,
}

/// A job with its runs, one in each round.
#[derive(Clone, Debug)]
pub struct FtRow {
    /// The job.
    pub contender: FtContender,
    /// Results, by round; empty if the job failed.
    pub runs: Vec<FtRun>,
    /// Reason why the job was left out.
    pub lost: Option<String>,
}

/// The one rank whose time is the base of all speed-ups.
const ALONE: FtContender = FtContender { ranks: 1, way: None };

impl FtPlan {
    /// The ways, in the order of the columns.
    fn ways(&self) -> impl Iterator<Item = Way> + '_ {
        let over = |&transport| self.protocols.iter().map(move |&protocol| Way { transport, protocol });
        self.transports.iter().flat_map(over)
    }

    /// All jobs: one rank, then each number of ranks by each way.
    fn contenders(&self) -> Vec<FtContender> {
        let of = |&ranks| self.ways().map(move |way| FtContender { ranks, way: Some(way) });
        [ALONE].into_iter().chain(self.ranks.iter().flat_map(of)).collect()
    }
}

impl FtContender {
    /// The job in words.
    fn words(&self) -> String {
        match self.way {
            None => "1 rank".to_owned(),
            Some(way) => format!("{} ranks over {} by {}", self.ranks, way.transport, way.protocol),
        }
    }
}

/// Runs all jobs, and returns the text to print.
///
/// # Errors
/// This process is a rank, nas-ft is missing, or one rank alone failed. Another job that fails is named in the report.
pub fn measure(plan: &FtPlan) -> Result<String> {
    if std::env::var_os("DECK_RANK").is_some() {
        return Err(PerfError::IsRank("ft"));
    }
    let program = job::program()?;
    let (rows, outcome) = rounds(plan, |contender| job::run(&program, plan.class, contender))?;
    let machine = Machine::describe(
        "a processor each where there are enough, else placed by the system".to_owned(),
        plan.transports.join(", "),
    );
    Ok(FtReport { machine, plan, rows: &rows, outcome }.render())
}

/// Runs the rounds. Returns the jobs with their runs, the number of rounds, and their time.
fn rounds(
    plan: &FtPlan,
    launch: impl FnMut(&FtContender) -> Result<FtRun, String>,
) -> Result<(Vec<FtRow>, (usize, Duration))> {
    let row = |contender| FtRow { contender, runs: Vec::new(), lost: None };
    let mut field = Jobs { rows: plan.contenders().into_iter().map(row).collect(), launch };
    let outcome = field::measure(&mut field, plan.time, "running nas-ft")?;
    Ok((field.rows, outcome))
}

/// All jobs, and how one is run.
struct Jobs<L> {
    rows: Vec<FtRow>,
    launch: L,
}

impl<L: FnMut(&FtContender) -> Result<FtRun, String>> Field for Jobs<L> {
    type Failure = String;

    fn count(&self) -> usize {
        self.rows.len()
    }

    /// Does nothing: a run has the length that its class gives it.
    fn calibrate(&mut self, _index: usize) -> Result<(), String> {
        Ok(())
    }

    fn order(&mut self, round: usize) -> Vec<usize> {
        rotation(round, self.rows.len()).filter(|&index| self.rows[index].lost.is_none()).collect()
    }

    fn turn(&mut self, _round: usize, index: usize) -> Result<(), String> {
        let run = (self.launch)(&self.rows[index].contender)?;
        self.rows[index].runs.push(run);
        Ok(())
    }

    fn lose(&mut self, index: usize, failure: String) -> Result {
        let row = &mut self.rows[index];
        if row.contender == ALONE {
            return Err(PerfError::Contender { who: "nas-ft on one rank".to_owned(), what: failure });
        }
        row.runs.clear();
        row.lost = Some(failure);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::rounds::MIN_ROUNDS;

    pub(super) fn plan() -> FtPlan {
        FtPlan {
            class: Class::S,
            ranks: vec![2, 4],
            transports: vec!["shm", "tcp"],
            protocols: PROTOCOLS.to_vec(),
            time: Duration::from_nanos(1),
            format: Format::Table,
        }
    }

    /// A run with this speed, on a machine whose speed changes from call to call.
    fn of_speed(speed: f64) -> FtRun {
        FtRun { seconds: 10.0 / speed, mops: speed }
    }

    #[test]
    fn every_way_runs_on_every_number_of_ranks_in_every_round() {
        let (rows, (rounds, _)) =
            rounds(&plan(), |contender| Ok(of_speed(f64::from(contender.ranks)))).expect("all run");
        assert_eq!((rounds, rows.len()), (MIN_ROUNDS, 1 + 2 * 2 * 2));
        assert!(rows.iter().all(|row| row.runs.len() == MIN_ROUNDS && row.lost.is_none()));
    }

    #[test]
    fn a_job_that_fails_is_left_out_and_the_others_go_on() {
        let mut starts = 0;
        let launch = |contender: &FtContender| {
            if contender.way.is_some_and(|way| way.transport == "tcp") && contender.ranks == 4 {
                starts += 1;
                return Err("no network".to_owned());
            }
            Ok(of_speed(1.0))
        };
        let (rows, _) = rounds(&plan(), launch).expect("one rank ran");
        let lost: Vec<_> = rows.iter().filter(|row| row.lost.is_some()).collect();
        assert!(lost.iter().all(|row| row.runs.is_empty() && row.contender.ranks == 4));
        assert_eq!((lost.len(), starts), (2, 2), "each was started once");
        assert_eq!(rows.iter().filter(|row| row.runs.len() == MIN_ROUNDS).count(), rows.len() - 2);
    }

    #[test]
    fn without_one_rank_there_is_no_speed_up() {
        let launch = |contender: &FtContender| match contender.way {
            None => Err("wrong checksums".to_owned()),
            Some(_) => Ok(of_speed(1.0)),
        };
        let error = rounds(&plan(), launch).expect_err("no base");
        assert_eq!(error.to_string(), "nas-ft on one rank: wrong checksums");
    }

    #[test]
    fn a_missing_program_is_an_error_that_says_what_to_do() {
        let error = measure(&plan()).expect_err("nas-ft is not beside the tests");
        let said = error.to_string();
        assert!(said.starts_with("ft: there is no nas-ft beside this program: looked for /"), "{said}");
        assert!(said.contains("cargo build --release --bin nas-ft"), "{said}");
    }
}
