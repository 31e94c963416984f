//! The steps of `cargo xtask test`, in order: the one list of the project's checks.
//!
//! [`quick`] are the checks that users rely on, [`tail`] those that take a night. `docs/internals/testing.md` explains the place
//! of each.

mod quick;
mod tail;

use crate::{
    builds::{FEATURES, RELEASE, TEST_PACKAGES},
    child::{Cargo, DRIVER},
    counts, rdma, soak,
    workspace::Workspace,
};
use std::collections::BTreeSet;

pub struct Step {
    pub name: &'static str,
    pub about: &'static str,
    pub work: Work,
    /// Whether the counts of each test program are shown, because each program tests something distinct: a
    /// transport.
    pub by_program: bool,
    pub beside: Beside,
}

/// Extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Checks of promises to users: [`quick`].
    Quick,
    /// Checks that a change needs before it is merged: [`checks`].
    All,
    /// All of the above, and [`tail`].
    Night,
}

/// The steps of `extent`, in order.
pub fn of(extent: Extent, workspace: &Workspace, fail_fast: bool) -> Vec<Step> {
    match extent {
        Extent::Quick => quick::steps(workspace, fail_fast),
        Extent::All => checks(workspace, fail_fast),
        Extent::Night => {
            let mut steps = checks(workspace, fail_fast);
            steps.extend(tail::steps(workspace, fail_fast));
            steps
        }
    }
}

/// Other steps that may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// None. Such steps run first.
    Nothing,
    /// Any step whose `beside` is not `Nothing`.
    Others,
    /// The same steps, but only after the step [`RELEASE_BUILD`], if the run has it.
    AfterRelease,
}

pub enum Work {
    /// Commands, one after another. The first that fails ends the step, unless it is a check or a test.
    Commands(Vec<(Role, Cargo)>),
    /// The checks in `arrows`, `circles` and `unsafe_policy`, in this process.
    Arrows,
    /// The documents, by `book`, in this process.
    Book,
    /// The checks in `packaging`, in this process.
    Packaging,
    /// The comparison in `counts`.
    Counts(counts::Extent),
    /// The guests of `rdma`, or those of its long tail.
    Rdma(rdma::Chosen),
}

/// Effect of a command's success on the counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Builds for the next command: counts only when it fails.
    Prepare,
    /// One check: passed or failed.
    Check,
    /// Tests, counted one by one.
    Tests,
    /// Like `Tests`, but an empty run is a failure: a filter that matches nothing proves nothing.
    SomeTests,
}

/// Name of the step without which no test can run.
pub const BUILD: &str = "build";
/// Name of the step that builds the programs that users get.
pub const RELEASE_BUILD: &str = "release";

/// Packages whose test programs are steps of their own.
const OWN_STEPS: [&str; 3] = ["udeck-bindings-tests", "udeck-conformance", "udeck-jobs"];

/// Command that runs tests of the workspace, in the profile of tests.
fn tests(fail_fast: bool) -> Cargo {
    let test = if fail_fast { "test" } else { "test --no-fail-fast" };
    Cargo::new(test).args(TEST_PACKAGES).args(FEATURES)
}

/// All steps that a change needs. Those that take long come before the short ones, which fill what is left at the end.
fn checks(workspace: &Workspace, fail_fast: bool) -> Vec<Step> {
    let tests = || tests(fail_fast);
    let mut steps = static_checks();
    steps.extend(builds(workspace));
    steps.extend(in_process_tests(&tests, workspace, fail_fast));
    let [jobs, hosts, kill, engines, soak] = whole_jobs(&tests, workspace);
    let about = "the page of `deckperf report` in a headless Chromium; skipped without one";
    let page = over_release(beside_jobs(tests().args("--test page"), workspace), workspace);
    let page = step("page", about, Work::Commands(page)).beside(Beside::AfterRelease);
    let about = "orderings, shares and deadlines of the literature hold on the simulated fabric";
    let fabric = step("fabric", about, papers("papers --quick", workspace)).beside(Beside::AfterRelease);
    let about = "verbs over a real RDMA device, in guests of QEMU's; skipped without Debian's packages";
    let rdma =
        step("rdma", about, Work::Rdma(rdma::Chosen::step())).beside(Beside::AfterRelease).by_program();
    let about = "no fast path needs 5 % more instructions than recorded; skipped without valgrind";
    let counts = step("counts", about, Work::Counts(counts::Extent::Released)).beside(Beside::AfterRelease);
    let c = c_programs(tests(), workspace);
    let about = "dapltest, dtest and others of Debian's dapl2-utils, and programs of ours, over uDAPL; skipped without them";
    let words = format!("-- --skip {}", tail::DAT_VALGRIND);
    let dat =
        step("dat", about, Work::Commands(over_dat(tests(), &words, workspace))).beside(Beside::AfterRelease);
    let python = python(beside_jobs(tests(), workspace));
    steps.extend([rdma, jobs, hosts, python, kill, engines, c, counts, dat, fabric, soak, page]);
    steps
}

