//! The limits of a process: descriptors, threads and memory.

use super::{
    finding::Finding,
    host::groups,
    rdma,
    tree::{Tree, bytes},
};
use crate::init::{DESCRIPTORS_PER_PEER, OTHER_DESCRIPTORS};

/// Number of ranks up to which the usual limits of all systems are enough.
const USUAL_RANKS: u64 = 96;
/// Locked memory that RDMA needs for the rings and arenas of a small job, in bytes; real jobs need as much as
/// they send.
const LITTLE_LOCKED: u64 = 1 << 30;

/// Threads of a rank, its own included: those of the library (ARCHITECTURE.md lists them), over several NICs.
const THREADS_PER_RANK: u64 = 8;
/// A number of ranks on one host that is not unusual.
const RANKS_HERE: u64 = 64;
/// `CAP_IPC_LOCK` and `CAP_SYS_RESOURCE` of `linux/capability.h`: a process with them is not bound by limits on
/// locked memory, and on processes.
const IPC_LOCK: u32 = 14;
const SYS_RESOURCE: u32 = 24;

/// A limit that bounds a process's memory.
struct Size {
    subject: &'static str,
    /// The limit's name in `/proc/self/limits`.
    name: &'static str,
    /// The shell's option, and the name in limits.conf.
    option: [&'static str; 2],
    /// The least that a rank can work with, in bytes.
    least: u64,
    /// From here on, message memory is as large as without a limit.
    usual: u64,
    counts: &'static str,
}

const SIZES: [Size; 3] = [
    Size {
        subject: "file size",
        name: "Max file size",
        option: ["-f", "fsize"],
        least: 4 << 20,
        usual: 4 << 30,
        counts: "shared memory counts as a file",
    },
    Size {
        subject: "address space",
        name: "Max address space",
        option: ["-v", "as"],
        least: 256 << 20,
        usual: 64 << 30,
        counts: "a rank maps its own message memory and that of each rank of its host that it meets",
    },
    Size {
        subject: "private memory",
        name: "Max data size",
        option: ["-d", "data"],
        least: 64 << 20,
        usual: 1 << 30,
        counts: "the library's threads have their stacks in it",
    },
];

impl Size {
    fn finding(&self, tree: &Tree) -> Finding {
        let Some(Limit { soft, .. }) = limit(tree, self.name) else {
            return Finding::note(self.subject, "unknown: /proc/self/limits does not say");
        };
        let Some(soft) = soft else { return Finding::ok(self.subject, "no limit") };
        let state = format!("{}: {}", bytes(soft), self.counts);
        let [option, name] = self.option;
        let advice = format!(
            "`ulimit {option} unlimited` as far as the hard limit allows; for good, `{name} unlimited` in \
             /etc/security/limits.conf, or more of what the batch system limits (h_fsize, h_vmem, h_data)"
        );
        match soft {
            few if few < self.least => Finding::problem(self.subject, state, advice),
            some if some < self.usual => {
                Finding::note(self.subject, format!("{state}; DECK_ARENA is smaller by default"))
                    .advise(advice)
            }
            _ => Finding::ok(self.subject, state),
        }
    }
}

/// A limit; `None` means unlimited.
struct Limit {
    soft: Option<u64>,
    hard: Option<u64>,
}

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let mut findings = vec![descriptors(tree), threads(tree), locked_memory(tree)];
    findings.extend(SIZES.iter().map(|size| size.finding(tree)));
    findings
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
    let state = format!("soft {}, hard {}", shown(soft), shown(hard));
    let Some(hard) = hard else { return Finding::ok("descriptors", state) };
    // Ranks raise their soft limit themselves.
    let ranks = hard.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_PER_PEER;
    let state = format!("{state}: enough for a rank that meets {ranks} others");
    let advice = "raise the hard limit: `nofile` in /etc/security/limits.conf, LimitNOFILE= of the service that starts jobs";
    match ranks {
        0 | 1 => Finding::problem("descriptors", state, advice),
        few if few < USUAL_RANKS => Finding::note("descriptors", state).advise(advice),
        _ => Finding::ok("descriptors", state),
    }
}

