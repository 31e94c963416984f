//! The schedule of a measurement. Machines are shared and noisy, so contenders are never measured one after the other:
//! each runs one short batch per round, and only figures of the same round are compared.

use std::time::{Duration, Instant};

use udeck::Protocol;

use crate::{
    experiment::{
        baseline::BaselineSample,
        plan::{Pace, Payload, Plan, Quantity, Test},
    },
    failure::{PerfError, Result},
    stats::{median, noise::Noise, steady::WarmUp},
};

/// Result of one batch.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Time of the timed iterations.
    pub elapsed: Duration,
    /// Time of the timed iterations, with the rests between messages where a contender rests.
    pub lasted: Duration,
    /// Payload bytes that both libraries copied, warm-up included; 0 where a layer does not count its copies.
    pub copied: u64,
}

/// A contender, which is timed against others.
pub trait Contend: Copy + PartialEq {
    /// Quantity of the figures.
    fn quantity(&self) -> Quantity {
        Quantity::Time
    }
    /// Messages that an iteration counts, of the `messages` of a round trip or of a window.
    fn counted(&self, messages: u64) -> u64 {
        messages
    }
    /// Target length of a batch.
    fn batch(&self) -> Duration {
        BATCH
    }
}

/// Runs batches: rank 0, or a test.
pub trait Runner {
    /// Contender that this runner can time.
    type Contender: Contend;
    /// Is called when a round begins; batches before the first round belong to the calibration.
    fn begin_round(&mut self, _number: usize) {}
    /// Runs one batch of the contender that has number `cell` in the results.
    fn run(&mut self, cell: usize, trial: &Trial<Self::Contender>) -> Result<Sample>;
    /// Measures the machine's own limits for `size`; `None` where it cannot.
    fn raw(&mut self, size: usize) -> Result<Option<BaselineSample>>;
}

/// Target length of a batch: long enough to dwarf a clock read and the order that starts it, short enough to stay within
/// one mood of a shared machine.
pub const BATCH: Duration = Duration::from_micros(1500);

/// Fewest rounds, whatever `--time` asks for: fewer say nothing about the spread.
pub const MIN_ROUNDS: usize = 5;

/// Most bytes under way in the bandwidth test, which bounds its memory; at 1 MiB it still allows a window of 64.
pub const MAX_BYTES_UNDER_WAY: u64 = 64 << 20;

const MAX_ITERATIONS: u64 = 1_000_000;

/// Bytes of the message that the overview compares with the raw cache line.
pub const SMALL: usize = 8;

/// One column of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Test that is timed.
    pub test: Test,
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// Payload mode of the messages.
    pub payload: Payload,
}

impl Contend for Contender {
    fn quantity(&self) -> Quantity {
        self.test.quantity()
    }

    fn counted(&self, messages: u64) -> u64 {
        if self.test == Test::BiBandwidth { 2 * messages } else { messages }
    }
}

/// A contender's figures at one size.
#[derive(Clone, Debug)]
pub struct Series<C = Contender> {
    /// Contender of these figures.
    pub contender: C,
    /// Bytes per message.
    pub size: usize,
    /// Iterations per batch.
    pub iterations: u64,
    /// Figures, one per round, in the test's unit.
    pub figures: Vec<f64>,
    /// Bytes that both libraries copied, over all batches.
    pub copied: u64,
    /// Messages in all batches.
    pub messages: u64,
}

/// The machine's own limits at one size; one figure per round, in µs.
#[derive(Clone, Debug, Default)]
pub struct RawSeries {
    /// Bytes per copy.
    pub size: usize,
    /// One-way hand-over of a cache line.
    pub line: Vec<f64>,
    /// Copy out of memory that is dirty in the other core's cache. Empty for sizes that are too small to time.
    pub copy: Vec<f64>,
    /// The same copy, with the copy into memory that the other core read last. Empty for sizes that are too small to time.
    pub two_copies: Vec<f64>,
}

/// Everything that was measured.
#[derive(Debug)]
pub struct Results<C = Contender> {
    /// Series, one per contender and size.
    pub posts: Vec<Series<C>>,
    /// Raw limits, one per size.
    pub raws: Vec<RawSeries>,
    /// Number of rounds that count; every series ran in each of them.
    pub rounds: usize,
    /// Warm-up rounds, which came first and do not count.
    pub warm_up: WarmUp,
    /// Time of the measurement, calibration included.
    pub elapsed: Duration,
}

