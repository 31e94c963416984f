//! `deckperf`: what a message costs between two ranks on this host, beside what the machine itself can do.
//!
//! Without a job around it, it starts itself twice. Rank 0 conducts: it schedules the batches, holds the
//! clock and prints; rank 1 follows its orders.

mod baseline;
mod binding;
mod cli;
mod clones;
mod compare;
mod costs;
mod cpu;
mod data;
mod exchange;
mod experiment;
mod explain;
mod export;
mod failure;
mod handicap;
mod jobs;
mod machine;
mod memory;
mod noise;
mod off_cache;
mod order;
mod overlap;
mod page;
mod payload;
mod peers;
mod percentiles;
mod plan;
mod progress;
mod rank_pair;
mod registration;
mod render;
mod report;
mod rounds;
mod sizes;
mod stats;
mod steady;
mod summary;
mod table;
mod table_report;
mod verify;
mod vi;

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use udeck::World;

use crate::{
    baseline::Baselines,
    binding::{Cpus, Spot},
    cli::{Cli, Task},
    experiment::{Conductor, follow},
    failure::{Failure, Result},
    machine::Machine,
    off_cache::{Extent, Rotation},
    order::Order,
    plan::{Checks, Plan},
    rank_pair::RankPair,
    report::Report,
};

fn main() -> ExitCode {
    // Before anything starts: a mistyped option is reported once, not by two ranks.
    let cli = Cli::parse();
    if let Some(text) = cli.generate.text::<Cli>() {
        return print(Ok::<_, Failure>(text));
    }
    let transport = cli.transport();
    let spots = cli.binding();
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
    // Before anything starts, too, unless the ranks may be on other hosts.
    if std::env::var_os("DECK_RANK").is_none()
        && let Err(error) = binding::check(&spots, ranks as usize)
    {
        return exit_code(Err(error));
    }
    let mut job = deckrun::Job::new(ranks);
    if let Some(transport) = transport {
        job = job.env("DECK_TRANSPORT", transport);
    }
    if !spots.is_empty() {
        job = job.bind(deckrun::Bind::None);
    }
    match deckrun::launch_self(job) {
        Ok(Some(outcome)) => outcome.exit_code(),
        Ok(None) => {
            exit_code(udeck::init().map_err(Failure::from).and_then(|world| be_a_rank(world, &task, &spots)))
        }
        Err(error) => exit_code(Err(error)),
    }
}

fn print<E: std::fmt::Display + From<Failure>>(printed: Result<String, E>) -> ExitCode {
    exit_code(printed.and_then(|text| {
        Ok(io::stdout().write_all(text.as_bytes()).map_err(Failure::system("writing the report"))?)
    }))
}

