//! The report on all ranks, for people.
//!
//! Names come from ranks: control characters are written out, and long names are cut.

use std::fmt::Write as _;

use udeck_boot::{
    Ranks,
    waits::{Call, Published, Wait},
};

use super::deadlock::{Finding, find};
use crate::{
    control::wire::{RankSample, RankState},
    hosts::Share,
    words::printable,
};

/// Upper bounds of a name in the report, in characters, and of a list of ranks.
const MAX_NAME: usize = 64;
const MAX_RANKS: usize = 8;

/// Writes a line for each of `samples`, which are sorted, and the meaning of their waits. `hosts` are named if
/// there are several. `silent` are the hosts that have not answered.
pub(crate) fn report(title: &str, samples: &[RankSample], hosts: &[Share], silent: &[String]) -> String {
    let mut text = title.to_owned();
    let has_hosts = hosts.len() > 1;
    let host = |rank: u32| {
        let share = hosts.iter().find(|share| share.ranks().contains(&rank));
        share.map_or(String::new(), |share| printable(&share.host))
    };
    let width = samples.iter().filter(|_| has_hosts).map(|sample| host(sample.rank).len()).max().unwrap_or(0);
    let place = |rank: u32| if has_hosts { format!("{:width$}  ", host(rank)) } else { String::new() };
    for sample in samples {
        let (rank, place) = (sample.rank, place(sample.rank));
        let stopped = if sample.state == RankState::Stopped { " (it is stopped)" } else { "" };
        for Published { wait, for_ms } in &sample.waits {
            let _ =
                write!(text, "\n  rank {rank:<4}  {place}{:>8}  {}{stopped}", seconds(*for_ms), what(wait));
        }
        if sample.waits.is_empty() {
            let for_so_long = if sample.idle_ms > 0 { seconds(sample.idle_ms) } else { String::new() };
            let _ = write!(text, "\n  rank {rank:<4}  {place}{for_so_long:>8}  {}", in_no_wait(sample.state));
        }
    }
    if samples.is_empty() {
        text.push_str("\n  no rank runs");
    }
    for host in silent {
        let _ = write!(text, "\n  host {} does not answer", printable(host));
    }
    if let Some(meaning) = meaning(samples) {
        let _ = write!(text, "\n{meaning}");
    }
    text
}

