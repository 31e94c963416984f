//! `cargo xtask fabric`: published figures beside those of the simulated fabric. Builds and runs `deckfabric papers`.

use crate::{child::Cargo, workspace::Workspace};
use clap::Args;
use std::{path::PathBuf, time::Duration};

#[derive(Args)]
pub struct FabricOptions {
    /// Small networks, in seconds: the step `fabric` of `test`
    #[arg(long)]
    quick: bool,

    /// Where the page for a browser is written [default: fabric.html in the target folder]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Command that runs the papers; its options follow.
const COMMAND: &str = "run --release -p deckfabric -- papers";

/// Limit for a build from nothing and some minutes of one processor, on a busy machine.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs the command. `Ok(false)`: a required relation does not hold.
pub fn run(options: &FabricOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let page = options.output.clone().unwrap_or_else(|| workspace.target.join("fabric.html"));
    let mut command = Cargo::new(COMMAND).args("-o").arg(page.display().to_string());
    if options.quick {
        command = command.args("--quick");
    }
    println!("$ {command}");
    let problem =
        command.run(&workspace.root, LIMIT, |_| {}).map_err(|error| format!("cannot run cargo: {error}"))?;
    match &problem {
        Some(problem) => println!("`{command}`: {problem}"),
        None => println!("{}: open it in a browser", page.display()),
    }
    Ok(problem.is_none())
}