/// 1 says that something got slower, so what cannot be compared is 2.
fn print_comparison(args: &compare::CompareArgs, format: plan::Format) -> ExitCode {
    let (text, code, to_stdout) = match compare::compare(args, format) {
        Ok(printed) => (printed.text, u8::from(printed.slower), true),
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
            // In one write, so that ranks' lines stay whole: the first of them to end takes the others with it.
            let _ = io::stderr().write_all(format!("deckperf: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// A whole life in a job: both ranks say good-bye before rank 0 reports what was wrong.
fn be_a_rank(world: World, task: &Task, spots: &[Spot]) -> Result {
    let (rank, size) = (world.rank(), world.size());
    if size != 2 && !task.takes_any_job() {
        world.finish()?;
        return if rank == 0 { Err(Failure::WrongJobSize(size)) } else { Ok(()) };
    }
    let printed = play(&world, task, spots)?;
    world.finish()?;
    let text = printed?;
    io::stdout().write_all(text.as_bytes()).map_err(Failure::system("writing the report"))
}

/// The outer result is about the work, the inner one about what rank 0 found (rank 1 finds nothing).
fn play(world: &World, task: &Task, spots: &[Spot]) -> Result<Result<String>> {
    let (protocols, pin) = match task {
        Task::Measure(plan) => (&plan.protocols[..], plan.pin),
        Task::MeasureVi(plan) => (&[][..], plan.pin),
        Task::Verify(checks) => (&checks.protocols[..], checks.pin),
        Task::Overlap(plan) => (&plan.protocols[..], plan.pin),
        Task::Clones(plan) => (&[][..], plan.pin),
        Task::Costs(plan) => (&[][..], plan.pin),
        Task::Registration(plan) => (&[][..], plan.pin),
        Task::StartTime(_) => unreachable!("it has a job of its own"),
        // These ranks have other links, and follow another process.
        Task::PeerRank(_, course) => return peers::serve(world, *course).map(|()| Ok(String::new())),
        Task::CpuRank => return cpu::serve(world).map(|()| Ok(String::new())),
        Task::Peers(_) | Task::Cpu(_) | Task::Compare(..) | Task::Page(_) => unreachable!("it is no rank"),
        Task::CpuSockets(_) => unreachable!("it has no world"),
        Task::Jobs(plan) => return jobs::play(world, plan, spots).map(Ok),
        Task::Explain(_) => (&[][..], false),
    };
    let mut pair = RankPair::open(world, protocols)?;
    if let Task::Measure(plan) = task {
        pair.set_handicap(plan.handicap.map(|percent| f64::from(percent) / 100.0));
        pair.set_rotation(plan.off_cache.then(|| Rotation::new(Extent::of_this_host(world.config().arena))));
    }
    let places = Places::take(&pair, pin, spots)?;
    if !pair.leads() {
        match task {
            Task::MeasureVi(plan) => vi::follow(&pair, plan)?,
            Task::Overlap(_) => overlap::follow(&pair)?,
            Task::Clones(plan) => clones::follow(&pair, plan)?,
            Task::Costs(plan) => costs::follow(&pair, plan)?,
            Task::Registration(_) => registration::follow(&pair)?,
            _ => follow(&pair)?,
        }
        return Ok(Ok(String::new()));
    }
    let printed = match task {
        // Its orders are its own, the last one too.
        Task::MeasureVi(plan) => return Ok(Ok(measure_vi(&pair, plan, &places)?)),
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
    let machine = Machine::describe(places.describe(), transport);
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

/// A progress bar over the time that a run has.
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

/// Where the two ranks run.
struct Places {
    /// Cores that this rank might use before it was pinned.
    usable: Vec<usize>,
    /// Mine and the peer's, if both are pinned.
    pinned: Option<[usize; 2]>,
}

/// On the wire: this rank is not pinned.
const NOT_PINNED: u64 = u64::MAX;

impl Places {
    /// Pins this rank if asked to, and learns where the other one runs. A rank that its launcher pinned
    /// stays there.
    fn take(pair: &RankPair<'_>, pin: bool, spots: &[Spot]) -> Result<Self> {
        let usable = udeck::sys::usable_cpus();
        let mine = if spots.is_empty() {
            usable.get(pair.world().rank()).or(usable.first()).copied().filter(|_| pin)
        } else {
            let neighbours = pair.world().host_ranks();
            let local = neighbours.iter().position(|&rank| rank == pair.world().rank()).unwrap_or(0);
            Some(binding::core_of(spots, local, neighbours.len(), &usable, &Cpus::of_this_host())?)
        };
        if let Some(cpu) = mine {
            udeck::sys::pin_to_cpu(cpu).map_err(Failure::system("pinning this rank (try --no-pin)"))?;
        }
        pair.send_words(&[mine.map_or(NOT_PINNED, |cpu| cpu as u64)])?;
        let report = pair.receive_words()?;
        let &[theirs] = &report[..] else { return Err(Failure::BadReport(report.len())) };
        let theirs = usize::try_from(theirs).ok().filter(|_| theirs != NOT_PINNED);
        Ok(Self { usable, pinned: mine.zip(theirs).map(|(mine, theirs)| [mine, theirs]) })
    }

    /// `None` without two cores.
    fn raw_limits(&self, largest: usize) -> Option<Baselines> {
        let two_cores = self.pinned.map_or(self.usable.len() > 1, |[mine, theirs]| mine != theirs);
        two_cores.then(|| Baselines::new(self.pinned, largest))
    }

    fn describe(&self) -> String {
        match self.pinned {
            None => "not pinned".to_owned(),
            Some([mine, theirs]) if mine == theirs => format!("both on core {mine}, the only usable one"),
            Some([mine, theirs]) => format!("pinned to cores {mine} and {theirs}{}", nodes([mine, theirs])),
        }
    }
}

/// Of the cores' NUMA nodes, if this host's kernel says which they are.
fn nodes(cores: [usize; 2]) -> String {
    let cpus = Cpus::of_this_host();
    match cores.map(|core| cpus.node_of(core)) {
        [Some(one), Some(other)] if one == other => format!(" (NUMA node {one})"),
        [Some(one), Some(other)] => format!(" (NUMA nodes {one} and {other})"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rank 0 would print, or why it failed, for two ranks that are threads of this test.
    fn run(line: &'static str) -> String {
        run_of(2, line)
    }

    fn run_of(ranks: usize, line: &'static str) -> String {
        let (found, printed) = std::sync::mpsc::channel();
        udeck::run_local(ranks, move |world| {
            let task = Cli::try_parse_from(line.split(' ')).and_then(Cli::task).expect(line);
            let leads = world.rank() == 0;
            let text = play(&world, &task, &[]).and_then(|printed| printed).expect(line);
            world.finish()?;
            if leads {
                found.send(text).expect("the test waits for it");
            }
            Ok(())
        })
        .expect(line);
        printed.recv().expect("rank 0 printed")
    }

    #[test]
    fn two_ranks_verify() {
        let text = run("deckperf verify --no-pin --sizes 0,8,4K");
        // Offsets of three around 0, 8 and 4096 make 18 sizes; 64 messages each way.
        let bytes = 128 * 7 * ((0..4).sum::<u64>() + (5..12).sum::<u64>() + (4093..4100).sum::<u64>());
        let start = format!("verified {} messages, {bytes} bytes", 18 * 7 * 128);
        assert!(text.starts_with(&start), "{text}, not {start}");
    }

    #[test]
    fn two_ranks_measure_exactly_what_was_asked_for() {
        let text =
            run("deckperf latency --no-pin --sizes 8,4K --protocol rdma-write --iterations 2 --time 0.01 \
             --format csv");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            text.lines().nth(2).is_some_and(|row| row.starts_with("4096,rdma-write,latency,us,")),
            "{text}"
        );
    }

    #[test]
    fn a_handicap_is_said() {
        let text =
            run("deckperf --no-pin --sizes 8 --protocol auto --iterations 20 --time 0.01 --handicap 50 \
             --format json");
        assert!(text.contains("handicap: rank 0 stands still for 50 % of the time"), "{text}");
    }

    #[test]
    fn two_ranks_explain() {
        let text = run("deckperf --explain --no-pin --sizes 40,41");
        for line in ["# receive model  cq (DECK_RECEIVE)", "hand-off=41,rdma-write=4194304,rdma-read=never"] {
            assert!(text.contains(line), "{line:?} is missing in {text}");
        }
        let rows: Vec<&str> = text.lines().rev().take(2).collect();
        assert!(rows[1].contains("40  eager ") && rows[1].contains("hand-off begins at 41 bytes"), "{text}");
        assert!(rows[0].contains("41  hand-off "), "{text}");
    }

    #[test]
    fn two_ranks_stream() {
        let text = run(
            "deckperf bandwidth --no-pin --sizes 8,5000 --protocol copy,auto --iterations 2 --time 0.01 \
             --window 5",
        );
        assert!(
            text.contains("# Bandwidth (MB/s), written+read\n# Size              copy          auto\n8 "),
            "{text}"
        );
        assert!(!text.contains("Latency"), "{text}");
    }

    #[test]
    fn two_ranks_measure_off_cache() {
        for test in ["latency", "bandwidth", "latency --percentiles"] {
            for protocols in ["copy,eager,rdma-write,hand-off", "rdma-read,handshake,auto"] {
                // With 1 MiB more messages than a pool has buffers.
                let line = format!(
                    "deckperf {test} --off-cache --no-pin --sizes 8,100,1M --payload written+read --protocol {protocols} --iterations 6 --time \
                     0.01 --window 8"
                );
                let text = run(line.leak()).replace("\n#          ", " ");
                assert!(text.contains("off-cache: the sender takes 1024 buffers of 8,"), "{text}");
                assert!(text.contains("still in the caches: 8, 100"), "{text}");
            }
        }
        assert!(!run("deckperf latency --no-pin --sizes 8 --iterations 2 --time 0.01").contains("off-cache"));
    }

    #[test]
    fn two_ranks_stream_both_ways() {
        // The window of large messages does not fit into any queue: both ranks would wait for room at once.
        let text = run(
            "deckperf bibandwidth --no-pin --sizes 8,256K --iterations 2 --time 0.01 --window 64 --format csv",
        );
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 1 + 2 * 4, "{text}");
        assert!(rows[1].starts_with("8,copy,bibandwidth,MB/s,"), "{text}");
        let figures = |row: &&str| row.split(',').skip(4).take(4).all(|cell| cell.parse::<f64>().is_ok());
        assert!(rows[1..].iter().all(figures), "{text}");
    }

    #[test]
    fn two_ranks_time_every_round_trip() {
        let text = run(
            "deckperf latency --percentiles --no-pin --sizes 8,4K --protocol auto --payload untouched --iterations 50 \
             --time 0.01 --format json",
        );
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        let rows = value["tables"]["untouched"].as_array().expect("a table");
        assert_eq!(rows.len(), 2, "{text}");
        for row in rows {
            assert!(row["messages"].as_u64().is_some_and(|messages| messages >= 5 * 50), "{text}");
            let at = |name: &str| row[name].as_u64().expect("a percentile");
            assert!(at("p50") > 0 && at("p50") <= at("p99") && at("p99.99") <= at("max"), "{text}");
        }
        assert!(data::Run::parse(&text).expect("the common form").series.len() > 1);
    }

    #[test]
    fn four_ranks_stream_in_pairs() {
        let text = run_of(
            4,
            "deckperf multi-pair --pairs 1,2 --no-pin --sizes 8,64K --iterations 2 --time 0.01 --window 5 --format csv",
        );
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        let heads: Vec<String> = rows[1..].iter().map(|row| row[..2].join(" ")).collect();
        assert_eq!(heads, ["8 1", "8 2", "65536 1", "65536 2"], "{text}");
        assert!(
            rows[1..].iter().flatten().all(|cell| cell.parse::<f64>().is_ok_and(|figure| figure > 0.0)),
            "{text}"
        );
    }

    #[test]
    fn three_ranks_are_measured_pair_by_pair() {
        let text = run_of(3, "deckperf matrix --no-pin --iterations 2 --time 0.01 --format json");
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        for name in ["latency_8", "bandwidth_65536"] {
            for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                let cell = &value["tables"][name][from][to.to_string()];
                assert!(cell.as_f64().is_some_and(|figure| figure > 0.0), "{name} {from} {to}: {text}");
            }
            assert!(value["tables"][name][1]["1"].is_null(), "{text}");
        }
        let series = data::Run::parse(&text).expect("the common form").series;
        assert_eq!(series.iter().filter(|series| series.key.ranks == Some(3)).count(), 3 + 6);
    }

    #[test]
    fn three_ranks_send_to_one() {
        let text = run_of(
            4,
            "deckperf incast --ranks 2,4 --no-pin --sizes 8,5000 --iterations 20 --time 0.01 --window 5 --format csv",
        );
        let (floods, short) = text.split_once("\n\n").expect("two tables");
        let rows = |table: &str| -> Vec<Vec<f64>> {
            let row = |line: &str| line.split(',').map(|cell| cell.parse().expect("a figure")).collect();
            table.lines().skip(1).map(row).collect()
        };
        let floods = rows(floods);
        assert_eq!(
            floods.iter().map(|row| (row[0], row[1])).collect::<Vec<_>>(),
            [(8.0, 1.0), (8.0, 3.0), (5000.0, 1.0), (5000.0, 3.0)]
        );
        assert!(
            floods.iter().all(|row| row[2] > 0.0 && row[5] > 0.0 && row[5] <= 1.0 && row[6] <= row[7]),
            "{text}"
        );
        let short = rows(short);
        assert!(short.len() == 4 && short.iter().all(|row| row[2] >= 100.0 && row[3] <= row[8]), "{text}");
    }

    #[test]
    fn a_job_that_is_too_small_is_refused() {
        let task =
            Cli::try_parse_from(["deckperf", "incast", "--ranks", "4", "--no-pin"]).and_then(Cli::task);
        let task = task.expect("a task");
        udeck::run_local(2, move |world| {
            let error = play(&world, &task, &[]).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("needs 4 ranks or more, this job has 2"), "{error}");
            world.finish()
        })
        .expect("both ranks refuse");
    }

    #[test]
    fn two_ranks_measure_registration() {
        let text =
            run("deckperf registration --no-pin --sizes 4K,1M --iterations 3 --time 0.01 --format csv");
        let (medians, _) = text.split_once("\n\n").expect("two tables");
        let rows: Vec<Vec<&str>> = medians.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!((rows.len(), rows[0][4], rows[1][0], rows[2][0]), (3, "hit", "4096", "1048576"), "{text}");
        let measured = |row: &Vec<&str>| row[1..].iter().all(|cell| cell.parse::<f64>().is_ok());
        assert!(rows[1..].iter().all(measured), "{text}");
    }

    #[test]
    fn two_ranks_measure_virtual_interfaces() {
        let text = run("deckperf --layer vi --no-pin --sizes 0,8,5000 --iterations 2 --time 0.01");
        for title in [
            "# Latency (us), send/receive\n# Size        work-queue            cq       cq-wait     cq-asleep",
            "# Latency (us), RDMA write with immediate data\n",
            "# Bandwidth (MB/s), send/receive\n# Size        work-queue            cq       cq-wait\n",
            "# Bandwidth (MB/s), RDMA write with immediate data\n",
            "# Latency (us) of 8 bytes, send/receive, spread over all VIs\n# VIs         work-queue            cq\n1 ",
            "# Latency (us) of 8 bytes, send/receive, one busy VI among idle ones\n# VIs         work-queue            cq\n1 ",
            "\n1000 ",
        ] {
            assert!(text.contains(title), "{title:?} is missing in {text}");
        }
        let figures = |row: &&str| row.starts_with("5000 ") || row.starts_with("1000 ");
        for row in text.lines().filter(figures) {
            // Of the machine's limits, which stand in the last two of seven columns, some hosts have none.
            assert!(row.split_whitespace().take(5).all(|cell| cell != "-"), "{text}");
        }
    }

    #[test]
    fn two_ranks_stream_between_virtual_interfaces() {
        let text = run(
            "deckperf bandwidth --layer vi --no-pin --sizes 4K,100 --window 5 --iterations 2 --time 0.01 \
             --format csv",
        );
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 1 + 2 * 2 * 3, "{text}");
        assert!(rows[1].starts_with("100,send,work-queue,1,one-busy,bandwidth,MB/s,"), "{text}");
        let figure = |row: &&str| row.split(',').nth(7).is_some_and(|cell| cell.parse::<f64>().is_ok());
        assert!(rows[1..].iter().all(figure), "{text}");
    }

    #[test]
    fn two_ranks_overlap() {
        let text = run("deckperf overlap --no-pin --sizes 8,70000 --iterations 2 --time 0.01 --format csv");
        let (sender, receiver) = text.split_once("\n\n").expect("a table per side");
        for table in [sender, receiver] {
            let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
            assert_eq!(rows.len(), 1 + 2 * plan::PROTOCOLS.len(), "{text}");
            assert_eq!(rows[0][..2], ["size", "protocol"]);
            let measured = |row: &Vec<&str>| row[2..].iter().all(|cell| cell.parse::<f64>().is_ok());
            assert!(rows[1..].iter().all(measured), "{text}");
        }
    }

    #[test]
    fn two_ranks_measure_clones() {
        let text = run(
            "deckperf clones --no-pin --sizes 8,600 --flooding 20 --iterations 2 --time 0.01 --format csv",
        );
        let (latency, flood) = text.split_once("\n\n").expect("two tables");
        let firsts: Vec<&str> = latency.lines().map(|row| row.split(',').next().expect("a cell")).collect();
        assert_eq!(firsts, ["clones", "1", "10", "100", "1000", "1"]);
        let rows: Vec<Vec<&str>> = flood.lines().skip(1).map(|row| row.split(',').collect()).collect();
        assert_eq!(rows.iter().map(|row| row[..2].join(" ")).collect::<Vec<_>>(), ["8 20", "600 20"]);
        for row in &rows {
            let [blocks, bound] = [9, 10].map(|at| row[at].parse::<u64>().expect("a count"));
            assert!(blocks <= bound, "{text}");
        }
        assert!(rows[1][9] != "0", "a flood of messages in the arena: {text}");
    }

    #[test]
    fn two_ranks_measure_costs() {
        let text = run("deckperf costs --no-pin --ranks 0 --connections 30 --time 0.01 --format json");
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        let tables = &value["tables"];
        assert_eq!(tables["making"].as_array().map(Vec::len), Some(3), "{text}");
        assert!(tables["making"][0]["p50"].as_f64().is_some_and(|time| time > 0.0), "{text}");
        assert_eq!(tables["idle_connection"][0]["connections"], 30);
        assert!(tables["blocked"][0]["seconds"].as_f64().is_some_and(|time| time >= 0.01), "{text}");
        assert!(tables["start"].is_null(), "no ranks were asked for");
    }

    #[test]
    fn ranks_that_were_pinned_elsewhere_leave_no_second_core_to_one_place() {
        let shared = Places { usable: vec![3], pinned: Some([3, 3]) };
        assert!(shared.raw_limits(0).is_none());
        assert_eq!(shared.describe(), "both on core 3, the only usable one");
        let apart = Places { usable: vec![3], pinned: Some([3, 5]) };
        assert!(apart.raw_limits(0).is_some());
        assert!(apart.describe().starts_with("pinned to cores 3 and 5"), "{}", apart.describe());
        assert!(Places { usable: vec![0], pinned: None }.raw_limits(0).is_none());
    }
}