/// Returns the meaning of the waits on a line of its own; `None` if the table already says it.
fn meaning(samples: &[RankSample]) -> Option<String> {
    match find(samples) {
        Finding::Circle(circle) => {
            let steps: Vec<_> =
                circle.iter().map(|(rank, wait, next)| format!("{rank} {}", step(wait, *next))).collect();
            Some(format!("deadlock: {}", steps.join(", ")))
        }
        Finding::Stuck(ranks) => {
            Some(format!("deadlock: {} wait, and nobody is left to end it", Ranks(&ranks)))
        }
        Finding::AwaitedRanks(ranks) => Some(format!("waited for: {}", Ranks(&ranks))),
        Finding::Nothing => None,
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

fn in_no_wait(state: RankState) -> &'static str {
    match state {
        RankState::NotJoined => "has not joined the job (udeck::init)",
        RankState::Runs => "computes: in no call that has waited for long",
        RankState::Sleeps => "sleeps, in no call of µDECK that has waited for long",
        RankState::InKernel => "is in a system call that cannot be interrupted (a disk?)",
        RankState::Stopped => "is stopped (SIGSTOP, a debugger)",
        RankState::Ended => "has just ended",
    }
}

/// Describes a wait, as in `posts to "b" of 1`.
fn what(wait: &Wait) -> String {
    let (name, ranks) = (name(wait), list(&wait.ranks, wait.open));
    let of = if wait.ranks.is_empty() { String::new() } else { format!(" of {ranks}") };
    match wait.call {
        Call::Post => format!("posts to {name}{of}"),
        Call::Flush => format!("flushes {name}{of}"),
        Call::Retrieve if wait.ranks.is_empty() => {
            format!("retrieves from {name}, to which nobody has a postbox")
        }
        Call::Retrieve => format!("retrieves from {name}, to which {ranks} can post"),
        Call::Select if wait.ranks.is_empty() => {
            format!("selects among {name}, to which nobody has a postbox")
        }
        Call::Select => format!("selects among {name}, to which {ranks} can post"),
        Call::Barrier if wait.ranks.is_empty() => "is at the barrier".into(),
        Call::Barrier if wait.name.is_empty() => format!("is at the barrier, waits for {ranks}"),
        Call::Barrier => format!("is at the barrier of {name}, waits for {ranks}"),
        Call::Collective if wait.ranks.is_empty() => {
            format!("is in {}, waits for ranks that have not called it", shown(wait))
        }
        Call::Collective => format!("is in {}, waits for {ranks}", shown(wait)),
        Call::Find => format!("waits for {name}{of} to be made"),
        Call::Connect => format!("connects to {name}{of}"),
        Call::Memory if wait.ranks.is_empty() => "waits for message memory".into(),
        Call::Memory => format!("waits for message memory, which {ranks} can give back"),
        Call::Launcher => "waits for an answer of the launcher".into(),
        Call::Finish if wait.ranks.is_empty() => "finishes".into(),
        Call::Finish => format!("finishes, waits for {ranks} to retrieve"),
        Call::Share if wait.name.is_empty() => format!("waits for {ranks} to share memory"),
        Call::Share => format!("waits for {ranks} to share {name}"),
        Call::Lock => format!("locks {name}, which {ranks} holds"),
        Call::Acquire if wait.ranks.is_empty() => format!("acquires {name}, which nobody holds"),
        Call::Acquire => format!("acquires {name}, which {ranks} can release"),
    }
}

/// Describes a wait as part of a circle, in which `next` comes next.
fn step(wait: &Wait, next: u32) -> String {
    let name = name(wait);
    match wait.call {
        Call::Post => format!("posts to {name} of {next}"),
        Call::Flush => format!("flushes {name} of {next}"),
        Call::Retrieve => format!("retrieves from {name} what {next} posts"),
        Call::Select => format!("selects among {name} what {next} posts"),
        Call::Barrier if wait.name.is_empty() => format!("waits for {next} at the barrier"),
        Call::Barrier => format!("waits for {next} at the barrier of {name}"),
        Call::Collective => format!("waits for {next} in {}", shown(wait)),
        Call::Find => format!("waits for {name} of {next}"),
        Call::Connect => format!("connects to {name} of {next}"),
        Call::Memory => format!("waits for memory that {next} has"),
        Call::Launcher => format!("waits for {next}"),
        Call::Finish => format!("finishes when {next} has retrieved"),
        Call::Share => format!("waits for {next} to share {name}"),
        Call::Lock => format!("locks {name}, which {next} holds"),
        Call::Acquire => format!("acquires {name}, which {next} holds"),
    }
}

fn name(wait: &Wait) -> String {
    format!("\"{}\"", shown(wait))
}

/// Returns a name, which may be any text, on one line.
fn shown(wait: &Wait) -> String {
    let whole = wait.name.chars().count() <= MAX_NAME;
    let shown: String = wait.name.chars().take(MAX_NAME).flat_map(char::escape_debug).collect();
    if whole { shown } else { format!("{shown}...") }
}

fn list(ranks: &[u32], open: bool) -> String {
    let shown: Vec<_> = ranks.iter().take(MAX_RANKS).map(u32::to_string).collect();
    let more = if ranks.len() > MAX_RANKS { " and others" } else { "" };
    let or = if open { ", " } else { " or " };
    format!("{}{more}", shown.join(or))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rank: u32, state: RankState, waits: &[(Call, &str, &[u32], bool)]) -> RankSample {
        let waits = waits.iter().map(|(call, name, ranks, open)| Published {
            wait: Wait { call: *call, name: (*name).into(), ranks: ranks.to_vec(), open: *open },
            for_ms: 5230,
        });
        RankSample { rank, state, idle_ms: 4210, waits: waits.collect() }
    }

    #[test]
    fn a_deadlock_of_two_reads_so() {
        let samples = [
            sample(0, RankState::Sleeps, &[(Call::Post, "b", &[1], false)]),
            sample(1, RankState::Sleeps, &[(Call::Post, "a", &[0], false)]),
        ];
        let text = report("no rank has made progress for 4.2 s", &samples, &[], &[]);
        assert_eq!(
            text,
            "no rank has made progress for 4.2 s\n  \
             rank 0        5.2 s  posts to \"b\" of 1\n  \
             rank 1        5.2 s  posts to \"a\" of 0\n\
             deadlock: 0 posts to \"b\" of 1, 1 posts to \"a\" of 0"
        );
    }

    #[test]
    fn two_locks_in_two_orders_read_so() {
        let samples = [
            sample(0, RankState::Sleeps, &[(Call::Lock, "b", &[1], false)]),
            sample(1, RankState::Sleeps, &[(Call::Lock, "a", &[0], false)]),
        ];
        let text = report("now", &samples, &[], &[]);
        assert!(text.contains("rank 0        5.2 s  locks \"b\", which 1 holds"), "{text}");
        assert!(
            text.ends_with("deadlock: 0 locks \"b\", which 1 holds, 1 locks \"a\", which 0 holds"),
            "{text}"
        );
        let waits = [(Call::Share, "g", &[2u32][..], false), (Call::Acquire, "s", &[2, 3], true)];
        let text = report("now", &[sample(0, RankState::Sleeps, &waits)], &[], &[]);
        assert!(
            text.contains("waits for 2 to share \"g\"")
                && text.contains("acquires \"s\", which 2, 3 can release"),
            "{text}"
        );
    }

    /// Only the launcher knows who has not voted in an agreement.
    #[test]
    fn an_agreement_waits_for_ranks_that_have_not_called_it() {
        let waits = [(Call::Collective, "agree", &[][..], false)];
        let text = report("now", &[sample(0, RankState::Sleeps, &waits)], &[], &[]);
        assert!(text.contains("is in agree, waits for ranks that have not called it"), "{text}");
    }

    #[test]
    fn hosts_are_named_where_there_are_several_and_who_does_not_answer() {
        let share = |host: &str, first, here| Share { host: host.into(), first, count: 1, here };
        let samples = [
            sample(0, RankState::Runs, &[]),
            sample(1, RankState::Stopped, &[(Call::Barrier, "", &[0], false)]),
        ];
        let hosts = [share("a", 0, true), share("long", 1, false), share("c", 2, false)];
        let text = report("job", &samples, &hosts, &["c".into()]);
        assert_eq!(
            text,
            "job\n  \
             rank 0     a        4.2 s  computes: in no call that has waited for long\n  \
             rank 1     long     5.2 s  is at the barrier, waits for 0 (it is stopped)\n  \
             host c does not answer\n\
             waited for: rank 0"
        );
    }

    #[test]
    fn a_hostile_name_obeys_nobody_and_has_a_bound() {
        let name = format!("\x1b[2J\u{202e}\n\"{}", "x".repeat(500));
        let text =
            report("t", &[sample(0, RankState::Sleeps, &[(Call::Retrieve, &name, &[], true)])], &[], &[]);
        assert!(!text.contains('\x1b') && !text.contains('\u{202e}') && text.lines().count() == 3, "{text}");
        assert!(
            text.contains("\\u{1b}[2J\\u{202e}\\n\\\"xxx") && text.lines().all(|line| line.len() < 200),
            "{text}"
        );
    }
}