/// Arguments `--test NAME` for the test programs of these packages.
fn programs_of(workspace: &Workspace, wanted: impl Fn(&str) -> bool) -> String {
    let packages = workspace.packages.iter().filter(|package| wanted(&package.name));
    let names: BTreeSet<_> = packages.flat_map(|package| &package.tests).collect();
    names.into_iter().map(|test| format!("--test {test}")).collect::<Vec<_>>().join(" ")
}

/// Arguments for libraries and programs with tests, and for the test programs that have no step of their own.
fn units(workspace: &Workspace) -> String {
    let bins = workspace.packages.iter().flat_map(|package| &package.tested_bins);
    let bins: Vec<_> = bins.map(|bin| format!("--bin {bin}")).collect();
    format!("--lib {} {}", bins.join(" "), programs_of(workspace, |package| !OWN_STEPS.contains(&package)))
}

/// The two builds that the other steps share.
fn builds(workspace: &Workspace) -> [Step; 2] {
    let all = programs_of(workspace, |_| true);
    let debug = tests(true).args("--no-run").args(&units(workspace)).args(&all);
    let work =
        |commands: Vec<Cargo>| Work::Commands(commands.into_iter().map(|one| (Role::Check, one)).collect());
    [
        step(BUILD, "all test programs, and what they start", work(vec![debug, soak::build()])),
        step(RELEASE_BUILD, "all that users get, as they build it", work(vec![Cargo::new(RELEASE)]))
            .beside(Beside::Others),
    ]
}

fn static_checks() -> Vec<Step> {
    let check = |words| Work::Commands(vec![(Role::Check, Cargo::new(words))]);
    vec![
        step("format", "the source is formatted as rustfmt.toml says", check("fmt --all --check")),
        step(
            "clippy",
            "no lint fires, in any target or feature",
            check("clippy --workspace --all-targets --all-features -- -D warnings"),
        ),
        step(
            "arrows",
            "packages depend along the arrows, files in no circles; `unsafe` and names keep their places; comments name their subjects",
            Work::Arrows,
        ),
        step(
            "book",
            "every page is in the book and every link leads somewhere; builds it where mdbook is installed",
            Work::Book,
        ),
        step(
            "package",
            "what is published says what a registry asks for; cargo-deny over dependencies, where it is installed",
            Work::Packaging,
        ),
    ]
}

