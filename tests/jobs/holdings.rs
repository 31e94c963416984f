//! Holdings of a process that a dead peer could have left behind: descriptors, mappings, blocks.

use std::{collections::BTreeMap, fs};
use udeck::{World, via::ArenaUse};

/// Counts that must stay the same, whatever died meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings(BTreeMap<String, usize>);

impl Holdings {
    /// Counts of this moment.
    ///
    /// # Panics
    /// Panics if `/proc` is not mounted.
    #[must_use]
    pub fn of(world: &World) -> Self {
        let mut holdings = Self::of_arenas(world);
        holdings.0.extend(mapped_segments());
        holdings.0.insert("descriptors".into(), descriptors());
        holdings
    }

    /// Counts only memory for messages, for a process that holds more than one world.
    #[must_use]
    pub fn of_arenas(world: &World) -> Self {
        let nic = world.nic();
        // Returned blocks are collected when memory is needed, so they are collected now.
        nic.reclaim();
        let mut counts = BTreeMap::new();
        let mut count_blocks = |name: &str, arena: ArenaUse| {
            counts.insert(format!("blocks of the {name}"), arena.blocks);
            counts.insert(format!("bytes of the {name}"), arena.used);
        };
        count_blocks("outbox", nic.outbox().usage());
        count_blocks("landing", nic.landing().usage());
        Self(counts)
    }

    /// Differences to `before`, in words.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> String {
        self.compared(before, |before, now| before != now)
    }

    /// Increases since `before`, in words.
    #[must_use]
    pub fn growth_since(&self, before: &Self) -> String {
        self.compared(before, |before, now| now > before)
    }

    fn compared(&self, before: &Self, differ: impl Fn(usize, usize) -> bool) -> String {
        let names = self.0.keys().chain(before.0.keys().filter(|name| !self.0.contains_key(*name)));
        let count = |holdings: &Self, name: &String| holdings.0.get(name).copied().unwrap_or_default();
        names
            .map(|name| (name, count(before, name), count(self, name)))
            .filter(|(_, before, now)| differ(*before, *now))
            .map(|(name, before, now)| format!("{name}: {now}, was {before}"))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

fn descriptors() -> usize {
    // The descriptor that reads the folder is counted each time.
    fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

/// Bytes of address space by segment. (Lines are not counted, because the kernel splits and merges them.)
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
