//! A run: one job, from its seed to its verdict.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::netns::Network;
use crate::{Bin, Ended, Job, Running};

use crate::soak::facts::Fact;
use crate::soak::folder::{Folder, REPORT, VARIABLE};
use crate::soak::plan::{Fault, Place, Plan};
use crate::soak::{check, faults};

/// Time limit of the job, longer than twice a rank's patience: a job that has not ended by then hangs.
const LIMIT: Duration = Duration::from_secs(420);
/// Time before the limit at which the stacks of the job's threads are written down.
const LOOK_BEFORE: Duration = Duration::from_secs(60);

/// Variable that is set if the programs run under AddressSanitizer (`cargo xtask soak --sanitize address`).
pub const SANITIZER: &str = "ASAN_OPTIONS";

/// Programs of the runs, and the folder of their files.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Path of the rank's program.
    pub rank: PathBuf,
    pub standin: Option<PathBuf>,
    /// Why namespaces are unavailable; `None`: they are available.
    pub no_namespaces: Option<String>,
    pub folder: PathBuf,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Skipped(String),
    /// Problems, and the folder with the logs.
    Failed(Vec<String>, PathBuf),
}

/// Plays the plan. The folder of a failed run stays.
///
/// # Panics
/// Panics if the programs cannot be started, or the folder cannot be made.
#[must_use]
pub fn run(plan: &Plan, tools: &Tools) -> Verdict {
    if let Some(why) = lacking(plan, tools) {
        return Verdict::Skipped(why);
    }
    let path = tools.folder.join(format!("run-{}", plan.seed));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let folder = Folder::at(&path);
    let network = match plan.place {
        Place::Hosts(hosts) => Some(Network::new(hosts)),
        _ => None,
    };
    if let Some(network) = &network
        && let Err(why) = faults::lose(plan, network)
    {
        let _ = fs::remove_dir_all(&path);
        return Verdict::Skipped(why);
    }
    let deadline = Instant::now() + LIMIT - LOOK_BEFORE;
    let ended = job(plan, tools, &path, network.as_ref()).limit(LIMIT).run_while(|running| {
        faults::inflict(plan, &folder, network.as_ref(), running, deadline);
        if Instant::now() > deadline {
            look_at_threads(plan, &folder, running);
        }
    });
    let problems = check::problems(plan, &folder, &ended);
    if problems.is_empty() {
        let _ = fs::remove_dir_all(&path);
        return Verdict::Passed;
    }
    keep(plan, &ended, &problems, &path);
    Verdict::Failed(problems, path)
}

fn lacking(plan: &Plan, tools: &Tools) -> Option<String> {
    let needs = plan.needs();
    if needs.namespaces
        && let Some(why) = &tools.no_namespaces
    {
        return Some(why.clone());
    }
    (needs.standin && tools.standin.is_none()).then(|| "the stand-in for libibverbs is not built".into())
}

fn job(plan: &Plan, tools: &Tools, path: &Path, network: Option<&Network>) -> Job {
    let seed = plan.seed.to_string();
    let mut job = match (plan.place, network) {
        (Place::OneProcess, _) => Bin::at(&tools.rank).alone().arg(&seed),
        (_, None) => {
            let deckrun = Job::new(Bin::deckrun().path()).args(["-n", &plan.ranks.to_string()]);
            ranks(deckrun, plan, tools, &seed)
        }
        (_, Some(network)) => {
            let slots = plan.ranks / network.size();
            let cut = plan.faults.iter().any(|fault| matches!(fault, Fault::Cut { .. }));
            // A host that is cut off must be missed soon; one that is only busy must not.
            let detect = if cut { "10s" } else { "30s" };
            let deckrun = network.deckrun(slots).args(["--detect", detect, "--start-timeout", "120s"]);
            ranks(deckrun, plan, tools, &seed)
        }
    };
    for (name, value) in &plan.settings {
        job = job.env(name, value);
    }
    if !plan.transport.is_empty() {
        job = job.env("DECK_TRANSPORT", plan.transport);
    }
    if let Some(standin) = tools.standin.as_ref().filter(|_| plan.transport == "verbs") {
        job = job.env("DECK_VERBS_LIBRARY", standin);
    }
    if let Ok(options) = env::var(SANITIZER) {
        // A rank that is cut off cannot print the findings on its standard error.
        job = job.env(SANITIZER, format!("{options}:log_path={}", path.join(REPORT).display()));
    }
    job.env(VARIABLE, path).env("DECK_DEADLINE", "120").env("DECK_SETUP_TIMEOUT", "120")
}

fn ranks(deckrun: Job, plan: &Plan, tools: &Tools, seed: &str) -> Job {
    let on_failure = if plan.aborts { "abort" } else { "continue" };
    deckrun.args(["--tag-output", "--on-failure", on_failure, "--"]).arg(&tools.rank).arg(seed)
}

/// Writes the stacks of all threads of a job that hangs beside the logs; needs gdb.
fn look_at_threads(plan: &Plan, folder: &Folder, running: &Running) {
    let mut pids = vec![running.pid() as i32];
    pids.extend((0..plan.ranks).flat_map(|rank| folder.facts(rank)).filter_map(|fact| match fact {
        Fact::Pid(number) => Some(number),
        _ => None,
    }));
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        let mut gdb = Command::new("timeout");
        gdb.args(["30", "gdb", "-batch", "-ex", "thread apply all bt", "-p", &pid.to_string()]);
        if let Ok(output) = gdb.output() {
            let _ = fs::write(folder.path().join(format!("threads-{pid}")), output.stdout);
        }
    }
}

/// Writes the plan and the problems of the run beside the logs.
fn keep(plan: &Plan, ended: &Ended, problems: &[String], path: &Path) {
    let text = format!("{plan}\n\n{}\n\n{plan:#?}\n\n{ended}\n", problems.join("\n"));
    let _ = fs::write(path.join("run"), text);
}
