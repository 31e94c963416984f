//! Allowed dependencies between this workspace's packages (arrows).
//!
//! Layers hold only while no package reaches around them, and a review easily overlooks a dependency, which is
//! one line in a manifest. The table is therefore an allow-list: a package or dependency that it does not name
//! is refused, a new package included.

use crate::workspace::{Package, Workspace};

/// One row: the packages in `folder` may depend on those in `may`; their tests also on those in `tests_may`.
struct Rule {
    folder: &'static str,
    may: &'static [&'static str],
    tests_may: &'static [&'static str],
}

/// Rules by folder below the root; `.` is the umbrella package, `x/*` every package right under `x`, `*` every
/// package.
const RULES: &[Rule] = &[
    Rule { folder: "crates/sys", may: &[], tests_may: &[] },
    Rule { folder: "crates/auth", may: &[], tests_may: &["tests/kit"] },
    Rule { folder: "crates/boot", may: &["crates/auth", "crates/sys"], tests_may: &["tests/kit"] },
    Rule {
        folder: "crates/via",
        may: &["crates/auth", "crates/boot", "crates/sys"],
        tests_may: &["tests/kit"],
    },
    // `qos` decides which connection sends next.
    Rule {
        folder: "crates/session",
        may: &["crates/via", "crates/sys", "crates/qos"],
        tests_may: &["tests/faults", "tests/kit"],
    },
    Rule { folder: "crates/trace", may: &["crates/sys"], tests_may: &[] },
    // `qos` decides who may send how much to a mailbox, and when. The tests need connections: they use a network in one
    // process.
    Rule {
        folder: "crates/deck",
        may: &["crates/via", "crates/boot", "crates/trace", "crates/qos"],
        tests_may: &["tests/kit", "transports/sim"],
    },
    Rule {
        folder: ".",
        may: &[
            "crates/deck",
            "crates/trace",
            "crates/via",
            "crates/boot",
            "crates/sys",
            "crates/qos",
            "transports/*",
        ],
        tests_may: &["tests/faults", "tests/kit", "tests/mock-verbs"],
    },
    Rule {
        folder: "transports/*",
        may: &["crates/session", "crates/via", "crates/sys"],
        tests_may: &["tests/conformance", "tests/faults", "tests/kit", "tests/mock-verbs"],
    },
    Rule { folder: "tests/faults", may: &["crates/via", "crates/sys"], tests_may: &[] },
    // The tests of any package above `sys` may use it. `sys`: free ports.
    Rule { folder: "tests/kit", may: &["crates/sys"], tests_may: &[] },
    // The stand-in is a library of its own, which the verbs transport loads in tests.
    Rule { folder: "tests/mock-verbs", may: &[], tests_may: &[] },
    // One-sided operations over the VIs of any transport; `sys`: copies of memory that others write. Its tests need a NIC.
    Rule { folder: "bindings/rdma", may: &["crates/via", "crates/sys"], tests_may: &["transports/sim"] },
    // The C binding covers the whole library.
    Rule {
        folder: "bindings/c",
        may: &[".", "bindings/rdma", "crates/via", "crates/boot", "crates/auth", "crates/sys"],
        tests_may: &[],
    },
    // uDAPL uses NICs and VIs of the umbrella, the names by which its end points find each other, and copies of memory that
    // others write.
    Rule {
        folder: "bindings/dat",
        may: &[".", "bindings/rdma", "crates/sys"],
        tests_may: &["tests/faults", "tests/kit"],
    },
    // The Python binding covers the whole library, except interfaces of other layers.
    Rule { folder: "bindings/python", may: &[".", "crates/sys"], tests_may: &[] },
    // Parts of command lines: nothing of messaging.
    Rule { folder: "crates/cli", may: &[], tests_may: &[] },
    // The state machines can be used by any package: nothing of messaging.
    Rule { folder: "crates/qos", may: &[], tests_may: &[] },
    // `deckrun --doctor` needs the umbrella: only the registry knows which transports a job would find. `trace`: deckrun merges
    // the trace of a job that did not finish, because no rank does.
    Rule {
        folder: "crates/launch",
        may: &[".", "crates/auth", "crates/boot", "crates/cli", "crates/sys", "crates/trace"],
        tests_may: &["tests/kit"],
    },
    Rule {
        folder: "bench-apps/deckperf",
        may: &[".", "crates/cli", "crates/launch", "crates/sys", "bindings/dat", "bench-apps/counts"],
        tests_may: &[],
    },
    // Each interface is counted at its own level: mailboxes, VIs, one transport, uDAPL. The counts of a wait need a feature of
    // `sys`.
    Rule {
        folder: "bench-apps/counts",
        may: &[".", "bindings/dat", "crates/sys", "crates/via", "tests/mock-verbs", "transports/verbs"],
        tests_may: &[],
    },
    // `boot` tells whether a launcher started the program, or it must start its own ranks. `dat` is one of its
    // links.
    Rule {
        folder: "bench-apps/hadb",
        may: &[".", "crates/cli", "crates/boot", "bindings/dat", "crates/launch"],
        tests_may: &[],
    },
    // The scenarios run the library itself over the simulated NICs, with names served in the process. `sys`: descriptors for
    // a thousand ranks.
    Rule {
        folder: "bench-apps/deckfabric",
        may: &[".", "crates/boot", "crates/cli", "crates/qos", "crates/sys", "transports/sim"],
        tests_may: &[],
    },
    // `deckqos admit` takes networks, and their admission, from the simulator's library.
    Rule {
        folder: "bench-apps/deckqos",
        may: &["bench-apps/deckfabric", "crates/cli", "crates/qos"],
        tests_may: &[],
    },
    Rule { folder: "bench-apps/nas-ft", may: &[".", "crates/cli"], tests_may: &[] },
    Rule {
        folder: "tests/conformance",
        may: &["crates/via", "tests/faults"],
        tests_may: &["transports/*", "tests/mock-verbs", "crates/boot", "bindings/dat", "crates/sys"],
    },
    Rule { folder: "benches", may: &[], tests_may: &[".", "crates/boot", "crates/sys"] },
    // Programs in other languages run over the libraries that users get.
    Rule { folder: "tests/bindings", may: &[], tests_may: &["tests/jobs", "tests/kit"] },
    Rule { folder: "tests/jobs", may: &["*"], tests_may: &["*"] },
    Rule { folder: "xtask", may: &[], tests_may: &[] },
];

