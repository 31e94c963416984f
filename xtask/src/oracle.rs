//! Runs the oracle of libibverbs' structures, which is a workspace of its own because of its dependencies.

use crate::{child::Cargo, workspace::Workspace};
use std::time::Duration;

/// Path of the manifest, below the root.
const MANIFEST: &str = "transports/verbs/oracle/Cargo.toml";

/// Blocks for the build and some seconds, at most `limit`. `Ok(false)`: a structure differs from the header's, or the
/// oracle could not run; its output is printed above.
pub fn run(bindgen: bool, limit: Duration) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let mut command = Cargo::new("test --manifest-path").arg(MANIFEST);
    if bindgen {
        command = command.args("--features bindgen");
    }
    let command = command.args("-- --nocapture");
    println!("    $ {command}");
    let failed = command
        .run(&workspace.root, limit, |_| {})
        .map_err(|error| format!("cannot run `{command}`: {error}"))?;
    failed.iter().for_each(|reason| println!("failed: {reason}"));
    Ok(failed.is_none())
}
