//! Tests of the Python package as a user gets it: the wheel is built, installed into a fresh virtual environment, and pytest runs
//! the files beside this one there.
//!
//! `UDECK_PYTHON` names an interpreter that has maturin (by default `python3`). If it has ziglang and cargo-zigbuild, too, the
//! wheel is the one for other machines (`--manylinux`), and if it has auditwheel, this checks that the wheel is what its name
//! says. A missing tool is a skip, with the reason; `UDECK_PYTHON_TESTS=require` makes it a failure (except for a missing
//! launcher, valgrind, or tool for other machines' wheel). The environment's packages come from the network.
//! `UDECK_PYTHON_MORE=torch,jax` installs these, too; otherwise the tests that use them are skipped.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::OnceLock,
};

use libtest_mimic::{Arguments, Failed, Trial};

/// Packages that the tests use. (One of them tests the error without cloudpickle.)
const PACKAGES: [&str; 2] = ["numpy", "pytest"];
/// Packages that some tests use; without them these are skipped.
const MORE_PACKAGES: [&str; 2] = ["mypy", "ml_dtypes"];
/// The other side of comparisons: they are skipped where it does not install.
const PEER_PACKAGES: [&str; 2] = ["mpi4py", "mpich"];
const FILES: [&str; 18] = [
    "test_programs",
    "test_values",
    "test_moves",
    "test_mailboxes",
    "test_threads",
    "test_loops",
    "test_jobs",
    "test_local",
    "test_groups",
    "test_from_mpi4py",
    "test_pool",
    "test_shared",
    "test_tasks",
    "test_types",
    "test_pages",
    "test_frameworks",
    "test_launchers",
    "test_memory",
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let required = is_required();
    let missing = missing().filter(|_| !arguments.list);
    let trial = |file: &'static str| {
        let missing = missing.clone();
        let ignored = missing.is_some() && !required;
        let run = move || missing.map_or_else(|| test(file), |why| Err(Failed::from(why)));
        Trial::test(format!("pytest::{file}"), run).with_ignored_flag(ignored)
    };
    let no_tag = missing.clone().or_else(|| no_tag().filter(|_| !arguments.list));
    let tag = {
        let (no_tag, ignored) = (no_tag.clone(), no_tag.is_some());
        let run = move || no_tag.map_or_else(check_tag, |why| Err(Failed::from(why)));
        Trial::test("wheel::tag", run).with_ignored_flag(ignored)
    };
    let mut trials = vec![tag];
    trials.extend(FILES.map(trial));
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(why) = no_tag.filter(|_| missing.is_none()) {
        println!("skipped: the wheel's tag is not checked: {why}");
    }
    if let Some(why) = missing {
        println!("skipped: {why}");
    }
    conclusion.exit_code()
}

