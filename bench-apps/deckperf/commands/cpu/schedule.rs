//! The schedule of `deckperf cpu`: every contender runs a batch in each round; those of one size and depth run one after
//! the other.

use std::time::Duration;

use super::{
    CpuPlan, MOST_UNDER_WAY,
    contenders::Row,
    order::{CpuAnswer, CpuOrder, Waiting},
    usage::Usage,
};
use crate::{
    distinct::distinct,
    experiment::{
        field::{self, Field},
        rounds::{MAX_BYTES_UNDER_WAY, fitting_iterations, rotation},
    },
    failure::{PerfError, Result},
};

/// Load that contenders have in common when they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages under way; for a paced load, messages in a batch.
    pub depth: u64,
    /// Messages per second; 0: as many as possible.
    pub rate: u64,
}

/// One contender under one load.
#[derive(Clone, Debug)]
pub struct CpuSeries {
    /// Index of the contender's row.
    pub row: usize,
    /// How the contender waits.
    pub waiting: Waiting,
    /// Load of the contender.
    pub load: Load,
    /// Windows in a batch.
    pub iterations: u64,
    /// Samples, one per round.
    pub samples: Vec<CpuSample>,
}

/// Result of a batch at both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuSample {
    /// Usage of rank 0.
    pub sender: Usage,
    /// Usage of rank 1.
    pub receiver: Usage,
    /// Messages that arrived.
    pub messages: u64,
    /// Messages that did not arrive.
    pub lost: u64,
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct CpuOutcome {
    /// Series, contender by contender.
    pub series: Vec<CpuSeries>,
    /// Completed rounds.
    pub rounds: usize,
    /// Time of the measurement, calibration included.
    pub elapsed: Duration,
    /// Contenders that failed, at what, and why.
    pub losses: Vec<String>,
}

/// Runs batches: the jobs of this host, or a test.
pub trait CpuRunner {
    /// Contenders.
    fn rows(&self) -> &[Row];
    /// Runs one batch of this row; returns the answers of sender and receiver.
    fn run(&mut self, row: usize, order: &CpuOrder) -> Result<[CpuAnswer; 2], String>;
}

/// Target length of a batch: some ticks of the kernel's accounting, and short enough for a minute to have many.
pub const BATCH: Duration = Duration::from_millis(30);
/// Length of a paced batch, which waits most of the time; a batch of [`MOST_UNDER_WAY`] messages may be shorter.
pub const PACED_BATCH: Duration = Duration::from_millis(50);

/// Runs rounds until the time is used up, at least five.
///
/// # Errors
/// µDECK or bare sockets failed, or messages were lost that cannot be lost. Other contenders that fail are named in the outcome.
pub fn measure(plan: &CpuPlan, runner: &mut impl CpuRunner) -> Result<CpuOutcome> {
    let loads = loads(plan);
    let series = empty(runner.rows(), &loads, &plan.waitings);
    let mut field = CpuField { plan, runner, loads, series, losses: Vec::new() };
    let (rounds, elapsed) = field::measure(&mut field, plan.time, "measuring")?;
    let CpuField { series, losses, .. } = field;
    Ok(CpuOutcome { series, rounds, elapsed, losses })
}

/// Loads in the order of the tables; the paced ones, of the smallest and the largest size, are at the end. Depths are bounded, as the
/// messages under way have a buffer each.
pub fn loads(plan: &CpuPlan) -> Vec<Load> {
    let load = |bytes: usize, depth: u64, rate| {
        let fitting = MAX_BYTES_UNDER_WAY / (bytes as u64).max(1);
        Load { bytes, depth: depth.min(fitting).clamp(1, MOST_UNDER_WAY), rate }
    };
    let mut loads = Vec::new();
    for &depth in &plan.depths {
        loads.extend(plan.sizes.iter().map(|&bytes| load(bytes, depth, 0)));
    }
    if plan.rate > 0 {
        let depth = PACED_BATCH.as_millis() as u64 * plan.rate / 1000;
        let mut sizes = vec![plan.sizes.first(), plan.sizes.last()];
        sizes.dedup();
        loads.extend(sizes.into_iter().flatten().map(|&bytes| load(bytes, depth, plan.rate)));
    }
    distinct(loads)
}

fn empty(rows: &[Row], loads: &[Load], waitings: &[Waiting]) -> Vec<CpuSeries> {
    let mut series = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        for &load in loads.iter().filter(|load| (row.bytes[0]..=row.bytes[1]).contains(&load.bytes)) {
            let of = |&waiting| CpuSeries { row: number, waiting, load, iterations: 1, samples: Vec::new() };
            series.extend(row.waitings.iter().filter(|waiting| waitings.contains(waiting)).map(of));
        }
    }
    series
}