impl Results {
    /// The series of one cell.
    pub fn post(&self, test: Test, protocol: Protocol, payload: Payload, size: usize) -> Option<&Series> {
        self.of(Contender { test, protocol, payload }, size)
    }
}

impl<C: Contend> Results<C> {
    /// Empty results for `cells` and for the machine's limits at `sizes`, which include the sizes of the cells.
    pub fn empty(sizes: &[usize], cells: impl IntoIterator<Item = (C, usize)>) -> Self {
        Self {
            posts: cells.into_iter().map(|(contender, size)| Series::empty(contender, size)).collect(),
            raws: sizes.iter().map(|&size| RawSeries { size, ..RawSeries::default() }).collect(),
            rounds: 0,
            warm_up: WarmUp::default(),
            elapsed: Duration::ZERO,
        }
    }

    /// The series of one contender at one size.
    pub fn of(&self, contender: C, size: usize) -> Option<&Series<C>> {
        self.posts.iter().find(|series| series.contender == contender && series.size == size)
    }

    /// The figures of one contender at one size; none if it was not measured.
    pub fn figures(&self, contender: C, size: usize) -> &[f64] {
        self.of(contender, size).map_or(&[], |series| &series.figures)
    }

    /// The machine's limits at one size.
    pub fn raw(&self, size: usize) -> Option<&RawSeries> {
        self.raws.iter().find(|series| series.size == size)
    }

    /// Noise of the machine; `None` where its limits were not measured.
    pub fn noise(&self) -> Option<Noise> {
        Noise::of(&self.lines())
    }

    /// Hand-over of a cache line in all rounds, at all sizes, in µs.
    pub fn lines(&self) -> Vec<f64> {
        self.raws.iter().flat_map(|raw| raw.line.iter().copied()).collect()
    }

    /// Slowness of each round, over all series: the time as a multiple of the series' median.
    fn slowness(&self) -> Vec<f64> {
        let medians: Vec<Option<f64>> = self.posts.iter().map(|series| median(&series.figures)).collect();
        let of_round = |round: usize| {
            let one = |(series, &median): (&Series<C>, &Option<f64>)| {
                let (figure, median) = (*series.figures.get(round)?, median?);
                Some(match series.contender.quantity() {
                    Quantity::Time => figure / median,
                    Quantity::Throughput => median / figure,
                })
            };
            let all: Vec<f64> = self.posts.iter().zip(&medians).filter_map(one).collect();
            median(&all).unwrap_or(1.0)
        };
        (0..self.rounds).map(of_round).collect()
    }

    /// Removes the rounds that were still warming up from all series alike, so that rounds stay paired.
    fn drop_warm_up(&mut self) {
        self.warm_up = WarmUp::find(&self.slowness());
        let dropped = self.warm_up.dropped;
        let shorten = |figures: &mut Vec<f64>| drop(figures.drain(..dropped.min(figures.len())));
        self.posts.iter_mut().for_each(|series| shorten(&mut series.figures));
        for raw in &mut self.raws {
            [&mut raw.line, &mut raw.copy, &mut raw.two_copies].into_iter().for_each(shorten);
        }
        self.rounds -= dropped;
    }
}

/// Runs rounds until the time is used up, at least five. Passes the time that has elapsed to `progress`.
pub fn measure<R: Runner>(
    pace: Pace,
    mut results: Results<R::Contender>,
    runner: &mut R,
    mut progress: impl FnMut(Duration),
) -> Result<Results<R::Contender>> {
    let started = Instant::now();
    for cell in 0..results.posts.len() {
        calibrate(pace, runner, &mut results, cell)?;
        progress(started.elapsed());
    }
    let (rounds, elapsed) = repeat(started, pace.time, |round| {
        runner.begin_round(round);
        for index in 0..results.raws.len() {
            run_size(pace, runner, &mut results, round, index)?;
            progress(started.elapsed());
        }
        Ok::<_, PerfError>(())
    })?;
    (results.rounds, results.elapsed) = (rounds, elapsed);
    results.drop_warm_up();
    Ok(results)
}

/// Runs rounds, numbered from 0, until the time since `started` is used up, at least five. Returns their number, and the
/// time.
pub fn repeat<E>(
    started: Instant,
    time: Duration,
    mut round: impl FnMut(usize) -> Result<(), E>,
) -> Result<(usize, Duration), E> {
    let mut rounds = 0;
    loop {
        let round_started = Instant::now();
        round(rounds)?;
        rounds += 1;
        let elapsed = started.elapsed();
        if elapsed + round_started.elapsed() > time && rounds >= MIN_ROUNDS {
            return Ok((rounds, elapsed));
        }
    }
}

