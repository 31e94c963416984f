//! `cargo xtask wheel`: the package for Python, with deckrun beside it, as one file that pip installs.

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
    put_deckrun(&folder.join("deckrun"), &package.join("udeck.data/scripts"))?;
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
    build(workspace, &Cargo::new("build --release -p udeck-python -p deckrun"))?;
    Ok(workspace.target.join("release"))
}

/// Builds the launcher for an older glibc; maturin builds the module.
fn portable(workspace: &Workspace) -> Result<PathBuf, String> {
    let target = target();
    let words = Cargo::new("zigbuild --release -p deckrun --target").arg(format!("{target}.{GLIBC}"));
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

/// Copies deckrun to `scripts`, whose files pip installs with the environment's programs.
fn put_deckrun(built: &Path, scripts: &Path) -> Result<(), String> {
    let copy = scripts.join("deckrun");
    let copied = fs::create_dir_all(scripts).and_then(|()| fs::copy(built, &copy));
    copied.map(drop).map_err(|error| format!("{} to {}: {error}", built.display(), copy.display()))
}
