//! InfiniBand's tables (Alfaro): entries that they waste, rates that a network admits, and whether packets meet
//! their deadlines.

use super::{Extent, Row, Section, simulate};
use indicatif::ProgressBar;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::{cmp::Reverse, time::Duration};
use udeck_fabric::{
    arbitration::Scheme,
    config::Config,
    topology::tree,
    traffic::{Arrivals, Pattern, Stream},
};
use udeck_qos::{
    planner::{Link, Planner, Request, Unpromised, entries_at_distance, low_table, min_entries},
    sequences::Sequences,
    table::VlTables,
    vl_arbiter::LowTurn,
};

/// Entries of a table.
const ENTRIES: usize = 64;
/// Data rate of a link in bits per second: 1x at 2.5 Gb/s.
const RATE: u64 = 2_500_000_000;
const CAP: u8 = 80;

pub const WASTE: &str = "InfiniBand's high table: entries that a full table wastes, mean (Alfaro, §3.5.3)";
pub const DEADLINES: &str = "Percent of promised packets that keep their deadline where all lanes are busy";

/// Counts the entries that requests use beyond the least number for their distance, in tables that are filled: requests
/// of random distances from 2 to 64; one that does not fit is dropped, and another one drawn.
pub fn waste(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let tables = if extent == Extent::Quick { 500 } else { 5000 };
    let mean = |weight: fn(usize) -> usize, fill: fn(&mut dyn FnMut() -> usize) -> usize| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let total: usize = (2..=ENTRIES).map(weight).sum();
        let mut distance = || {
            let mut at = random.random_range(0..total);
            let found = (2..=ENTRIES).find(|&d| at.checked_sub(weight(d)).map(|rest| at = rest).is_none());
            found.unwrap_or(ENTRIES)
        };
        (0..tables).map(|_| fill(&mut distance)).sum::<usize>() as f64 / f64::from(tables)
    };
    let [alike, by_size]: [fn(usize) -> usize; 2] = [|_| 1, |distance| distance];
    let (rounded, rounded_by_size) = (mean(alike, fill_rounded), mean(by_size, fill_rounded));
    let (exact, exact_by_size) = (mean(alike, fill_exact), mean(by_size, fill_exact));
    bar.inc(1);
    Ok(Section {
        how: format!(
            "Entries beyond ⌈64 ÷ distance⌉ for each request, {tables} full tables each. Distances 2 to 64 are drawn alike, or by their \
             size. Rounded: down to powers of two. Not rounded: any gaps up to the distance, by the two criteria of §3.5.3."
        ),
        rows: vec![
            Row::new("rounded, distances alike", 8.78, rounded),
            Row::new("rounded, distances by their size", 5.68, rounded_by_size),
            Row::new("not rounded, distances alike", 1.96, exact),
            Row::new("not rounded, distances by their size", 0.86, exact_by_size),
        ],
        claims: vec![
            ("rounding wastes more".into(), rounded > exact && rounded_by_size > exact_by_size),
            ("less is wasted where large distances are likelier".into(), rounded_by_size < rounded),
            ("rounding wastes within 5 percent of the published entries".into(), {
                (rounded / 8.78 - 1.0).abs() < 0.05 && (rounded_by_size / 5.68 - 1.0).abs() < 0.05
            }),
        ],
        ..Section::default()
    })
}

/// Fills a table with requests whose distances are rounded down to powers of two. Returns the wasted entries.
fn fill_rounded(distance: &mut dyn FnMut() -> usize) -> usize {
    let (mut table, mut wasted) = (Sequences::new(ENTRIES), 0);
    while table.free() > 0 {
        let asked = distance();
        let entries = entries_at_distance(asked);
        if table.allocate(entries).is_some() {
            wasted += entries - min_entries(asked);
        }
    }
    wasted
}

/// Fills a table with requests whose entries are at most their distance apart. Returns the wasted entries.
fn fill_exact(distance: &mut dyn FnMut() -> usize) -> usize {
    let (mut taken, mut wasted) = ([false; ENTRIES], 0);
    while taken.contains(&false) {
        let asked = distance();
        if let Some(entries) = best_places(&taken, asked) {
            wasted += entries.len() - min_entries(asked);
            entries.into_iter().for_each(|entry| taken[entry] = true);
        }
    }
    wasted
}

