//! Instructions per operation on the fast paths, compared with a record that the repository keeps.
//!
//! On a shared machine a time says little. An instruction count is the same every day, so that a dearer path is noticed in the
//! commit that caused it. The programs of `bench-apps/counts` run the paths, callgrind counts, and `instructions.txt` beside them is the
//! record. `verbs-paths` repeats the paths over verbs with bare calls of libibverbs: the record is the
//! difference ([`record::above_bare`]). `dat-paths` counts uDAPL's calls. The record changes only by `cargo xtask counts
//! --write`, in a commit whose message gives the reason. A path that became *cheaper* therefore fails the step, too: otherwise
//! the gain could be lost again unnoticed.
//!
//! Counts depend on the instruction set, on the compiler, and on which of libc's copy routines fits the processor. The
//! copy routine is pinned. A record of another instruction set is not compared; a record of another compiler is
//! compared with a [wider tolerance](verdict::Tolerance).

mod callgrind;
mod record;
mod verdict;

use crate::{builds::RELEASE, child::Cargo, workspace::Workspace};
use record::{Record, Toolchain};
use std::{fs, io::ErrorKind, path::Path, process::Command, time::Duration};
use verdict::{Row, Tolerance};

/// Path of the record, below the root.
const RECORD: &str = "bench-apps/counts/instructions.txt";
/// Arguments of the one command that builds all programs for [`Extent::All`]. The feature, which tells where a retrieve has polled
/// in vain, compiles nearly the whole library once more.
const BUILD: &str =
    "build --release --workspace --bin fast-paths --bin verbs-paths --bin dat-paths --features counts/waited";
/// The path that needs the feature.
const WAITED: &str = "mailbox_retrieve_waited";
/// Programs, each with the module of its paths: one function for each path.
const PROGRAMS: [(&str, &str); 3] = [
    ("fast-paths", "fast_paths::counted"),
    ("verbs-paths", "verbs_paths::counted"),
    ("dat-paths", "dat_paths::counted"),
];
/// Stand-in library for verbs. It is looked for in the program's folder.
const STANDIN: &str = "libudeck_mock_verbs.so";
/// Restricts libc to the instruction set's baseline, which every processor of the target has: otherwise the same
/// commit would count differently on two machines. glibc ignores unknown names.
const BASELINE: &str = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-AVX_Fast_Unaligned_Load,-SSSE3,-ERMS,-FSRM";

/// Paths to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of them.
    All,
    /// Paths of the programs that users get: all but the retrieve that waits.
    Released,
}

/// Result of the comparison.
#[derive(Debug, Default)]
pub struct StepReport {
    /// Paths within the tolerance.
    pub passed: u64,
    /// Paths out of tolerance, or reasons why nothing was counted.
    pub problems: Vec<String>,
    /// Why nothing was compared.
    pub skipped: Option<String>,
}

/// Counts, prints the table, and compares. Blocks for the build and some seconds more, at most `limit`.
pub fn check(workspace: &Workspace, extent: Extent, limit: Duration) -> StepReport {
    compare(workspace, extent, limit)
        .unwrap_or_else(|problem| StepReport { problems: vec![problem], ..StepReport::default() })
}

/// Runs the step alone: `cargo xtask counts`. `Ok(false)`: a path is out of tolerance.
pub fn run(limit: Duration) -> Result<bool, String> {
    let report = check(&Workspace::load()?, Extent::All, limit);
    report.problems.iter().for_each(|problem| println!("failed: {problem}"));
    report.skipped.iter().for_each(|reason| println!("skipped: {reason}"));
    Ok(report.problems.is_empty())
}

/// Replaces the record by the current counts: `cargo xtask counts --write`.
pub fn write(limit: Duration) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let toolchain = Toolchain::in_use()?;
    if let Some(reason) = no_valgrind()? {
        return Err(reason);
    }
    let counted = count(&workspace, Extent::All, limit)?;
    let path = workspace.root.join(RECORD);
    let before = if path.exists() { read(&path)?.paths } else { Default::default() };
    show(&verdict::rows(&before, &counted));
    fs::write(&path, Record { toolchain, paths: counted }.to_string())
        .map_err(|error| format!("cannot write {RECORD}: {error}"))?;
    println!("{RECORD} is renewed: commit it with the reason in the message");
    Ok(true)
}

