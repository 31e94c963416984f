//! The transport `verbs` over a real RDMA device of the kernel's, used through stock libibverbs.
//!
//! The device is `rdma_rxe` (Soft-RoCE), which needs no hardware but a kernel module that machines for building do not have.
//! So it runs in a guest: Debian's kernel, booted by Debian's QEMU, without KVM. Guests get the programs as they
//! were built here, and run a script of `tests/rdma`, whose results are read from their consoles. Two go through the
//! conformance suite, one runs jobs, one both with connections that stock librdmacm makes, one jobs in which something fails or is
//! set wrong, one programs of uDAPL, and two that are joined by a cable run jobs over both, also while it loses packets, until it is
//! pulled.
//!
//! Nothing is installed on this machine, and nobody need be root (see `packages`). This checks what happens, never how
//! fast: a processor that is emulated says nothing about that.

mod dat;
mod guest;
mod image;
mod modules;
mod packages;
mod programs;
mod root;
mod suite;

use crate::console::say;
use crate::test_counts::Counts;
use crate::workspace::Workspace;
use clap::builder::PossibleValuesParser;
use guest::{Cable, Guest, GuestResult};
use image::Image;
use packages::{Cache, os_release};
use programs::{Programs, Wanted};
use root::LIBRARIES;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

/// Transport of the guests' jobs, between ranks that do not share memory.
const TRANSPORT: &str = "verbs";
/// Folder of the guests' scripts, below the root.
const SCRIPTS: &str = "tests/rdma";
/// Folder of our programs for uDAPL.
const DAT_SOURCES: &str = "tests/bindings/dat/c";
/// Stock programs of the packages, which tell the device's faults from ours.
const TOOLS: &[&str] = &["sbin/ip", "sbin/tc", "bin/rdma", "bin/ibv_devinfo", "bin/ibv_rc_pingpong"];
/// Libraries that libibverbs and our programs load at run time. A provider has a folder of its own.
const PROVIDER: (&str, &str) = ("lib/x86_64-linux-gnu/libibverbs", "librxe-");
const LOADED: &[&str] = &[
    "lib/x86_64-linux-gnu/libibverbs.so.1",
    "lib/x86_64-linux-gnu/librdmacm.so.1",
    "lib/x86_64-linux-gnu/libgcc_s.so.1",
];
/// Time limits. Single guests run side by side, the pair runs after them: five minutes for all, on two idle processors. The limits
/// end a guest that hangs, also where several others want the processors.
const SINGLE_LIMIT: Duration = Duration::from_secs(3000);
const PAIR_LIMIT: Duration = Duration::from_secs(2400);
/// Variable that turns a skip into a failure, with the value `require`.
const VARIABLE: &str = "UDECK_RDMA";

/// Single guests: name, script, and settings for the script besides the words of [`suite::words`] and [`dat::words`].
const SINGLE: [(&str, &str, &str); 9] = [
    ("suite", "conformance", "connections=100"),
    ("long", "conformance", "connections=100"),
    ("shared", "conformance", "connections=500"),
    ("jobs", "jobs", ""),
    ("jobs-again", "jobs", "again=yes"),
    ("cm", "cm", ""),
    ("failures", "failures", ""),
    ("dat", "dat", ""),
    ("dat-long", "dat", "long=yes"),
];
/// Two guests that are joined by a cable.
const PAIR: &str = "pair";
/// Guests that the step leaves to a nightly run.
const TAIL: [&str; 4] = ["long", "shared", "jobs-again", "dat-long"];
/// A guest of no step: measures how much more uDAPL costs over us than over Debian's own provider.
const COST: (&str, &str, &str) = ("dat-cost", "dat-cost", "");

#[derive(clap::Args)]
pub struct RdmaOptions {
    /// Guests: suite, jobs, cm, failures, dat, pair; long, shared, jobs-again and dat-long, which only a night runs; and dat-cost, which
    /// no step does. Without names those of the step
    #[arg(value_name = "GUEST", value_parser = PossibleValuesParser::new(names()))]
    guests: Vec<String>,

    /// Minutes for each build
    #[arg(long, default_value_t = 30)]
    limit: u64,
}

fn names() -> impl Iterator<Item = &'static str> {
    SINGLE.into_iter().chain([COST]).map(|(name, ..)| name).chain([PAIR])
}

/// Names of the guests to run.
pub struct Chosen(Vec<String>);