/// Returns a sentence for each arrow that the table does not allow. It names the arrow, its manifest and the
/// rule.
pub fn violations(workspace: &Workspace) -> Vec<String> {
    let mut found = Vec::new();
    for package in &workspace.packages {
        let Some(rule) = RULES.iter().find(|rule| matches(rule.folder, &package.folder)) else {
            found.push(format!(
                "{}: package {} has no row in the table of arrows: add one in xtask/src/arrows.rs",
                package.manifest(),
                package.name
            ));
            continue;
        };
        found.extend(forbidden(package, rule, workspace));
    }
    found
}

/// Number of arrows that were checked.
pub fn count(workspace: &Workspace) -> usize {
    workspace.packages.iter().map(|package| package.uses.len()).sum()
}

fn forbidden(package: &Package, rule: &Rule, workspace: &Workspace) -> Vec<String> {
    let mut found = Vec::new();
    for arrow in &package.uses {
        let Some(target) = workspace.packages.iter().find(|other| other.name == arrow.name) else { continue };
        let allowed = |folders: &[&str]| folders.iter().any(|folder| matches(folder, &target.folder));
        // A package may name itself in its dev-dependencies, to turn a feature on for its tests.
        let itself = arrow.dev && target.name == package.name;
        if itself || allowed(rule.may) || (arrow.dev && allowed(rule.tests_may)) {
            continue;
        }
        let also = if arrow.dev { rule.tests_may } else { &[] };
        found.push(format!(
            "{}: {} -> {}{} is not allowed: {} may depend on {} (xtask/src/arrows.rs)",
            package.manifest(),
            package.name,
            target.name,
            if arrow.dev { " (dev)" } else { "" },
            rule.folder,
            named(rule.may.iter().chain(also)),
        ));
    }
    found
}

fn matches(pattern: &str, folder: &str) -> bool {
    match pattern.strip_suffix("/*") {
        Some(parent) => folder
            .strip_prefix(parent)
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|name| !name.contains('/')),
        None => pattern == "*" || pattern == folder,
    }
}

