//! The machine: kernel, processors, memory.

use std::path::PathBuf;

use super::{
    finding::Finding,
    tree::{Tree, bytes},
};

/// First kernel with sealed memory (`F_SEAL_FUTURE_WRITE`), without which there is no shared memory.
const SEALS: (u32, u32) = (5, 1);
/// First kernel that sleeps on several words (`futex_waitv`), by which a rank waits on several NICs.
const SLEEPS_ON_SEVERAL: (u32, u32) = (5, 16);

pub(super) fn findings(tree: &Tree, cgroup: Option<&Result<PathBuf, String>>) -> Vec<Finding> {
    let mut findings = vec![kernel(tree), processors(tree), memory(tree)];
    findings.extend(cgroup.map(end_of_a_job));
    findings
}

/// Returns the running kernel's version.
pub(super) fn version(tree: &Tree) -> Option<(u32, u32)> {
    let release = tree.read("proc/sys/kernel/osrelease")?;
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn kernel(tree: &Tree) -> Finding {
    let release = tree.read("proc/sys/kernel/osrelease");
    let (Some(version), Some(release)) = (version(tree), release) else {
        return Finding::problem("kernel", "unknown: /proc is not mounted", "mount /proc: ranks need it");
    };
    let state = format!("Linux {release}");
    if version < SEALS {
        let why = format!("{state}: shared memory needs sealed memory, which Linux has from 5.1 on");
        return Finding::problem(
            "kernel",
            why,
            "a newer kernel; meanwhile --transport tcp within a host, too",
        );
    }
    if version < SLEEPS_ON_SEVERAL {
        let why = "before 5.16 a rank that waits on several NICs looks again and again instead of sleeping";
        return Finding::note("kernel", format!("{state}: {why}"));
    }
    Finding::ok("kernel", state)
}

fn processors(tree: &Tree) -> Finding {
    let list = tree.field("proc/self/status", "Cpus_allowed_list");
    let usable = list.as_deref().and_then(count);
    let online = tree.read("sys/devices/system/cpu/online").as_deref().and_then(count);
    let (Some(usable), Some(list)) = (usable, list) else {
        return Finding::note("processors", "unknown: /proc/self/status does not say");
    };
    let of = match online {
        Some(online) if online != usable => {
            format!(" of {online}; the others are not ours to use (taskset, cpuset)")
        }
        _ => String::new(),
    };
    let state = format!("{usable} ({list}){of}");
    match quota(tree) {
        Some(quota) if quota < usable as f64 => {
            let advice = "have no more ranks on this host than that, or have the quota (cpu.max) raised: a rank that \
                          has used up its share stands still, and all who wait for it";
            Finding::note("processors", format!("{state}, but a quota of {quota:.1}")).advise(advice)
        }
        _ if online.is_some_and(|online| online != usable) => Finding::note("processors", state),
        _ => Finding::ok("processors", format!("{state}, no quota")),
    }
}

fn end_of_a_job(cgroup: &Result<PathBuf, String>) -> Finding {
    const SUBJECT: &str = "end of a job";
    match cgroup {
        Ok(parent) => {
            let parent = parent.display();
            Finding::ok(SUBJECT, format!("cgroup.kill in {parent}: everything that ranks started, at once"))
        }
        Err(why) => Finding::note(
            SUBJECT,
            format!("process by process: what forks faster than that can escape, because {why}"),
        ),
    }
}

/// Counts the items of a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.split(',').try_fold(0, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

/// Returns how many processors' time the control groups allow us, if they bound it.
fn quota(tree: &Tree) -> Option<f64> {
    let of_two = |quota: &str, period: &str| Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?);
    let second = groups(tree, "", "cpu.max").into_iter().filter_map(|text| {
        let (quota, period) = text.split_once(' ')?;
        of_two(quota, period)
    });
    let quotas = groups(tree, "cpu", "cpu.cfs_quota_us").into_iter();
    let first = quotas
        .zip(groups(tree, "cpu", "cpu.cfs_period_us"))
        .filter_map(|(quota, period)| of_two(&quota, &period));
    second.chain(first).filter(|quota| *quota > 0.0).min_by(f64::total_cmp)
}

/// Returns the text of `file` in our control group and in its ancestors. `controller` is one of version 1, or
/// empty for version 2.
pub(super) fn groups(tree: &Tree, controller: &str, file: &str) -> Vec<String> {
    let own = tree.read("proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then_some(path)
    });
    let mut found = Vec::new();
    let mut path = own.unwrap_or("/").trim_matches('/');
    let root = ["sys/fs/cgroup", controller].join("/");
    loop {
        found.extend(tree.read([root.trim_end_matches('/'), path, file].join("/").replace("//", "/")));
        if path.is_empty() {
            return found;
        }
        path = path.rsplit_once('/').map_or("", |(around, _)| around);
    }
}

