//! `cargo xtask wheel`: the package for Python, with deckrun beside it, as one file that pip installs.

use crate::child::{self, Cargo};
use crate::workspace::Workspace;
use std::{fs, process::Command, time::Duration};

const BUILD: &str = "build --release -p udeck-python -p deckrun";
const LIMIT: Duration = Duration::from_secs(3600);
const PACKAGE: &str = "src/python";

/// Builds it into `target/wheels`.
pub fn run() -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let build = Cargo::new(BUILD);
    println!("    $ {build}");
    if let Some(problem) = build.run(&workspace.root, LIMIT, |_| {}).map_err(|error| error.to_string())? {
        return Err(format!("`{build}`: {problem}"));
    }
    let package = workspace.root.join(PACKAGE);
    // What lies there is installed where the environment's programs are.
    let scripts = package.join("udeck.data/scripts");
    let copied = fs::create_dir_all(&scripts)
        .and_then(|()| fs::copy(workspace.target.join("release/deckrun"), scripts.join("deckrun")));
    copied.map_err(|error| format!("{}: {error}", scripts.display()))?;
    let mut maturin = Command::new("maturin");
    maturin.current_dir(&package).args(["build", "--release", "--auditwheel", "skip", "--out"]);
    maturin.arg(workspace.target.join("wheels"));
    child::run_quoted(maturin, LIMIT, |_| true)
        .map_err(|why| format!("maturin: {why}; `pip install maturin` installs it"))?;
    println!("the wheel lies in {}: pip install it", workspace.target.join("wheels").display());
    Ok(true)
}
