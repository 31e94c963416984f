//! The trace of a job that did not finish (`DECK_TRACE`): rank 0 did not merge the parts of the ranks, so deckrun does.
//!
//! A job that hangs and is ended usually needs it. Only the parts of this host's ranks are merged: they have
//! one clock, and nobody has compared it with the clocks of other hosts. A trace that rank 0 has written is
//! left as it is.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use udeck_trace::{Clock, Lane, MAX_EVENTS, VARIABLE, is_merged, merge, names_its_job, parts_beside};

use crate::Job;
use crate::hosts::Share;
use crate::print::Printers;
use crate::signals::Signals;

/// Upper bound of a merge's duration: enough for some gigabytes.
const LIMIT: Duration = Duration::from_secs(60);

/// Merges the parts that the ranks of the job have left, and says so. All ranks have ended.
pub(crate) fn gather(job: &Job, shares: &[Share], number: u64, printers: &Printers, signals: &Signals) {
    let set = job.variable(VARIABLE).or_else(|| std::env::var(VARIABLE).ok());
    let Some(path) = set.filter(|path| !path.is_empty()) else { return };
    let lines = merge_left(Path::new(&path), shares, number, &|| is_interrupted(signals));
    lines.iter().for_each(|line| printers.message(line));
}

/// Merges the parts that lie beside the trace at `path`. Returns lines for the user.
fn merge_left(path: &Path, shares: &[Share], number: u64, is_interrupted: &dyn Fn() -> bool) -> Vec<String> {
    let mut parts = parts_beside(path, number);
    let is_here = |rank| shares.iter().any(|share| share.here && share.ranks().contains(&rank));
    parts.retain(|(rank, _)| is_here(*rank));
    if parts.is_empty() {
        return Vec::new();
    }
    if is_merged(path, number, &parts) {
        if names_its_job(path) {
            return Vec::new();
        }
        let why = "is newer than they are, and may be another job's: name a file of its own for each job";
        return vec![stays(&format!("{} {why}", path.display()), &parts)];
    }
    let lane = |rank, host: &str| {
        let part = parts.iter().find(|(of, _)| *of == rank).map(|(_, part)| part.clone());
        Lane { rank, host: host.to_owned(), part, clock: Clock::default(), is_complete: false }
    };
    let lanes: Vec<Lane> =
        shares.iter().flat_map(|share| share.ranks().map(|rank| lane(rank, &share.host))).collect();
    let (end, interrupted) = (Instant::now() + LIMIT, Cell::new(false));
    let may_go_on = || {
        interrupted.set(interrupted.get() || is_interrupted());
        !interrupted.get() && Instant::now() < end
    };
    match merge(path, &lanes, number, &may_go_on) {
        Ok(merged) => {
            parts.retain(|(_, part)| !merged.left_out.contains(part));
            parts.iter().for_each(|(_, part)| _ = fs::remove_file(part));
            let (count, path) = (parts.len(), path.display());
            let mut lines = vec![format!(
                "rank 0 did not finish the trace: {path} has what {count} of {} ranks had written",
                lanes.len()
            )];
            if merged.dropped > 0 {
                let dropped = merged.dropped;
                lines.push(format!(
                    "the trace {path} lacks {dropped} events: a process writes {MAX_EVENTS} at most"
                ));
            }
            lines
        }
        Err(error) => {
            let what =
                if interrupted.get() { "a signal came while merging".into() } else { error.to_string() };
            vec![stays(&what, &parts)]
        }
    }
}

fn stays(why: &str, parts: &[(u32, PathBuf)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(_, part)| part.display().to_string()).collect();
    format!("the trace stays in parts ({why}): {}", parts.join(" "))
}

fn is_interrupted(signals: &Signals) -> bool {
    while let Some(signal) = signals.take_next() {
        match signal {
            libc::SIGCHLD | libc::SIGQUIT => {}
            libc::SIGTSTP => _ = signals.suspend(),
            _ => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;
    use udeck_trace::part_path;

    const JOB: u64 = 0xBEEF;

    struct Folder(PathBuf);

    impl Folder {
        /// A folder with the part of rank 0.
        fn new(name: &str) -> (Folder, PathBuf) {
            let folder = std::env::temp_dir().join(format!("left-trace-{}-{name}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join(name);
            let dropped =
                "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"udeck_dropped\",\"args\":{\"events\":7}},\n";
            fs::write(part_path(&path, JOB, 0), format!("[\n{dropped}")).unwrap();
            (Folder(folder), path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn merged(path: &Path) -> Vec<String> {
        let share = Share { host: "a".to_owned(), first: 0, count: 2, here: true };
        merge_left(path, &[share], JOB, &|| false)
    }

    #[test]
    fn the_number_of_dropped_events_is_said() {
        for name in ["dropped.json", "dropped.vef"] {
            let (_folder, path) = Folder::new(name);
            let lines = merged(&path);
            assert!(lines[0].contains("has what 1 of 2 ranks had written"), "{lines:?}");
            assert!(lines[1].contains("lacks 7 events"), "{lines:?}");
            assert!(!part_path(&path, JOB, 0).exists());
            assert_eq!(merged(&path), [""; 0], "nothing is left to merge");
        }
    }

    /// A file in the format VEF3 does not name its job.
    #[test]
    fn parts_that_stay_beside_a_newer_trace_are_named() {
        let (_folder, path) = Folder::new("newer.vef");
        fs::write(&path, "VEF3 1 0 1 0 0 0 1000\nC0 0\n").unwrap();
        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
        let (lines, part) = (merged(&path), part_path(&path, JOB, 0));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("may be another job's"), "{lines:?}");
        assert!(lines[0].ends_with(&part.display().to_string()) && part.exists(), "{lines:?}");
    }
}