/// Tells whether this process has a capability, not only within a user namespace of its own.
fn has(tree: &Tree, capability: u32) -> bool {
    let own = tree.field("proc/self/status", "CapEff");
    let own = own.and_then(|set| u64::from_str_radix(&set, 16).ok()).unwrap_or(0);
    let map = tree.read("proc/self/uid_map");
    let is_whole = map.is_some_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    is_whole && own >> capability & 1 == 1
}

fn threads(tree: &Tree) -> Finding {
    let of_user = limit(tree, "Max processes").and_then(|limit| limit.soft);
    let of_user = of_user.filter(|_| !has(tree, SYS_RESOURCE)).map(|most| (most, "the user (nproc)"));
    let of_group = groups(tree, "", "pids.max").into_iter().chain(groups(tree, "pids", "pids.max"));
    let of_group = of_group.filter_map(|most| Some((most.parse().ok()?, "the control group (pids.max)")));
    let of_all =
        tree.number("proc/sys/kernel/threads-max").map(|most| (most, "this host (kernel.threads-max)"));
    let Some((most, whose)) = of_group.chain(of_user).chain(of_all).min() else {
        return Finding::note("threads", "unknown: /proc does not say");
    };
    let ranks = most / THREADS_PER_RANK;
    let state =
        format!("{most} for {whose}: enough for {ranks} ranks on this host, if nobody else needs them");
    let advice = "raise it: `nproc` in /etc/security/limits.conf, TasksMax= of the service that starts jobs";
    match ranks {
        0 | 1 => Finding::problem("threads", state, advice),
        few if few < RANKS_HERE => Finding::note("threads", state).advise(advice),
        _ => Finding::ok("threads", state),
    }
}

fn locked_memory(tree: &Tree) -> Finding {
    let subject = "locked memory";
    if has(tree, IPC_LOCK) {
        return Finding::ok(subject, "no limit for this user (CAP_IPC_LOCK)");
    }
    let Some(Limit { soft, hard }) = limit(tree, "Max locked memory") else {
        return Finding::note(subject, "unknown: /proc/self/limits does not say");
    };
    let Some(soft) = soft else { return Finding::ok(subject, "no limit") };
    let hard = hard.map_or("no limit".to_owned(), bytes);
    let state = format!("soft {}, hard {hard}", bytes(soft));
    if !rdma::has_devices(tree) {
        return Finding::ok(
            subject,
            format!("{state}; only RDMA locks memory, and there is no device for it"),
        );
    }
    if soft < LITTLE_LOCKED {
        let advice = "`ulimit -l unlimited` as far as the hard limit allows; for good, `memlock unlimited` in \
                      /etc/security/limits.conf, and LimitMEMLOCK=infinity of the service that starts jobs (sshd, slurmd)";
        return Finding::problem(
            subject,
            format!("{state}: RDMA pins all memory that it sends from"),
            advice,
        );
    }
    Finding::ok(subject, state)
}

#[cfg(test)]
mod tests {
    use super::{super::tree::tests::MadeUp, *};
    use crate::doctor::Mark;

    fn with(files: &str, locked: &str, device: bool) -> Vec<Finding> {
        with_more(files, locked, device, &[])
    }

    fn with_more(files: &str, locked: &str, device: bool, others: &[(&str, &str)]) -> Vec<Finding> {
        let mut found = with_all(files, locked, device, ["unlimited"; 3], others);
        let sizes = found.split_off(3);
        assert!(sizes.iter().all(|size| size.mark == Mark::Ok && size.state == "no limit"), "{sizes:?}");
        found
    }

