//! Ctrl-Z and `fg`: the whole job stops and goes on, and no time limit counts the time between.

mod common;

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{LONG, Ran, left, sh, wait_until_none_is_left};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const HOSTS: [&str; 6] = ["--hosts", "b,localhost", "--agent", "env NODE={}", "--iface", "lo"];

/// A rank's script, which shows its state by files in the folder: begun, and done once it may be.
const SCRIPT: &str =
    "trap 'exit 0' TERM; : >begun.$DECK_RANK; until test -e go; do sleep 0.02; done; echo done";

/// A job of two ranks, in a process group of its own as a shell starts one: a group without a shell cannot be
/// stopped.
struct Group {
    child: Child,
    mark: String,
    folder: std::path::PathBuf,
}

impl Group {
    /// Starts the job, and returns once both ranks have begun.
    fn start(name: &str, options: &[&str]) -> Group {
        let folder = std::env::temp_dir().join(format!("deckrun-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mark = format!("DECKRUN_TEST_MARK={name}.{}", std::process::id());
        let script = format!("cd {}; {SCRIPT}", folder.display());
        let mut command = sh(&[options, &["--env", &mark]].concat(), &script);
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let group = Group { child: command.spawn().unwrap(), mark, folder };
        group.until("both ranks run", || {
            (0..2).all(|rank| group.folder.join(format!("begun.{rank}")).exists())
        });
        group
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let limit = Instant::now() + LONG;
        while !is_so() {
            assert!(Instant::now() < limit, "never: {what}; {:?}", self.states());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to the whole group, as a terminal does, or to the one process that a user knows.
    fn signal(&self, whole_group: bool, signal: Signal) {
        let to = if whole_group { kill_process_group } else { kill_process };
        to(self.pid(), signal).unwrap();
    }

    /// Returns the states of deckrun, of its watcher, and of all processes of the ranks.
    fn states(&self) -> Vec<char> {
        let own = self.child.id().to_string();
        let watcher = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let all = [own, watcher.trim().to_owned()].into_iter().chain(left(&self.mark));
        all.filter_map(|pid| state(&pid)).collect()
    }

    fn until_stopped(&self) {
        self.until("everything stands still", || {
            let states = self.states();
            // A shell that was starting a program (vfork) waits, in D, for a child that is stopped.
            states.len() >= 4 && states.iter().all(|state| "TD".contains(*state)) && states.contains(&'T')
        });
    }

    /// Lets the ranks end.
    fn go(&self) {
        fs::write(self.folder.join("go"), "").unwrap();
    }

    fn end(mut self) -> Ran {
        let child = std::mem::replace(&mut self.child, std::process::Command::new("true").spawn().unwrap());
        let ran = Ran::from(child.wait_with_output().unwrap());
        wait_until_none_is_left(&self.mark);
        ran
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The job has ended before, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the state letter behind the name in parentheses; `None` once the process has ended.
fn state(pid: &str) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit(')').next()?.trim().chars().next().filter(|state| !"ZX".contains(*state))
}

#[test]
fn the_whole_job_stops_and_goes_on() {
    for way in [&["-n", "2"][..], &HOSTS] {
        for whole_group in [true, false] {
            let job = Group::start("suspend", way);
            // Stop and continue twice.
            for _ in 0..2 {
                job.signal(whole_group, Signal::TSTP);
                job.until_stopped();
                job.signal(whole_group, Signal::CONT);
                job.until("everything goes on", || !job.states().contains(&'T'));
            }
            job.go();
            let ran = job.end();
            assert_eq!((ran.code, ran.lines()), (Some(0), vec!["done".into(); 2]), "{way:?}: {}", ran.stderr);
        }
    }
}

/// The terminal sends these signals to a whole group in the background when one of its processes reads, or
/// writes under `stty tostop`.
#[test]
fn what_the_terminal_stops_is_the_whole_job_too() {
    for signal in [Signal::TTIN, Signal::TTOU] {
        for whole_group in [true, false] {
            let job = Group::start("suspend-background", &["-n", "2"]);
            for _ in 0..2 {
                job.signal(whole_group, signal);
                job.until_stopped();
                job.signal(whole_group, Signal::CONT);
                job.until("everything goes on", || !job.states().contains(&'T'));
            }
            job.go();
            let ran = job.end();
            assert_eq!(
                (ran.code, ran.lines()),
                (Some(0), vec!["done".into(); 2]),
                "{signal:?}: {}",
                ran.stderr
            );
        }
    }
}

#[test]
fn a_pause_does_not_count() {
    const TIMEOUT: Duration = Duration::from_secs(15);
    let timeout = format!("{}s", TIMEOUT.as_secs());
    let job = Group::start("suspend-timeout", &[&HOSTS[..], &["--timeout", &timeout]].concat());
    job.signal(true, Signal::TSTP);
    job.until_stopped();
    // Longer than the rest of the time limit, and than another host may be silent.
    thread::sleep(TIMEOUT);
    job.signal(true, Signal::CONT);
    job.go();
    let ran = job.end();
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["done".into(); 2]), "{}", ran.stderr);
}

#[test]
fn a_stopped_job_that_is_ended_leaves_nothing() {
    for way in [&["-n", "2"][..], &HOSTS] {
        let job = Group::start("suspend-kill", way);
        job.signal(true, Signal::TSTP);
        job.until_stopped();
        job.signal(false, Signal::KILL);
        assert_eq!(job.end().code, None, "{way:?}");
        let job = Group::start("suspend-term", way);
        job.signal(true, Signal::TSTP);
        job.until_stopped();
        // A shell's `kill %1` does the same.
        job.signal(true, Signal::TERM);
        job.signal(true, Signal::CONT);
        assert_eq!(job.end().code, Some(143), "{way:?}");
    }
}
