//! Processes that ranks leave behind: adopted, reaped and ended.
//!
//! The launcher is a subreaper: it inherits every descendant whose parent dies, also one that left its rank's
//! process group. The launcher reaps them while the job runs, and ends the remaining ones when the ranks are
//! gone: by the job's cgroup, if there is one, and otherwise one by one. A chain of processes that forks faster
//! than that can escape the second way.

#![allow(unsafe_code, reason = "processes and signals, for which rustix has no safe call")]

use std::{
    collections::HashSet,
    fs, io,
    mem::MaybeUninit,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, child_subreaper, getpid, kill_process, set_child_subreaper, waitid,
};

use crate::cgroup::Cgroup;

/// How long to wait for orphans to die of SIGKILL, before they are left behind.
const LIMIT: Duration = Duration::from_secs(2);

/// Makes this process adopt orphans, until dropped.
pub(crate) struct Orphans<'a> {
    was_subreaper: bool,
    /// Children that this process had before: a host program's own. They are not touched.
    spared: HashSet<i32>,
    cgroup: Option<&'a Cgroup>,
}

impl<'a> Orphans<'a> {
    /// Starts to adopt orphans: those of the ranks in this cgroup, or of any ranks that this process will have.
    pub(crate) fn adopt(cgroup: Option<&'a Cgroup>) -> io::Result<Orphans<'a>> {
        let was_subreaper = child_subreaper()?.is_some();
        set_child_subreaper(Some(getpid()))?;
        Ok(Orphans { was_subreaper, spared: children(), cgroup })
    }

    /// Reaps the orphans that have ended. Ranks are not touched.
    pub(crate) fn reap(&self, is_rank: impl Fn(Pid) -> bool) {
        while let Some(pid) = dead_child() {
            if is_rank(pid) || self.spared.contains(&pid.as_raw_nonzero().get()) {
                break;
            }
            reap(pid);
        }
    }

    /// Ends all orphans, once there are no ranks any more. An orphan's own children become ours in turn.
    pub(crate) fn end(&self) {
        self.cgroup.iter().for_each(|cgroup| cgroup.end());
        let limit = Instant::now() + LIMIT;
        loop {
            let left: Vec<Pid> =
                children().difference(&self.spared).filter_map(|pid| Pid::from_raw(*pid)).collect();
            if left.is_empty() || Instant::now() >= limit {
                return;
            }
            for pid in left {
                // An unreaped child keeps its number: no stranger can be hit.
                let _ = kill_process(pid, Signal::KILL);
                reap(pid);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Orphans<'_> {
    fn drop(&mut self) {
        if !self.was_subreaper {
            let _ = set_child_subreaper(None);
        }
    }
}

/// Returns the children of all threads of this process. The set is empty on a kernel without
/// `CONFIG_PROC_CHILDREN`: orphans are then reaped, and not killed.
fn children() -> HashSet<i32> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn reap(pid: Pid) {
    // Fails only if `pid` is no child of ours any more.
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

/// Returns a child that has ended and is not reaped. (`rustix::process::waitid` does not say which one it
/// found.)
pub(crate) fn dead_child() -> Option<Pid> {
    count_check();
    let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `found` is valid for writing a siginfo_t, of which all zeroes is a value; on success si_pid is the child's,
    // or stays 0 when none has ended.
    let pid = unsafe {
        match libc::waitid(libc::P_ALL, 0, found.as_mut_ptr(), options) {
            0 => found.assume_init().si_pid(),
            _ => 0,
        }
    };
    Pid::from_raw(pid)
}

#[cfg(test)]
std::thread_local!(
    /// Counts this thread's checks for ended children, for a test that one rank's end causes none for the
    /// others.
    pub(crate) static CHECKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) }
);

#[inline]
pub(crate) fn count_check() {
    #[cfg(test)]
    CHECKS.set(CHECKS.get() + 1);
}