impl Chosen {
    /// The guests of the step `rdma`.
    pub fn step() -> Self {
        let not_in_it = |name: &str| TAIL.contains(&name) || name == COST.0;
        Chosen(names().filter(|name| !not_in_it(name)).map(str::to_owned).collect())
    }

    /// The guests of the step `guests`.
    pub fn tail() -> Self {
        Chosen(TAIL.map(str::to_owned).into())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|chosen| chosen == name)
    }

    fn wanted(&self) -> Wanted {
        if self.0.iter().all(|name| name.starts_with("dat")) { Wanted::Dat } else { Wanted::All }
    }
}

/// The result of the step.
#[derive(Debug, Default)]
pub struct RdmaReport {
    pub guests: Vec<GuestResult>,
    /// Number of passed checks that are made here, not in a guest.
    pub passed: u64,
    pub problems: Vec<String>,
    /// Why there were no guests.
    pub skipped: Option<String>,
}

/// Why there are no guests.
#[derive(Debug)]
enum Stop {
    /// This machine cannot have them.
    Skip(String),
    Fail(String),
}

/// `cargo xtask rdma`: runs the guests that are named.
pub fn command(options: &RdmaOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let mut report = RdmaReport::default();
    let limit = Duration::from_secs(60 * options.limit);
    let chosen = if options.guests.is_empty() { Chosen::step() } else { Chosen(options.guests.clone()) };
    match run(&workspace, &chosen, limit, &mut report) {
        Ok(()) => {}
        Err(Stop::Skip(problem) | Stop::Fail(problem)) => return Err(problem),
    }
    let guests = report.guests.iter();
    let problems =
        guests.filter_map(|guest| guest.problem.as_ref().map(|why| format!("{}: {why}", guest.name)));
    let problems: Vec<_> = problems.chain(report.problems.iter().cloned()).collect();
    problems.iter().for_each(|problem| say!("{problem}"));
    for guest in &report.guests {
        let Counts { passed, failed, skipped } = guest.tally.total();
        say!("{}: {passed} passed, {failed} failed, {skipped} skipped", guest.name);
    }
    Ok(problems.is_empty() && report.guests.iter().all(|guest| guest.tally.total().failed == 0))
}

/// Runs everything. Blocks for the downloads, which are kept, the builds, each at most `limit`, and the guests.
pub fn check(workspace: &Workspace, chosen: &Chosen, limit: Duration) -> RdmaReport {
    let mut report = RdmaReport::default();
    let required = env::var(VARIABLE).is_ok_and(|value| value == "require");
    match run(workspace, chosen, limit, &mut report) {
        Ok(()) => {}
        Err(Stop::Skip(reason)) if !required => report.skipped = Some(reason),
        Err(Stop::Skip(reason)) => report.problems.push(format!("{reason} ({VARIABLE}=require)")),
        Err(Stop::Fail(problem)) => report.problems.push(problem),
    }
    report
}

fn run(workspace: &Workspace, chosen: &Chosen, limit: Duration, report: &mut RdmaReport) -> Result<(), Stop> {
    machine_fits()?;
    let cache = Cache::ready(cache_folder(workspace))?;
    let programs = Programs::build(workspace, chosen.wanted(), limit).map_err(Stop::Fail)?;
    let path = cache.folder.join("image");
    let mut image = image(&cache, &programs, &workspace.root.join(SCRIPTS)).map_err(Stop::Fail)?;
    let sources = workspace.root.join(DAT_SOURCES);
    dat::pack(&mut image, &cache.root, &programs.dat, &sources, &cache.folder.join("dat"))
        .map_err(Stop::Fail)?;
    let bytes = image.write(&path).map_err(Stop::Fail)?;
    say!("the guests' files: {} MiB", bytes >> 20);
    let late = programs.with_verbs().map(|program| programs::loads_verbs_late(&cache.root, program));
    report.checked(late);
    report.guests = run_guests(&cache, &path, chosen).map_err(Stop::Fail)?;
    // A guest that was ended is reported already.
    let suites = report.guests.iter().filter(|guest| guest.part == "conformance" && guest.problem.is_none());
    let whole: Vec<_> =
        suites.filter_map(|guest| programs.suite.as_ref().map(|suite| suite.is_whole(guest))).collect();
    report.checked(whole);
    Ok(())
}

impl RdmaReport {
    fn checked(&mut self, checks: impl IntoIterator<Item = Result<(), String>>) {
        for check in checks {
            match check {
                Ok(()) => self.passed += 1,
                Err(problem) => self.problems.push(problem),
            }
        }
    }
}

