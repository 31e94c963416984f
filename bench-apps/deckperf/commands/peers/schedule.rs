//! The schedule of a comparison: each round runs every column once, and within a column every contender within milliseconds
//! of the others, all in random order.

use std::time::Duration;

use super::{
    confidence::{Chance, Figures},
    request::{Column, Method, Request},
};
use crate::{
    distinct::distinct,
    experiment::{
        field::{self, Field},
        rounds::fitting_iterations,
    },
    failure::{PerfError, Result},
};

/// Contender whose figures these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContenderId {
    /// µDECK.
    Ours,
    /// A limit of the machine itself.
    Limit,
    /// The floor, the least that a message needs.
    Floor,
    /// The peer of this index.
    Peer(usize),
}

/// Way in which a contender gets its figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The contender runs the iterations that it is told, in every round.
    Conducted,
    /// The contender measures itself, in every round.
    Itself,
    /// The contender is a program that is run whole: one such program in each round, because that takes long.
    Whole,
}

/// One contender in one column.
#[derive(Clone, Debug)]
pub struct PeerSeries {
    /// Contender of these figures.
    pub who: ContenderId,
    /// Method of the contender.
    pub way: Method,
    /// Column of the comparison.
    pub column: Column,
    /// Way in which the contender gets its figure.
    pub mode: Mode,
    /// Iterations in a batch.
    pub iterations: u64,
    /// Figures in µs for a message or a barrier.
    pub figures: Figures,
    /// Whether the contender failed and runs no more.
    pub lost: bool,
}

/// Runs the contenders: the jobs of this host, or a test.
pub trait PeerRunner {
    /// Runs one batch.
    fn time(&mut self, who: ContenderId, column: &Column, request: &Request) -> Result<Duration, String>;
    /// Lets the contender measure itself: µs for a message or a barrier.
    fn figure(&mut self, who: ContenderId, column: &Column) -> Result<f64, String>;
    /// Name of the contender, for reports of its failure.
    fn name(&self, who: ContenderId) -> String;
}

/// Results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// All series, lost ones included.
    pub series: Vec<PeerSeries>,
    /// Completed rounds.
    pub rounds: usize,
    /// Time of the measurement, calibration included.
    pub elapsed: Duration,
    /// Contenders that failed, at what, and why.
    pub losses: Vec<String>,
}

/// Target length of a batch: long enough to dwarf its start, short enough to stay within one mood of a shared machine.
const BATCH: Duration = Duration::from_millis(2);
/// Target length of a batch where ranks share a processor: some of their turns on it.
const CROWDED_BATCH: Duration = Duration::from_millis(10);
/// Time of one operation from which a contender is left out: it would take the time of all other turns, and is no match for
/// µDECK.
const TOO_SLOW: Duration = Duration::from_secs(1);
impl PeerSeries {
    /// A series without figures.
    pub fn new(who: ContenderId, way: Method, column: Column, mode: Mode) -> Self {
        Self { who, way, column, mode, iterations: 1, figures: Figures::default(), lost: false }
    }

    /// Whether both series fail together: all series of a job do, but only one series of a program that is run whole.
    fn shares_failure(&self, other: &PeerSeries) -> bool {
        let job = |series: &PeerSeries| (series.who, series.column.ranks, series.mode);
        match self.mode {
            Mode::Whole => (self.who, self.column) == (other.who, other.column),
            _ => job(self) == job(other),
        }
    }
}

/// Runs rounds until the time is used up, at least five.
///
/// # Errors
/// A job of µDECK's failed. Other contenders that fail are lost, and the rest goes on.
pub fn measure(time: Duration, series: Vec<PeerSeries>, runner: &mut impl PeerRunner) -> Result<Outcome> {
    let outcome = Outcome { series, rounds: 0, elapsed: Duration::ZERO, losses: Vec::new() };
    let mut field = PeerField { outcome, runner, chance: Chance(0) };
    let (rounds, elapsed) = field::measure(&mut field, time, "comparing")?;
    Ok(Outcome { rounds, elapsed, ..field.outcome })
}

struct PeerField<'r, R> {
    outcome: Outcome,
    runner: &'r mut R,
    chance: Chance,
}

