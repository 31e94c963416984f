//! Runs of dependent traffic, whose messages are sent after others have arrived: traces, and collective operations
//! of many ranks.
//!
//! The orders of collective operations come from the library itself, so they are those of a job's ranks: a
//! barrier by dissemination, an all-to-all by the tournament's rounds, and a transpose as in `nas-ft`. The library's
//! protocols (eager copies, hand-offs, their acknowledgements) are not simulated: a post is a message of its length,
//! and is sent at once. With `library = true` the library itself runs the operation, too ([`crate::stack`]).

use crate::{
    grid::{self, steps},
    input::{Collective, Operation, Order, Scenario, Scheme, TraceKeys},
    network,
    options::Format,
    run::line_of_stream,
    stack,
};
use serde_json::{Value, json};
use std::{fs, path::Path};
use udeck::{
    barrier_plan::{BarrierStep, Plan},
    exchange::{Action, Step},
};
use udeck_cli::progress;
use udeck_cli::{
    Problem,
    columns::{lines, row},
};
use udeck_fabric::{
    beside::Beside,
    engine::Engine,
    measure::Measures,
    program::{Op, Programs},
    topology::Network,
    traffic::Traffic,
    vef::{self, Replay, names::Names},
    workload::Workload,
};

/// Bytes of a flit.
const FLIT: u64 = 64;
/// Steps of the progress bar of a run: each step has twice as many cycles as the one before.
const STEPS: u32 = 40;

/// Upper bound of a message's bytes with `library = true`: a message of this length or more has to be answered
/// before it is sent.
const MOST_BYTES: u64 = 4 << 20;
/// Upper bound of the bytes of all ranks' messages together.
const MOST_MEMORY: u64 = 8 << 30;
/// Upper bound of ranks that have a mailbox for each other.
const MOST_MAILBOXES: u64 = 512;
/// Upper bound of the bytes that a rank may have posted and no peer has read: half of its arena.
const MOST_OWN: u64 = 32 << 20;

/// Figures of a run.
pub struct RunResult {
    scheme: Scheme,
    /// Factor of the loads beside a trace.
    load: Option<f64>,
    /// End times of the first and of the last rank; for a trace, its end twice.
    pub cycles: (u64, u64),
    messages: u64,
    flits: u64,
    mean: f64,
    median: u64,
    p99: u64,
    /// Number of speculative packets of the trace or operation that switches have dropped, without those of traffic beside it.
    dropped: u64,
    /// Figures of the library itself.
    pub library: Option<stack::Times>,
}

/// Runs the scenario under each scheme, and formats the results.
pub fn run(scenario: &Scenario, folder: &Path, format: Format) -> Result<String, Problem> {
    let (network, runs) = runs(scenario, folder)?;
    Ok(print(scenario, &network, &runs, format))
}

/// Runs the scenario under each scheme.
pub fn runs(scenario: &Scenario, folder: &Path) -> Result<(Network, Vec<RunResult>), Problem> {
    let network = network::build(scenario, folder)?;
    let schemes = &scenario.congestion.get_ref().schemes;
    let schemes = if schemes.is_empty() { &[Scheme::None][..] } else { schemes };
    let mut runs = Vec::new();
    for &scheme in schemes {
        runs.push(match (&scenario.trace, &scenario.collective) {
            (Some(keys), _) if !scenario.traffic.is_empty() => {
                runs.extend(beside(scenario, keys, scheme, &network, folder)?);
                continue;
            }
            (Some(keys), _) => {
                let replay = replay(keys, scenario.lines.work, &network, folder)?;
                let (engine, measures) = simulate(scenario, &network, scheme, replay, Replay::is_done)?;
                let end = engine.workload().ended();
                ended(scheme, (end, end), &measures)
            }
            (None, Some(keys)) => {
                let programs = programs(keys, scenario.lines.work, &network)?;
                let (engine, measures) = simulate(scenario, &network, scheme, programs, Programs::is_done)?;
                let all: Vec<u64> = engine.workload().ended().iter().flatten().copied().collect();
                let (first, last) = (all.iter().min().copied(), all.iter().max().copied());
                let replayed = ended(scheme, (first.unwrap_or(0), last.unwrap_or(0)), &measures);
                let run_library = || library(scenario, keys, &network, scheme);
                RunResult { library: keys.library.then(run_library).transpose()?, ..replayed }
            }
            (None, None) => return Err(Problem::wrong(None, "there is neither [trace] nor [collective]")),
        });
    }
    Ok((network, runs))
}