fn memory(tree: &Tree) -> Finding {
    let size = |name| {
        let text = tree.field("proc/meminfo", name)?;
        Some(text.strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    let (Some(total), Some(free)) = (size("MemTotal"), size("MemAvailable")) else {
        return Finding::note("memory", "unknown: /proc/meminfo does not say");
    };
    let bounds =
        groups(tree, "", "memory.max").into_iter().chain(groups(tree, "memory", "memory.limit_in_bytes"));
    let bound = bounds.filter_map(|text| text.parse().ok()).min().filter(|bound| *bound < total);
    let state = format!("{}, of which {} are free", bytes(total), bytes(free));
    match bound {
        None => Finding::ok("memory", state),
        Some(bound) => {
            let advice = "messages count, too: DECK_ARENA bounds each rank's";
            Finding::note("memory", format!("{state}; the control group allows {}", bytes(bound)))
                .advise(advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tree::tests::MadeUp, *};
    use crate::doctor::Mark;

    const PLAIN: [(&str, &str); 4] = [
        ("proc/sys/kernel/osrelease", "6.8.0-31-generic\n"),
        ("proc/self/status", "Cpus_allowed_list:\t0-3\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"),
    ];

    fn with(others: &[(&str, &str)]) -> Vec<(Mark, String)> {
        let made_up = MadeUp::of(&[&PLAIN[..], others].concat());
        findings(&made_up.0, None).into_iter().map(|finding| (finding.mark, finding.state)).collect()
    }

    #[test]
    fn a_good_host_is_ok() {
        let state = ["Linux 6.8.0-31-generic", "4 (0-3), no quota", "16 GiB, of which 8 GiB are free"];
        assert_eq!(with(&[]), state.map(|state| (Mark::Ok, state.to_owned())));
    }

    #[test]
    fn how_a_job_ends_is_told() {
        let made_up = MadeUp::of(&PLAIN);
        let told =
            |cgroup| findings(&made_up.0, Some(&cgroup)).pop().map(|last| (last.mark, last.state)).unwrap();
        let (mark, state) = told(Ok("/sys/fs/cgroup/x".into()));
        assert!(mark == Mark::Ok && state.starts_with("cgroup.kill in /sys/fs/cgroup/x: "), "{state}");
        let (mark, state) = told(Err("it is so".into()));
        assert!(mark == Mark::Note && state.ends_with(" can escape, because it is so"), "{state}");
    }

    #[test]
    fn old_kernels_are_told() {
        let kernel = |release| with(&[("proc/sys/kernel/osrelease", release)]).remove(0);
        assert_eq!(kernel("4.18.0-305.el8").0, Mark::Problem);
        assert!(matches!(kernel("5.4.0"), (Mark::Note, state) if state.contains("5.16")));
        assert_eq!(kernel("5.16").0, Mark::Ok);
        assert_eq!(kernel("unreadable").0, Mark::Problem);
    }

    #[test]
    fn quotas_of_both_kinds_of_groups_are_found_wherever_they_are() {
        let processors = |others: &[(&str, &str)]| with(others).remove(1);
        let group = ("proc/self/cgroup", "0::/system.slice/job\n");
        for folder in ["sys/fs/cgroup/system.slice/job", "sys/fs/cgroup/system.slice", "sys/fs/cgroup"] {
            let file = format!("{folder}/cpu.max");
            let (mark, state) = processors(&[group, (&file, "150000 100000\n")]);
            assert_eq!((mark, &state[..]), (Mark::Note, "4 (0-3), but a quota of 1.5"), "{folder}");
            assert_eq!(processors(&[group, (&file, "max 100000\n")]).0, Mark::Ok);
            assert_eq!(processors(&[group, (&file, "800000 100000\n")]).0, Mark::Ok, "more than there are");
        }
        let first = [
            ("proc/self/cgroup", "2:cpu,cpuacct:/a\n1:memory:/\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200000"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000"),
        ];
        assert_eq!(processors(&first).1, "4 (0-3), but a quota of 2.0");
    }

    #[test]
    fn processors_that_are_not_ours_are_told() {
        let (mark, state) = with(&[("sys/devices/system/cpu/online", "0-7,16-23")]).remove(1);
        assert!(mark == Mark::Note && state.starts_with("4 (0-3) of 16; the others"), "{state}");
        assert_eq!((count("0"), count("3-1"), count("x")), (Some(1), None, None));
    }

    #[test]
    fn a_bound_on_memory_is_told() {
        let (mark, state) = with(&[("sys/fs/cgroup/memory.max", "2147483648\n")]).remove(2);
        assert!(mark == Mark::Note && state.ends_with("the control group allows 2 GiB"), "{state}");
        assert_eq!(with(&[("sys/fs/cgroup/memory.max", "max\n")]).remove(2).0, Mark::Ok);
    }
}