impl<R: PeerRunner> Field for PeerField<'_, R> {
    type Failure = String;

    fn count(&self) -> usize {
        self.outcome.series.len()
    }

    /// Leaves a slow contender out. µDECK stays, however slow it is.
    fn calibrate(&mut self, index: usize) -> Result<(), String> {
        let series = &mut self.outcome.series[index];
        if series.mode == Mode::Conducted
            && !series.lost
            && let Some(slow) = calibrate(self.runner, series)?
            && series.who != ContenderId::Ours
        {
            series.lost = true;
            let (who, what) = (self.runner.name(series.who), series.column);
            let loss = format!("{who}, {what}: {slow:.1?} for one, which is too slow to take part");
            self.outcome.losses.push(loss);
        }
        Ok(())
    }

    fn order(&mut self, round: usize) -> Vec<usize> {
        self.outcome.rounds = round;
        self.outcome.turns(&mut self.chance)
    }

    fn turn(&mut self, round: usize, index: usize) -> Result<(), String> {
        let series = &mut self.outcome.series[index];
        let micros = match series.mode {
            // The series may have been lost earlier in this round.
            _ if series.lost => return Ok(()),
            Mode::Conducted => {
                let elapsed = run(self.runner, series, series.iterations)?;
                elapsed.as_secs_f64() * 1e6 / (series.iterations * series.column.per_iteration()) as f64
            }
            Mode::Itself | Mode::Whole => self.runner.figure(series.who, &series.column)?,
        };
        series.figures.push(round, micros);
        Ok(())
    }

    fn lose(&mut self, index: usize, what: String) -> Result {
        let failed = self.outcome.series[index].clone();
        let who = self.runner.name(failed.who);
        if failed.who == ContenderId::Ours {
            return Err(PerfError::Contender { who, what });
        }
        for series in self.outcome.series.iter_mut().filter(|series| failed.shares_failure(series)) {
            series.lost = true;
        }
        self.outcome.losses.push(format!("{who}, {}: {what}", failed.column));
        Ok(())
    }
}

impl Outcome {
    /// The figures of a contender, if it has any.
    pub fn of(&self, who: ContenderId, way: Method, column: &Column) -> Option<&Figures> {
        let wanted = |series: &&PeerSeries| (series.who, series.way, &series.column) == (who, way, column);
        let found = self.series.iter().find(wanted).map(|series| &series.figures);
        found.filter(|figures| figures.len() > 0)
    }

    /// Whether there was a job of this many ranks.
    pub fn has_ranks(&self, ranks: usize) -> bool {
        self.series.iter().any(|series| series.column.ranks == ranks)
    }

    /// Indices of the series that run in the next round, in their order.
    fn turns(&self, chance: &mut Chance) -> Vec<usize> {
        let indices = || 0..self.series.len();
        let wholes: Vec<usize> = indices().filter(|&index| self.series[index].mode == Mode::Whole).collect();
        let whole = wholes.get(self.rounds % wholes.len().max(1));
        let mut columns = distinct(self.series.iter().map(|series| series.column));
        chance.shuffle(&mut columns);
        let mut turns = Vec::new();
        for column in columns {
            let runs = |index: &usize| {
                let series = &self.series[*index];
                series.column == column && (series.mode != Mode::Whole || whole == Some(index))
            };
            let mut members: Vec<usize> = indices().filter(runs).collect();
            chance.shuffle(&mut members);
            turns.extend(members);
        }
        turns
    }
}

/// Finds how many iterations fill a batch. The first batch does not count, because it pays for fresh memory. Returns the
/// time of one iteration if that is longer than [`TOO_SLOW`].
fn calibrate(runner: &mut impl PeerRunner, series: &mut PeerSeries) -> Result<Option<Duration>, String> {
    let batch = if series.column.ranks > 2 { CROWDED_BATCH } else { BATCH };
    let first = run(runner, series, 1)?;
    if first > TOO_SLOW {
        return Ok(Some(first));
    }
    series.iterations = fitting_iterations(batch, 2, |tried| run(runner, series, tried))?;
    Ok(None)
}