fn in_process_tests(tests: &dyn Fn() -> Cargo, workspace: &Workspace, fail_fast: bool) -> Vec<Step> {
    let unit = |filter| tests().args(&units(workspace)).args(filter);
    let doc_tests = tests().args("--doc");
    let doc = Cargo::new("doc --workspace --no-deps").add_flags("RUSTDOCFLAGS", "-D warnings");
    let ui = tests().args("--test ui -- compile_fail");
    let suite = programs_of(workspace, |package| package == "udeck-conformance");
    let conformance = tests()
        .args(&suite)
        .args("-- --nocapture")
        .args(&tail::without_variants())
        .env(tail::SEQUENCES.0, "1000");
    // Loom has a target folder of its own: with other flags nothing can be shared.
    let loom = Cargo::new(if fail_fast { "test" } else { "test --no-fail-fast" })
        .args("--release -p udeck-sys --lib --tests --target-dir")
        .arg(workspace.target.join("loom").display().to_string())
        .args("-- loom_")
        .add_flags("RUSTFLAGS", "--cfg loom");
    let lines = tests().args("--test lines");
    let properties = unit("-- --nocapture proptest prop_");
    let unit = beside_jobs(unit("-- --skip proptest --skip prop_ --skip compile_fail"), workspace);
    let one = |role, command| Work::Commands(vec![(role, command)]);
    vec![
        step("unit", "tests of one package each, and the umbrella's", one(Role::SomeTests, unit))
            .beside(Beside::Others),
        step("conformance", "the one suite that every transport passes", one(Role::SomeTests, conformance))
            .beside(Beside::Others)
            .by_program(),
        step(
            "ui",
            "misuse of memory in flight does not compile; a twin that differs in one line does",
            one(Role::SomeTests, ui),
        )
        .beside(Beside::Others),
        step(
            "doc",
            "examples in the documentation run, and its links lead somewhere",
            Work::Commands(vec![(Role::Tests, doc_tests), (Role::Check, doc)]),
        )
        .beside(Beside::Others),
        step(
            "proptest",
            "properties over random inputs; a failure prints what replays it",
            one(Role::SomeTests, properties),
        )
        .beside(Beside::Others),
        step("loom", "rings and wake-ups under every interleaving", one(Role::SomeTests, loom))
            .beside(Beside::Others),
        step("lines", "a short message costs one shared cache line", one(Role::SomeTests, lines))
            .beside(Beside::Others),
    ]
}

/// Moves temporary files elsewhere: a job regards a new file in `/tmp` that has a name like ours as its own leftover, if it stays
/// for long.
fn beside_jobs(tests: Cargo, workspace: &Workspace) -> Cargo {
    tests.env("TMPDIR", workspace.target.join("tmp").display().to_string())
}

/// Commands that run `tests` of jobs with the programs that users get.
fn over_release(tests: Cargo, workspace: &Workspace) -> Vec<(Role, Cargo)> {
    let folder = workspace.target.join("release").display().to_string();
    vec![(Role::Prepare, Cargo::new(RELEASE)), (Role::SomeTests, tests.env("DECK_BIN_DIR", folder))]
}

/// Compares the simulated fabric with the literature, by the program that users get.
fn papers(words: &str, workspace: &Workspace) -> Work {
    let program = Cargo::program(workspace.target.join("release/deckfabric"), words);
    Work::Commands(vec![(Role::Prepare, Cargo::new(RELEASE)), (Role::Check, program)])
}

/// Plays random jobs, different ones in each run. They are built in the profile of tests, because debug builds
/// check more.
fn soak_of(minutes: u64, workspace: &Workspace) -> Work {
    let debug = workspace.target.join("debug");
    let random = Cargo::program(debug.join(DRIVER), &format!("--minutes {minutes}"));
    let random = random.env("DECK_BIN_DIR", debug.display().to_string());
    Work::Commands(vec![(Role::Prepare, soak::build()), (Role::SomeTests, random)])
}

fn whole_jobs(tests: &dyn Fn() -> Cargo, workspace: &Workspace) -> [Step; 5] {
    let jobs = |words| over_release(tests().args(words), workspace);
    // These tests wait more than they compute: six threads shorten them from 287 s to 118 s.
    let kill = jobs("--test kill -- --test-threads 6");
    let mut hosts = jobs("--test hosts");
    // Without namespaces all of these tests are skipped, which is no failure.
    hosts[1].0 = Role::Tests;
    [
        step(
            "jobs",
            "whole jobs: the examples and bench-apps, alone and through deckrun",
            Work::Commands(jobs("--test jobs")),
        )
        .beside(Beside::AfterRelease),
        step(
            "hosts",
            "jobs over several hosts, which are network namespaces; needs root",
            Work::Commands(hosts),
        )
        .beside(Beside::AfterRelease)
        .by_program(),
        step("kill", "processes killed at every named point leave nothing behind", Work::Commands(kill))
            .beside(Beside::AfterRelease),
        step(
            "engines",
            "jobs under Slurm, Hydra, Open MPI and PRRTE; each is skipped where it is not installed",
            Work::Commands(jobs("--test engines")),
        )
        .beside(Beside::AfterRelease),
        step(
            "soak",
            "a minute of random jobs under random faults; a failure prints the command that replays it",
            soak_of(1, workspace),
        )
        .beside(Beside::Others),
    ]
}

