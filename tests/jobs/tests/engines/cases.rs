//! Cases that run under every launcher.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use udeck_jobs::{Bin, Ended, Job};

use super::Case;
use super::launchers::{Engine, Launcher};
use super::slurm;

pub const RANK: &str = env!("CARGO_BIN_EXE_engines-rank");
/// Number of ranks: two on each of two nodes, if there are nodes.
const RANKS: usize = 4;
/// Number of ranks that is much larger than the number of processors.
const CROWD: usize = 40;
/// Longer than any test lasts: a wait for a rank that has ended would be noticed.
const FOR_EVER: &str = "86400";

/// Cases that this launcher can run.
pub fn of(launcher: &'static Launcher) -> Vec<(&'static str, Case)> {
    let case = |name, run: fn(&Launcher)| -> (_, Case) { (name, Box::new(move || run(launcher))) };
    let mut cases = vec![
        case("hello", hello),
        case("barriers", barriers),
        case("all_sizes_by_all_protocols", all),
        case("all_sizes_by_all_protocols_over_tcp", all_over_tcp),
        case("nas_ft", nas_ft),
        case("a_rank_that_is_killed_ends_the_job", |launcher| ends_the_job(launcher, 2)),
        case("rank_0_that_is_killed_ends_the_job", |launcher| ends_the_job(launcher, 0)),
        case("abort", abort),
        case("forty_ranks", crowd),
        case("two_jobs_at_once", two_jobs),
        case("worlds_of_one_if_asked_for", worlds_of_one),
    ];
    if launcher.survivors.is_some() {
        cases.push(case("others_learn_that_a_rank_was_killed", |launcher| others_learn(launcher, 2)));
        cases.push(case("others_learn_that_rank_0_was_killed", |launcher| others_learn(launcher, 0)));
    }
    if launcher.engine == Engine::OpenMpi {
        cases.push(case("mpi_in_the_same_process", with_mpi));
    }
    if launcher.without_services.is_some() {
        // This case runs once, in the same Slurm.
        cases.push(case("deckrun_within_allocations", |_| allocations()));
    }
    if launcher.cyclic.is_some() {
        cases.push(case("ranks_in_turn_on_the_nodes", cyclic));
    }
    if launcher.without_services.is_some() {
        cases.push(case("ranks_without_its_services_say_what_to_type", without_services));
    }
    cases
}

/// A job whose ranks run this part.
fn ranks(launcher: &Launcher, part: &str) -> Job {
    launcher.job(&[], RANKS, RANK.as_ref()).arg(part)
}

/// Lines of the ranks, sorted. All other lines come from the launcher.
pub fn said(ended: &Ended) -> Vec<&str> {
    let mut lines: Vec<_> = ended.stdout.lines().filter(|line| line.starts_with("rank ")).collect();
    lines.sort_unstable();
    lines
}

/// Checks that each rank has printed this line once, and nothing else.
fn each_says(ended: &Ended, ranks: usize, line: impl Fn(usize) -> String) {
    let mut lines: Vec<_> = (0..ranks).map(line).collect();
    lines.sort_unstable();
    assert_eq!(said(ended), lines, "{ended}");
}

fn hello(launcher: &Launcher) {
    let ended = ranks(launcher, "hello").run().ok();
    each_says(&ended, RANKS, |rank| format!("rank {rank} of {RANKS}"));
}

fn barriers(launcher: &Launcher) {
    let folder = Folder::new();
    let ended = ranks(launcher, "barrier").arg(&folder.0).run().ok();
    each_says(&ended, RANKS, |rank| format!("rank {rank} has passed"));
}

fn crowd(launcher: &Launcher) {
    let folder = Folder::new();
    let ended = launcher.job(&[], CROWD, RANK.as_ref()).arg("barrier").arg(&folder.0).run().ok();
    each_says(&ended, CROWD, |rank| format!("rank {rank} has passed"));
}

fn cyclic(launcher: &Launcher) {
    let folder = Folder::new();
    let options = launcher.cyclic.expect("asked for before");
    let ended = launcher.job(options, RANKS, RANK.as_ref()).arg("barrier").arg(&folder.0).run().ok();
    each_says(&ended, RANKS, |rank| format!("rank {rank} has passed"));
    let ended = launcher.job(options, RANKS, RANK.as_ref()).arg("all").run().ok();
    exchanged(&ended, "shm");
}

/// The nodes are one machine, so all ranks share its memory.
fn all(launcher: &Launcher) {
    exchanged(&ranks(launcher, "all").run().ok(), "shm");
}

fn all_over_tcp(launcher: &Launcher) {
    exchanged(&ranks(launcher, "all").env("DECK_TRANSPORT", "tcp").run().ok(), "tcp");
}

/// Checks an exchange; the number of messages depends on the transport's protocols.
fn exchanged(ended: &Ended, transport: &str) {
    let lines = said(ended);
    let first = lines.first().unwrap_or_else(|| panic!("{ended}"));
    let count: usize = first.split_whitespace().nth(4).and_then(|count| count.parse().ok()).unwrap_or(0);
    assert!(count > 1000, "{ended}");
    each_says(ended, RANKS, |rank| format!("rank {rank} has seen {count} messages by {transport}"));
}