/// Runs a trace beside the scenario's traffic, at each load.
fn beside(
    scenario: &Scenario,
    keys: &TraceKeys,
    scheme: Scheme,
    network: &Network,
    folder: &Path,
) -> Result<Vec<RunResult>, Problem> {
    let one = [1.0];
    let loads = scenario.loads.as_ref().map_or(&one[..], |loads| loads.get_ref());
    let run = |load: &f64| {
        let replay = replay(keys, scenario.lines.work, network, folder)?;
        let streams = network::streams(scenario, network.hosts(), *load)?;
        let traffic = Traffic::new(network.hosts(), streams, scenario.seed)
            .map_err(|bad| Problem::wrong(line_of_stream(scenario, &bad.stream), bad))?;
        let beside = Beside::new(replay, traffic);
        let (engine, measures) = simulate(scenario, network, scheme, beside, Beside::is_done)?;
        let end = engine.workload().ended();
        Ok(RunResult { load: Some(*load), ..ended(scheme, (end, end), &measures) })
    };
    loads.iter().map(run).collect()
}

/// Runs the operation with the library itself.
fn library(
    scenario: &Scenario,
    keys: &Collective,
    network: &Network,
    scheme: Scheme,
) -> Result<stack::Times, Problem> {
    let config = network::config(scenario, scheme)?;
    let task = stack::Task {
        operation: *keys.operation.get_ref(),
        bytes: keys.bytes as usize,
        order: keys.order,
        incast: keys.incast.unwrap_or_default(),
    };
    let ended = stack::run(&task, keys.ranks, keys.times, network, &config)
        .map_err(|why| Problem::cannot(None, why))?;
    Ok(ended.times)
}

fn replay(keys: &TraceKeys, line: usize, network: &Network, folder: &Path) -> Result<Replay, Problem> {
    let wrong =
        |file: &Path, why: String| Problem::wrong(line, format!("[trace]: {}: {why}", file.display()));
    let read = |file: &Path| {
        fs::read_to_string(file).map_err(|why| wrong(file, format!("it cannot be read: {why}")))
    };
    let file = folder.join(keys.path.get_ref());
    let trace = vef::parse(&read(&file)?).map_err(|bad| wrong(&file, bad.to_string()))?;
    let (nodes, hosts) = (trace.nodes, network.hosts());
    let replay = Replay::new(trace, keys.cycle_ps).with_flits_of(keys.flit.get()).on_level(keys.level);
    let Some(names) = &keys.names else {
        if nodes as usize > hosts {
            let more = "take a larger network, or `names` if several nodes are on one tile";
            return Err(wrong(
                &file,
                format!("{nodes} nodes need a host each, and there are {hosts}: {more}"),
            ));
        }
        return Ok(replay);
    };
    let file = folder.join(names);
    let names = Names::parse(&read(&file)?, nodes).map_err(|bad| wrong(&file, bad.to_string()))?;
    if names.hosts() > hosts {
        let tiles = names.hosts();
        return Err(wrong(
            &file,
            format!(
                "tiles 0 to {} need a host each, and there are {hosts}: take a larger network",
                tiles - 1
            ),
        ));
    }
    Ok(replay.placed(&names))
}

