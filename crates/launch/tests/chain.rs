//! A chain of processes that forks faster than orphans are found: if the job has a cgroup, the whole chain ends
//! with the job.

#![allow(unsafe_code, reason = "it forks")]

mod common;

use std::{
    env,
    ffi::CString,
    fs,
    io::{BufRead, BufReader},
    os::unix::{ffi::OsStrExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{LONG, Ran, Running, deckrun, left, wait_until_none_is_left};
use rustix::process::{Pid, Signal, kill_process};

/// The variable with the folder of a chain's files; set in the ranks.
const FOLDER: &str = "DECKRUN_TEST_FOLDER";
/// How long each member of a chain waits before it makes the next one, and then lives: the oldest has a hundred
/// and more behind it, and only its own child can be found when it dies.
const PAUSE: Duration = Duration::from_micros(300);
const LIFE: Duration = Duration::from_millis(300);
/// Length of a chain when its rank goes on: a launcher that kills one process after the other is far behind
/// then.
const LONG_CHAIN: u32 = 100;

/// No test, but the program of the ranks, if the variable is set: leaves a chain behind that no longer belongs
/// to the rank.
#[test]
fn chain() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else { return };
    let path = |name: &str| CString::new(folder.join(name).as_os_str().as_bytes()).unwrap();
    let (go_on, is_long) = (path("go-on"), path("is-long"));
    // SAFETY: the child only makes system calls that are safe after a fork of a process with threads, and never returns.
    if unsafe { libc::fork() } == 0 {
        be_a_chain(&go_on, &is_long, Instant::now() + 2 * LONG);
    }
}

fn be_a_chain(go_on: &CString, is_long: &CString, until: Instant) -> ! {
    let sleep = |time: Duration| {
        let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: the time lives through the call, and a null pointer asks for no remaining time.
        unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
    };
    // SAFETY: as in `chain`. What it closes belongs to the copy of the rank that it is, and nothing of it is used any more.
    unsafe {
        for descriptor in 0..64 {
            libc::close(descriptor);
        }
        let mut made = 0;
        while libc::access(go_on.as_ptr(), libc::F_OK) == 0 && Instant::now() < until {
            libc::setsid();
            made += 1;
            if made == LONG_CHAIN {
                libc::close(libc::creat(is_long.as_ptr(), 0o600));
            }
            sleep(PAUSE);
            if libc::fork() != 0 {
                sleep(LIFE);
                break;
            }
        }
        libc::_exit(0)
    }
}

/// A folder for a job, whose chains end when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("deckrun-chain-{}.{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("go-on"), b"").unwrap();
        Folder(folder)
    }

    /// Returns the script of a rank that starts a chain, writes its cgroup, is ready, and goes on with `then`.
    fn script(&self, then: &str) -> String {
        let (program, folder) = (env::current_exe().unwrap(), self.0.display());
        format!(
            "{FOLDER}={folder} {} --exact chain --nocapture >{folder}/said 2>&1 || exit 9; \
             while [ ! -e {folder}/is-long ]; do sleep 0.01; done; \
             grep ^0:: /proc/self/cgroup >{folder}/cgroup; echo ready; {then}",
            program.display()
        )
    }

    /// Returns the cgroup that the rank wrote.
    fn cgroup(&self) -> PathBuf {
        let told = fs::read_to_string(self.0.join("cgroup")).unwrap();
        below_mount(told.trim_end().strip_prefix("0::").unwrap()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn below_mount(cgroup: &str) -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).ok_or("no cgroup v2 is mounted")?;
    let fields: Vec<_> = line.split(' ').collect();
    match fields[3] {
        "/" => Ok(format!("{}{cgroup}", fields[4]).trim_end_matches('/').into()),
        root => Err(format!("of cgroup v2 only {root} is mounted")),
    }
}

/// Returns the cgroup of this process, if cgroups that can be killed may be made in it. Finds it by other means
/// than deckrun does.
fn writable() -> Option<PathBuf> {
    static TRIALS: AtomicU32 = AtomicU32::new(0);
    let try_it = || {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).ok_or("there is no cgroup v2")?;
        let own = below_mount(own)?;
        // Another test may try at the same time.
        let number = TRIALS.fetch_add(1, Ordering::Relaxed);
        let trial = own.join(format!("chain-test-{}.{number}", std::process::id()));
        let in_words = |error: std::io::Error| format!("{}: {error}", own.display());
        fs::create_dir(&trial).map_err(in_words)?;
        let may_kill = trial.join("cgroup.kill").exists();
        fs::remove_dir(&trial).map_err(in_words)?;
        let controllers = fs::read_to_string(own.join("cgroup.subtree_control")).map_err(in_words)?;
        match (may_kill, controllers.trim()) {
            (true, "") => Ok(own),
            (true, _) => Err(format!("{} has controllers for its children", own.display())),
            (false, _) => Err("no cgroup.kill before Linux 5.14".to_owned()),
        }
    };
    let tried = try_it();
    tried.inspect_err(|why| eprintln!("skipped, because there is no writable cgroup v2: {why}")).ok()
}