struct CpuField<'r, R> {
    plan: &'r CpuPlan,
    runner: &'r mut R,
    loads: Vec<Load>,
    series: Vec<CpuSeries>,
    losses: Vec<String>,
}

impl<R: CpuRunner> Field for CpuField<'_, R> {
    type Failure = String;

    fn count(&self) -> usize {
        self.series.len()
    }

    /// Finds how many windows fill a batch. The first batch does not count, because it pays for fresh memory.
    fn calibrate(&mut self, index: usize) -> Result<(), String> {
        self.run(index, 1)?;
        self.series[index].iterations = match self.plan.iterations {
            _ if self.series[index].load.rate > 0 => 1,
            Some(fixed) => fixed,
            None => fitting_iterations(BATCH, 10, |windows| {
                self.run(index, windows).map(|sample| sample.sender.wall)
            })?,
        };
        Ok(())
    }

    /// Contenders of a load run one after the other.
    fn order(&mut self, round: usize) -> Vec<usize> {
        let all = || self.series.iter().enumerate();
        let of = |load: Load| all().filter(move |(_, one)| one.load == load).map(|(index, _)| index);
        let members = rotation(round, self.loads.len()).map(|at| of(self.loads[at]).collect::<Vec<_>>());
        members.flat_map(|members| rotation(round, members.len()).map(move |place| members[place])).collect()
    }

    fn turn(&mut self, _round: usize, index: usize) -> Result<(), String> {
        let sample = self.run(index, self.series[index].iterations)?;
        self.series[index].samples.push(sample);
        Ok(())
    }

    fn lose(&mut self, index: usize, what: String) -> Result {
        let number = self.series[index].row;
        let row = &self.runner.rows()[number];
        let who = row.name.clone();
        if row.is_needed {
            return Err(PerfError::Contender { who, what });
        }
        // A job that has failed once is of no use any more. Further failures of it are not reported.
        if !self.losses.iter().any(|known| known.starts_with(&format!("{who}: "))) {
            self.losses.push(format!("{who}: {what}"));
        }
        self.series.iter_mut().filter(|one| one.row == number).for_each(|one| one.samples.clear());
        Ok(())
    }
}