fn programs(keys: &Collective, line: usize, network: &Network) -> Result<Programs, Problem> {
    let wrong = |why: String| Problem::wrong(line, format!("[collective]: {why}"));
    let (ranks, hosts) = (keys.ranks, network.hosts());
    if !(2..=hosts).contains(&ranks) {
        return Err(wrong(format!("ranks is {ranks}: take 2 to {hosts}, a host for each")));
    }
    if keys.order == Order::Hypercube && !ranks.is_power_of_two() {
        return Err(wrong(format!(
            "order \"hypercube\" needs a power of two of ranks, and there are {ranks}"
        )));
    }
    let operation = *keys.operation.get_ref();
    if keys.incast.is_some() && !(keys.library && operation == Operation::Incast) {
        return Err(wrong("incast is for operation = \"incast\" with library = true".into()));
    }
    if keys.library {
        check_library(keys).map_err(wrong)?;
    }
    let of_a_rank = match operation {
        Operation::Barrier => 32,
        Operation::Incast => 1,
        _ => ranks,
    };
    let messages = keys.times as usize * ranks * of_a_rank;
    if messages > 1 << 26 || keys.bytes > 1 << 26 {
        return Err(wrong(
            "more than 67,108,864 messages, or bytes: take fewer ranks, times or bytes".into(),
        ));
    }
    let flits = keys.bytes.div_ceil(FLIT).max(1) as u32;
    let program = |rank: usize| {
        let once = match operation {
            Operation::Barrier => barrier(rank, ranks),
            Operation::AllToAll => {
                steps(keys.order, rank, ranks).into_iter().flat_map(|step| both(step, flits)).collect()
            }
            Operation::Incast if rank == 0 => (1..ranks as u32).map(|from| Op::Retrieve { from }).collect(),
            Operation::Incast => vec![Op::Post { to: 0, flits }],
            Operation::Transpose => {
                steps(keys.order, rank, ranks).into_iter().flat_map(|step| in_order(step, flits)).collect()
            }
            Operation::Transpose2d => grid::lines(rank, ranks)
                .into_iter()
                .flat_map(|line| within(&line, rank, keys.order))
                .flat_map(|step| both(step, flits))
                .collect(),
        };
        let compute = (keys.compute > 0).then_some(Op::Compute(keys.compute));
        let time: Vec<Op> = compute.into_iter().chain(once).collect();
        time.repeat(keys.times as usize)
    };
    let programs = (0..ranks).map(program).collect();
    Programs::new(programs, (0..ranks as u32).collect(), hosts).map_err(|bad| wrong(bad.to_string()))
}

/// Checks whether the library can run the operation in one process.
fn check_library(keys: &Collective) -> Result<(), String> {
    let (ranks, bytes, operation) = (keys.ranks as u64, keys.bytes, *keys.operation.get_ref());
    // Each message takes its bytes twice: at its sender and at its receiver.
    let memory = match operation {
        Operation::Incast => 2 * ranks * u64::from(keys.times) * bytes,
        _ => 2 * ranks * ranks * bytes,
    };
    let words = match operation {
        _ if keys.compute > 0 => "nobody computes: leave compute out".into(),
        Operation::Barrier => return Ok(()),
        Operation::Incast if bytes < stack::LEAST_OF_INCAST as u64 => {
            format!(
                "bytes of an incast is at least {}: a message says when it was posted",
                stack::LEAST_OF_INCAST
            )
        }
        _ if bytes == 0 => "bytes is at least 1".into(),
        _ if bytes >= MOST_BYTES => {
            format!("bytes is less than {MOST_BYTES}: longer messages are not supported")
        }
        _ if memory > MOST_MEMORY => {
            format!(
                "{ranks} ranks' messages of {bytes} bytes take {} GiB, and {} is the most",
                memory >> 30,
                MOST_MEMORY >> 30
            )
        }
        Operation::Transpose if ranks > MOST_MAILBOXES => {
            format!(
                "a transpose has a mailbox for each pair of ranks: take {MOST_MAILBOXES} ranks at most, or \"transpose-2d\""
            )
        }
        Operation::Transpose if ranks * bytes > MOST_OWN => {
            format!(
                "a rank of a transpose has {} MiB for its messages: take fewer ranks or bytes",
                MOST_OWN >> 20
            )
        }
        _ => return Ok(()),
    };
    Err(format!("with library = true, {words}"))
}

