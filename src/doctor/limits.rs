//! What the system allows a process: descriptors and locked memory.

use super::{Finding, Tree, rdma, tree::bytes};
use crate::init::{DESCRIPTORS_PER_PEER, OTHER_DESCRIPTORS};

/// Up to here a job wants no more than it has everywhere.
const USUAL_RANKS: u64 = 128;
/// What RDMA needs for the rings and arenas of a small job; real ones need as much as they send.
const LITTLE_LOCKED: u64 = 1 << 30;

/// A limit; `None`: there is none.
struct Limit {
    soft: Option<u64>,
    hard: Option<u64>,
}

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    vec![descriptors(tree), locked_memory(tree)]
}

fn limit(tree: &Tree, name: &str) -> Option<Limit> {
    let text = tree.read("proc/self/limits")?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut values = rest.split_whitespace().map(|word| match word {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    });
    Some(Limit { soft: values.next()??, hard: values.next()?? })
}

fn descriptors(tree: &Tree) -> Finding {
    let Some(Limit { soft, hard }) = limit(tree, "Max open files") else {
        return Finding::note("descriptors", "unknown: /proc/self/limits does not say");
    };
    let shown = |limit: Option<u64>| limit.map_or("no limit".to_owned(), |limit| limit.to_string());
    let seen = format!("soft {}, hard {}", shown(soft), shown(hard));
    let Some(hard) = hard else { return Finding::ok("descriptors", seen) };
    // Ranks raise their soft limit themselves.
    let ranks = hard.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_PER_PEER;
    let seen = format!("{seen}: enough for a rank that meets {ranks} others");
    let advice = "raise the hard limit: `nofile` in /etc/security/limits.conf, LimitNOFILE= of the service that starts jobs";
    match ranks {
        0 | 1 => Finding::problem("descriptors", seen, advice),
        few if few < USUAL_RANKS => Finding::note("descriptors", seen).advise(advice),
        _ => Finding::ok("descriptors", seen),
    }
}

fn locked_memory(tree: &Tree) -> Finding {
    let subject = "locked memory";
    let Some(Limit { soft, hard }) = limit(tree, "Max locked memory") else {
        return Finding::note(subject, "unknown: /proc/self/limits does not say");
    };
    let Some(soft) = soft else { return Finding::ok(subject, "no limit") };
    let hard = hard.map_or("no limit".to_owned(), bytes);
    let seen = format!("soft {}, hard {hard}", bytes(soft));
    if !rdma::has_devices(tree) {
        return Finding::ok(
            subject,
            format!("{seen}; only RDMA locks memory, and there is no device for it"),
        );
    }
    if soft < LITTLE_LOCKED {
        let advice = "`ulimit -l unlimited` as far as the hard limit allows; for good, `memlock unlimited` in \
                      /etc/security/limits.conf, and LimitMEMLOCK=infinity of the service that starts jobs (sshd, slurmd)";
        return Finding::problem(subject, format!("{seen}: RDMA pins all memory that it sends from"), advice);
    }
    Finding::ok(subject, seen)
}

#[cfg(test)]
mod tests {
    use super::{super::tree::tests::MadeUp, *};
    use crate::doctor::Mark;

    fn with(files: &str, locked: &str, device: bool) -> Vec<Finding> {
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max locked memory         {locked} bytes\n\
             Max open files            {files} files\n"
        );
        let device = [("sys/class/infiniband/mlx5_0/node_type", "1: CA")].repeat(usize::from(device));
        findings(&MadeUp::of(&[&[("proc/self/limits", &text[..])][..], &device].concat()).0)
    }

    fn marks(found: &[Finding]) -> Vec<Mark> {
        found.iter().map(|finding| finding.mark).collect()
    }

    #[test]
    fn usual_limits_are_ok() {
        let found = with("1024 1048576", "8388608 8388608", false);
        assert_eq!(marks(&found), [Mark::Ok, Mark::Ok]);
        assert_eq!(found[0].seen, "soft 1024, hard 1048576: enough for a rank that meets 174720 others");
        assert!(found[1].seen.starts_with("soft 8 MiB, hard 8 MiB; only RDMA"), "{found:?}");
        assert_eq!(marks(&with("unlimited unlimited", "unlimited unlimited", true)), [Mark::Ok, Mark::Ok]);
    }

    #[test]
    fn narrow_limits_say_what_to_do() {
        assert_eq!(marks(&with("256 256", "65536 65536", true)), [Mark::Problem, Mark::Problem]);
        assert_eq!(marks(&with("512 512", "65536 unlimited", true)), [Mark::Note, Mark::Problem]);
        let found = with("256 256", "65536 unlimited", true);
        assert!(found.iter().all(|finding| finding.remedy.is_some()), "{found:?}");
        assert!(found[1].seen.starts_with("soft 64 KiB, hard no limit: RDMA pins"), "{found:?}");
    }
}
