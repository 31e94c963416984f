//! Helpers that run `deckrun` and find the processes that it leaves.

#![allow(dead_code, reason = "each test program uses its own part of this")]

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use udeck_test_kit::processes;

/// Upper bound of any wait, far enough for a slow machine; no test waits for it unless it fails.
pub const LONG: Duration = Duration::from_secs(60);

/// Runs `deckrun` with these options, and with `/bin/sh -c SCRIPT` as the program.
pub fn sh(options: &[&str], script: &str) -> Command {
    let mut command = deckrun(options);
    command.args(["--", "/bin/sh", "-c", script]);
    command
}

/// Runs `deckrun` with signals as from a terminal: a shell that runs the tests in the background makes them
/// ignore SIGINT and SIGQUIT, which `deckrun` would inherit and honour.
pub fn deckrun(options: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,QUIT", env!("CARGO_BIN_EXE_deckrun")]);
    command.args(options).stdin(Stdio::null());
    // Each test sets its own hosts, also within a job of a cluster.
    for variable in ALLOCATIONS {
        command.env_remove(variable);
    }
    command
}

/// Variables by which batch systems give hosts.
const ALLOCATIONS: [&str; 8] = [
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_STEP_ID",
    "SLURMD_NODENAME",
    "PBS_NODEFILE",
    "LSB_HOSTS",
    "LSB_MCPU_HOSTS",
    "LSB_DJOB_HOSTFILE",
];

/// A command's output and exit code.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    pub fn of(mut command: Command) -> Ran {
        Ran::from(command.output().unwrap())
    }

    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = String::from_utf8_lossy(&self.stdout).lines().map(String::from).collect();
        lines.sort();
        lines
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ran { code: output.status.code(), stdout: output.stdout, stderr }
    }
}

/// A running job, whose processes all carry a mark in their environment.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    mark: String,
}

impl Running {
    /// Starts the job, and returns once `ranks` lines "ready" have come from it.
    pub fn start(options: &[&str], script: &str, ranks: usize) -> Running {
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let mark =
            format!("DECKRUN_TEST_MARK={}.{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
        let options = [options, &["--env", &mark]].concat();
        let mut child = sh(&options, script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..ranks {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert!(line.ends_with("ready\n"), "{line:?}");
        }
        Running { child, stdout, mark }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until a line with this text comes on standard error.
    pub fn says(&mut self, text: &str) {
        let mut said = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        while !said.contains(text) {
            let mut byte = [0];
            assert_eq!(stderr.read(&mut byte).unwrap(), 1, "never said {text:?}, but {said:?}");
            said.push(byte[0].into());
        }
    }

    /// Waits for the job's end. The outcome does not have the output before the last `ready` or `says`.
    pub fn end(mut self) -> Ran {
        let mut stdout = Vec::new();
        self.stdout.read_to_end(&mut stdout).unwrap();
        let output = self.child.wait_with_output().unwrap();
        Ran { stdout, ..Ran::from(output) }
    }

    /// Waits for the exit code alone: processes that the job left may hold its output open.
    pub fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Returns the launcher's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the mark of this job's processes, for [`left`].
    pub fn mark(&self) -> String {
        self.mark.clone()
    }
}

/// Returns the living processes that carry this mark.
pub fn left(mark: &str) -> Vec<String> {
    processes::with_variable(mark).iter().map(i32::to_string).collect()
}

/// Waits until no process carries this mark.
pub fn wait_until_none_is_left(mark: &str) {
    let limit = Instant::now() + LONG;
    loop {
        let left = left(mark);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < limit, "processes {left:?} live on");
        thread::sleep(Duration::from_millis(5));
    }
}