/// Chooses entries with gaps of at most `distance`: those that leave the shortest run of taken entries, and among these
/// the longest of the shortest runs of free ones.
fn best_places(taken: &[bool; ENTRIES], distance: usize) -> Option<Vec<usize>> {
    let from = |start: usize| {
        let (mut entries, mut at) = (vec![start], start);
        while start + ENTRIES - at > distance {
            at = (at + 1..=at + distance).rev().find(|next| !taken[next % ENTRIES])?;
            entries.push(at % ENTRIES);
        }
        Some(entries)
    };
    let rank = |entries: &Vec<usize>| {
        let mut after = *taken;
        entries.iter().for_each(|&entry| after[entry] = true);
        let longest_taken = runs(&after, true).max().unwrap_or(0);
        (longest_taken, Reverse(runs(&after, false).min().unwrap_or(0)))
    };
    (0..ENTRIES).filter(|start| !taken[*start]).filter_map(from).min_by_key(rank)
}

/// Lengths of the cyclic runs of entries that are all taken, or all free.
fn runs(taken: &[bool; ENTRIES], kind: bool) -> impl Iterator<Item = usize> {
    let end = (0..ENTRIES).find(|&at| taken[at] != kind).unwrap_or(ENTRIES);
    let mut lengths = Vec::new();
    let mut length = 0;
    for at in end..=end + ENTRIES {
        if taken[at % ENTRIES] == kind {
            length += 1;
        } else {
            lengths.extend((length > 0).then_some(length));
            length = 0;
        }
    }
    lengths.extend((length > 0).then_some(length.min(ENTRIES)));
    lengths.into_iter()
}

/// Measures how long packets of promised lanes wait at a switch: three promised lanes and two that take the rest
/// send to one host.
pub fn deadlines(_: Extent, bar: &ProgressBar) -> Result<Section, String> {
    const FLITS: u32 = 4;
    let network = tree(12, 1).map_err(|bad| bad.to_string())?;
    let link = Link { rate: RATE, mtu: 64 * FLITS, high_limit: 4, cap: CAP };
    let mut planner = Planner::new(link);
    let distances = [8, 16, 32];
    let mut streams = Vec::new();
    let stream = |name: String, from: u32, level: u8, load: f64| Stream {
        name,
        from: vec![from],
        to: Pattern::Fixed(vec![11]),
        level,
        load,
        flits: (FLITS, FLITS),
        arrivals: Arrivals::Regular,
        during: (0, u64::MAX),
    };
    for (lane, distance) in (0u8..).zip(distances) {
        let request = Request { bandwidth: RATE / 20, latency: Some(link.wait_at(distance)) };
        planner.admit(lane, request).map_err(|bad| bad.to_string())?;
        streams.push(stream(format!("distance {distance}"), u32::from(lane), lane, 0.05));
    }
    for (lane, from) in [(3, 3), (4, 4)] {
        streams.push(stream(format!("the rest {lane}"), from, lane, 1.0));
    }
    let low = low_table(&[(3, Unpromised::Preferred), (4, Unpromised::BestEffort)]);
    let tables = VlTables { high: planner.table(), low, high_limit: link.high_limit };
    let config = Config {
        levels: 5,
        arbitration: Scheme::Vl { tables, low_turn: LowTurn::Packet },
        ..Config::default()
    };
    let measures = simulate(&network, &config, streams, (2000, 100_000), bar)?;
    let idle = u64::from(2 * config.link + config.switch + FLITS);
    // Flits of 64 bytes that a link carries in a time.
    let flits = |time: Duration| time.as_nanos() as f64 * RATE as f64 / 512e9;
    let (mut rows, mut all) = (Vec::new(), true);
    for (class, distance) in measures.classes.iter().zip(distances) {
        let bound = flits(link.wait_at(distance)) as u64;
        let kept = class.network.count_between(0, idle + bound) as f64 / class.network.len().max(1) as f64;
        all &= class.network.len() > 100 && kept == 1.0;
        rows.push(Row::new(format!("{}, within {bound} cycles", class.name), None, 100.0 * kept));
    }
    Ok(Section {
        how: "Three promised lanes at distances 8 to 32 and two lanes without promises that send all they can, to one host; one hop.".into(),
        rows,
        claims: vec![("every packet keeps its deadline".into(), all)],
        ..Section::default()
    })
}
