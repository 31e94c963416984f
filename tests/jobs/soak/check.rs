//! The verdict on a run: the requirements that hold whatever went wrong.

use crate::Ended;

use crate::soak::facts::{COMPLETE, Fact};
use crate::soak::folder::Folder;
use crate::soak::plan::{Fault, Place, Plan};

/// Problems that no fault explains; empty: the run is as it should be.
#[must_use]
pub fn problems(plan: &Plan, folder: &Folder, ended: &Ended) -> Vec<String> {
    let mut found = process(plan, ended);
    found.extend(folder.reports());
    let facts: Vec<Vec<Fact>> = (0..plan.ranks).map(|rank| folder.facts(rank)).collect();
    for (rank, facts) in facts.iter().enumerate() {
        found.extend(facts.iter().filter_map(|fact| match fact {
            Fact::Wrong(what) => Some(format!("rank {rank}: {what}")),
            Fact::Late(what) => Some(format!("rank {rank} is late: {what}")),
            Fact::Leak(what) => Some(format!("rank {rank} still holds {what}")),
            _ => None,
        }));
        if !plan.is_doomed(rank) && !facts.contains(&Fact::Done) {
            found.push(format!("rank {rank} did not come to its end"));
        }
    }
    let all: Vec<&Fact> = facts.iter().flatten().collect();
    found.extend((0..plan.streams.len()).filter_map(|stream| stream_problem(plan, stream, &all)));
    found
}

/// Checks the job as a whole.
fn process(plan: &Plan, ended: &Ended) -> Vec<String> {
    let mut found = Vec::new();
    if ended.status.is_none() {
        found.push("the job hangs".into());
    } else {
        let code = ended.code();
        let may_fail = !plan.victims().is_empty() && plan.place != Place::OneProcess;
        if code != 0 && !may_fail {
            found.push(format!("the job ended with {code}"));
        }
    }
    for text in [&ended.stdout, &ended.stderr] {
        found.extend(text.lines().filter(|line| is_fault_of_ours(plan, line)).map(str::to_owned));
    }
    found.extend(ended.left_behind.iter().map(|what| format!("left behind: {what}")));
    found
}

/// Whether the line reports a panic, or a sanitizer that has found something, or that could not say what.
fn is_fault_of_ours(plan: &Plan, line: &str) -> bool {
    // The standard library ends a process if a starting thread finds no memory for its signal stack.
    let is_of_famine = line.contains("/stack_overflow.rs:")
        && plan.faults.iter().any(|fault| matches!(fault, Fault::Famine { .. }));
    (line.contains("panicked at") && !is_of_famine) || line.contains("Sanitizer")
}

fn stream_problem(plan: &Plan, stream: usize, facts: &[&Fact]) -> Option<String> {
    let plan_of = &plan.streams[stream];
    let (from, to) = (plan_of.from, plan.mailboxes[plan_of.to].owner);
    let sent = facts.iter().find_map(|fact| match fact {
        Fact::Sent { stream: of, accepted, tried, end } if *of == stream => Some((*accepted, *tried, end)),
        _ => None,
    });
    let got = facts.iter().find_map(|fact| match fact {
        Fact::Got { stream: of, messages, end } if *of == stream => Some((*messages, end)),
        _ => None,
    });
    if plan.is_sound(stream) {
        let is_complete =
            sent.is_some_and(|(.., end)| end == COMPLETE) && got.is_some_and(|(_, end)| end == COMPLETE);
        return (!is_complete)
            .then(|| format!("stream {stream} from rank {from} to rank {to}: {sent:?}, {got:?}"));
    }
    let ((accepted, tried, end), (messages, _)) = (sent?, got?);
    if messages > tried {
        return Some(format!("stream {stream}: {messages} messages came of {tried}"));
    }
    // If both ranks live, either the poster was told of the loss, or nothing was lost.
    let both_live = !plan.is_doomed(from) && !plan.is_doomed(to);
    (both_live && messages < accepted && end == COMPLETE)
        .then(|| format!("stream {stream}: {messages} messages came of {accepted} that were accepted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(accepted: u32, tried: u32, end: &str) -> Fact {
        Fact::Sent { stream: 0, accepted, tried, end: end.into() }
    }

    fn got(messages: u32, end: &str) -> Fact {
        Fact::Got { stream: 0, messages, end: end.into() }
    }

    fn problem(plan: &Plan, facts: &[Fact]) -> bool {
        stream_problem(plan, 0, &facts.iter().collect::<Vec<_>>()).is_some()
    }

    #[test]
    fn what_a_sanitizer_found_is_a_fault_of_ours() {
        let path = std::env::temp_dir().join(format!("soak-reports-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        let folder = Folder::at(&path);
        std::fs::write(path.join("rank-0.log"), "AddressSanitizer").expect("a file");
        assert!(folder.reports().is_empty());
        let report =
            "=====\n==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x1\nREAD of size 8\n";
        std::fs::write(path.join("sanitizer.7"), report).expect("a file");
        let [found] = &folder.reports()[..] else { panic!("one report") };
        assert!(found.starts_with("sanitizer.7: ") && found.contains("heap-use-after-free"), "{found}");
        std::fs::remove_dir_all(&path).expect("the folder");
        let plan = plan(true);
        assert!(is_fault_of_ours(&plan, "[1] ==7==ERROR: AddressSanitizer: SEGV on unknown address"));
        assert!(is_fault_of_ours(&plan, "[1] thread 'a' panicked at /std/src/stack_overflow.rs:236:13:"));
        assert!(!is_fault_of_ours(&plan, "rank 1 is lost: it was killed"));
    }

    fn plan(is_sound: bool) -> Plan {
        (0..).map(Plan::new).find(|plan| plan.is_sound(0) == is_sound).expect("one of them")
    }

    #[test]
    fn a_stream_that_no_fault_touches_has_to_be_complete_at_both_ends() {
        let plan = plan(true);
        let all = plan.streams[0].count;
        assert!(!problem(&plan, &[sent(all, all, COMPLETE), got(all, COMPLETE)]));
        assert!(problem(&plan, &[sent(all, all, COMPLETE), got(all - 1, "nothing came")]));
        assert!(problem(&plan, &[sent(all - 1, all, "rank 1 is lost"), got(all - 1, COMPLETE)]));
        assert!(problem(&plan, &[sent(all, all, COMPLETE)]));
    }

    #[test]
    fn a_fault_explains_what_is_missing_and_nothing_invented() {
        let plan = plan(false);
        assert!(!problem(&plan, &[sent(3, 4, "rank 1 is lost"), got(2, "its poster is dead")]));
        assert!(!problem(&plan, &[got(2, "its poster is dead")]));
        assert!(problem(&plan, &[sent(3, 4, "rank 1 is lost"), got(5, "its poster is dead")]));
    }
}
