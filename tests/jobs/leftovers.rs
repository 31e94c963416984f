//! What a job must not leave behind: processes, and files in the folders for shared memory and temporary files.

use rustix::process::{Pid, Signal, kill_process};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

/// How long the processes of a job may take to go once its first one ended: what stays longer was left behind. Far enough
/// for a busy machine, on which hundreds of processes end; nothing waits for it unless something stays.
pub(crate) const GRACE: Duration = Duration::from_secs(60);

const FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];
const PREFIXES: [&str; 2] = ["udeck", "deck"];

/// A variable in the environment of one job's processes. They hand it down, so it finds them all, whatever group,
/// session or parent they have.
pub(crate) struct Mark(String);

impl Mark {
    pub(crate) const VARIABLE: &str = "DECK_TEST_MARK";

    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn value(&self) -> &str {
        &self.0
    }

    /// The processes that do not go within the grace, each with its command.
    pub(crate) fn survivors(&self, grace: Duration) -> Vec<String> {
        let deadline = Instant::now() + grace;
        loop {
            let pids = self.processes();
            if pids.is_empty() || Instant::now() >= deadline {
                return pids.into_iter().map(described).collect();
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills whatever carries the mark.
    pub(crate) fn kill(&self) {
        for pid in self.processes() {
            if let Some(pid) = Pid::from_raw(pid) {
                // One that ended meanwhile is what we want.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Zombies are not among them: their environment is gone.
    fn processes(&self) -> Vec<i32> {
        let entry = format!("{}={}", Self::VARIABLE, self.0);
        let all = fs::read_dir("/proc").expect("/proc is mounted");
        all.flatten()
            .filter_map(|folder| folder.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                // Other users' processes cannot be read, and are none of ours.
                fs::read(format!("/proc/{pid}/environ"))
                    .is_ok_and(|environ| environ.split(|&b| b == 0).any(|e| e == entry.as_bytes()))
            })
            .collect()
    }
}

/// The files that a job may have made.
pub(crate) fn shared_files() -> BTreeSet<PathBuf> {
    FOLDERS.iter().flat_map(|folder| named_like_ours(Path::new(folder))).collect()
}

/// Those that were not there before, and do not go within the grace: there may be other jobs on this host, whose files come
/// and go.
pub(crate) fn new_files(before: &BTreeSet<PathBuf>, grace: Duration) -> Vec<String> {
    let deadline = Instant::now() + grace;
    let mut new: Vec<PathBuf> = shared_files().difference(before).cloned().collect();
    while !new.is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
        new.retain(|path| path.symlink_metadata().is_ok());
    }
    new.iter().map(|path| path.display().to_string()).collect()
}

fn named_like_ours(folder: &Path) -> Vec<PathBuf> {
    // A machine without one of the folders has no leftovers there.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    };
    entries.map(|entry| entry.path()).filter(ours).collect()
}

fn described(pid: i32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("process {pid}: {}", String::from_utf8_lossy(&command).replace('\0', " ").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_named_like_ours_are_looked_at() {
        let folder = std::env::temp_dir().join(format!("jobs-leftovers-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        for name in ["udeck-1", "deckrun.sock", "notes", "my-deck"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let mut found = named_like_ours(&folder);
        fs::remove_dir_all(&folder).unwrap();
        found.sort();
        assert_eq!(found, [folder.join("deckrun.sock"), folder.join("udeck-1")]);
    }

    #[test]
    fn marks_differ() {
        assert_ne!(Mark::new().value(), Mark::new().value());
    }
}