fn named<'a>(folders: impl Iterator<Item = &'a &'static str>) -> String {
    let names: Vec<_> = folders.map(|folder| if *folder == "." { "the umbrella" } else { folder }).collect();
    if names.is_empty() { "nothing of ours".into() } else { format!("{} only", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Use;
    use std::path::PathBuf;

    /// Makes a workspace from `(name, folder, uses)`; a use that starts with `dev:` is a dev-dependency.
    fn workspace(packages: &[(&str, &str, &[&str])]) -> Workspace {
        let packages = packages
            .iter()
            .map(|(name, folder, uses)| Package {
                name: (*name).to_owned(),
                folder: (*folder).to_owned(),
                roots: Vec::new(),
                tests: Vec::new(),
                tested_bins: Vec::new(),
                uses: uses
                    .iter()
                    .map(|used| match used.strip_prefix("dev:") {
                        Some(name) => Use { name: name.to_owned(), dev: true },
                        None => Use { name: (*used).to_owned(), dev: false },
                    })
                    .collect(),
            })
            .collect();
        Workspace { root: PathBuf::from("/w"), target: PathBuf::from("/w/target"), packages }
    }

    #[test]
    fn the_drawn_arrows_are_allowed() {
        let house = workspace(&[
            ("udeck-sys", "crates/sys", &[]),
            ("udeck-boot", "crates/boot", &["udeck-sys"]),
            ("udeck-via", "crates/via", &["udeck-boot", "udeck-sys"]),
            ("udeck-deck", "crates/deck", &["udeck-via", "udeck-boot"]),
            ("udeck-shm", "transports/shm", &["udeck-via", "udeck-sys", "dev:udeck-conformance"]),
            ("udeck-session", "crates/session", &["udeck-via", "udeck-sys"]),
            ("udeck-tcp", "transports/tcp", &["udeck-session", "udeck-via", "udeck-sys"]),
            ("udeck", ".", &["udeck-deck", "udeck-via", "udeck-boot", "udeck-sys", "udeck-shm", "dev:udeck"]),
            ("deckrun", "crates/launch", &["udeck-boot", "udeck-sys"]),
            ("deckperf", "bench-apps/deckperf", &["udeck", "deckrun"]),
            ("udeck-conformance", "tests/conformance", &["udeck-via", "dev:udeck-shm"]),
            ("udeck-jobs", "tests/jobs", &["udeck", "udeck-sys", "dev:deckrun"]),
        ]);
        assert_eq!(violations(&house), Vec::<String>::new());
        assert_eq!(count(&house), 28);
    }

    #[test]
    fn an_arrow_against_the_layers_names_itself_its_manifest_and_the_rule() {
        let house =
            workspace(&[("udeck-via", "crates/via", &["udeck-shm"]), ("udeck-shm", "transports/shm", &[])]);
        let [problem] = &violations(&house)[..] else { panic!("one violation") };
        assert_eq!(
            problem,
            "crates/via/Cargo.toml: udeck-via -> udeck-shm is not allowed: \
             crates/via may depend on crates/auth, crates/boot, crates/sys only (xtask/src/arrows.rs)"
        );
    }

    #[test]
    fn a_transport_sees_neither_another_transport_nor_the_layers_above() {
        for forbidden in ["udeck-tcp", "udeck-deck", "udeck"] {
            let house = workspace(&[
                ("udeck-shm", "transports/shm", &[forbidden]),
                ("udeck-tcp", "transports/tcp", &[]),
                ("udeck-deck", "crates/deck", &[]),
                ("udeck", ".", &[]),
            ]);
            assert_eq!(violations(&house).len(), 1, "{forbidden}");
        }
    }

    #[test]
    fn what_only_tests_may_use_is_refused_as_a_normal_dependency() {
        let with = |used: &'static str| {
            violations(&workspace(&[
                ("udeck-conformance", "tests/conformance", &[used]),
                ("udeck-shm", "transports/shm", &[]),
            ]))
            .len()
        };
        assert_eq!((with("dev:udeck-shm"), with("udeck-shm")), (0, 1));
    }

    #[test]
    fn tests_do_not_reach_around_the_layers_either() {
        let house =
            workspace(&[("udeck-deck", "crates/deck", &["dev:udeck-sys"]), ("udeck-sys", "crates/sys", &[])]);
        let [problem] = &violations(&house)[..] else { panic!("one violation") };
        assert!(problem.contains("udeck-deck -> udeck-sys (dev) is not allowed"), "{problem}");
    }

    #[test]
    fn a_package_without_a_row_is_refused() {
        let house = workspace(&[("udeck-extra", "src/extra", &[]), ("odd", "transports/shm/odd", &[])]);
        let problems = violations(&house);
        assert_eq!(problems.len(), 2);
        assert!(problems[0].starts_with("src/extra/Cargo.toml: package udeck-extra has no row"));
    }
}
