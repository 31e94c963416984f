//! Leftovers of a job: processes, and files in the folders for shared memory and temporary files.

use rustix::process::{Pid, Signal, kill_process};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};
use udeck_test_kit::processes;

/// Time that a job's processes and files may need to go after its first process ended: anything that stays longer was left
/// behind. It suffices for a busy machine on which hundreds of processes end, and is only spent if something stays.
pub(crate) const GRACE: Duration = Duration::from_secs(60);

const FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];
const PREFIXES: [&str; 2] = ["udeck", "deck"];

/// A variable in the environment of one job's processes. Children inherit it, so it finds all processes, whatever
/// group, session or parent they have.
pub(crate) struct EnvironmentMark(String);

impl EnvironmentMark {
    pub(crate) const VARIABLE: &str = "DECK_TEST_MARK";

    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn value(&self) -> &str {
        &self.0
    }

    /// Processes that do not end within `grace`, each with its command.
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

    /// Kills the marked processes until none is left: a killed process may have started another one just before.
    pub(crate) fn kill(&self) {
        let deadline = Instant::now() + GRACE;
        loop {
            let pids = self.processes();
            if pids.is_empty() || Instant::now() >= deadline {
                return;
            }
            for pid in pids.into_iter().filter_map(Pid::from_raw) {
                // A process that ended meanwhile needs no kill.
                let _ = kill_process(pid, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Process numbers of the marked processes, without zombies.
    fn processes(&self) -> Vec<i32> {
        processes::with_variable(&format!("{}={}", Self::VARIABLE, self.0))
    }
}

/// Files that a job may have made.
pub(crate) fn shared_files() -> BTreeSet<PathBuf> {
    FOLDERS.iter().flat_map(|folder| named_like_ours(Path::new(folder))).collect()
}

/// Files that did not exist before, and do not go within the grace period: there may be other jobs on this host, whose
/// files come and go.
pub(crate) fn new_files(before: &BTreeSet<PathBuf>) -> Vec<String> {
    let deadline = Instant::now() + GRACE;
    let mut new: Vec<PathBuf> = shared_files().difference(before).cloned().collect();
    while !new.is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
        new.retain(|path| path.symlink_metadata().is_ok());
    }
    new.iter().filter(|path| !is_in_use(path)).map(|path| path.display().to_string()).collect()
}

/// Whether the first number in the file's name is that of a running process, as in `deckperf-PID-0`. Such a file is another
/// job's: the processes of this one have ended, or are reported themselves.
fn is_in_use(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = name.split(['-', '.']).find_map(|part| part.parse::<u32>().ok());
    number.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

fn named_like_ours(folder: &Path) -> Vec<PathBuf> {
    // A machine without one of the folders has no leftovers there.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
            && !is_users_secret(name)
            && !is_program(path)
    };
    entries.map(|entry| entry.path()).filter(ours).collect()
}

/// Tells whether the file holds a user's secret of the names' directory: the first process without a launcher makes it, and it
/// stays for the next.
fn is_users_secret(name: &[u8]) -> bool {
    let uid = name.strip_prefix(b"udeck-directory-").and_then(|rest| rest.strip_suffix(b".secret"));
    uid.is_some_and(|uid| !uid.is_empty() && uid.iter().all(u8::is_ascii_digit))
}

/// Tells whether the file is a program: a person's copy of one of ours, perhaps. Jobs make none.
fn is_program(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn described(pid: i32) -> String {
    format!("process {pid}: {}", processes::command(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_named_like_ours_are_looked_at() {
        let folder = std::env::temp_dir().join(format!("jobs-leftovers-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        for name in [
            "udeck-1",
            "deckrun.sock",
            "notes",
            "my-deck",
            "udeck-directory-0.secret",
            "udeck-directory-0.1f",
        ] {
            fs::write(folder.join(name), "").unwrap();
        }
        let program = folder.join("deckperf-new3");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut found = named_like_ours(&folder);
        fs::remove_dir_all(&folder).unwrap();
        found.sort();
        assert_eq!(found, ["deckrun.sock", "udeck-1", "udeck-directory-0.1f"].map(|name| folder.join(name)));
    }

    #[test]
    fn files_of_running_processes_are_in_use() {
        let is = |name: &str| is_in_use(Path::new(name));
        let mine = process::id();
        assert!(is(&format!("/tmp/deckperf-{mine}-0")) && is(&format!("deckrun.{mine}.sock")));
        assert!(!is(&format!("udeck-{}-{mine}", u32::MAX)) && !is("udeck-directory") && !is("/tmp"));
    }

    #[test]
    fn marks_differ() {
        assert_ne!(EnvironmentMark::new().value(), EnvironmentMark::new().value());
    }
}