fn machine_fits() -> Result<(), Stop> {
    let skip = |reason: String| Err(Stop::Skip(reason));
    if env::consts::ARCH != "x86_64" {
        return skip(format!("the guests are x86_64, this machine is {}", env::consts::ARCH));
    }
    if os_release("ID") != "debian" {
        return skip(format!("the guests are made of Debian's packages, this is {:?}", os_release("ID")));
    }
    for tool in ["apt-get", "dpkg-deb"] {
        if let Err(error) = Command::new(tool).arg("--version").output() {
            return skip(format!("the guests are made of Debian's packages, but {tool}: {error}"));
        }
    }
    Ok(())
}

/// The user's cache folder, or a folder among the build's outputs if there is none.
fn cache_folder(workspace: &Workspace) -> PathBuf {
    let given = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = given("XDG_CACHE_HOME").or_else(|| given("HOME").map(|home| home.join(".cache")));
    base.map_or(workspace.target.clone(), |base| base.join("udeck")).join("rdma-guest")
}

/// Makes the files of all guests. The kernel's command line names the script of each guest.
fn image(cache: &Cache, programs: &Programs, scripts: &Path) -> Result<Image, String> {
    let root = &cache.root;
    let mut image = Image::default();
    for folder in ["dev", "proc", "sys", "tmp", "run"] {
        image.folder(folder);
    }
    image.copy("bin/busybox", root.find("bin/busybox")?);
    image.copy("lib64/ld-linux-x86-64.so.2", root.find(root::LINKER)?);
    for tool in TOOLS {
        image.program(root, tool, &root.find(tool)?)?;
    }
    for library in LOADED {
        image.program(root, &format!("usr/{library}"), &root.find(library)?)?;
    }
    let provider = root.find_beginning(PROVIDER.0, PROVIDER.1)?;
    let name = provider.file_name().unwrap_or_default().to_string_lossy();
    image.program(root, &format!("{LIBRARIES}/libibverbs/{name}"), &provider)?;
    image.text("etc/libibverbs.d/rxe.driver", "driver rxe\n");
    for module in cache.modules()? {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        image.copy(&format!("modules/{name}"), &module);
    }
    for (name, program) in programs.packed() {
        image.program(root, &format!("test/{name}"), program)?;
    }
    for entry in scripts.read_dir().map_err(|error| format!("{}: {error}", scripts.display()))?.flatten() {
        image.copy(&format!("rdma/{}", entry.file_name().to_string_lossy()), entry.path());
    }
    image.copy("init", scripts.join("init"));
    Ok(image)
}

fn run_guests(cache: &Cache, image: &Path, chosen: &Chosen) -> Result<Vec<GuestResult>, String> {
    let guest = |name, part, more: &str, limit: Duration| {
        let words = [suite::words(name), dat::words(name)].concat().join(",");
        let settings = format!("transport={TRANSPORT} limit={} words={words} {more}", limit.as_secs());
        Guest { cache, image, name, part, settings, link: None, limit }
    };
    let single = SINGLE.into_iter().chain([COST]).filter(|(name, ..)| chosen.has(name));
    let mut ended =
        side_by_side(single.map(|(name, part, more)| guest(name, part, more, SINGLE_LIMIT)).collect());
    if chosen.has(PAIR) {
        // A folder outside the cache, because the paths of sockets have to be short.
        let folder = env::temp_dir().join(format!("xtask-rdma-{}", std::process::id()));
        let link = Cable::both(&folder).map_err(|error| format!("the guests' link: {error}"))?;
        let [first, second] = link.map(Some);
        ended.extend(side_by_side(vec![
            Guest { link: first, ..guest("root", "root", "node=0", PAIR_LIMIT) },
            Guest { link: second, ..guest("node", "node", "node=1", PAIR_LIMIT) },
        ]));
        // A folder that cannot be removed does no harm.
        let _ = fs::remove_dir_all(&folder);
    }
    let times = ended.iter().map(|GuestResult { name, took, processor_time, .. }| {
        format!("{name} {:.0} s ({:.0} s of a processor)", took.as_secs_f64(), processor_time.as_secs_f64())
    });
    say!("{}", times.collect::<Vec<_>>().join(", "));
    Ok(ended)
}

fn side_by_side(guests: Vec<Guest>) -> Vec<GuestResult> {
    thread::scope(|scope| {
        let threads: Vec<_> = guests.into_iter().map(|guest| scope.spawn(|| guest.run())).collect();
        // A thread that panicked has said why.
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}
