//! `cargo xtask sanitize`: tests under AddressSanitizer, or under ThreadSanitizer.
//!
//! The stable compiler offers both behind `-Zsanitizer`, which `RUSTC_BOOTSTRAP=1` unlocks. Build scripts and macros stay
//! unchanged only if a target is named. Each sanitizer has its own target folder: in a shared one their builds would
//! evict each other.
//!
//! AddressSanitizer leaves the standard library unchanged: it checks the library's allocations, but not its accesses.
//! ThreadSanitizer does not see the locks and channels of an unchanged standard library, and would take them for missing, so the
//! standard library is built along (`-Zbuild-std`), from the component rust-src. ThreadSanitizer sees one process only: an order
//! established through another process looks like a race. It therefore runs tests whose ranks share a process, and `cargo xtask
//! soak --sanitize` offers AddressSanitizer only. ThreadSanitizer does not know fences either. Its false reports are listed in
//! `races.txt`, with reasons.
//!
//! The stand-in for libibverbs is sanitized like the programs that load it: it reads and writes their memory as a device does.

use crate::{child::Cargo, test_counts::TestCounts, workspace::Workspace};
use clap::{Args, ValueEnum};
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

#[derive(Args)]
pub(crate) struct SanitizeOptions {
    /// Run these pieces only
    #[arg(value_name = "PIECE")]
    pieces: Vec<Piece>,

    /// Look for data races with ThreadSanitizer, in tests whose ranks share a process
    ///
    /// Builds the standard library, too: needs `rustup component add rust-src`. (With that, the compiler's words differ where
    /// they quote the library, and with them the texts that the step `ui` expects. So remove it afterwards.)
    #[arg(long)]
    thread: bool,
}

/// A part of the tests, which can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Piece {
    /// Unit tests of the library's packages
    Unit,
    /// The conformance suite over every transport, and uDAPL's objects over them
    Conformance,
    /// The umbrella's tests: worlds of several ranks in one process
    Worlds,
}

/// Tool that finds mistakes while programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sanitizer {
    /// AddressSanitizer: accesses to memory that does not exist, or no longer exists
    Address,
    /// ThreadSanitizer: data races within one process
    #[value(skip)]
    Thread,
}

/// One command of `cargo test`.
struct Tests {
    piece: Piece,
    words: &'static str,
    /// Tests to skip, by a part of their names; the comment above each gives the reason.
    skipped: &'static [&'static str],
}

/// Limit for a build from nothing and the tests, which take ten times as long.
const LIMIT: Duration = Duration::from_secs(7200);

const UNIT: &str = "-p udeck-sys -p udeck-auth -p udeck-via -p udeck-boot -p udeck-session -p udeck-deck -p udeck-shm \
                    -p udeck-tcp -p udeck-udp -p udeck-verbs -p udeck-dat --lib";
const WORLDS: &str = "-p udeck --lib --tests";

const ADDRESS_TESTS: [Tests; 3] = [
    Tests {
        piece: Piece::Unit,
        words: UNIT,
        skipped: &[
            // The step `proptest` runs these.
            "proptest",
            "prop_",
            // This test runs its own program under valgrind, which has no room for the sanitizer's memory.
            "leaks::nothing_is_lost_in_any_order",
        ],
    },
    Tests {
        piece: Piece::Conformance,
        words: "-p udeck-conformance --test shm --test tcp --test udp --test verbs --test sim --test over_dat",
        skipped: &[
            // This test counts mappings and the memory of the whole process: the sanitizer's allocator has its own of
            // both.
            "many::connections_leave_nothing_behind",
        ],
    },
    Tests { piece: Piece::Worlds, words: WORLDS, skipped: &[] },
];

const THREAD_TESTS: [Tests; 2] = [
    Tests {
        piece: Piece::Unit,
        words: UNIT,
        skipped: &[
            // One thread passes thousands of inputs: these tests take minutes each under the sanitizer, without
            // more races.
            "proptest",
            "prop_",
            "garbage::",
            "a_cell_that_is_none",
            "ten_thousand_random",
            "nothing_that_is_thrown_at_a_nic",
            "a_sender_that_is_never_ahead",
            "a_short_look_gives_credit",
            // The segments of these tests take more address space than the sanitizer leaves.
            "segments_that_are_not_what_they_should_be",
            "the_arenas_of_peers_take_so_much_address_space_and_no_more",
            // This test runs its own program under valgrind, as above.
            "leaks::nothing_is_lost_in_any_order",
        ],
    },
    Tests { piece: Piece::Worlds, words: WORLDS, skipped: &[] },
];

