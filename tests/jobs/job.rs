//! A job: a command with a time limit, and its outcome.

use crate::leftovers::{EnvironmentMark, GRACE, new_files, shared_files};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    ffi::{OsStr, OsString},
    fmt,
    io::Read,
    os::unix::process::{CommandExt, ExitStatusExt},
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Time limit of a job: long enough for any job here on a busy machine of two cores, because it only ends a
/// hang.
const LIMIT: Duration = Duration::from_secs(240);

/// Poll interval for an awaited process.
const POLL: Duration = Duration::from_millis(5);

/// A job that has not started. Its environment is that of the tests without any `DECK_` variable, so that the user's
/// settings do not change the test.
#[derive(Debug)]
pub struct Job {
    words: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    limit: Duration,
    /// Time that its processes get to end.
    grace: Duration,
}

impl Job {
    /// A job of this program.
    #[must_use]
    pub fn new(program: &Path) -> Self {
        Self { words: vec![program.into()], env: Vec::new(), limit: LIMIT, grace: GRACE }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.words.push(arg.as_ref().into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.words.extend(args.into_iter().map(|arg| arg.as_ref().into()));
        self
    }

    /// Runs the job by another command, whose words stand before its own.
    #[must_use]
    pub fn inside<S: AsRef<OsStr>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        self.words.splice(0..0, command.into_iter().map(|word| word.as_ref().into()));
        self
    }

    /// Sets a variable in the job's environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Sets the time after which the job is killed (by default four minutes).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs the job to its end, or kills it at its limit, and looks for leftovers. Blocks at most for the limit and
    /// some minutes, which leftovers may need to go; other jobs of this process wait meanwhile.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
    #[must_use = "nothing is checked unless you ask"]
    pub fn run(self) -> Ended {
        self.run_while(|_| {})
    }

    /// Runs as [`run`](Job::run) does, and calls `act` meanwhile. If `act` panics, the job is killed.
    ///
    /// # Panics
    /// Panics if the program cannot be started, and when `act` does.
    #[must_use = "nothing is checked unless you ask"]
    pub fn run_while(self, act: impl FnOnce(&Running)) -> Ended {
        let _alone = one_at_a_time();
        let mark = EnvironmentMark::new();
        let files_before = shared_files();
        let mut child = self.start(&mark);
        let captured = [CapturedOutput::default(), CapturedOutput::default()];
        let stdout = read_all(child.stdout.take(), captured[0].clone());
        let stderr = read_all(child.stderr.take(), captured[1].clone());
        let running = Running { pid: child.id(), captured, limit: Instant::now() + self.limit };
        if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| act(&running))) {
            kill_group(&child);
            mark.kill();
            let _ = child.wait();
            eprintln!(
                "{self}\n--- so far\n{}\n---\n{}",
                running.captured[0].text(),
                running.captured[1].text()
            );
            panic::resume_unwind(panic);
        }
        let status = wait_until(&mut child, Instant::now() + self.limit);
        if status.is_none() {
            kill_group(&child);
        }
        // The survivors of a killed job are not its fault, but they must be killed, too.
        let mut left_behind = mark.survivors(self.grace);
        mark.kill();
        if status.is_none() {
            left_behind.clear();
            // The group is dead or dying: this wait reaps the process itself.
            let _ = child.wait();
        }
        left_behind.extend(new_files(&files_before));
        Ended {
            command: self.to_string(),
            status,
            stdout: text(stdout),
            stderr: text(stderr),
            left_behind,
            limit: self.limit,
        }
    }

    fn start(&self, mark: &EnvironmentMark) -> Child {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).process_group(0);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"DECK_") {
                command.env_remove(name);
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env(EnvironmentMark::VARIABLE, mark.value());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap_or_else(|e| panic!("cannot start {self}: {e}"))
    }
}

/// Formats the command as it could be typed, without the environment of the tests.
impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{}={} ", name.display(), value.display())?;
        }
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        f.write_str(&words.join(" "))
    }
}

