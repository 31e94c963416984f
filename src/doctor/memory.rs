//! Findings on memory for messages, for the transport over shared memory.

use std::path::Path;

use super::{
    finding::Finding,
    tree::{Tree, bytes, chosen},
};

pub(crate) fn findings(tree: &Tree) -> Vec<Finding> {
    let mut findings = vec![memfd(tree), huge_pages(tree)];
    findings.extend(named(tree));
    findings
}

fn memfd(tree: &Tree) -> Finding {
    let subject = "memfd";
    // A rank makes its memory in the same way.
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

/// Reports huge pages. Jobs run with and without them: in measurements with two ranks, copies of 1 MiB and more
/// gained nothing certain.
fn huge_pages(tree: &Tree) -> Finding {
    let subject = "huge pages";
    let Some(setting) = tree.read("sys/kernel/mm/transparent_hugepage/shmem_enabled") else {
        return Finding::ok(subject, "the kernel has none for shared memory; not needed");
    };
    let setting = chosen(&setting);
    let used =
        if ["always", "within_size", "force"].contains(&setting) { "used" } else { "not used; not needed" };
    Finding::ok(subject, format!("{used} (shmem_enabled: {setting})"))
}

/// Reports `/dev/shm`: users look for it, because other libraries need it.
fn named(tree: &Tree) -> Option<Finding> {
    let path = Path::new("dev/shm");
    let state = match udeck_sys::file_system_size(&tree.path(path)) {
        Ok((size, free)) => format!("{}, of which {} are free", bytes(size), bytes(free)),
        Err(_) if !tree.has(path) => "not mounted".to_owned(),
        Err(_) => return None,
    };
    Some(Finding::ok("/dev/shm", format!("{state}; not needed: memfd memory does not lie there")))
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
    fn huge_pages_are_as_the_system_has_them() {
        let state = |shmem| with("6.8", shmem)[1].state.clone();
        assert_eq!(
            state(Some("always [within_size] advise never deny force")),
            "used (shmem_enabled: within_size)"
        );
        let not = "not used; not needed (shmem_enabled: advise)";
        assert_eq!(state(Some("always within_size [advise] never deny force")), not);
        assert!(state(None).contains("has none"));
    }

    #[test]
    fn shm_is_not_needed() {
        let found = with("6.8", None);
        assert_eq!((found[2].mark, &found[2].state[..11]), (Mark::Ok, "not mounted"));
    }
}