/// Finds how many iterations fill a batch of this length; `run` returns the time of so many. A run suffices if it is
/// shorter than the batch by the factor `enough` at most. It is repeated, and the shorter time counts: a program that takes
/// the processor meanwhile makes one iteration last as long as a batch.
pub fn fitting_iterations<E>(
    batch: Duration,
    enough: u64,
    mut run: impl FnMut(u64) -> Result<Duration, E>,
) -> Result<u64, E> {
    let mut tried = 1;
    loop {
        // A float cast saturates, so a clock that did not move asks for the maximum.
        let mut fitting = || Ok((tried as f64 * batch.as_secs_f64() / run(tried)?.as_secs_f64()) as u64);
        let suffices = |fitting| fitting <= enough * tried || tried == MAX_ITERATIONS;
        let mut found = fitting()?;
        if suffices(found) {
            found = found.max(fitting()?);
            if suffices(found) {
                return Ok(found.clamp(1, MAX_ITERATIONS));
            }
        }
        tried = (found / enough).saturating_mul(2).clamp(tried + 1, 100 * tried).min(MAX_ITERATIONS);
    }
}

/// Empty series for every contender and size of the plan.
pub fn contenders(plan: &Plan) -> Results {
    let mut cells = Vec::new();
    for &size in &plan.sizes {
        for &test in &plan.tests {
            // A bandwidth of empty messages is 0 by definition.
            if test.quantity() == Quantity::Throughput && size == 0 {
                continue;
            }
            for &protocol in &plan.protocols {
                let of = |&payload| (Contender { test, protocol, payload }, size);
                cells.extend(plan.payloads.iter().map(of));
            }
        }
    }
    let auto = Contender { test: Test::Latency, protocol: Protocol::Auto, payload: Payload::Untouched };
    if plan.overview && plan.sizes.contains(&SMALL) && !plan.protocols.contains(&Protocol::Auto) {
        cells.push((auto, SMALL));
    }
    Results::empty(&plan.sizes, cells)
}

impl<C> Series<C> {
    fn empty(contender: C, size: usize) -> Self {
        Self { contender, size, iterations: 1, figures: Vec::new(), copied: 0, messages: 0 }
    }
}

/// Finds how many iterations fill a batch. The first batch does not count, because it pays for fresh memory.
fn calibrate<R: Runner>(
    pace: Pace,
    runner: &mut R,
    results: &mut Results<R::Contender>,
    cell: usize,
) -> Result {
    let series = &mut results.posts[cell];
    run(pace, runner, series, cell, 1)?;
    if let Some(fixed) = pace.iterations {
        series.iterations = fixed;
        return Ok(());
    }
    let batch = series.contender.batch();
    series.iterations = fitting_iterations(batch, 2, |tried| {
        run(pace, runner, series, cell, tried).map(|(_, sample)| sample.lasted)
    })?;
    Ok(())
}

/// Runs all contenders of one size, within milliseconds of each other.
fn run_size<R: Runner>(
    pace: Pace,
    runner: &mut R,
    results: &mut Results<R::Contender>,
    round: usize,
    index: usize,
) -> Result {
    let raw = &mut results.raws[index];
    let size = raw.size;
    if let Some(sample) = runner.raw(size)? {
        raw.line.push(sample.line);
        raw.copy.extend(sample.copies.map(|copies| copies.out));
        raw.two_copies.extend(sample.copies.map(|copies| copies.into_bounce + copies.out));
    }
    let members: Vec<usize> =
        (0..results.posts.len()).filter(|&index| results.posts[index].size == size).collect();
    for place in rotation(round, members.len()) {
        let (cell, series) = (members[place], &mut results.posts[members[place]]);
        let (shape, sample) = run(pace, runner, series, cell, series.iterations)?;
        record(series, shape, sample);
    }
    Ok(())
}

/// Visits every place once, starting one later in each round and backwards in every other one. So nobody always
/// runs behind the same neighbour.
pub fn rotation(round: usize, len: usize) -> impl Iterator<Item = usize> {
    (0..len).map(move |step| {
        let step = if round.is_multiple_of(2) { step } else { len - 1 - step };
        (step + round) % len
    })
}