fn run(runner: &mut impl PeerRunner, series: &PeerSeries, iterations: u64) -> Result<Duration, String> {
    let request = Request::new(&series.column, series.way, (iterations / 10).max(1), iterations);
    runner.time(series.who, &series.column, &request)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::experiment::rounds::MIN_ROUNDS;
    use crate::{commands::peers::request::PeerTest, experiment::plan::Payload};

    /// A machine on which peer n takes 2ⁿ µs for a message, and µDECK 1 µs; the contender in `fails` fails.
    #[derive(Default)]
    struct Steady {
        turns: Vec<(ContenderId, Column)>,
        fails: Option<(ContenderId, usize)>,
        slow: Option<(ContenderId, Column)>,
    }

    impl Steady {
        fn micros(&mut self, who: ContenderId, column: &Column) -> Result<f64, String> {
            self.turns.push((who, *column));
            match (self.fails, who) {
                (Some(fails), _) if fails == (who, column.ranks) => Err("fell over".to_owned()),
                _ if self.slow == Some((who, *column)) => Ok(1e6),
                (_, ContenderId::Peer(number)) => Ok(f64::from(2 << number)),
                _ => Ok(1.0),
            }
        }
    }

    impl PeerRunner for Steady {
        fn time(&mut self, who: ContenderId, column: &Column, request: &Request) -> Result<Duration, String> {
            let messages = (request.iterations * column.per_iteration()) as f64;
            Ok(Duration::from_secs_f64(self.micros(who, column)? * messages / 1e6))
        }

        fn figure(&mut self, who: ContenderId, column: &Column) -> Result<f64, String> {
            self.micros(who, column)
        }

        fn name(&self, who: ContenderId) -> String {
            format!("{who:?}")
        }
    }

    fn column(ranks: usize, bytes: usize) -> Column {
        Column { test: PeerTest::Latency, ranks, payload: Payload::Untouched, bytes }
    }

    fn series() -> Vec<PeerSeries> {
        let mut series = Vec::new();
        for column in [column(2, 8), column(2, 4096), column(4, 8)] {
            for who in [ContenderId::Ours, ContenderId::Peer(0)] {
                series.push(PeerSeries::new(who, Method::Send, column, Mode::Conducted));
            }
            series.push(PeerSeries::new(ContenderId::Limit, Method::Bare, column, Mode::Itself));
        }
        for column in [column(2, 8), column(2, 4096)] {
            series.push(PeerSeries::new(ContenderId::Peer(1), Method::Send, column, Mode::Whole));
        }
        series
    }

    fn measured(runner: &mut Steady) -> Result<Outcome> {
        measure(Duration::from_nanos(1), series(), runner)
    }

    #[test]
    fn everybody_runs_in_every_round_but_whole_programs_take_turns() {
        let outcome = measured(&mut Steady::default()).expect("measures");
        assert_eq!((outcome.rounds, outcome.losses.len()), (MIN_ROUNDS, 0));
        let count = |mode| {
            let of = outcome.series.iter().filter(|series| series.mode == mode);
            of.map(|series| series.figures.len()).collect::<Vec<_>>()
        };
        assert_eq!(count(Mode::Conducted), [MIN_ROUNDS; 6]);
        assert_eq!(count(Mode::Itself), [MIN_ROUNDS; 3]);
        assert_eq!(count(Mode::Whole), [3, 2]);
        let peer = outcome.of(ContenderId::Peer(0), Method::Send, &column(4, 8)).and_then(Figures::median);
        assert!(peer.is_some_and(|micros| (micros - 2.0).abs() < 1e-2), "{peer:?}");
    }

    #[test]
    fn a_columns_contenders_run_one_after_the_other_in_changing_order() {
        let mut runner = Steady::default();
        let outcome = measured(&mut runner).expect("measures");
        let per_round: Vec<_> =
            (0..2).map(|_| outcome.turns(&mut Chance(runner.turns.len() as u64))).collect();
        assert_eq!(per_round[0], per_round[1], "the same chance, the same order");
        let mut chance = Chance(0);
        let orders: HashSet<Vec<usize>> = (0..20).map(|_| outcome.turns(&mut chance)).collect();
        assert!(orders.len() > 10, "{orders:?}");
        for order in orders {
            let columns: Vec<Column> = order.iter().map(|&index| outcome.series[index].column).collect();
            let changes = columns.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert_eq!(changes, 2, "three columns: {columns:?}");
        }
    }

    #[test]
    fn a_peer_that_fails_loses_its_job_and_nothing_else() {
        let mut runner = Steady { fails: Some((ContenderId::Peer(0), 2)), ..Steady::default() };
        let outcome = measured(&mut runner).expect("goes on");
        assert_eq!(outcome.losses, ["Peer(0), latency of 8 bytes, 2 ranks: fell over"]);
        let lost: Vec<_> = outcome.series.iter().filter(|series| series.lost).collect();
        assert!(
            lost.len() == 2
                && lost.iter().all(|series| series.who == ContenderId::Peer(0) && series.column.ranks == 2)
        );
        assert!(outcome.of(ContenderId::Peer(0), Method::Send, &column(2, 8)).is_none());
        assert!(outcome.of(ContenderId::Peer(0), Method::Send, &column(4, 8)).is_some());
    }

    #[test]
    fn a_whole_program_that_fails_loses_one_column_at_a_time() {
        let mut runner = Steady { fails: Some((ContenderId::Peer(1), 2)), ..Steady::default() };
        let outcome = measured(&mut runner).expect("goes on");
        assert_eq!(outcome.losses.len(), 2);
        assert_eq!(runner.turns.iter().filter(|(who, _)| *who == ContenderId::Peer(1)).count(), 2);
    }

    #[test]
    fn a_peer_that_is_too_slow_is_left_out_of_that_row_only() {
        let slow = column(2, 4096);
        let mut runner = Steady { slow: Some((ContenderId::Peer(0), slow)), ..Steady::default() };
        let outcome = measured(&mut runner).expect("goes on");
        assert_eq!(
            outcome.losses,
            ["Peer(0), latency of 4096 bytes, 2 ranks: 2.0s for one, which is too slow to take part"]
        );
        assert_eq!(runner.turns.iter().filter(|turn| **turn == (ContenderId::Peer(0), slow)).count(), 1);
        assert!(outcome.of(ContenderId::Peer(0), Method::Send, &column(2, 8)).is_some());
    }

    #[test]
    fn without_ours_there_is_nothing_to_compare() {
        let mut runner = Steady { fails: Some((ContenderId::Ours, 4)), ..Steady::default() };
        let error = measured(&mut runner).expect_err("ours failed");
        assert_eq!(error.to_string(), "Ours: fell over");
    }
}