    fn with_all(
        files: &str,
        locked: &str,
        device: bool,
        [file, space, data]: [&str; 3],
        others: &[(&str, &str)],
    ) -> Vec<Finding> {
        let sizes = format!(
            "Max file size             {file} unlimited bytes\n\
             Max address space         {space} unlimited bytes\n\
             Max data size             {data} unlimited bytes\n"
        );
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max locked memory         {locked} bytes\n\
             Max processes             2879                 2879                 processes\n\
             Max open files            {files} files\n\
             {sizes}"
        );
        let device = [("sys/class/infiniband/mlx5_0/node_type", "1: CA")].repeat(usize::from(device));
        findings(&MadeUp::of(&[&[("proc/self/limits", &text[..])][..], &device, others].concat()).0)
    }

    fn marks(found: &[Finding]) -> Vec<Mark> {
        found.iter().map(|finding| finding.mark).collect()
    }

    #[test]
    fn usual_limits_are_ok() {
        let found = with("1024 1048576", "8388608 8388608", false);
        assert_eq!(marks(&found), [Mark::Ok; 3]);
        assert_eq!(found[0].state, "soft 1024, hard 1048576: enough for a rank that meets 104832 others");
        assert_eq!(
            found[1].state,
            "2879 for the user (nproc): enough for 359 ranks on this host, if nobody else needs them"
        );
        assert!(found[2].state.starts_with("soft 8 MiB, hard 8 MiB; only RDMA"), "{found:?}");
        assert_eq!(marks(&with("unlimited unlimited", "unlimited unlimited", true)), [Mark::Ok; 3]);
    }

    #[test]
    fn narrow_limits_say_what_to_do() {
        assert_eq!(marks(&with("256 256", "65536 65536", true)), [Mark::Problem, Mark::Ok, Mark::Problem]);
        assert_eq!(marks(&with("512 512", "65536 unlimited", true)), [Mark::Note, Mark::Ok, Mark::Problem]);
        let found = with("256 256", "65536 unlimited", true);
        assert!(found[0].remedy.is_some() && found[2].remedy.is_some(), "{found:?}");
        assert!(found[2].state.starts_with("soft 64 KiB, hard no limit: RDMA pins"), "{found:?}");
    }

    #[test]
    fn limits_on_memory_say_what_counts_and_what_to_do() {
        let sizes = |sizes| with_all("1024 1048576", "8388608 8388608", false, sizes, &[]).split_off(3);
        let found = sizes(["102400", "4096000000", "1073741824"]);
        assert_eq!(marks(&found), [Mark::Problem, Mark::Note, Mark::Ok]);
        assert_eq!(found[0].state, "100 KiB: shared memory counts as a file");
        assert!(
            found[0].remedy.as_ref().is_some_and(|remedy| remedy.contains("ulimit -f unlimited")),
            "{found:?}"
        );
        assert!(found[1].remedy.as_ref().is_some_and(|remedy| remedy.contains("h_vmem")), "{found:?}");
        assert_eq!(
            marks(&sizes(["4294967296", "200000000", "100000000"])),
            [Mark::Ok, Mark::Problem, Mark::Note]
        );
    }

    #[test]
    fn few_threads_are_told_whoever_allows_no_more() {
        let threads = |others: &[(&str, &str)]| with_more("1024 1048576", "1 1", false, others).remove(1);
        let group = ("proc/self/cgroup", "0::/job\n");
        let found = threads(&[group, ("sys/fs/cgroup/job/pids.max", "100\n")]);
        assert!(
            found.mark == Mark::Note && found.state.starts_with("100 for the control group"),
            "{found:?}"
        );
        let found = threads(&[
            group,
            ("sys/fs/cgroup/job/pids.max", "max\n"),
            ("proc/sys/kernel/threads-max", "9\n"),
        ]);
        assert!(found.mark == Mark::Problem && found.state.starts_with("9 for this host"), "{found:?}");
    }

    #[test]
    fn limits_do_not_bind_the_systems_own() {
        let root = |map| {
            let status = ("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
            with_more("1024 1048576", "65536 65536", true, &[status, ("proc/self/uid_map", map)])
        };
        let found = root("         0          0 4294967295\n");
        assert_eq!(found[2].state, "no limit for this user (CAP_IPC_LOCK)");
        assert_eq!((marks(&found), &found[1].state[..8]), (vec![Mark::Ok, Mark::Note, Mark::Ok], "unknown:"));
        // The capability holds in a user namespace only.
        assert_eq!(root("         0       1000          1\n")[2].mark, Mark::Problem);
    }
}