/// One batch of a contender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial<C> {
    /// Contender that is timed.
    pub contender: C,
    /// Bytes per message.
    pub size: usize,
    /// Numbers of iterations and messages.
    pub shape: Shape,
}

/// Numbers of iterations and messages in a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Iterations before the clock starts.
    pub warm_up: u64,
    /// Iterations under the clock.
    pub iterations: u64,
    /// Messages in each iteration.
    pub messages: u64,
}

fn shape<C: Contend>(pace: Pace, series: &Series<C>, iterations: u64) -> Shape {
    match series.contender.quantity() {
        Quantity::Time => Shape { warm_up: (iterations / 10).max(1), iterations, messages: 2 },
        // A window of large messages warms itself up, and takes tens of milliseconds.
        Quantity::Throughput => {
            let bytes = series.contender.counted(1) * series.size.max(1) as u64;
            let messages = pace.window.min(MAX_BYTES_UNDER_WAY / bytes).max(1);
            Shape { warm_up: iterations / 10, iterations, messages }
        }
    }
}

fn run<R: Runner>(
    pace: Pace,
    runner: &mut R,
    series: &Series<R::Contender>,
    cell: usize,
    iterations: u64,
) -> Result<(Shape, Sample)> {
    let shape = shape(pace, series, iterations);
    let sample = runner.run(cell, &Trial { contender: series.contender, size: series.size, shape })?;
    Ok((shape, sample))
}