/// Installs what users of the C library get, and compiles their programs with each available compiler.
fn c_programs(tests: Cargo, workspace: &Workspace) -> Step {
    let about =
        "programs in C, C++ and Fortran over both interfaces; each compiler that is missing is skipped";
    let mut commands = vec![(Role::Prepare, Cargo::new(RELEASE))];
    commands.extend(installed(beside_jobs(tests.args("--test capi"), workspace), "release", workspace));
    step("c", about, Work::Commands(commands)).beside(Beside::AfterRelease)
}

/// Installs the build in this folder below `target`, and runs `tests` with it.
fn installed(tests: Cargo, built: &str, workspace: &Workspace) -> [(Role, Cargo); 2] {
    let folder = |name: &str| workspace.target.join(name).display().to_string();
    let prefix = folder(&format!("capi-{built}"));
    let install = Cargo::new("run --quiet --package xtask -- install --from").arg(folder(built));
    let install = install.arg("--prefix").arg(&prefix);
    [(Role::Prepare, install), (Role::SomeTests, tests.env("UDECK_INSTALLED", prefix))]
}

/// Tests of uDAPL programs, through Debian's registry. The `words` choose among them.
fn over_dat(tests: Cargo, words: &str, workspace: &Workspace) -> Vec<(Role, Cargo)> {
    let programs = workspace.target.join("release");
    let library = programs.join("libudeck_dat.so").display().to_string();
    let run = beside_jobs(tests.args("--test dat").args(words), workspace)
        .env("DECK_BIN_DIR", programs.display().to_string())
        .env("UDECK_DAT_LIBRARY", &library);
    vec![(Role::Prepare, Cargo::new(RELEASE)), (Role::SomeTests, run)]
}

/// Tests of the Python package, by its wheel.
fn python(tests: Cargo) -> Step {
    let run = tests.args("--test python");
    let about =
        "the wheel for Python in a fresh environment, tested by pytest; skipped without Python and maturin";
    step("python", about, Work::Commands(vec![(Role::Tests, run)])).beside(Beside::AfterRelease)
}

fn step(name: &'static str, about: &'static str, work: Work) -> Step {
    Step { name, about, work, by_program: false, beside: Beside::Nothing }
}

impl Step {
    fn beside(self, beside: Beside) -> Self {
        Step { beside, ..self }
    }