impl<R: CpuRunner> CpuField<'_, R> {
    fn run(&mut self, index: usize, iterations: u64) -> Result<CpuSample, String> {
        let &CpuSeries { row, waiting, load: Load { bytes, depth, rate }, .. } = &self.series[index];
        let (payload, way) = (self.plan.payload, self.runner.rows()[row].way);
        let warm_up = (iterations / 10).max(1);
        let order = CpuOrder { payload, bytes, warm_up, iterations, depth, rate, waiting, way };
        let [sent, received] = self.runner.run(row, &order)?;
        if sent.messages != order.messages() || received.messages + sent.lost != sent.messages {
            let (of, came, lost) = (order.messages(), received.messages, sent.lost);
            return Err(format!("{came} of {of} messages came, and {lost} were lost, at `{order}`"));
        }
        let (sender, receiver) = (sent.usage, received.usage);
        Ok(CpuSample { sender, receiver, messages: received.messages, lost: sent.lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cpu::{order::Way, report::sample_plan};
    use crate::experiment::rounds::MIN_ROUNDS;

    /// A machine on which a message takes 4 µs. The last row fails if `fails` is set; `lost` messages of a batch are lost.
    struct Steady {
        rows: Vec<Row>,
        orders: Vec<(usize, CpuOrder)>,
        fails: bool,
        lost: u64,
    }

    impl CpuRunner for Steady {
        fn rows(&self) -> &[Row] {
            &self.rows
        }

        fn run(&mut self, row: usize, order: &CpuOrder) -> Result<[CpuAnswer; 2], String> {
            self.orders.push((row, *order));
            if self.fails && row + 1 == self.rows.len() {
                return Err("fell over".to_owned());
            }
            let messages = order.messages();
            let wall = Duration::from_micros(4 * messages);
            let usage = Usage { wall, processor: wall, user: wall, system: Duration::ZERO };
            let answer = |messages, lost| CpuAnswer { usage, messages, lost };
            Ok([answer(messages, self.lost), answer(messages - 1, 0)])
        }
    }

    fn runner() -> Steady {
        let row = |name: &str, waitings, bytes, is_needed| Row {
            name: name.to_owned(),
            library: (name.to_owned(), "shm"),
            way: Way::Send,
            waitings,
            bytes,
            is_needed,
        };
        let rows = vec![
            row("sockets", &[Waiting::Polling, Waiting::Blocking][..], [1, 1000], true),
            row("absent", &[][..], [0, 1 << 20], false),
            row("an MPI", &[Waiting::Polling][..], [0, 1 << 20], false),
        ];
        Steady { rows, orders: Vec::new(), fails: false, lost: 1 }
    }

    fn plan() -> CpuPlan {
        CpuPlan {
            sizes: vec![100, 4000],
            depths: vec![2, 64],
            time: Duration::from_nanos(1),
            ..sample_plan()
        }
    }

    #[test]
    fn everybody_runs_in_every_round_of_what_it_can_do() {
        let outcome = measure(&plan(), &mut runner()).expect("measures");
        assert_eq!(outcome.rounds, MIN_ROUNDS);
        assert!(outcome.series.iter().all(|series| series.samples.len() == MIN_ROUNDS));
        let count = |row| outcome.series.iter().filter(|series| series.row == row).count();
        // Sockets send up to 1000 bytes: one size at two depths, and paced; each with two ways of waiting.
        assert_eq!([0, 1, 2].map(count), [2 * 3, 0, 2 * 2 + 2]);
    }

    #[test]
    fn batches_have_their_length_and_paced_ones_their_messages() {
        let outcome = measure(&plan(), &mut runner()).expect("measures");
        for series in &outcome.series {
            let Load { depth, rate, .. } = series.load;
            if rate == 0 {
                let lasts = 4 * depth * series.iterations;
                assert!((25_000..=30_000).contains(&lasts), "{lasts} µs");
            } else {
                assert_eq!((series.iterations, depth), (1, 50), "1000/s for 50 ms");
            }
        }
    }

    #[test]
    fn no_load_has_more_buffers_than_a_contender_or_64_mib() {
        let of = |sizes: &[usize], depths: &[u64], rate| {
            let loads = loads(&CpuPlan { sizes: sizes.to_vec(), depths: depths.to_vec(), rate, ..plan() });
            loads.into_iter().map(|load| (load.bytes, load.depth, load.rate)).collect::<Vec<_>>()
        };
        // 50 ms have 5000 messages.
        assert_eq!(of(&[100], &[2], 100_000), [(100, 2, 0), (100, MOST_UNDER_WAY, 100_000)]);
        assert_eq!(of(&[100], &[2], 1), [(100, 2, 0), (100, 1, 1)]);
        let large = 1 << 20;
        assert_eq!(of(&[100, large], &[1024], 0), [(100, 1024, 0), (large, 64, 0)]);
        assert_eq!(of(&[large], &[128, 1024], 0), [(large, 64, 0)], "the same load once");
        assert_eq!(of(&[128 << 20], &[2], 0), [(128 << 20, 1, 0)]);
    }

    #[test]
    fn contenders_of_a_load_run_one_behind_the_other_in_changing_order() {
        let mut runner = runner();
        measure(&plan(), &mut runner).expect("measures");
        let per_round = 2 * 3 + 2 * 2 + 2;
        let turns = &runner.orders[runner.orders.len() - 2 * per_round..];
        let (one, other) = turns.split_at(per_round);
        assert_ne!(one, other);
        for round in [one, other] {
            let key = |(_, order): &(usize, CpuOrder)| (order.bytes, order.depth, order.rate);
            let changes = round.windows(2).filter(|pair| key(&pair[0]) != key(&pair[1])).count();
            assert_eq!(changes, 5, "six loads");
        }
    }

    #[test]
    fn what_cannot_be_done_without_ends_the_run_and_others_are_named() {
        let mut runner = Steady { fails: true, ..runner() };
        let outcome = measure(&plan(), &mut runner).expect("goes on");
        assert_eq!(outcome.losses, ["an MPI: fell over"]);
        assert!(outcome.series.iter().all(|series| series.samples.is_empty() == (series.row == 2)));
        runner.rows.truncate(1);
        let error = measure(&plan(), &mut runner).expect_err("sockets are needed");
        assert_eq!(error.to_string(), "sockets: fell over");
    }

    #[test]
    fn a_message_that_nobody_counts_is_an_error() {
        let mut runner = Steady { lost: 0, ..runner() };
        let error = measure(&plan(), &mut runner).expect_err("one is missing").to_string();
        assert!(error.contains("1 of 2 messages came, and 0 were lost"), "{error}");
    }
}
