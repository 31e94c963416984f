//! Runs one command, passes its output on line by line, and stops it at its time limit.

use crate::{console::say, workspace::cargo};
use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
};
use std::{
    cell::Cell,
    collections::HashMap,
    fmt, fs, io,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// A cargo command, or a program built by cargo, and additions to its environment.
pub struct Cargo {
    program: Option<PathBuf>,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

/// Program that plays random jobs and judges them: the soak's driver.
pub const DRIVER: &str = "udeck-soak";

/// Prefixes of the variables that cargo sets for a program that it runs.
const CARGO_VARIABLES: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_NAME", "CARGO_CRATE_NAME"];

thread_local! {
    /// Processor time of the commands that this thread ran.
    static PROCESSOR_TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Processor time of the commands that this thread ran to their end, with the descendants that they waited for.
pub fn processor_time() -> Duration {
    PROCESSOR_TIME.get()
}

/// Prefix of the test name that the soak gives a run, followed by its seed.
const SEED: &str = "soak::seed_";

impl Cargo {
    /// A cargo command, from words between blanks.
    pub fn new(words: &str) -> Self {
        let args = words.split_whitespace().map(str::to_owned).collect();
        Self { program: None, args, env: Vec::new() }
    }

    /// A program at this path, with words between blanks.
    pub fn program(path: PathBuf, words: &str) -> Self {
        Self { program: Some(path), ..Self::new(words) }
    }

    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments, as words between blanks.
    pub fn args(mut self, words: &str) -> Self {
        self.args.extend(words.split_whitespace().map(str::to_owned));
        self
    }

    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// The same command for the tests of these names only. `None`: the command does not continue after a program with a
    /// failed test, and is no soak.
    pub fn only_tests<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let args = match &self.program {
            Some(program) if program.ends_with(DRIVER) => names
                .into_iter()
                .flat_map(|name| words(&["--seed", name.strip_prefix(SEED).unwrap_or(name)]))
                .collect(),
            None if self.args.starts_with(&words(&["test", "--no-fail-fast"])) => {
                let before = self.args.iter().take_while(|arg| *arg != "--").cloned();
                let only = ["--", "--nocapture", "--exact"].into_iter().chain(names);
                before.chain(only.map(str::to_owned)).collect()
            }
            _ => return None,
        };
        Some(Self { program: self.program.clone(), args, env: self.env.clone() })
    }

    /// Appends `flags` to the user's value of this variable (`RUSTFLAGS`, `RUSTDOCFLAGS`).
    pub fn add_flags(self, variable: &'static str, flags: &str) -> Self {
        let before = std::env::var(variable).unwrap_or_default();
        self.env(variable, format!("{before} {flags}").trim_start())
    }

    /// Runs in `folder` until the command ends or the limit is reached, prints every line, and then passes it to
    /// `each_line`. Returns the result of [`run`].
    pub fn run(
        &self,
        folder: &Path,
        limit: Duration,
        mut each_line: impl FnMut(&str),
    ) -> io::Result<Option<String>> {
        let mut command = Command::new(self.program.as_ref().map_or_else(cargo, |path| path.into()));
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        // Colour codes would hide the words that `test_counts` reads.
        command.env("CARGO_TERM_COLOR", "never").current_dir(folder);
        run(command, limit, |line| {
            say!("{line}");
            each_line(line);
        })
    }
}

/// Runs until the command ends or the limit is reached; `each_line` gets its standard output and error. `Ok(None)` is
/// success, `Ok(Some(reason))` says how it failed.
pub fn run(
    mut command: Command,
    limit: Duration,
    mut each_line: impl FnMut(&str),
) -> io::Result<Option<String>> {
    let deadline = Instant::now() + limit;
    // Cargo set these variables for this package. Build scripts read them, and would run again in a cargo command that a user
    // types.
    let is_cargo_variable = |name: &str| CARGO_VARIABLES.iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_cargo_variable)) {
        command.env_remove(name);
    }
    // One pipe for both streams keeps cargo's lines and the tests' lines in the order in which they were
    // written.
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // The command holds the pipe's writing end: while it does, the reader never sees the end of the pipe.
    drop(command);

    let ended = pass_on(&lines_of(reader), deadline, &mut each_line);
    if !ended {
        kill_tree(child.id());
    }
    PROCESSOR_TIME.set(PROCESSOR_TIME.get() + time_of_ended(child.id()));
    let status = child.wait()?;
    Ok(match (ended, status.success()) {
        (false, _) => Some(format!("killed: it ran longer than {}", shown(limit))),
        (true, false) => Some(status.to_string()),
        (true, true) => None,
    })
}

