//! The driver: makes one run after another until the time is up. `cargo xtask soak` builds the programs and
//! starts it.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rand::{RngExt, SeedableRng};
use rand_xorshift::XorShiftRng;
use udeck_jobs::netns::Network;
use udeck_jobs::soak::plan::Plan;
use udeck_jobs::soak::run::{SANITIZER, Tools, Verdict, run};

/// Random jobs under random faults, judged by an oracle.
#[derive(Parser)]
struct Options {
    /// Play runs for this long; the last one is played to its end
    #[arg(long, value_name = "MINUTES", default_value_t = 1.0)]
    minutes: f64,

    /// Play the run of this seed only; may be given several times
    #[arg(long = "seed", value_name = "SEED")]
    seeds: Vec<u64>,

    /// Play them this many times
    #[arg(long, value_name = "N", default_value_t = 1, requires = "seeds")]
    times: u32,

    /// Folder for the logs of failed runs
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,

    /// Name at the beginning of each line, if several drivers run side by side
    #[arg(long, value_name = "NAME", default_value = "soak")]
    name: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let tools = tools(options.folder.clone());
    let mut soak = Soak { options, tools, passed: 0, skipped: 0, failed: Vec::new() };
    // The line is in the format of cargo's own tests, for programs that count them.
    println!("\nrunning random jobs");
    soak.all();
    let Soak { passed, skipped, failed, .. } = &soak;
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {skipped} ignored; 0 measured; 0 filtered out\n",
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Soak {
    options: Options,
    tools: Tools,
    passed: u32,
    skipped: u32,
    failed: Vec<u64>,
}

impl Soak {
    fn all(&mut self) {
        if !self.options.seeds.is_empty() {
            let seeds = self.options.seeds.clone();
            return (0..self.options.times).for_each(|_| seeds.iter().for_each(|seed| self.one(*seed)));
        }
        // The seeds differ each time, so that many short runs cover as much as a long one; each run prints its own seed.
        let mut seeds = XorShiftRng::seed_from_u64(random_seed());
        let end = Instant::now() + Duration::from_secs_f64(self.options.minutes * 60.0);
        while Instant::now() < end {
            self.one(u64::from(seeds.random::<u32>()));
        }
    }

    fn one(&mut self, seed: u64) {
        let plan = Plan::new(seed);
        let start = Instant::now();
        let name = &self.options.name;
        let verdict = run(&plan, &self.tools);
        let took = start.elapsed();
        match verdict {
            Verdict::Passed => {
                self.passed += 1;
                println!("{name}: seed {seed}: {plan}: ok, {took:.1?}");
            }
            Verdict::Skipped(why) => {
                self.skipped += 1;
                println!("{name}: seed {seed}: {plan}: skipped, {why}");
            }
            Verdict::Failed(problems, folder) => {
                self.failed.push(seed);
                println!("{name}: seed {seed}: {plan}: failed, {took:.1?}");
                problems.iter().for_each(|problem| println!("    {problem}"));
                println!("    logs: {}", folder.display());
                let sanitized = if env::var_os(SANITIZER).is_some() { " --sanitize address" } else { "" };
                println!("    replay: cargo xtask soak --seed {seed}{sanitized}");
                println!("test soak::seed_{seed} ... FAILED");
            }
        }
    }
}

/// Finds the programs, which lie beside this one.
fn tools(folder: Option<PathBuf>) -> Tools {
    let here = env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned())).unwrap_or_default();
    let standin = here.join("libudeck_mock_verbs.so");
    Tools {
        rank: here.join("soak-rank"),
        standin: standin.exists().then_some(standin),
        no_namespaces: Network::is_possible().err(),
        folder: folder.unwrap_or_else(|| here.join("soak")),
    }
}

/// Seed from the clock and the process; it need not be hard to guess.
fn random_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}