/// Steps of a rank in a barrier: those of the library where each rank has a processor of its own.
fn barrier(rank: usize, ranks: usize) -> Vec<Op> {
    let step = |step| match step {
        BarrierStep::Send(to) => Op::Post { to: to as u32, flits: 1 },
        BarrierStep::Receive(from) => Op::Retrieve { from: from as u32 },
    };
    Plan::best(ranks, false).steps(rank, ranks).into_iter().map(step).collect()
}

/// Steps of a rank in an exchange within `line`, a part of all ranks.
fn within(line: &[usize], rank: usize, order: Order) -> Vec<Step> {
    let place = line.iter().position(|other| *other == rank).unwrap_or(0);
    let of_world = |step: Step| Step { peer: line[step.peer], ..step };
    steps(order, place, line.len()).into_iter().map(of_world).collect()
}

/// Operations of a step in a group's all-to-all: both ranks post, and then both retrieve.
fn both(step: Step, flits: u32) -> Vec<Op> {
    match step.action {
        Action::PostThenRetrieve | Action::RetrieveThenPost => {
            in_order(Step { action: Action::PostThenRetrieve, ..step }, flits)
        }
        Action::Post | Action::Retrieve => in_order(step, flits),
    }
}

/// Operations of a step over mailboxes, for any protocol: the lower rank posts first.
fn in_order(step: Step, flits: u32) -> Vec<Op> {
    let peer = step.peer as u32;
    let (post, retrieve) = (Op::Post { to: peer, flits }, Op::Retrieve { from: peer });
    match step.action {
        Action::Post => vec![post],
        Action::Retrieve => vec![retrieve],
        Action::PostThenRetrieve => vec![post, retrieve],
        Action::RetrieveThenPost => vec![retrieve, post],
    }
}