/// Locks out other tests: chains take a processor's time.
fn one_at_a_time() -> impl Sized {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    LOCK.lock().unwrap_or_else(|error| error.into_inner())
}

fn wait_until_gone(cgroup: &Path) {
    let limit = Instant::now() + LONG;
    while cgroup.exists() {
        assert!(Instant::now() < limit, "{} stays", cgroup.display());
        thread::sleep(Duration::from_millis(5));
    }
}

fn watcher_of(guard: u32) -> Pid {
    let children = fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).unwrap();
    Pid::from_raw(children.trim().parse().expect("the guard has one child")).unwrap()
}

const HERE: &[&str] = &["-n", "1"];
const ELSEWHERE: &[&str] = &["--hosts", "b", "--agent", "env NODE={}", "--iface", "lo"];

#[test]
fn a_chain_that_forks_faster_than_it_is_found_ends_with_its_job() {
    let Some(own) = writable() else { return };
    let _alone = one_at_a_time();
    for options in [HERE, ELSEWHERE] {
        for (then, code) in [("exit 0", 0), ("exit 3", 3)] {
            let folder = Folder::new();
            let job = Running::start(options, &folder.script(then), 1);
            let mark = job.mark();
            assert_eq!(job.exit_code(), Some(code));
            assert_eq!(left(&mark), [""; 0], "{options:?}");
            let cgroup = folder.cgroup();
            assert_eq!(cgroup.parent(), Some(&*own), "the rank was in one of the job's own");
            assert!(!cgroup.exists(), "{} stays", cgroup.display());
        }
    }
}

#[test]
fn a_chain_ends_although_the_guard_is_killed() {
    if writable().is_none() {
        return;
    }
    let _alone = one_at_a_time();
    for options in [HERE, ELSEWHERE] {
        let folder = Folder::new();
        let job = Running::start(options, &folder.script("sleep 600"), 1);
        let mark = job.mark();
        assert!(folder.cgroup().exists());
        job.signal(Signal::KILL);
        assert_eq!(job.exit_code(), None);
        wait_until_none_is_left(&mark);
        wait_until_gone(&folder.cgroup());
    }
}

#[test]
fn a_chain_ends_although_the_watcher_is_killed() {
    if writable().is_none() {
        return;
    }
    let _alone = one_at_a_time();
    let folder = Folder::new();
    let job = Running::start(HERE, &folder.script("sleep 600"), 1);
    let (mark, guard) = (job.mark(), job.pid());
    kill_process(watcher_of(guard), Signal::KILL).unwrap();
    assert_eq!(job.exit_code(), Some(137));
    assert_eq!(left(&mark), [""; 0]);
    assert!(!folder.cgroup().exists());
}

