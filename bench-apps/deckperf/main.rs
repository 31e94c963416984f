//! `deckperf`: what a message costs between two ranks on this host, beside what the machine itself can do.
//!
//! Without a job around it, deckperf starts itself twice. Rank 0 conducts: it schedules the batches, holds the
//! clock and prints. Rank 1 follows its orders.

mod cli;
mod commands;
mod experiment;
mod failure;
mod report;
mod stats;

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use udeck::World;
use udeck_cli::{load, progress};

use crate::{
    cli::{Cli, Task},
    commands::{
        clones, compare, costs, cpu, dat, explain, jobs, overlap, page, peers, percentiles, registration,
        verify, vi,
    },
    experiment::{
        Conductor,
        baseline::Baselines,
        binding::{self, BindPlace, Cpus},
        follow,
        off_cache::{Extent, Rotation},
        order::Order,
        plan::{self, Checks, Plan},
        rank_pair::RankPair,
        rounds,
    },
    failure::{PerfError, Result},
    report::Report,
};
use udeck_cli::machine::Machine;

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
        Task::StartTime(_) => unreachable!("it has a job of its own"),
        // Ranks of `peers` and `cpu` have other links, and follow another process.
        Task::PeerRank(_, setting) => return peers::serve(world, *setting).map(|()| Ok(String::new())),
        Task::CpuRank => return cpu::serve(world).map(|()| Ok(String::new())),
        Task::Peers(_) | Task::Cpu(_) | Task::Compare(..) | Task::Page(_) => unreachable!("it is no rank"),
        Task::CpuSockets(_) => unreachable!("it has no world"),
        Task::Jobs(plan) => return jobs::play(world, plan, bind_places).map(Ok),
        Task::Explain(_) => (&[][..], false),
    };
    let mut pair = RankPair::open(world, protocols)?;
    if let Task::Measure(plan) = task {
        pair.set_handicap(plan.handicap.map(|percent| f64::from(percent) / 100.0));
        pair.set_rotation(plan.off_cache.then(|| Rotation::new(Extent::of_this_host(world.config().arena))));
    }
    let places = Places::take(&pair, pin, bind_places)?;
    if !pair.leads() {
        match task {
            Task::MeasureVi(plan) => vi::follow(&pair, plan)?,
            Task::MeasureDat(plan) => dat::follow(&pair, plan)?,
            Task::VerifyDat(checks) => dat::follow_checks(&pair, checks)?,
            Task::Overlap(_) => overlap::follow(&pair)?,
            Task::Clones(plan) => clones::follow(&pair, plan)?,
            Task::Costs(plan) => costs::follow(&pair, plan)?,
            Task::Registration(_) => registration::follow(&pair)?,
            _ => follow(&pair)?,
        }
        return Ok(Ok(String::new()));
    }
    let printed = match task {
        // The following tasks have orders of their own, the stop order included.
        Task::MeasureVi(plan) => return Ok(Ok(measure_vi(&pair, plan, &places)?)),
        Task::MeasureDat(plan) => return Ok(Ok(measure_dat(&pair, plan, &places)?)),
        Task::VerifyDat(checks) => return verify_dat(&pair, checks),
        Task::Overlap(plan) => return Ok(Ok(measure_overlap(&pair, plan, &places)?)),
        Task::Clones(plan) => return Ok(Ok(measure_clones(&pair, plan, &places)?)),
        Task::Costs(plan) => return Ok(Ok(measure_costs(&pair, plan, &places)?)),
        Task::Registration(plan) => return Ok(Ok(measure_registration(&pair, plan, &places)?)),
        Task::Measure(plan) if plan.percentiles => Ok(measure_percentiles(&pair, plan, &places)?),
        Task::Measure(plan) => Ok(measure(&pair, plan, &places)?),
        Task::Verify(checks) => verify(&pair, checks)?,
        Task::Explain(sizes) => Ok(explain::table(&pair, sizes)?),
        _ => unreachable!("it has no pair of ranks"),
    };
    pair.send_words(&Order::Stop.encode()?)?;
    Ok(printed)
}