/// A job in progress.
#[derive(Debug)]
pub struct Running {
    pid: u32,
    /// Standard output and error up to now.
    captured: [CapturedOutput; 2],
    limit: Instant,
}

impl Running {
    /// Process number of its first process: deckrun, for a job of several ranks.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the job has printed `count` lines that contain `what`, and returns the last.
    ///
    /// # Panics
    /// Panics if the job's limit passes first.
    #[must_use]
    pub fn line_with(&self, what: &str, count: usize) -> String {
        self.captured[0].wait_for(what, count, self.limit)
    }

    /// Waits as [`line_with`](Running::line_with) does, for lines on standard error.
    ///
    /// # Panics
    /// Panics if the job's limit passes first.
    #[must_use]
    pub fn complaint_with(&self, what: &str, count: usize) -> String {
        self.captured[1].wait_for(what, count, self.limit)
    }

    /// Whether the job's limit has not passed.
    #[must_use]
    pub fn is_in_time(&self) -> bool {
        Instant::now() < self.limit
    }

    /// Standard output of the job up to now.
    #[must_use]
    pub fn so_far(&self) -> String {
        self.captured[0].text()
    }
}

/// Output that has been read up to now.
#[derive(Clone, Debug, Default)]
struct CapturedOutput(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl CapturedOutput {
    fn add(&self, bytes: &[u8]) {
        self.lock().extend_from_slice(bytes);
        self.0.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock()).into_owned()
    }

    fn wait_for(&self, what: &str, count: usize, limit: Instant) -> String {
        let mut bytes = self.lock();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            // The last line may be incomplete.
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let mut found = whole.lines().filter(|line| line.contains(what));
            if let Some(line) = found.nth(count - 1) {
                return line.to_owned();
            }
            let left = limit.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what:?} was not said {count} times, but: {text}");
            bytes = self.0.1.wait_timeout(bytes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A job that has ended in any way.
#[derive(Debug)]
pub struct Ended {
    /// Standard output of the job.
    pub stdout: String,
    /// Standard error of the job.
    pub stderr: String,
    /// Exit status; `None` if the job was killed at its limit.
    pub status: Option<ExitStatus>,
    /// Processes and files that outlived the job.
    pub left_behind: Vec<String>,
    command: String,
    limit: Duration,
}

impl Ended {
    /// Exit status as a shell shows it: 128 plus the signal's number if a signal ended the job.
    ///
    /// # Panics
    /// Panics if the job ran into its limit.
    #[must_use]
    pub fn code(&self) -> i32 {
        let Some(status) = self.status else {
            panic!("still running after {} s, killed: {self}", self.limit.as_secs())
        };
        status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
    }

    /// Checks that the job ended well and left nothing behind.
    ///
    /// # Panics
    /// Panics otherwise, with all of its output.
    pub fn ok(self) -> Self {
        assert_eq!(self.code(), 0, "should have ended well: {self}");
        self.clean()
    }

    /// Checks that the job ended by itself with a non-zero status and left nothing behind.
    ///
    /// # Panics
    /// Panics otherwise, with all of its output.
    pub fn fails(self) -> Self {
        assert_ne!(self.code(), 0, "should have failed: {self}");
        self.clean()
    }

    /// Checks that the job left nothing behind.
    ///
    /// # Panics
    /// Panics otherwise, with the leftovers.
    pub fn clean(self) -> Self {
        assert!(self.left_behind.is_empty(), "left behind {:?}: {self}", self.left_behind);
        self
    }

    /// Checks that some line of the job's output contains `what`, and returns the first.
    ///
    /// # Panics
    /// Panics otherwise, with all of its output.
    pub fn line_with(&self, what: &str) -> &str {
        self.stdout
            .lines()
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("no line with {what:?}: {self}"))
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, stdout, stderr, .. } = self;
        write!(f, "{command}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

/// Serialises jobs: they fill the machine, and the files of a running one could not be distinguished from
/// another's leftovers.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // The failure of an earlier test says nothing about the next.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads to the end on a thread of its own, because a full pipe would stop the job.
fn read_all<R: Read + Send + 'static>(
    mut pipe: Option<R>,
    captured: CapturedOutput,
) -> JoinHandle<CapturedOutput> {
    thread::spawn(move || {
        let mut scratch = vec![0; 1 << 16];
        // Output before an error is worth showing.
        while let Some(length @ 1..) = pipe.as_mut().and_then(|pipe| pipe.read(&mut scratch).ok()) {
            captured.add(&scratch[..length]);
        }
        captured
    })
}

fn text(reader: JoinHandle<CapturedOutput>) -> String {
    reader.join().map(|captured| captured.text()).unwrap_or_default()
}

fn wait_until(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().expect("a child that nobody else waits for") {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(POLL);
    }
}

/// Kills the child's group. The child leads its group and was not reaped yet, so its number cannot mean another process.
fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The group may have ended in this very moment.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udeck_test_kit::processes::with_variable;

    fn shell(script: &str) -> Job {
        Job::new(Path::new("sh")).arg("-c").arg(script)
    }

    #[test]
    fn output_and_status_come_back() {
        let ended = shell("echo out; echo $WORD >&2; exit 3").env("WORD", "err").run().fails();
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str(), ended.code()), ("out\n", "err\n", 3));
    }

    #[test]
    fn a_signal_is_a_failure_with_its_number() {
        assert_eq!(shell("kill -9 $$").run().fails().code(), 128 + 9);
    }

    #[test]
    fn a_job_that_hangs_is_killed_with_its_children() {
        let limit = Duration::from_millis(300);
        let ended = shell("echo begun; sleep 1000 & wait").limit(limit).run_while(|job| {
            let _ = job.captured[0].wait_for("begun", 1, Instant::now() + LIMIT);
        });
        assert!(ended.status.is_none());
        assert_eq!(ended.stdout, "begun\n", "what it said before is kept");
    }

    #[test]
    fn a_process_that_outlives_its_job_is_found() {
        let mut job = shell("setsid sleep 1000 >/dev/null 2>&1 & exit 0");
        job.grace = Duration::from_millis(300); // it stays, however long that is
        let ended = job.run();
        let [left] = &ended.left_behind[..] else { panic!("one process: {:?}", ended.left_behind) };
        assert!(left.contains("sleep"), "{left}");
    }

    /// During execve the system shows no environment.
    #[test]
    fn a_process_that_starts_one_program_after_the_other_is_found() {
        let mut job =
            shell("again='exec sh -c \"$again\"'; export again; setsid sh -c \"$again\" >/dev/null 2>&1 &");
        job.grace = Duration::from_millis(300); // as above
        let ended = job.run();
        let [left] = &ended.left_behind[..] else { panic!("one process: {:?}", ended.left_behind) };
        assert!(left.contains("exec sh"), "{left}");
    }

    /// Each of the processes ends as soon as it has started the next.
    #[test]
    fn a_chain_of_processes_is_found_and_killed() {
        let next = r#"[ $((left -= 1)) -gt 0 ] && sh -c "$next" &"#;
        let chain = std::process::id().to_string();
        let mut job = shell("sh -c \"$next\" >/dev/null 2>&1").env("next", next).env("left", "100000");
        job.grace = Duration::from_millis(300); // as above
        let ended = job.env("chain", &chain).run();
        assert!(!ended.left_behind.is_empty(), "{ended}");
        assert_eq!(with_variable(&format!("chain={chain}")), [0; 0]);
    }

    #[test]
    fn the_users_settings_do_not_reach_the_job() {
        let ended = shell("env | grep ^DECK_ | cut -d= -f1").run().ok();
        assert_eq!(ended.stdout.trim(), EnvironmentMark::VARIABLE);
    }
}
