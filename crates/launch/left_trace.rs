//! The trace of a job that did not finish (`DECK_TRACE`): rank 0 did not merge the parts of the ranks, so deckrun does.
//!
//! A job that hangs and is ended usually needs it. Only the parts of this host's ranks are merged: they have
//! one clock, and nobody has compared it with the clocks of other hosts. A trace that rank 0 has written is
//! left as it is.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use udeck_trace::{Clock, Lane, VARIABLE, is_merged, merge, parts_beside};

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
    let path = Path::new(&path);
    let mut parts = parts_beside(path, number);
    let is_here = |rank| shares.iter().any(|share| share.here && share.ranks().contains(&rank));
    parts.retain(|(rank, _)| is_here(*rank));
    if parts.is_empty() || is_merged(path, number, &parts) {
        return;
    }
    let lane = |rank, host: &str| {
        let part = parts.iter().find(|(of, _)| *of == rank).map(|(_, part)| part.clone());
        Lane { rank, host: host.to_owned(), part, clock: Clock::default(), is_complete: false }
    };
    let lanes: Vec<Lane> =
        shares.iter().flat_map(|share| share.ranks().map(|rank| lane(rank, &share.host))).collect();
    let (end, interrupted) = (Instant::now() + LIMIT, Cell::new(false));
    let may_go_on = || {
        interrupted.set(interrupted.get() || is_interrupted(signals));
        !interrupted.get() && Instant::now() < end
    };
    match merge(path, &lanes, number, &may_go_on) {
        Ok(merged) => {
            parts.retain(|(_, part)| !merged.left_out.contains(part));
            parts.iter().for_each(|(_, part)| _ = fs::remove_file(part));
            let (count, path) = (parts.len(), path.display());
            printers.message(&format!(
                "rank 0 did not finish the trace: {path} has what {count} of {} ranks had written",
                lanes.len()
            ));
        }
        Err(error) => {
            let what =
                if interrupted.get() { "a signal came while merging".into() } else { error.to_string() };
            let parts: Vec<String> = parts.iter().map(|(_, part)| part.display().to_string()).collect();
            printers.message(&format!("the trace stays in parts ({what}): {}", parts.join(" ")));
        }
    }
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