fn measure(pair: &RankPair<'_>, plan: &Plan, places: &Places) -> Result<String> {
    let largest = plan.sizes.last().copied().unwrap_or(0);
    let mut conductor = Conductor { pair, raw: places.raw_limits(largest) };
    let bar = progress::bar(plan.time.as_millis() as u64, "measuring");
    let results = rounds::measure(plan.pace(), rounds::contenders(plan), &mut conductor, |passed| {
        bar.set_position(passed.as_millis() as u64);
    })?;
    bar.finish_and_clear();
    let (nic, window) = (&pair.world().nic().attributes().name, pair.world().config().copy_window);
    let transport = format!("{nic}; copy has {window} fragments of at most 64 KiB under way");
    let machine = Machine { off_cache: plan.off_cache, ..Machine::describe(places.describe(), transport) };
    let mut report = Report::new(machine, plan.clone(), results);
    report.memory = pair.rotation().map(|rotation| rotation.sentence(&plan.sizes));
    Ok(report.render())
}

fn measure_percentiles(pair: &RankPair<'_>, plan: &Plan, places: &Places) -> Result<String> {
    let raw = places.raw_limits(plan.sizes.last().copied().unwrap_or(0));
    timed_bar(plan.time, |passed| percentiles::measure(pair, plan, places.describe(), raw, passed))
}

fn measure_registration(
    pair: &RankPair<'_>,
    plan: &registration::RegistrationPlan,
    places: &Places,
) -> Result<String> {
    let raw = places.raw_limits(0);
    timed_bar(plan.pace.time, |passed| registration::measure(pair, plan, places.describe(), raw, passed))
}

/// Shows a progress bar over the time of a run.
fn timed_bar(time: Duration, run: impl FnOnce(&mut dyn FnMut(Duration)) -> Result<String>) -> Result<String> {
    let bar = progress::bar(time.as_millis() as u64, "measuring");
    let printed = run(&mut |passed| bar.set_position(passed.as_millis() as u64))?;
    bar.finish_and_clear();
    Ok(printed)
}

fn measure_vi(pair: &RankPair<'_>, plan: &vi::ViPlan, places: &Places) -> Result<String> {
    let raw = places.raw_limits(plan.largest());
    let bar = progress::bar(plan.pace.time.as_millis() as u64, "measuring");
    let passed = |passed: Duration| bar.set_position(passed.as_millis() as u64);
    let printed = vi::measure(pair, plan, places.describe(), raw, passed)?;
    bar.finish_and_clear();
    Ok(printed)
}

fn measure_dat(pair: &RankPair<'_>, plan: &dat::DatPlan, places: &Places) -> Result<String> {
    let raw = places.raw_limits(plan.largest());
    timed_bar(plan.pace.time, |passed| dat::measure(pair, plan, places.describe(), raw, passed))
}

fn verify_dat(pair: &RankPair<'_>, checks: &dat::DatChecks) -> Result<Result<String>> {
    let bar = progress::bar(checks.sizes.len() as u64 * 3, "verifying");
    let verdict = dat::verify(pair, checks, || bar.inc(1))?;
    bar.finish_and_clear();
    Ok(verdict.map(|sentence| sentence + "\n"))
}

fn measure_overlap(pair: &RankPair<'_>, plan: &overlap::OverlapPlan, places: &Places) -> Result<String> {
    let bar = progress::bar(plan.time.as_millis() as u64, "measuring");
    let passed = |passed: Duration| bar.set_position(passed.as_millis() as u64);
    let printed = overlap::measure(pair, plan, places.describe(), passed)?;
    bar.finish_and_clear();
    Ok(printed)
}