/// The stranger is no descendant of deckrun, which therefore cannot find it as an orphan: only `cgroup.kill`
/// kills it.
#[test]
fn a_stranger_in_the_cgroup_ends_with_the_job() {
    if writable().is_none() {
        return;
    }
    let _alone = one_at_a_time();
    for options in [HERE, ELSEWHERE] {
        let folder = Folder::new();
        let job = Running::start(options, &folder.script("exec sleep 600"), 1);
        let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
        fs::write(folder.cgroup().join("cgroup.procs"), stranger.id().to_string()).unwrap();
        job.signal(Signal::TERM);
        assert_eq!(job.exit_code(), Some(143));
        // Too late if it was killed.
        kill_process(Pid::from_child(&stranger), Signal::TERM).unwrap();
        assert_eq!(stranger.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

/// Cgroups that ranks make below the job's are removed with it.
#[test]
fn cgroups_that_ranks_made_are_removed() {
    if writable().is_none() {
        return;
    }
    let _alone = one_at_a_time();
    let folder = Folder::new();
    let told = folder.0.display();
    let mount = below_mount("").unwrap();
    let script = format!(
        "own={}$(sed -n 's/^0:://p' /proc/self/cgroup); mkdir -p $own/a/b $own/c; \
         setsid sh -c \"echo 0 >$own/a/b/cgroup.procs; echo >{told}/in; sleep 600\" & \
         while [ ! -e {told}/in ]; do sleep 0.01; done; grep ^0:: /proc/self/cgroup >{told}/cgroup; \
         grep -q . $own/a/b/cgroup.procs && echo inside",
        mount.display()
    );
    let mut job = deckrun(HERE);
    let mark = format!("DECKRUN_TEST_MARK=nested.{}", std::process::id());
    job.args(["--env", &mark, "sh", "-c", &script]);
    let ran = Ran::of(job);
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["inside".to_owned()]), "{}", ran.stderr);
    assert_eq!(left(&mark), [""; 0]);
    assert!(!folder.cgroup().exists());
}

/// Runs `deckrun` with these words in this cgroup.
fn deckrun_in(cgroup: &Path, words: &str) -> Command {
    let script = format!("echo 0 >{}/cgroup.procs; exec \"$0\" {words}", cgroup.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_deckrun")]);
    command
}

/// Guard and watcher leave a cgroup if they are killed at the same time. The test simulates this, in a cgroup
/// where no other job runs.
#[test]
fn the_next_job_removes_what_two_killed_deckruns_left() {
    let Some(own) = writable() else { return };
    let place = own.join(format!("chain-test-place-{}", std::process::id()));
    let (abandoned, held) = (place.join("deckrun-abandoned"), place.join("deckrun-held"));
    fs::create_dir_all(abandoned.join("below")).unwrap();
    fs::create_dir(&held).unwrap();
    let lock = fs::File::open(&held).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let run_there = || {
        let ran = Ran::of(deckrun_in(&place, "-n 1 true"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    };
    run_there();
    assert_eq!((abandoned.exists(), held.exists()), (false, true));
    drop(lock);
    run_there();
    assert!(!held.exists());
    fs::remove_dir(place).unwrap();
}

/// Runs `deckrun` where all cgroups are read-only.
fn read_only(options: &[&str]) -> Option<Command> {
    let mount = below_mount("").inspect_err(|why| eprintln!("skipped: {why}")).ok()?;
    let remount = format!("mount -o remount,bind,ro {} && exec \"$0\" \"$@\"", mount.display());
    let unshared = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &remount]).args(words);
        command
    };
    let tried = unshared(&["true"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        eprintln!("skipped: no mount of one's own can be had here (unshare -m, mount)");
        return None;
    }
    Some(unshared(&[&[env!("CARGO_BIN_EXE_deckrun")], options].concat()))
}

#[test]
fn without_a_cgroup_orphans_are_found_one_by_one() {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find(|line| line.starts_with("0::")).map(|line| format!("{line}\n"));
    // The script starts a process that left its rank's group, and a child of it that lost its parent.
    let script = "grep ^0:: /proc/self/cgroup; setsid sh -c 'sh -c \"sleep 600 &\"; echo ready; sleep 600' & read line";
    for killed in ["nobody", "guard", "watcher"] {
        let mark = format!("DECKRUN_TEST_MARK=read-only-{killed}.{}", std::process::id());
        let Some(mut job) = read_only(&["-n", "1", "--env", &mark, "sh", "-c", script]) else { return };
        let mut job = job.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(job.stdout.take().unwrap());
        let (mut cgroup, mut ready) = (String::new(), String::new());
        if own.is_some() {
            said.read_line(&mut cgroup).unwrap();
        }
        said.read_line(&mut ready).unwrap();
        assert_eq!((cgroup, ready.as_str()), (own.clone().unwrap_or_default(), "ready\n"));
        let code = match killed {
            "guard" => {
                job.kill().unwrap();
                None
            }
            "watcher" => {
                kill_process(watcher_of(job.id()), Signal::KILL).unwrap();
                Some(137)
            }
            _ => {
                drop(job.stdin.take());
                Some(1)
            }
        };
        // The job's input stays open until it has ended.
        let input = job.stdin.take();
        assert_eq!(job.wait().unwrap().code(), code, "{killed}");
        drop(input);
        wait_until_none_is_left(&mark);
    }
}

#[test]
fn the_doctor_says_how_a_job_ends() {
    let said = |ran: Ran| {
        let text = String::from_utf8(ran.stdout).unwrap();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(ran.code, Some(0), "{text}");
        words
    };
    if let Some(own) = writable() {
        let words = said(Ran::of(deckrun(&["--doctor"])));
        let wanted = format!("ok end of a job cgroup.kill in {}: ", own.display());
        assert!(words.contains(&wanted), "{words}");
    }
    // A new cgroup beside threaded ones takes no processes.
    if let Some(own) = writable() {
        let place = own.join(format!("chain-test-threads-{}", std::process::id()));
        fs::create_dir_all(place.join("threads")).unwrap();
        fs::write(place.join("threads/cgroup.type"), "threaded").unwrap();
        let words = said(Ran::of(deckrun_in(&place, "--doctor")));
        assert!(words.contains("note end of a job process by process"), "{words}");
        let ran = Ran::of(deckrun_in(&place, "-n 1 grep ^0:: /proc/self/cgroup"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        assert!(ran.lines()[0].ends_with(&format!("chain-test-threads-{}", std::process::id())));
        fs::remove_dir(place.join("threads")).unwrap();
        fs::remove_dir(place).unwrap();
    }
    if let Some(doctor) = read_only(&["--doctor"]) {
        let words = said(Ran::of(doctor));
        let at = words.find("note end of a job process by process").unwrap_or_else(|| panic!("{words}"));
        assert!(words[at..].contains("Read-only file system"), "{words}");
    }
}
