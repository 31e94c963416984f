//! `cargo xtask sanitize`: unit tests and the conformance suite under AddressSanitizer.
//!
//! The stable compiler has it behind `-Zsanitizer`, which `RUSTC_BOOTSTRAP=1` opens. Only with a target named are build
//! scripts and macros left as they are; the standard library is not rebuilt, so its own accesses are not looked at, but
//! its allocations are. A target folder of its own: other builds would evict each other from a shared one.

use crate::{child::Cargo, tally::Tally, workspace::Workspace};
use std::{process::Command, time::Duration};

/// For a build from nothing and the tests, which take ten times as long.
const LIMIT: Duration = Duration::from_secs(7200);

const TESTS: [&str; 2] = [
    "-p udeck-sys -p udeck-via -p udeck-wired -p udeck-deck -p udeck-shm -p udeck-tcp -p udeck-udp --lib -- --skip proptest \
     --skip prop_ --skip compile_fail",
    "-p udeck-conformance --test shm --test tcp --test udp --test sim --",
];

/// Tests that count what the sanitizer's own allocator takes: mappings, and the memory of the whole process.
const SKIPPED: &str = "--skip many::connections_leave_nothing_behind";

/// Runs the tests; `Ok(false)` if one failed.
pub fn run() -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let host = host()?;
    let mut passed = true;
    for tests in TESTS {
        let cargo = Cargo::new(&format!("test --no-fail-fast --target {host} --target-dir"))
            .arg(workspace.target.join("asan").display().to_string())
            .args(tests)
            .args(SKIPPED)
            .env("RUSTC_BOOTSTRAP", "1")
            // Line numbers for what it finds.
            .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
            // Memory that peers may still be in stays with its NIC for good: that is no leak (SAFETY.md, rule 7).
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .add_flags("RUSTFLAGS", "-Zsanitizer=address");
        println!("$ {cargo}");
        let mut tally = Tally::default();
        let ended = cargo.run(&workspace.root, LIMIT, |line| tally.line(line));
        let problem = ended.map_err(|e| format!("cannot run cargo: {e}"))?;
        tally.failed.iter().for_each(|failed| println!("failed: {failed}"));
        passed &= problem.is_none() && tally.total().passed > 0;
    }
    Ok(passed)
}

fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("cannot start rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "`rustc -vV` names no host".into())
}