fn nas_ft(launcher: &Launcher) {
    let ended = launcher.job(&[], RANKS, Bin::nas_ft().path()).args(["--class", "S"]).run().ok();
    assert_eq!(ended.stdout.matches("Result verification successful").count(), 1, "{ended}");
}

fn with_mpi(launcher: &Launcher) {
    let ended = launcher.job(&[], RANKS, Bin::example("with_mpi").path()).run().ok();
    let before = |rank| (rank + RANKS - 1) % RANKS;
    let line = |rank| format!("rank {rank} of {RANKS} in MPI and in µDECK; rank {} says hello", before(rank));
    assert_eq!(said(&ended), (0..RANKS).map(line).collect::<Vec<_>>(), "{ended}");
}

/// Runs the cases of `allocation.sh`.
fn allocations() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("engines/allocation.sh");
    let folder = Bin::deckrun().path().parent().expect("a folder").to_owned();
    let job = Job::new("bash".as_ref()).arg(script).env("SLURM_CONF", slurm::configuration());
    let ended = job.env("DECK_BIN_DIR", folder).limit(Duration::from_secs(120)).run().ok();
    ended.line_with("ok doctor");
}

/// Checks that the job ends; the last lines of the other ranks are random.
fn ends_the_job(launcher: &Launcher, victim: usize) {
    let job = launcher.job(launcher.no_survivors, RANKS, RANK.as_ref());
    let job = job.args(["killed", &victim.to_string()]).env("DECK_DEADLINE", FOR_EVER);
    job.run().fails().line_with(&waits(victim));
}

/// Line that a rank prints when it has met the others.
fn waits(rank: usize) -> String {
    format!("rank {rank} of {RANKS} waits")
}

/// Checks that the others learn of the death; the launcher chooses its own exit code.
fn others_learn(launcher: &Launcher, victim: usize) {
    let job = launcher.job(launcher.survivors.expect("asked for before"), RANKS, RANK.as_ref());
    let job = job.args(["killed", &victim.to_string()]).env("DECK_DEADLINE", FOR_EVER);
    let ended = job.run().clean();
    let _ = ended.code();
    let mut wanted: Vec<_> = (0..RANKS).map(waits).collect();
    let others = (0..RANKS).filter(|rank| *rank != victim);
    wanted.extend(others.map(|rank| format!("rank {rank}: PeerLost rank={victim}")));
    wanted.sort_unstable();
    // Each line continues with the time that it took, and the rank's fate.
    let lines: Vec<_> = said(&ended).into_iter().map(|line| line.split(" after ").next()).collect();
    assert!(lines.into_iter().flatten().eq(&wanted), "{ended}");
}

fn abort(launcher: &Launcher) {
    const CODE: i32 = 21;
    let ended = ranks(launcher, "abort").args(["1", &CODE.to_string()]).run().fails();
    ended.line_with(&waits(1));
    assert!(!ended.stdout.contains("lives on"), "{ended}");
    assert_eq!(ended.code(), launcher.abort_code.unwrap_or(CODE), "{ended}");
    let words = format!("rank 1 aborted the job with code {CODE}: as the test wants");
    assert!(ended.stderr.contains(&words), "{ended}");
}

fn worlds_of_one(launcher: &Launcher) {
    let ended = ranks(launcher, "hello").env("DECK_LAUNCH", "none").run().ok();
    assert_eq!(said(&ended), ["rank 0 of 1"; RANKS], "{ended}");
}

/// Starts both jobs in the background of a shell, which ends well if both do.
fn two_jobs(launcher: &Launcher) {
    const BOTH: &str = r#"
        first=("$@") second=()
        for word; do
            case $word in left) word=right ;; right) word=left ;; esac
            second+=("$word")
        done
        "${first[@]}" & background=$!
        "${second[@]}"; code=$?
        wait $background && exit $code"#;
    let folder = Folder::new();
    let job = ranks(launcher, "names").args(["left", "right"]).arg(&folder.0);
    let ended = job.inside(["bash", "-c", BOTH, "both"]).run().ok();
    let mut lines: Vec<_> = (0..RANKS)
        .flat_map(|rank| ["left", "right"].map(|label| format!("rank {rank} of {RANKS} in {label}")))
        .collect();
    lines.sort_unstable();
    assert_eq!(said(&ended), lines, "{ended}");
}

fn without_services(launcher: &Launcher) {
    let options = launcher.without_services.expect("asked for before");
    let ended = launcher.job(options, RANKS, RANK.as_ref()).arg("hello").run().fails();
    assert_eq!(said(&ended), [""; 0], "worlds of one: {ended}");
    assert!(ended.stderr.contains("--mpi=pmi2"), "{ended}");
}

/// Folder of one case. Its name does not look like a job's leftover.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("engines-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}