fn compare(workspace: &Workspace, extent: Extent, limit: Duration) -> Result<StepReport, String> {
    let mut record = read(&workspace.root.join(RECORD))?;
    if extent == Extent::Released {
        record.paths.remove(WAITED);
    }
    let toolchain = Toolchain::in_use()?;
    let skip = |reason| Ok(StepReport { skipped: Some(reason), ..StepReport::default() });
    if record.toolchain.target != toolchain.target {
        let recorded = &record.toolchain.target;
        return skip(format!("{RECORD} is of {recorded}, this is {}", toolchain.target));
    }
    if let Some(reason) = no_valgrind()? {
        return skip(reason);
    }
    let tolerance = Tolerance::between(&record.toolchain, &toolchain);
    let rows = verdict::rows(&record.paths, &count(workspace, extent, limit)?);
    show(&rows);
    println!("tolerance: {tolerance}");
    let problems: Vec<_> = rows.iter().filter_map(|row| row.problem(&tolerance)).collect();
    Ok(StepReport { passed: (rows.len() - problems.len()) as u64, problems, skipped: None })
}

fn show(rows: &[Row]) {
    println!("{:24} {:>12} {:>10} {:>8}", "path", "instructions", "recorded", "change");
    rows.iter().for_each(|row| println!("{row}"));
}

fn read(path: &Path) -> Result<Record, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("cannot read {RECORD}: {error}; `cargo xtask counts --write` makes it"))?;
    Record::parse(&text).map_err(|problem| format!("{RECORD}: {problem}"))
}

/// Why callgrind is not available; `None`: it is.
fn no_valgrind() -> Result<Option<String>, String> {
    match Command::new("valgrind").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(None),
        Ok(output) => Err(format!("`valgrind --version` failed ({})", output.status)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(
            "valgrind is not installed (package valgrind), whose callgrind counts instructions".into(),
        )),
        Err(error) => Err(format!("cannot start valgrind: {error}")),
    }
}

/// Instructions per operation, by path, of all programs.
fn count(workspace: &Workspace, extent: Extent, limit: Duration) -> Result<record::Paths, String> {
    let build = if extent == Extent::All { BUILD } else { RELEASE };
    // The user's own flags, such as `-C target-cpu=native`, would change the instructions.
    run_one(&Cargo::new(build).env("RUSTFLAGS", ""), workspace, limit)?;
    // The programs are copied, because another step's build puts its own programs of these names there.
    let (from, to) = (workspace.target.join("release"), workspace.target.join("counts"));
    fs::create_dir_all(&to).map_err(|error| format!("{}: {error}", to.display()))?;
    let programs = PROGRAMS.map(|(program, _)| (from.join(program), program));
    for (built, name) in programs.into_iter().chain([(from.join("deps").join(STANDIN), STANDIN)]) {
        fs::copy(&built, to.join(name)).map_err(|error| format!("{}: {error}", built.display()))?;
    }
    let mut paths = record::Paths::new();
    for (program, module) in PROGRAMS {
        paths.extend(record::above_bare(count_in(program, module, workspace, limit)?));
    }
    Ok(paths)
}

fn count_in(
    program: &str,
    module: &str,
    workspace: &Workspace,
    limit: Duration,
) -> Result<record::Paths, String> {
    let output = workspace.target.join(format!("{program}.callgrind"));
    let log = workspace.target.join(format!("{program}.valgrind.log"));
    // The output of the previous run is removed, so that a run that ends early cannot pass with its counts.
    match fs::remove_file(&output) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(format!("cannot remove {}: {error}", output.display()));
        }
        _ => {}
    }
    run_one(
        &under_callgrind(&workspace.target.join("counts").join(program), &output, &log),
        workspace,
        limit,
    )
    .map_err(|problem| format!("{problem}; valgrind's words are in {}", log.display()))?;
    let text = fs::read_to_string(&output)
        .map_err(|error| format!("cannot read what callgrind wrote to {}: {error}", output.display()))?;
    callgrind::paths(&text, module).map_err(|problem| format!("{}: {problem}", output.display()))
}

fn run_one(command: &Cargo, workspace: &Workspace, limit: Duration) -> Result<(), String> {
    println!("    $ {command}");
    match command.run(&workspace.root, limit, |_| {}) {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(format!("`{command}`: {reason}")),
        Err(error) => Err(format!("cannot run `{command}`: {error}")),
    }
}

/// Runs the program under callgrind.
fn under_callgrind(program: &Path, output: &Path, log: &Path) -> Cargo {
    // The output has names and positions in full, so that a parser of a few lines can read it.
    let words = format!("{BASELINE} valgrind --tool=callgrind --compress-strings=no --compress-pos=no");
    Cargo::program("env".into(), &words)
        .arg(format!("--callgrind-out-file={}", output.display()))
        // Valgrind's complaints about system calls unknown to it go to a log; the library works without these
        // calls.
        .arg(format!("--log-file={}", log.display()))
        .arg(program.display().to_string())
}