/// Runs a command. Shows an output line, indented, if `worth` accepts it; the last lines are in the error.
pub fn run_quoted(command: Command, limit: Duration, worth: impl Fn(&str) -> bool) -> Result<(), String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let mut lines = Vec::new();
    let ended = run(command, limit, |line| {
        if worth(line) {
            say!("    {line}");
        }
        lines.push(line.to_owned());
    });
    match ended {
        Ok(None) => Ok(()),
        Ok(Some(how)) => {
            Err(format!("{shown}: {how}: {}", lines[lines.len().saturating_sub(3)..].join(" / ")))
        }
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

fn shown(limit: Duration) -> String {
    match limit.as_secs() {
        seconds if seconds % 60 == 0 => format!("{} minutes", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// Formats the command as it could be typed into a shell.
impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        let program = self.program.as_ref().map_or("cargo".into(), |path| path.display().to_string());
        write!(f, "{}", quoted(&program))?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

fn quoted(word: &str) -> String {
    if word.contains(|c: char| c.is_whitespace() || "*\"".contains(c)) {
        format!("'{word}'")
    } else {
        word.to_owned()
    }
}

/// Reads the pipe on a thread of its own, because such a read has no deadline. The thread ends with the pipe's
/// last writer.
fn lines_of(pipe: io::PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Passes lines on until the last one. `false`: the deadline came first.
fn pass_on(lines: &Receiver<String>, deadline: Instant, each_line: &mut impl FnMut(&str)) -> bool {
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => each_line(&line),
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

/// Waits for the end of a child, and returns its processor time and that of the descendants that it waited for. The child
/// remains to be waited for. Zero if `/proc` does not tell.
fn time_of_ended(child: u32) -> Duration {
    let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return Duration::ZERO };
    if waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_err() {
        return Duration::ZERO;
    }
    let Some(fields) = stat_fields(child) else { return Duration::ZERO };
    // proc_pid_stat(5): utime, stime, cutime, cstime are the 14th to the 17th field, the state is the third.
    let ticks: u64 = fields.iter().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_secs(ticks) / u32::try_from(clock_ticks_per_second()).unwrap_or(100)
}

/// Kills a process and all its descendants, but not by process group: the child stays in the terminal's group,
/// so that Ctrl-C reaches it.
fn kill_tree(root: u32) {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, parent) in processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut doomed = vec![root];
    let mut next = 0;
    while let Some(pid) = doomed.get(next).copied() {
        doomed.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    for pid in doomed {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // A process that ended meanwhile needs no kill.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Every process with its parent, read from `/proc/PID/stat`.
fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let parent = stat_fields(pid)?.get(1)?.parse().ok()?;
        Some((pid, parent))
    })
    .collect()
}

/// Fields of `/proc/PID/stat` from the third on, the state. `None`: there is no such process.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may itself contain blanks and parentheses.
    let fields = stat.rsplit_once(')')?.1;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_could_be_typed() {
        let command = Cargo::new("test --doc").env("RUSTFLAGS", "--cfg loom").args("-p udeck").arg("a b");
        assert_eq!(command.to_string(), "RUSTFLAGS='--cfg loom' cargo test --doc -p udeck 'a b'");
    }

    #[test]
    fn the_tests_of_some_names_run_by_the_same_command() {
        let all = Cargo::new("test --no-fail-fast -p udeck -- --skip slow").env("DECK_BIN_DIR", "bin");
        let some = all.only_tests(["a::b", "c"]).unwrap();
        let words = "DECK_BIN_DIR=bin cargo test --no-fail-fast -p udeck -- --nocapture --exact a::b c";
        assert_eq!(some.to_string(), words);
        assert!(Cargo::new("test -p udeck").only_tests(["a"]).is_none());
        let soak = Cargo::program("debug/udeck-soak".into(), "--minutes 1");
        let some = soak.only_tests(["soak::seed_5", "soak::seed_7"]).unwrap();
        assert_eq!(some.to_string(), "debug/udeck-soak --seed 5 --seed 7");
    }

    #[test]
    fn output_reaches_the_reader_and_success_is_told_from_failure() {
        let mut seen = String::new();
        let here = Path::new(".");
        let limit = Duration::from_secs(60);
        let good = Cargo::new("--version").run(here, limit, |line| seen.push_str(line)).unwrap();
        assert!(good.is_none() && seen.starts_with("cargo "), "{seen}");
        let bad = Cargo::new("no-such-command").run(here, limit, |_| {}).unwrap();
        assert!(bad.is_some());
    }

    #[test]
    fn the_processor_time_of_a_command_and_its_descendants_is_added_up() {
        let before = processor_time();
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done'"]);
        assert!(run(command, Duration::from_secs(60), |_| {}).unwrap().is_none());
        assert!(processor_time() > before);
    }

    #[test]
    fn killing_a_tree_reaches_grandchildren() {
        let mut shell =
            Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().expect("a shell and sleep");
        let deadline = Instant::now() + Duration::from_secs(30);
        let sleeper = loop {
            if let Some((pid, _)) = processes().into_iter().find(|(_, parent)| *parent == shell.id()) {
                break pid;
            }
            assert!(Instant::now() < deadline, "the shell never started its child");
            thread::sleep(Duration::from_millis(5));
        };
        kill_tree(shell.id());
        assert!(!shell.wait().unwrap().success());
        while processes().into_iter().any(|(pid, parent)| pid == sleeper && parent == shell.id()) {
            assert!(Instant::now() < deadline, "process {sleeper} survived");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_command_that_fails_is_quoted_with_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "for word in a b c d; do echo $word; done; exit 3"]);
        let problem = run_quoted(command, Duration::from_secs(60), |_| false).unwrap_err();
        assert_eq!(problem, "sh: exit status: 3: b / c / d");
    }
}