/// Runs the workload until nothing happens any more.
fn simulate<'network, W: Workload>(
    scenario: &Scenario,
    network: &'network Network,
    scheme: Scheme,
    workload: W,
    is_done: fn(&W) -> bool,
) -> Result<(Engine<'network, W>, Measures), Problem> {
    let config = network::config(scenario, scheme)?;
    let mut engine = Engine::new(network, &config, workload)
        .map_err(|bad| Problem::wrong(network::line_of_engine(scenario, &bad), bad))?;
    let most = *scenario.measured.get_ref();
    let bar = progress::bar(u64::from(STEPS), scheme.name());
    for step in 1..=STEPS {
        // The run ends before `most`, at a time that is not known: each step is twice as long as the one before.
        let until = most >> (STEPS - step);
        if until > engine.now() {
            let is_dry = engine.run_dry(until).map_err(|why| Problem::cannot(None, why))?;
            // Traffic beside a trace may still be on its way.
            if is_done(engine.workload()) {
                bar.finish_and_clear();
                let measures = engine.measures();
                return Ok((engine, measures));
            }
            // Nothing is in flight also while all ranks compute, so the engine is asked for timers, too.
            if is_dry && engine.is_idle() {
                bar.finish_and_clear();
                let reason = "what is left waits for itself, as a task for a group operation whose other members wait for it";
                return Err(Problem::cannot(
                    None,
                    format!("the run came to a stop in cycle {}: {reason}", engine.now()),
                ));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Err(Problem::cannot(None, format!("the run has not ended after {most} cycles: raise `measured`")))
}

fn ended(scheme: Scheme, cycles: (u64, u64), measures: &Measures) -> RunResult {
    let class = &measures.classes[0];
    RunResult {
        scheme,
        load: None,
        cycles,
        messages: class.delivered.0,
        flits: class.delivered.1,
        mean: class.latency.mean(),
        median: class.latency.value_at_quantile(0.5),
        p99: class.latency.value_at_quantile(0.99),
        dropped: class.dropped,
        library: None,
    }
}

fn print(scenario: &Scenario, network: &Network, runs: &[RunResult], format: Format) -> String {
    let wait = |run: &RunResult, nth: usize| Some(run.library?.waits?[nth]);
    let rate = |run: &RunResult| run.flits as f64 / run.cycles.1.max(1) as f64;
    match format {
        Format::Text => {
            let mut rows = vec![row([
                "scheme",
                "first end",
                "last end",
                "messages",
                "flits",
                "flits a cycle",
                "mean",
                "median",
                "99 %",
                "dropped",
                "library: first end",
                "last end",
                "median wait",
                "99 %",
                "most",
            ])];
            rows.extend(runs.iter().map(|run| {
                let mut cells = vec![
                    run.scheme.name().into(),
                    run.cycles.0.to_string(),
                    run.cycles.1.to_string(),
                    run.messages.to_string(),
                    run.flits.to_string(),
                    format!("{:.2}", rate(run)),
                    format!("{:.1}", run.mean),
                    run.median.to_string(),
                    run.p99.to_string(),
                    run.dropped.to_string(),
                ];
                let of_library = run.library.map_or([None; 5], stack::Times::all);
                let cell =
                    |cycles: Option<u64>| cycles.map_or_else(|| "-".into(), |cycles| cycles.to_string());
                cells.extend(of_library.map(cell));
                cells
            }));
            let has =
                |figures: fn(stack::Times) -> bool| runs.iter().any(|run| run.library.is_some_and(figures));
            let empty = [has(|_| true), has(|figures| figures.waits.is_some())];
            let more = match empty {
                [false, _] => 5,
                [true, false] => 3,
                [true, true] => 0,
            };
            rows.iter_mut().for_each(|row| row.truncate(row.len() - more));
            if runs.iter().any(|run| run.load.is_some()) {
                let loads =
                    runs.iter().map(|run| run.load.map_or_else(|| "-".into(), |load| format!("{load:.2}")));
                rows.iter_mut()
                    .zip(["load".to_owned()].into_iter().chain(loads))
                    .for_each(|(row, load)| row.insert(1, load));
            }
            format!("{}, {} hosts; times in cycles\n\n{}", network.name, network.hosts(), lines(&rows))
        }
        Format::Json => {
            let runs = runs.iter().map(|run| {
                json!({
                    "scheme": run.scheme.name(), "load": run.load, "first_end_cycles": run.cycles.0, "last_end_cycles": run.cycles.1,
                    "messages": run.messages, "flits": run.flits, "mean_cycles": run.mean, "median_cycles": run.median,
                    "p99_cycles": run.p99, "dropped_packets": run.dropped,
                    "library_first_end_cycles": run.library.map(|library| library.cycles.0),
                    "library_last_end_cycles": run.library.map(|library| library.cycles.1),
                    "library_median_wait_cycles": wait(run, 0), "library_p99_wait_cycles": wait(run, 1), "library_most_wait_cycles": wait(run, 2),
                })
            });
            let runs = runs.collect::<Value>();
            format!(
                "{:#}\n",
                json!({ "network": network.name, "hosts": network.hosts(), "seed": scenario.seed, "runs": runs })
            )
        }
        Format::Csv => {
            let line = |run: &RunResult| {
                let RunResult { cycles: (first, last), messages, flits, mean, median, p99, dropped, .. } =
                    run;
                let cell = |cycles: Option<u64>| cycles.map(|cycles| cycles.to_string()).unwrap_or_default();
                let library = run.library.map_or([None; 5], stack::Times::all).map(cell).join(",");
                format!(
                    "{},{first},{last},{messages},{flits},{mean},{median},{p99},{dropped},{library},{}\n",
                    run.scheme.name(),
                    run.load.map(|load| load.to_string()).unwrap_or_default(),
                )
            };
            let heads = "scheme,first_end,last_end,messages,flits,mean,median,p99,dropped,library_first_end,library_last_end,library_median_wait,library_p99_wait,library_most_wait,load\n";
            heads.to_owned() + &runs.iter().map(line).collect::<String>()
        }
    }
}
