//! The memory that messages lie in, for shared memory.

use std::path::Path;

use super::{
    Finding, Tree, host,
    tree::{bytes, chosen},
};

/// `MADV_COLLAPSE`, by which huge pages are made of memory that has its pages already.
const COLLAPSE: (u32, u32) = (6, 1);

pub(crate) fn findings(tree: &Tree) -> Vec<Finding> {
    let mut findings = vec![memfd(tree), huge_pages(tree)];
    findings.extend(named(tree));
    findings
}

fn memfd(tree: &Tree) -> Finding {
    let subject = "memfd";
    // This is what a rank does.
    match udeck_sys::segment::create(
        "deck-doctor",
        udeck_sys::segment::CHUNK,
        udeck_sys::segment::PeerAccess::Read,
    ) {
        Ok(_) => Finding::ok(
            subject,
            "sealed shared memory can be made; it has no name, and a killed job leaves none",
        ),
        Err(error) => {
            let advice = match tree.number("proc/sys/vm/memfd_noexec") {
                Some(2) => "sysctl vm.memfd_noexec=1; meanwhile --transport tcp within a host, too",
                _ => {
                    "whatever forbids it (seccomp, a container's profile) must allow memfd_create and F_ADD_SEALS; \
                     meanwhile --transport tcp within a host, too"
                }
            };
            Finding::problem(subject, format!("sealed shared memory cannot be made: {error}"), advice)
        }
    }
}

fn huge_pages(tree: &Tree) -> Finding {
    let subject = "huge pages";
    let Some(setting) = tree.read("sys/kernel/mm/transparent_hugepage/shmem_enabled") else {
        return Finding::note(
            subject,
            "the kernel has none for shared memory: the first use of memory costs more",
        );
    };
    let setting = chosen(&setting);
    if setting == "deny" {
        let advice = "echo never >/sys/kernel/mm/transparent_hugepage/shmem_enabled: then they are made where asked for";
        return Finding::note(subject, "denied to shared memory: the first use of memory costs more")
            .advise(advice);
    }
    if host::version(tree).is_some_and(|version| version < COLLAPSE) && setting == "never" {
        return Finding::note(
            subject,
            "made on demand from Linux 6.1 on; before that, the first use of memory costs more",
        );
    }
    Finding::ok(subject, format!("made on demand, 2 MiB at a time (shmem_enabled: {setting})"))
}

/// People look for it, because other libraries need it.
fn named(tree: &Tree) -> Option<Finding> {
    let path = Path::new("dev/shm");
    let seen = match udeck_sys::file_system_size(&tree.path(path)) {
        Ok((size, free)) => format!("{}, of which {} are free", bytes(size), bytes(free)),
        Err(_) if !tree.has(path) => "not mounted".to_owned(),
        Err(_) => return None,
    };
    Some(Finding::ok("/dev/shm", format!("{seen}; not needed: memfd memory does not lie there")))
}

#[cfg(test)]
mod tests {
    use super::{super::tree::tests::MadeUp, *};
    use crate::doctor::Mark;

    fn with(release: &str, shmem: Option<&str>) -> Vec<Finding> {
        let mut files = vec![("proc/sys/kernel/osrelease", release)];
        files.extend(shmem.map(|text| ("sys/kernel/mm/transparent_hugepage/shmem_enabled", text)));
        findings(&MadeUp::of(&files).0)
    }

    #[test]
    fn huge_pages_need_no_setting_where_they_can_be_asked_for() {
        let mark = |release, shmem| with(release, shmem)[1].mark;
        assert_eq!(mark("6.1.0", Some("always within_size advise [never] deny force")), Mark::Ok);
        assert_eq!(mark("6.1.0", Some("always within_size advise never [deny] force")), Mark::Note);
        assert_eq!(mark("5.15.0", Some("always within_size advise [never] deny force")), Mark::Note);
        assert_eq!(mark("5.15.0", Some("[always] within_size advise never deny force")), Mark::Ok);
        assert_eq!(mark("6.1.0", None), Mark::Note);
    }

    #[test]
    fn shm_is_not_needed() {
        let found = with("6.8", None);
        assert_eq!((found[2].mark, &found[2].seen[..11]), (Mark::Ok, "not mounted"));
    }
}