fn measure_clones(pair: &RankPair<'_>, plan: &clones::ClonesPlan, places: &Places) -> Result<String> {
    let raw = places.raw_limits(clones::LARGEST);
    let bar = progress::bar(plan.pace.time.as_millis() as u64, "measuring");
    let passed = |passed: Duration| bar.set_position(passed.as_millis() as u64);
    let printed = clones::measure(pair, plan, places.describe(), raw, passed)?;
    bar.finish_and_clear();
    Ok(printed)
}

fn measure_costs(pair: &RankPair<'_>, plan: &costs::CostsPlan, places: &Places) -> Result<String> {
    let bar = progress::bar(costs::STEPS, "measuring");
    let printed = costs::measure(pair, plan, places.describe(), || bar.inc(1))?;
    bar.finish_and_clear();
    Ok(printed)
}

fn verify(pair: &RankPair<'_>, checks: &Checks) -> Result<Result<String>> {
    let bar = progress::bar((checks.sizes.len() * checks.protocols.len()) as u64, "verifying");
    let tally = verify::run(pair, checks, || bar.inc(1))?;
    bar.finish_and_clear();
    Ok(verify::verdict(&tally, checks).map(|sentence| sentence + "\n"))
}

/// Cores on which the two ranks run.
struct Places {
    /// Cores that this rank might use before it was pinned.
    usable: Vec<usize>,
    /// Core of this rank and core of the peer, if both are pinned.
    pinned: Option<[usize; 2]>,
}

/// Value on the wire of a rank that is not pinned.
const NOT_PINNED: u64 = u64::MAX;

impl Places {
    /// Pins this rank if asked to, and learns where the other one runs. A rank that its launcher has pinned
    /// stays on its core.
    fn take(pair: &RankPair<'_>, pin: bool, bind_places: &[BindPlace]) -> Result<Self> {
        let usable = udeck::sys::usable_cpus();
        let mine = if bind_places.is_empty() {
            usable.get(pair.world().rank()).or(usable.first()).copied().filter(|_| pin)
        } else {
            let neighbours = pair.world().host_ranks();
            let local = neighbours.iter().position(|&rank| rank == pair.world().rank()).unwrap_or(0);
            Some(binding::core_of(bind_places, local, neighbours.len(), &usable, &Cpus::of_this_host())?)
        };
        if let Some(cpu) = mine {
            udeck::sys::pin_to_cpu(cpu).map_err(PerfError::system("pinning this rank (try --no-pin)"))?;
        }
        pair.send_words(&[mine.map_or(NOT_PINNED, |cpu| cpu as u64)])?;
        let report = pair.receive_words()?;
        let &[theirs] = &report[..] else { return Err(PerfError::BadReport(report.len())) };
        let theirs = usize::try_from(theirs).ok().filter(|_| theirs != NOT_PINNED);
        Ok(Self { usable, pinned: mine.zip(theirs).map(|(mine, theirs)| [mine, theirs]) })
    }

    /// The raw limits' measurement; `None` without two cores.
    fn raw_limits(&self, largest: usize) -> Option<Baselines> {
        let two_cores = self.pinned.map_or(self.usable.len() > 1, |[mine, theirs]| mine != theirs);
        two_cores.then(|| Baselines::new(self.pinned, largest))
    }

    fn describe(&self) -> String {
        match self.pinned {
            None => "not pinned".to_owned(),
            Some([mine, theirs]) if mine == theirs && self.usable.len() > 1 => format!("both on core {mine}"),
            Some([mine, theirs]) if mine == theirs => format!("both on core {mine}, the only usable one"),
            Some([mine, theirs]) => format!("pinned to cores {mine} and {theirs}{}", nodes([mine, theirs])),
        }
    }
}

/// NUMA nodes of the cores, if this host's kernel reports them.
fn nodes(cores: [usize; 2]) -> String {
    let cpus = Cpus::of_this_host();
    match cores.map(|core| cpus.node_of(core)) {
        [Some(one), Some(other)] if one == other => format!(" (NUMA node {one})"),
        [Some(one), Some(other)] => format!(" (NUMA nodes {one} and {other})"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