    fn by_program(self) -> Self {
        Step { by_program: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, path::PathBuf};

    /// This workspace, with another target folder.
    fn workspace() -> Workspace {
        Workspace { target: PathBuf::from("/w/out"), ..Workspace::load().expect("cargo metadata") }
    }

    /// All steps of a night, which include all steps but the quick ones.
    fn steps(fail_fast: bool) -> Vec<Step> {
        of(Extent::Night, &workspace(), fail_fast)
    }

    fn commands(step: &Step) -> Vec<String> {
        match &step.work {
            Work::Commands(commands) => commands.iter().map(|(_, cargo)| cargo.to_string()).collect(),
            Work::Arrows | Work::Book | Work::Packaging | Work::Counts(_) | Work::Rdma(_) => Vec::new(),
        }
    }

    #[test]
    fn every_test_program_is_in_a_step() {
        let all: Vec<_> = of(Extent::All, &workspace(), false).iter().flat_map(commands).collect();
        let named = |test: &str| {
            let words = |command: &String| command.split(' ').any(|word| word == test);
            all.iter().filter(|command| !command.contains("--no-run")).any(words)
        };
        for test in workspace().packages.iter().flat_map(|package| &package.tests) {
            assert!(named(test), "{test} runs nowhere");
        }
    }

    #[test]
    fn the_name_of_a_test_program_of_its_own_step_is_no_other_packages() {
        let packages = workspace().packages;
        let (own, others): (Vec<_>, Vec<_>) =
            packages.iter().partition(|package| OWN_STEPS.contains(&package.name.as_str()));
        let own: Vec<_> = own.into_iter().flat_map(|package| &package.tests).collect();
        assert_eq!(own.iter().collect::<HashSet<_>>().len(), own.len(), "{own:?}");
        for package in others {
            let taken = package.tests.iter().find(|test| own.contains(test));
            assert_eq!(taken, None, "{}: its test would run in the step of another one", package.name);
        }
    }

    #[test]
    fn tests_choose_by_name_in_the_whole_workspace() {
        // Commands with other flags, or of a user's own typing, cannot share a build.
        let apart = |command: &String| command.contains("--cfg loom") || command.contains("--package xtask");
        for command in steps(false).iter().flat_map(commands).filter(|command| !apart(command)) {
            assert!(!command.contains("-p "), "{command}");
        }
    }

    #[test]
    fn what_the_unit_step_skips_by_name_another_step_runs() {
        let all: Vec<_> = steps(false).iter().flat_map(commands).collect();
        let unit = all.iter().find(|command| command.contains("--skip")).expect("the unit step's command");
        let mut words = unit.split_whitespace().skip_while(|word| *word != "--skip");
        while let (Some("--skip"), Some(name)) = (words.next(), words.next()) {
            let filters = |command: &String| {
                command.split_whitespace().rev().take_while(|word| *word != "--").any(|word| word == name)
            };
            assert!(
                all.iter().any(|command| command != unit && filters(command)),
                "{name} is tested nowhere"
            );
        }
    }

    #[test]
    fn a_fabric_that_a_change_does_not_need_is_one_of_the_suite_and_runs_at_night() {
        let folder = workspace().root.join("tests/conformance/tests");
        let sources: String = ["shm", "sim", "tcp", "udp", "verbs"]
            .map(|name| std::fs::read_to_string(folder.join(name).with_extension("rs")).expect("a source"))
            .concat();
        let night: Vec<_> = tail::steps(&workspace(), false).iter().flat_map(commands).collect();
        for fabric in tail::VARIANTS {
            assert!(sources.contains(&format!("\"{fabric}\"")), "{fabric} is none");
            assert!(night.iter().any(|command| command.contains(&format!(" {fabric}::"))), "{fabric}");
        }
    }

    #[test]
    fn the_names_of_a_lists_steps_differ() {
        for extent in [Extent::Quick, Extent::All, Extent::Night] {
            let steps = of(extent, &workspace(), false);
            let names: HashSet<_> = steps.iter().map(|step| step.name).collect();
            assert_eq!(names.len(), steps.len());
        }
    }

    #[test]
    fn commands_of_the_tests_profile_choose_from_the_same_packages() {
        let all = steps(false);
        let apart = ["clippy", "--release", "cargo doc", "--cfg loom", "--package xtask", "cargo fmt"];
        let is_apart = |command: &String| apart.iter().any(|words| command.contains(words));
        let cargo = |command: &String| command.contains("cargo ");
        for command in all.iter().flat_map(commands).filter(cargo).filter(|command| !is_apart(command)) {
            assert!(command.contains(TEST_PACKAGES) && command.contains(FEATURES), "{command}");
        }
    }

    #[test]
    fn a_build_with_other_flags_has_a_target_folder_of_its_own() {
        for command in steps(false).iter().flat_map(commands) {
            let own_folder = command.contains("--target-dir /w/out/loom");
            assert_eq!(command.contains("--cfg loom"), own_folder, "{command}");
        }
    }

    #[test]
    fn what_users_build_has_no_feature_of_the_tests() {
        for command in steps(false).iter().flat_map(commands) {
            assert!(!(command.contains(RELEASE) && command.contains("--features")), "{command}");
        }
    }

    #[test]
    fn jobs_over_several_hosts_are_a_step_that_may_skip_them_all() {
        let steps = steps(false);
        let step = steps.iter().find(|step| step.name == "hosts").expect("a step of this name");
        let Work::Commands(commands) = &step.work else { panic!("commands") };
        let (role, cargo) = commands.last().expect("a command");
        assert!(*role == Role::Tests && cargo.to_string().contains("--test hosts"), "{cargo}");
    }

    #[test]
    fn a_failing_test_program_stops_the_next_only_if_asked() {
        let with =
            |fail_fast| steps(fail_fast).iter().flat_map(commands).any(|c| c.contains("--no-fail-fast"));
        assert_eq!((with(false), with(true)), (true, false));
    }
}