fn is_required() -> bool {
    env::var("UDECK_PYTHON_TESTS").is_ok_and(|word| word == "require")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

fn interpreter() -> OsString {
    env::var_os("UDECK_PYTHON").unwrap_or_else(|| "python3".into())
}

/// Why the wheel cannot be built here; `None`: it can.
fn missing() -> Option<String> {
    let mut python = Command::new(interpreter());
    let found =
        python.args(["-c", "import sys, venv, maturin; sys.exit(sys.version_info < (3, 9))"]).output();
    let is_there = found.is_ok_and(|output| output.status.success());
    let name = interpreter();
    (!is_there).then(|| {
        format!("{} is not Python 3.9 or later with venv and maturin (pip install maturin)", name.display())
    })
}

fn has(modules: &str) -> bool {
    let found = Command::new(interpreter()).args(["-c", &format!("import {modules}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// Whether the wheel for other machines can be built.
fn can_be_portable() -> bool {
    let zigbuild = Command::new("cargo-zigbuild").env("PATH", path()).arg("--version").output();
    has("ziglang") && zigbuild.is_ok_and(|output| output.status.success())
}

/// Why the tag of the wheel is not checked here; `None`: it is.
fn no_tag() -> Option<String> {
    match (can_be_portable(), has("auditwheel")) {
        (false, _) => Some("it is built for this machine (pip install ziglang cargo-zigbuild)".to_owned()),
        (_, false) => Some("there is no auditwheel (pip install auditwheel)".to_owned()),
        _ => None,
    }
}

/// Checks that the version found by auditwheel is no newer than that in the wheel's name.
fn check_tag() -> Result<(), Failed> {
    python()?;
    let wheel = newest_wheel(&root().join("target/wheels"))?;
    let shown = said(Command::new(interpreter()).args(["-m", "auditwheel", "show"]).arg(&wheel))?;
    let flat = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = |text: &str| {
        let digits = text.split("manylinux_2_").nth(1)?;
        digits.split(|next: char| !next.is_ascii_digit()).next()?.parse::<u32>().ok()
    };
    let found = flat.split("consistent with the following platform tag").nth(1).and_then(version);
    match (version(&name), found) {
        (Some(named), Some(found)) if found <= named => {
            println!("{name}: auditwheel finds manylinux_2_{found}");
            Ok(())
        }
        _ => Err(Failed::from(format!("{name}: auditwheel says\n{shown}"))),
    }
}

/// Interpreter of the environment, which the first test makes.
fn python() -> Result<PathBuf, Failed> {
    static ENVIRONMENT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    ENVIRONMENT.get_or_init(environment).clone().map_err(Failed::from)
}

/// Runs a file in the environment.
fn test(file: &str) -> Result<(), Failed> {
    let mut pytest = Command::new(python()?);
    pytest.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
    let said = said(pytest.arg(root().join("tests/bindings/python").join(file).with_extension("py")));
    let said = said.map_err(Failed::from)?;
    // The printed lines are the skips, and the count of passed tests.
    let skipped = said.lines().filter(|line| line.starts_with("SKIPPED"));
    let lines: Vec<_> = skipped.chain(said.lines().last()).map(|line| format!("{file}: {line}\n")).collect();
    print!("{}", lines.concat());
    Ok(())
}

/// Makes a fresh environment with the wheel, and returns its interpreter.
fn environment() -> Result<PathBuf, String> {
    let target = root().join("target");
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(root()).env("PATH", path()).args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--",
        "wheel",
    ]);
    if can_be_portable() {
        build.arg("--manylinux");
    }
    said(&mut build)?;
    let folder = target.join("python-tests");
    said(Command::new(interpreter()).args(["-m", "venv", "--clear"]).arg(&folder))?;
    let python = folder.join("bin/python");
    said(pip_install(&python).args(PACKAGES).arg(newest_wheel(&target.join("wheels"))?))?;
    match said(pip_install(&python).args(MORE_PACKAGES)) {
        Err(why) if is_required() => return Err(why),
        _ => {}
    }
    if let Err(why) = said(pip_install(&python).args(PEER_PACKAGES)) {
        println!("{} could not be installed: {why}", PEER_PACKAGES.join(" and "));
    }
    let more = env::var("UDECK_PYTHON_MORE").unwrap_or_default();
    let more: Vec<_> = more.split(',').filter(|name| !name.is_empty()).collect();
    if !more.is_empty() {
        said(pip_install(&python).args(more))?;
    }
    Ok(python)
}

fn pip_install(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip
}

/// The search path, with the interpreter's own programs first, such as maturin.
fn path() -> OsString {
    let interpreter = PathBuf::from(interpreter());
    let before = env::var_os("PATH").unwrap_or_default();
    let own = interpreter.parent().filter(|parent| parent.is_absolute()).map(Path::to_path_buf);
    env::join_paths(own.into_iter().chain(env::split_paths(&before))).expect("no name has a colon")
}

fn newest_wheel(folder: &Path) -> Result<PathBuf, String> {
    let wheels = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let wheels = wheels.flatten().map(|entry| entry.path());
    let wheels = wheels.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    let newest = wheels.max_by_key(|path| path.metadata().and_then(|about| about.modified()).ok());
    newest.ok_or_else(|| format!("{} has no wheel", folder.display()))
}

/// Runs a command to its end, and returns its output; if it fails, its last words are the error.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    if output.status.success() {
        return Ok(said);
    }
    let lines: Vec<&str> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(60)..].join("\n");
    Err(format!("{command:?} ended with {}:\n{last}", output.status))
}
