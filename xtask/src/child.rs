//! Runs one command, passes its output on line by line, and stops it at its time limit.

use crate::{console::say, workspace::cargo};
use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
};
use std::{
    cell::Cell,
    collections::VecDeque,
    fmt, fs, io,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
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

    /// The same command for the test of this name only: some test programs take one name at a time. `None`: the command
    /// does not continue after a program with a failed test, and is no soak.
    pub fn only_test(&self, name: &str) -> Option<Self> {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let args = match &self.program {
            Some(program) if program.ends_with(DRIVER) => {
                words(&["--seed", name.strip_prefix(SEED).unwrap_or(name)])
            }
            None if self.args.starts_with(&words(&["test", "--no-fail-fast"])) => {
                let before = self.args.iter().take_while(|arg| *arg != "--").cloned();
                before.chain(words(&["--", "--nocapture", "--exact", name])).collect()
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
/// success, `Ok(Some(reason))` says how it failed. If somebody kills the command, or at the limit, its descendants are killed.
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
    let mark = Mark::new();
    command.env(&mark.0, "1");
    let mut child = command.spawn()?;
    // The command holds the pipe's writing end: while it does, the reader never sees the end of the pipe.
    drop(command);

    let mut quote = Quote::default();
    let in_time = pass_on(&lines_of(reader), child.id(), deadline, &mut |line| {
        quote.push(line);
        each_line(line);
    });
    if !in_time {
        mark.kill();
    }
    PROCESSOR_TIME.set(PROCESSOR_TIME.get() + time_of_ended(child.id()));
    let status = child.wait()?;
    if status.signal().is_some() {
        mark.kill();
    }
    Ok(match (in_time, status.success()) {
        (false, _) => Some(format!("killed: it ran longer than {}", shown(limit))),
        (true, false) => Some(format!("{status}{quote}")),
        (true, true) => None,
    })
}

/// Lines of a command's output that tell why it failed: the first error, and the last lines.
#[derive(Default)]
struct Quote {
    error: Option<String>,
    last: VecDeque<String>,
}

impl Quote {
    /// Number of last lines.
    const LAST: usize = 3;

    fn push(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        self.last.push_back(line.trim_end().to_owned());
        if self.last.len() > Self::LAST
            && let Some(line) = self.last.pop_front()
            && line.starts_with("error")
        {
            self.error.get_or_insert(line);
        }
    }
}

/// Formats the lines to stand after the way in which the command ended.
impl fmt::Display for Quote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&str> = self.error.iter().chain(&self.last).map(String::as_str).collect();
        if lines.is_empty() { Ok(()) } else { write!(f, ": {}", lines.join(" / ")) }
    }
}

/// Runs a command. Shows an output line, indented, if `worth` accepts it.
pub fn run_quoted(command: Command, limit: Duration, worth: impl Fn(&str) -> bool) -> Result<(), String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let ended = run(command, limit, |line| {
        if worth(line) {
            say!("    {line}");
        }
    });
    match ended {
        Ok(None) => Ok(()),
        Ok(Some(how)) => Err(format!("{shown}: {how}")),
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

/// Interval at which [`pass_on`] looks whether the command was killed.
const WATCH: Duration = Duration::from_secs(1);

/// Passes lines on until the last one, or until a signal has killed the command: its descendants may hold the pipe for long.
/// `false`: the deadline came first.
fn pass_on(
    lines: &Receiver<String>,
    command: u32,
    deadline: Instant,
    each_line: &mut impl FnMut(&str),
) -> bool {
    let mut look = Instant::now() + WATCH;
    loop {
        let now = Instant::now();
        if now >= deadline {
            return false;
        }
        if now >= look {
            if was_killed(command) {
                return true;
            }
            look = now + WATCH;
        }
        match lines.recv_timeout(deadline.min(look) - now) {
            Ok(line) => each_line(&line),
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Whether a signal has ended this child, which remains to be waited for.
fn was_killed(child: u32) -> bool {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let status = pid_of(child).and_then(|pid| waitid(WaitId::Pid(pid), how).ok().flatten());
    status.is_some_and(|status| status.killed() || status.dumped())
}

fn pid_of(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

/// Waits for the end of a child, and returns its processor time and that of the descendants that it waited for. The child
/// remains to be waited for. Zero if `/proc` does not tell.
fn time_of_ended(child: u32) -> Duration {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    if pid_of(child).and_then(|pid| waitid(WaitId::Pid(pid), how).ok()).is_none() {
        return Duration::ZERO;
    }
    let Ok(stat) = fs::read_to_string(format!("/proc/{child}/stat")) else { return Duration::ZERO };
    // proc_pid_stat(5): utime, stime, cutime and cstime are the 12th to the 15th field after the name. The name stands in
    // parentheses and may itself contain blanks and parentheses.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: f64 = fields.skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
    Duration::from_secs_f64(ticks / clock_ticks_per_second() as f64)
}

/// Name of a variable in the environment of one command only. Descendants inherit it, and so are found also when their parents
/// have ended. They are not in a process group of their own, because Ctrl-C has to reach them.
struct Mark(String);

impl Mark {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(format!("UDECK_XTASK_COMMAND_{}_{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Kills all processes that have the mark. Gives up after a minute.
    fn kill(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        // A killed process may have started another one just before.
        while Instant::now() < deadline {
            let marked = self.processes();
            if marked.is_empty() {
                return;
            }
            for pid in marked.into_iter().filter_map(pid_of) {
                // A process that ended meanwhile needs no kill.
                let _ = kill_process(pid, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Process numbers, without zombies, whose environment is empty.
    fn processes(&self) -> Vec<u32> {
        let entry = format!("{}=1", self.0);
        let has_it = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|one| one == entry.as_bytes())
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(has_it).collect()
    }
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
    fn a_test_of_one_name_runs_by_the_same_command() {
        let all = Cargo::new("test --no-fail-fast -p udeck -- --skip slow").env("DECK_BIN_DIR", "bin");
        let one = all.only_test("a::b").unwrap();
        let words = "DECK_BIN_DIR=bin cargo test --no-fail-fast -p udeck -- --nocapture --exact a::b";
        assert_eq!(one.to_string(), words);
        assert!(Cargo::new("test -p udeck").only_test("a").is_none());
        let soak = Cargo::program("debug/udeck-soak".into(), "--minutes 1");
        let one = soak.only_test("soak::seed_5").unwrap();
        assert_eq!(one.to_string(), "debug/udeck-soak --seed 5");
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

    /// A shell, and a grandchild of it that holds the output. The shell prints its own process number and the grandchild's.
    fn shell_with_a_grandchild() -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "(sleep 1000 & echo $$ $!; wait) & wait"]);
        command
    }

    fn pids(line: &str) -> Vec<u32> {
        line.split_whitespace().map(|pid| pid.parse().expect("a process number")).collect()
    }

    /// Whether the process has ended. A zombie has no environment.
    fn has_ended(pid: u32) -> bool {
        fs::read(format!("/proc/{pid}/environ")).unwrap_or_default().is_empty()
    }

    #[test]
    fn descendants_of_a_command_that_somebody_kills_are_killed() {
        let mut both = Vec::new();
        let kill = |line: &str| {
            both = pids(line);
            kill_process(pid_of(both[0]).expect("a process"), Signal::KILL).expect("the shell runs");
        };
        let ended = run(shell_with_a_grandchild(), Duration::from_secs(600), kill).unwrap();
        assert!(ended.is_some_and(|how| how.starts_with("signal: 9 (SIGKILL)")));
        assert!(both.len() == 2 && both.into_iter().all(has_ended));
    }

    #[test]
    fn descendants_of_a_command_that_runs_too_long_are_killed() {
        let mut both = Vec::new();
        let ended = run(shell_with_a_grandchild(), Duration::from_secs(5), |line| both = pids(line));
        assert_eq!(ended.unwrap().as_deref(), Some("killed: it ran longer than 5 s"));
        assert!(both.len() == 2 && both.into_iter().all(has_ended));
    }

    #[test]
    fn a_mark_finds_processes_whose_parents_have_ended() {
        let mark = Mark::new();
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", "sleep 1000 & sleep 1000 &"]).env(&mark.0, "1").spawn().unwrap();
        assert!(shell.wait().unwrap().success());
        assert_eq!(mark.processes().len(), 2);
        mark.kill();
        assert!(mark.processes().is_empty());
    }

    #[test]
    fn a_command_that_fails_is_quoted_with_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "for word in a b c d; do echo $word; done; exit 3"]);
        let problem = run_quoted(command, Duration::from_secs(60), |_| false).unwrap_err();
        assert_eq!(problem, "sh: exit status: 3: b / c / d");
        let mut command = Command::new("sh");
        command.args(["-c", "echo error: disk full; for word in a b c d; do echo $word; done; exit 3"]);
        let problem = run(command, Duration::from_secs(60), |_| {}).unwrap();
        assert_eq!(problem.as_deref(), Some("exit status: 3: error: disk full / b / c / d"));
    }
}