fn record<C: Contend>(series: &mut Series<C>, shape: Shape, sample: Sample) {
    let seconds = sample.elapsed.as_secs_f64();
    let counted = series.contender.counted(shape.messages);
    let timed = (counted * shape.iterations) as f64;
    series.figures.push(match series.contender.quantity() {
        Quantity::Time => seconds * 1e6 / timed,
        Quantity::Throughput => timed * series.size as f64 / seconds / 1e6,
    });
    series.copied += sample.copied;
    series.messages += counted * (shape.warm_up + shape.iterations);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::baseline::CopySample;

    /// A machine on which a message takes 1 µs.
    #[derive(Default)]
    struct Steady {
        trials: Vec<Trial<Contender>>,
    }

    impl Runner for Steady {
        type Contender = Contender;

        fn run(&mut self, _cell: usize, trial: &Trial<Contender>) -> Result<Sample> {
            self.trials.push(*trial);
            // Both directions together take as long as one direction alone.
            let Shape { warm_up, iterations, messages } = trial.shape;
            let elapsed = Duration::from_micros(messages * iterations);
            Ok(Sample { elapsed, lasted: elapsed, copied: 16 * messages * (iterations + warm_up) })
        }

        fn raw(&mut self, size: usize) -> Result<Option<BaselineSample>> {
            let copies = (size > 0).then_some(CopySample { into_bounce: 2.0, out: 3.0 });
            Ok(Some(BaselineSample { line: 0.5, copies }))
        }
    }

    fn plan() -> Plan {
        let pace = Pace { time: Duration::from_nanos(1), ..Plan::sample().pace };
        Plan { sizes: vec![0, 8, 4 << 20], pace, ..Plan::sample() }
    }

    fn measured(plan: &Plan, machine: &mut Steady) -> Results {
        measure(plan.pace, contenders(plan), machine, |_| ()).expect("measures")
    }

    #[test]
    fn a_run_that_another_program_held_up_does_not_shorten_batches() {
        let (mut runs, one) = (0, Duration::from_micros(4));
        let batch = 1000 * one;
        let found = fitting_iterations(batch, 10, |tried| {
            runs += 1;
            Ok::<_, ()>(if runs == 1 { batch } else { one * tried as u32 })
        });
        assert_eq!(found, Ok(1000));
    }

    #[test]
    fn every_contender_runs_once_in_every_round() {
        let results = measured(&plan(), &mut Steady::default());
        assert_eq!(results.rounds, MIN_ROUNDS);
        // Two protocols, two payloads: three latencies, two bandwidths (not of size 0), and auto at 8
        // bytes.
        assert_eq!(results.posts.len(), 4 * 3 + 4 * 2 + 1);
        assert!(results.posts.iter().all(|series| series.figures.len() == MIN_ROUNDS));
        assert!(results.raws.iter().all(|raw| raw.line == [0.5; MIN_ROUNDS]));
        assert_eq!(results.raw(8).expect("measured").two_copies, [5.0; MIN_ROUNDS]);
        assert!(results.raw(0).expect("measured").copy.is_empty());
    }

    #[test]
    fn figures_are_per_message_and_in_the_units_of_the_test() {
        let results = measured(&plan(), &mut Steady::default());
        let latency = results.post(Test::Latency, Protocol::Copy, Payload::Untouched, 8).expect("measured");
        assert!((latency.figures[0] - 1.0).abs() < 1e-9);
        assert_eq!(latency.copied, 16 * latency.messages);
        let bandwidth =
            results.post(Test::Bandwidth, Protocol::Copy, Payload::Untouched, 8).expect("measured");
        assert!((bandwidth.figures[0] - 8.0).abs() < 1e-9, "8 bytes per µs are 8 MB/s");
        assert_eq!(bandwidth.copied, 16 * bandwidth.messages);
    }

    #[test]
    fn both_directions_count_and_share_the_memory() {
        let plan = Plan { tests: vec![Test::BiBandwidth], overview: false, ..plan() };
        let mut machine = Steady::default();
        let results = measured(&plan, &mut machine);
        let both = results.post(Test::BiBandwidth, Protocol::Copy, Payload::Untouched, 8).expect("measured");
        assert!((both.figures[0] - 16.0).abs() < 1e-9, "8 bytes per µs each way");
        let large = machine.trials.iter().find(|trial| trial.size == 4 << 20);
        assert_eq!(large.map(|trial| trial.shape.messages), Some(8), "32 MiB each way");
    }

    #[test]
    fn rounds_that_warm_up_go_and_the_others_stay_paired() {
        let mut results = contenders(&plan());
        results.rounds = 40;
        let cold = |round: usize| if round < 4 { 5.0 } else { 1.0 };
        for series in &mut results.posts {
            let figure = |round: usize| match series.contender.quantity() {
                Quantity::Time => cold(round) + (round * 7 % 10) as f64 / 1e6,
                Quantity::Throughput => 1.0 / cold(round) + (round * 7 % 10) as f64 / 1e6,
            };
            series.figures = (0..40).map(figure).collect();
        }
        results.raws[1].line = (0..40).map(f64::from).collect();
        results.drop_warm_up();
        // The fourth round stays: the median of the run of three rounds that begins with it is steady.
        assert_eq!((results.warm_up, results.rounds), (WarmUp { dropped: 3, unsettled: false }, 37));
        assert!(results.posts.iter().all(|series| series.figures.len() == 37));
        assert_eq!((results.raws[1].line[0], results.raws[0].line.len()), (3.0, 0));
    }

    #[test]
    fn batches_are_calibrated_to_their_length_and_windows_to_the_memory() {
        let mut machine = Steady::default();
        let results = measured(&plan(), &mut machine);
        let latency =
            results.post(Test::Latency, Protocol::HandOff, Payload::Untouched, 8).expect("measured");
        assert_eq!(latency.iterations, 750, "round trips of 2 µs in 1.5 ms");
        let windows = |wanted: usize| {
            let of =
                |trial: &&Trial<Contender>| (trial.contender.test, trial.size) == (Test::Bandwidth, wanted);
            machine.trials.iter().find(of).map(|trial| trial.shape.messages)
        };
        assert_eq!((windows(8), windows(4 << 20)), (Some(64), Some(16)));
    }

    #[test]
    fn fixed_iterations_are_not_calibrated() {
        let pace = Pace { iterations: Some(7), ..plan().pace };
        let plan = Plan { pace, overview: false, ..plan() };
        let results = measured(&plan, &mut Steady::default());
        assert!(results.posts.iter().all(|series| series.iterations == 7));
        assert_eq!(results.posts.len(), 4 * 3 + 4 * 2, "auto was not asked for");
    }

    #[test]
    fn a_rotation_visits_every_place_and_changes_neighbours() {
        for len in [1, 2, 5] {
            for round in 0..12 {
                let mut places: Vec<usize> = rotation(round, len).collect();
                places.sort_unstable();
                assert_eq!(places, (0..len).collect::<Vec<_>>());
            }
        }
        assert_eq!(rotation(0, 4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(rotation(1, 4).collect::<Vec<_>>(), [0, 3, 2, 1]);
        assert_eq!(rotation(2, 4).collect::<Vec<_>>(), [2, 3, 0, 1]);
    }
}
