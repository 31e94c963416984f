//! One run of nas-ft: its ranks are started by deckrun's library, in a process of its own.
//!
//! `deckperf ft` starts this program once more (`deckperf ft-job`), which starts the ranks. So the launcher has a process that has
//! no other threads, as it requires, and the output of the ranks can be read.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output, Stdio},
    time::Duration,
};

use super::{Class, FtContender};
use crate::{
    commands::peers::job::last_lines,
    failure::{PerfError, Result},
    named::Named,
    parent,
};

/// Name of the program.
const PROGRAM: &str = "nas-ft";
/// Time limit of a run: class B on one core of an old machine takes less.
const LIMIT: Duration = Duration::from_secs(600);
/// Transport of one rank, which sends nothing.
const TRANSPORT_ALONE: &str = "shm";
/// Order of the exchanges: the thesis's, which no protocol can deadlock.
pub const ORDER: &str = "triangle";

/// Result of a run, as nas-ft printed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FtRun {
    /// Seconds, to two decimals.
    pub seconds: f64,
    /// Millions of operations per second of all ranks together: the time to more digits, as the number of operations is the
    /// same in all runs of a class.
    pub mops: f64,
}

/// Arguments of the hidden subcommand.
#[derive(clap::Args, Clone, Debug, PartialEq, Eq)]
pub struct FtJobArgs {
    /// Number of ranks to start
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub ranks: u32,
    /// The program
    #[arg(long, value_name = "PATH")]
    pub program: PathBuf,
    /// Arguments of the program
    #[arg(last = true)]
    pub arguments: Vec<String>,
}

/// `deckperf ft-job`: the launcher. It ends with `deckperf ft`, and its ranks end with it.
pub fn play(order: FtJobArgs) -> Result<ExitCode> {
    parent::end_with_the_parent();
    let job = deckrun::Job::new(order.ranks).program(order.program).args(order.arguments).timeout(LIMIT);
    Ok(job.run()?.exit_code())
}

/// Path of nas-ft, which lies beside this program.
///
/// # Errors
/// It does not.
pub fn program() -> Result<PathBuf> {
    let this = env::current_exe().map_err(PerfError::system("finding this program"))?;
    let program = this.with_file_name(PROGRAM);
    if program.is_file() { Ok(program) } else { Err(PerfError::NoProgram { name: PROGRAM, looked: program }) }
}

/// Runs nas-ft to its end.
///
/// # Errors
/// The reason why there is no result, with the program's own words.
pub fn run(program: &Path, class: Class, contender: &FtContender) -> Result<FtRun, String> {
    let this = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let ended = command(&this, program, class, contender)
        .output()
        .map_err(|error| format!("cannot start this program again: {error}"))?;
    judge(&ended)
}

/// Command line of the launcher. It names the transport in any case, so that none is taken from the environment.
fn command(this: &Path, program: &Path, class: Class, contender: &FtContender) -> Command {
    let mut command = Command::new(this);
    command.args(["ft-job", "--ranks", &contender.ranks.to_string(), "--program"]).arg(program);
    command.args(["--", "--class", &class.name(), "--order", ORDER]);
    if let Some(way) = contender.way {
        command.args(["--protocol", &way.protocol.to_string()]);
    }
    command.env("DECK_TRANSPORT", contender.way.map_or(TRANSPORT_ALONE, |way| way.transport));
    command.stdin(Stdio::null());
    command
}

fn judge(ended: &Output) -> Result<FtRun, String> {
    let (said, complained) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    match parse(&said) {
        Some((run, true)) if ended.status.success() => Ok(run),
        Some((_, false)) => Err("the checksums are not NPB's: messages arrived with other data".to_owned()),
        _ => Err(format!("nas-ft has no result ({}){}", ended.status, last_lines(&complained))),
    }
}

/// Parses NPB's summary: the result, and whether the checksums were NPB's.
fn parse(said: &str) -> Option<(FtRun, bool)> {
    let value = |name: &str| {
        let mut lines = said.lines().filter_map(|line| line.split_once('='));
        lines.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim())
    };
    let positive =
        |name| value(name)?.parse().ok().filter(|figure: &f64| figure.is_finite() && *figure >= 0.0);
    let run = FtRun { seconds: positive("Time in seconds")?, mops: positive("Mop/s total")? };
    Some((run, value("Verification")? == "SUCCESSFUL" && run.mops > 0.0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::commands::ft::{ALONE, Way};

    const SUMMARY: &str = "\n FT Benchmark Completed.\n Class           =                        A\n \
        Time in seconds =                     1.03\n Total processes =                        1\n \
        Mop/s total     =                  6928.59\n Verification    =               SUCCESSFUL\n";

    fn ended(code: i32, stdout: &str, stderr: &str) -> Output {
        Output {
            status: std::process::ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        }
    }

    #[test]
    fn a_summary_has_the_time_and_the_speed() {
        assert_eq!(judge(&ended(0, SUMMARY, "")), Ok(FtRun { seconds: 1.03, mops: 6928.59 }));
    }

    #[test]
    fn the_environment_chooses_no_transport() {
        let transport = |contender: &FtContender| {
            let command = command(Path::new("deckperf"), Path::new("nas-ft"), Class::S, contender);
            let set = command.get_envs().find(|(name, _)| *name == "DECK_TRANSPORT");
            set.and_then(|(_, value)| Some(value?.to_str()?.to_owned()))
        };
        assert_eq!(transport(&ALONE).as_deref(), Some("shm"));
        let way = Some(Way { transport: "udp", protocol: udeck::Protocol::Auto });
        assert_eq!(transport(&FtContender { ranks: 2, way }).as_deref(), Some("udp"));
    }

    #[test]
    fn wrong_checksums_and_failures_are_no_results() {
        let wrong = SUMMARY.replace("SUCCESSFUL", "UNSUCCESSFUL");
        let why = judge(&ended(1, &wrong, "")).expect_err("wrong");
        assert!(why.starts_with("the checksums are not NPB's"), "{why}");
        let why = judge(&ended(2, "", "nas-ft: rank 1 died\n")).expect_err("failed");
        assert_eq!(why, "nas-ft has no result (exit status: 2)\n    nas-ft: rank 1 died");
        // A launcher that was ended, after the ranks had printed their result.
        assert!(judge(&ended(3, SUMMARY, "")).is_err());
        let half = SUMMARY.split("Mop/s").next().expect("a part");
        assert!(judge(&ended(0, half, "")).is_err());
    }
}
