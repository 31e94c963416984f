//! `--bind`: which core each rank runs on, by cores or by NUMA nodes.

use std::fs;

use crate::failure::{PerfError, Result};

/// One place of the `--bind` list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindPlace {
    /// This core.
    Core(usize),
    /// A core of this NUMA node that no earlier rank of the host has.
    Node(usize),
}

/// The cores and NUMA nodes of this host, as the kernel reports them.
pub struct Cpus {
    online: Vec<usize>,
    /// Node numbers with their cores; empty where the kernel knows no nodes.
    nodes: Vec<(usize, Vec<usize>)>,
}

impl BindPlace {
    /// Reads `3` or `node:1`.
    ///
    /// # Errors
    /// A sentence on the forms that are allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |digits: &str| digits.parse().ok();
        let bind_place = match text.strip_prefix("node:") {
            Some(node) => number(node).map(BindPlace::Node),
            None => number(text).map(BindPlace::Core),
        };
        bind_place
            .ok_or_else(|| "a core (0, 1, ...) or a NUMA node (node:0, node:1, ...) for each rank".to_owned())
    }
}

impl Cpus {
    /// Reads the kernel's lists; a list that cannot be read counts as empty.
    pub fn of_this_host() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let online = cpu_list(&read("/sys/devices/system/cpu/online"));
        let entries = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
        let numbers =
            entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok());
        let mut nodes: Vec<(usize, Vec<usize>)> = numbers
            .map(|node| (node, cpu_list(&read(&format!("/sys/devices/system/node/node{node}/cpulist")))))
            .collect();
        nodes.sort_unstable();
        Cpus { online, nodes }
    }

    /// NUMA node of a core, if the kernel reports it.
    pub fn node_of(&self, core: usize) -> Option<usize> {
        self.nodes.iter().find(|(_, cores)| cores.contains(&core)).map(|(node, _)| *node)
    }
}

/// Parses a list of the form `0-2,5`, as in sysfs.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// The core of the rank that is number `local` of the `ranks` on this host.
///
/// # Errors
/// The list is too short, or a core or node does not exist, or this process may not use it.
pub fn core_of(
    bind_places: &[BindPlace],
    local: usize,
    ranks: usize,
    usable: &[usize],
    cpus: &Cpus,
) -> Result<usize> {
    if bind_places.len() < ranks {
        return Err(PerfError::Bind(format!(
            "names {} places, and {ranks} ranks run on this host: name one for each",
            bind_places.len()
        )));
    }
    let mut taken = Vec::new();
    for &bind_place in &bind_places[..=local] {
        taken.push(resolve(bind_place, &taken, usable, cpus)?);
    }
    taken.last().copied().ok_or_else(|| PerfError::Bind("names no place".to_owned()))
}

/// Checks every place of the list.
///
/// # Errors
/// The same as [`core_of`]'s.
pub fn check(bind_places: &[BindPlace], ranks: usize) -> Result {
    match ranks.min(bind_places.len()).checked_sub(1) {
        None => Ok(()),
        Some(last) => {
            core_of(bind_places, last, ranks, &udeck::sys::usable_cpus(), &Cpus::of_this_host()).map(drop)
        }
    }
}

fn resolve(bind_place: BindPlace, taken: &[usize], usable: &[usize], cpus: &Cpus) -> Result<usize> {
    let may = || format!("this process may use {}", show(usable));
    let failed = |what: String| Err(PerfError::Bind(what));
    match bind_place {
        BindPlace::Core(core) if !cpus.online.is_empty() && !cpus.online.contains(&core) => {
            failed(format!("core {core} does not exist: this host has {}", show(&cpus.online)))
        }
        BindPlace::Core(core) if !usable.contains(&core) => {
            failed(format!("core {core} may not be used here: {}", may()))
        }
        BindPlace::Core(core) => Ok(core),
        BindPlace::Node(node) => {
            let Some((_, cores)) = cpus.nodes.iter().find(|(known, _)| *known == node) else {
                let known: Vec<usize> = cpus.nodes.iter().map(|(node, _)| *node).collect();
                return failed(format!("NUMA node {node} does not exist: this host has {}", show(&known)));
            };
            let free = |core: &&usize| usable.contains(core) && !taken.contains(core);
            match cores.iter().find(free) {
                Some(&core) => Ok(core),
                None => failed(format!("NUMA node {node} has no core left among {}: {}", show(cores), may())),
            }
        }
    }
}

fn show(numbers: &[usize]) -> String {
    let all: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus() -> Cpus {
        Cpus { online: (0..8).collect(), nodes: vec![(0, vec![0, 1, 2, 3]), (1, vec![4, 5, 6, 7])] }
    }

    fn of(bind_places: &[BindPlace], local: usize, usable: &[usize]) -> Result<usize, String> {
        core_of(bind_places, local, 2, usable, &cpus()).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(cpu_list(""), [0; 0]);
        assert_eq!(
            (BindPlace::parse("3"), BindPlace::parse("node:1")),
            (Ok(BindPlace::Core(3)), Ok(BindPlace::Node(1)))
        );
        for text in ["", "x", "node:", "-1", "socket:0"] {
            assert!(BindPlace::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranks_go_where_they_are_put() {
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(of(&[BindPlace::Core(5), BindPlace::Core(2)], 1, &all), Ok(2));
        assert_eq!(of(&[BindPlace::Core(4), BindPlace::Node(1)], 1, &all), Ok(5), "the next one of the node");
        assert_eq!(of(&[BindPlace::Node(0), BindPlace::Node(1)], 1, &[0, 7]), Ok(7));
        assert_eq!(cpus().node_of(6), Some(1));
    }

    #[test]
    fn what_is_not_there_or_not_allowed_is_said() {
        let usable = [0, 1];
        for (bind_places, part) in [
            ([BindPlace::Core(99), BindPlace::Core(0)], "core 99 does not exist: this host has 0, 1, 2"),
            (
                [BindPlace::Core(7), BindPlace::Core(0)],
                "core 7 may not be used here: this process may use 0, 1",
            ),
            ([BindPlace::Node(3), BindPlace::Core(0)], "NUMA node 3 does not exist: this host has 0, 1"),
            ([BindPlace::Node(1), BindPlace::Core(0)], "NUMA node 1 has no core left among 4, 5, 6, 7"),
        ] {
            let error = of(&bind_places, 0, &usable).expect_err("not there");
            assert!(error.contains(part), "{error}");
        }
        let error = of(&[BindPlace::Core(0)], 0, &usable).expect_err("one place");
        assert!(error.contains("names 1 places, and 2 ranks"), "{error}");
    }
}
