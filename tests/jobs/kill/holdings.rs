//! What a process holds that a dead peer could have left with it.

use std::{collections::BTreeMap, fs};
use udeck::{World, via::ArenaUse};

/// Counts that must be what they were, whatever died meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings(BTreeMap<String, usize>);

impl Holdings {
    /// At this moment.
    pub fn of(world: &World) -> Self {
        let nic = world.nic();
        // What came back is collected when memory is needed: now.
        nic.reclaim();
        let mut counts = mapped_segments();
        counts.insert("descriptors".into(), descriptors());
        let mut count_blocks = |name: &str, arena: ArenaUse| {
            counts.insert(format!("blocks of the {name}"), arena.blocks);
            counts.insert(format!("bytes of the {name}"), arena.used);
        };
        count_blocks("outbox", nic.outbox().usage());
        count_blocks("landing", nic.landing().usage());
        Self(counts)
    }

    /// What differs from `before`, in words.
    pub fn changes_since(&self, before: &Self) -> String {
        let names = self.0.keys().chain(before.0.keys().filter(|name| !self.0.contains_key(*name)));
        let count = |holdings: &Self, name: &String| holdings.0.get(name).copied().unwrap_or_default();
        names
            .map(|name| (name, count(before, name), count(self, name)))
            .filter(|(_, before, now)| before != now)
            .map(|(name, before, now)| format!("{name}: {now}, was {before}"))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

fn descriptors() -> usize {
    // The one that reads the folder is among them, each time.
    fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

/// Bytes of address space by segment. (Not lines: the kernel splits and merges those.)
fn mapped_segments() -> BTreeMap<String, usize> {
    let mut bytes = BTreeMap::new();
    for line in fs::read_to_string("/proc/self/maps").expect("/proc is mounted").lines() {
        let Some(name) = line.split_whitespace().find(|word| word.starts_with("/memfd:udeck")) else {
            continue;
        };
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let (from, to) = range.expect("a line of maps begins with a range");
        let address = |hex| usize::from_str_radix(hex, 16).expect("an address");
        *bytes.entry(format!("mapped bytes of {name}")).or_default() += address(to) - address(from);
    }
    bytes
}