/// Runs the tests. `Ok(false)`: one failed, or the sanitizer found something.
pub fn run(options: &SanitizeOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let (sanitizer, all): (_, &[Tests]) = match options.thread {
        false => (Sanitizer::Address, &ADDRESS_TESTS),
        true => (Sanitizer::Thread, &THREAD_TESTS),
    };
    let is_chosen = |tests: &&Tests| options.pieces.is_empty() || options.pieces.contains(&tests.piece);
    let chosen: Vec<_> = all.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        return Err("ThreadSanitizer has no such piece".into());
    }
    let mut passed = true;
    for tests in chosen {
        let mut cargo = Cargo::new("test --no-fail-fast").args(tests.words);
        cargo = sanitizer.instrument(cargo, &workspace)?.arg("--");
        for name in tests.skipped {
            cargo = cargo.arg("--skip").arg(*name);
        }
        let (variable, value) = sanitizer.settings(&workspace);
        passed &= all_pass(&workspace, &cargo.env(variable, value))?;
    }
    Ok(passed)
}

impl Sanitizer {
    /// A cargo command that builds everything under this sanitizer, in a target folder of its own.
    pub fn instrument(self, cargo: Cargo, workspace: &Workspace) -> Result<Cargo, String> {
        let (name, symbols) = match self {
            Sanitizer::Address => ("address", "__asan_*"),
            Sanitizer::Thread => ("thread", "__tsan_*"),
        };
        // The runtime is part of each program. A library that a program loads, such as the stand-in, finds it
        // there.
        let flags = format!("-Zsanitizer={name} -Clink-arg=-Wl,--export-dynamic-symbol={symbols}");
        let cargo = cargo
            .args(&format!("--target {} --target-dir", host()?))
            .arg(self.folder(workspace).display().to_string())
            .env("RUSTC_BOOTSTRAP", "1")
            // Line numbers for the sanitizer's reports.
            .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
            .add_flags("RUSTFLAGS", &flags);
        match self {
            Sanitizer::Address => Ok(cargo),
            Sanitizer::Thread => {
                check_sources()?;
                Ok(cargo.arg("-Zbuild-std"))
            }
        }
    }

    /// Variable that configures a program's sanitizer, and the value for these programs.
    pub fn settings(self, workspace: &Workspace) -> (&'static str, String) {
        match self {
            // Memory that peers may still access stays with its NIC for good: this is no leak
            // (docs/internals/unsafe.md, rule 7).
            Sanitizer::Address => ("ASAN_OPTIONS", "detect_leaks=0".into()),
            // The tests of forked children fork in a process with threads; this is their subject.
            Sanitizer::Thread => {
                let false_ones = workspace.root.join("xtask/src/races.txt");
                let options =
                    format!("history_size=7:die_after_fork=0:suppressions=\"{}\"", false_ones.display());
                ("TSAN_OPTIONS", options)
            }
        }
    }

    /// Folder of the programs that [`instrument`](Self::instrument) builds.
    pub fn programs(self, workspace: &Workspace) -> Result<PathBuf, String> {
        Ok(self.folder(workspace).join(host()?).join("debug"))
    }

    fn folder(self, workspace: &Workspace) -> PathBuf {
        workspace.target.join(match self {
            Sanitizer::Address => "asan",
            Sanitizer::Thread => "tsan",
        })
    }
}

/// Runs the tests. A program in which the sanitizer found something fails, even if all its tests passed.
fn all_pass(workspace: &Workspace, cargo: &Cargo) -> Result<bool, String> {
    println!("$ {cargo}");
    let mut tally = TestCounts::default();
    let ended = cargo.run(&workspace.root, LIMIT, |line| tally.line(line));
    let problem = ended.map_err(|e| format!("cannot run cargo: {e}"))?;
    tally.failed.iter().for_each(|failed| println!("failed: {failed}"));
    Ok(problem.is_none() && tally.total().passed > 0)
}

fn host() -> Result<String, String> {
    let text = stdout_of(&rustc("-vV")?);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "`rustc -vV` names no host".into())
}

/// Checks that the standard library's sources are installed.
fn check_sources() -> Result<(), String> {
    let sysroot = stdout_of(&rustc("--print=sysroot")?);
    if Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/std/Cargo.toml").exists() {
        return Ok(());
    }
    Err("ThreadSanitizer needs the standard library's sources, to build it along: `rustup component add rust-src` (and \
         `rustup component remove rust-src` afterwards: with it the step `ui` meets other words of the compiler)"
        .into())
}

fn rustc(option: &str) -> Result<Output, String> {
    Command::new("rustc").arg(option).output().map_err(|e| format!("cannot start rustc: {e}"))
}

fn stdout_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
