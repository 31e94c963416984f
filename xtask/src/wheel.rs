//! `cargo xtask wheel`: the package for Python, with deckrun and deckperf beside it, as one file that pip installs.

use crate::child::{self, Cargo};
use crate::workspace::Workspace;
use std::{
    env::consts::ARCH,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(3600);
const PACKAGE: &str = "bindings/python";
/// Oldest glibc that a wheel for others requires: that of 2018, which pip 20.3 or later knows by this name.
const GLIBC: &str = "2.28";
/// Programs beside the module: the launcher, and measurements for the user's own machines.
const PROGRAMS: [&str; 2] = ["deckrun", "deckperf"];

#[derive(clap::Args)]
pub struct WheelOptions {
    /// Link by zig for machines with an older glibc than this one's (2.28 or later): the wheel that is given to
    /// others
    ///
    /// The file's name says manylinux_2_28, and maturin checks that this is true. Needs `pip install maturin ziglang
    /// cargo-zigbuild`; everything is built once more, for a target of its own.
    #[arg(long)]
    manylinux: bool,
}

/// Builds the wheel into `target/wheels`.
pub fn run(options: &WheelOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let folder = if options.manylinux { portable(&workspace)? } else { native(&workspace)? };
    let package = workspace.root.join(PACKAGE);
    put_programs(&folder, &package.join("udeck.data/scripts"))?;
    let mut maturin = Command::new("maturin");
    maturin.current_dir(&package).args(["build", "--release"]);
    if options.manylinux {
        let tag = format!("manylinux_{}", GLIBC.replace('.', "_"));
        maturin.args(["--zig", "--target", &target(), "--auditwheel", "check", "--compatibility", &tag]);
    } else {
        maturin.args(["--auditwheel", "skip"]);
    }
    maturin.arg("--out").arg(workspace.target.join("wheels"));
    child::run_quoted(maturin, LIMIT, |_| true)
        .map_err(|why| format!("maturin: {why}; `pip install {}` installs it", packages(options)))?;
    println!("the wheel lies in {}: pip install it", workspace.target.join("wheels").display());
    Ok(true)
}

fn packages(options: &WheelOptions) -> &'static str {
    if options.manylinux { "maturin ziglang cargo-zigbuild" } else { "maturin" }
}

fn target() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// Builds for this machine, and returns the folder of the build.
fn native(workspace: &Workspace) -> Result<PathBuf, String> {
    build(workspace, &with_programs("build --release -p udeck-python"))?;
    Ok(workspace.target.join("release"))
}

/// Builds the programs for an older glibc; maturin builds the module.
fn portable(workspace: &Workspace) -> Result<PathBuf, String> {
    let target = target();
    let words = with_programs("zigbuild --release").arg("--target").arg(format!("{target}.{GLIBC}"));
    build(workspace, &words)
        .map_err(|why| format!("{why}; `pip install ziglang cargo-zigbuild` installs it"))?;
    Ok(workspace.target.join(target).join("release"))
}

fn build(workspace: &Workspace, cargo: &Cargo) -> Result<(), String> {
    println!("    $ {cargo}");
    match cargo.run(&workspace.root, LIMIT, |_| {}).map_err(|error| error.to_string())? {
        Some(problem) => Err(format!("`{cargo}`: {problem}")),
        None => Ok(()),
    }
}

/// Adds the programs to a build.
fn with_programs(build: &str) -> Cargo {
    PROGRAMS.into_iter().fold(Cargo::new(build), |cargo, program| cargo.arg("-p").arg(program))
}

/// Copies the built programs to `scripts`, whose files pip installs with the environment's programs.
fn put_programs(built: &Path, scripts: &Path) -> Result<(), String> {
    fs::create_dir_all(scripts).map_err(|error| format!("{}: {error}", scripts.display()))?;
    PROGRAMS.iter().try_for_each(|program| {
        let (from, to) = (built.join(program), scripts.join(program));
        let copied = fs::copy(&from, &to);
        copied.map(drop).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
    })
}
