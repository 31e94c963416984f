//! Reports of plans and tables.

use crate::{
    input::Class,
    planning::{InfiniBand, PlannedClass, other_levels},
};
use serde_json::{Value, json};
use std::time::Duration;
use udeck_cli::columns::{lines, row};
use udeck_qos::{
    analysis::{distance, saturate, time_of, wait_bytes},
    dtable, opensm,
    planner::{Bits, Link},
    table::{Entry, LANES, UNLIMITED, VlTables},
    vl_arbiter::LowTurn,
};

/// Entries of a table in a printed line.
const ENTRIES_A_LINE: usize = 16;

/// Parameters for the examination of a port's tables.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    pub rate: u64,
    pub mtu: u32,
    /// Bytes of the packets that keep all lanes busy.
    pub packet: u32,
    pub low_turn: LowTurn,
}

/// Properties of a lane.
struct Lane {
    vl: u8,
    levels: Vec<u8>,
    /// Number of entries in the high table and in the low one.
    entries: [usize; 2],
    weights: [u32; 2],
    distance: Option<usize>,
    /// Mean distance if all lanes have packets, with the low table's turns.
    mean_distance: Option<f64>,
    share: f64,
    wait: Option<Duration>,
}

fn examine(options: &opensm::Options, traffic: Traffic) -> Vec<Lane> {
    let VlTables { high, low, .. } = &options.tables;
    let own = |table: &[Entry], vl: u8| {
        table.iter().filter(move |entry| entry.vl == vl && entry.weight > 0).copied().collect::<Vec<_>>()
    };
    let both = |vl| [own(high, vl), own(low, vl)];
    let used: Vec<u8> = (0..15).filter(|&vl| both(vl).iter().any(|entries| !entries.is_empty())).collect();
    let mut packets = [None; LANES];
    used.iter().for_each(|&vl| packets[usize::from(vl)] = Some(traffic.packet));
    let busy = saturate(&options.tables, traffic.low_turn, &packets);
    let lane = |vl: u8| Lane {
        vl,
        levels: (0..16u8).filter(|&level| options.sl2vl[usize::from(level)] == vl).collect(),
        entries: both(vl).map(|entries| entries.len()),
        weights: both(vl).map(|entries| entries.iter().map(|entry| u32::from(entry.weight)).sum()),
        distance: distance(high, vl),
        mean_distance: busy.distances[usize::from(vl)],
        share: busy.shares[usize::from(vl)],
        wait: wait_bytes(&options.tables, traffic.low_turn, traffic.mtu, vl)
            .map(|bytes| time_of(bytes, traffic.rate)),
    };
    used.into_iter().map(lane).collect()
}

/// Formats a time in three or four digits, rounded up because it is an upper bound.
fn time(time: Duration) -> String {
    let nanos = time.as_nanos();
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let tenths = (nanos * 10).div_ceil(unit);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

fn maybe<Value>(value: Option<Value>, text: impl FnOnce(Value) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn limit(high_limit: u8) -> String {
    match high_limit {
        UNLIMITED => "high limit 255 (none)".into(),
        0 => "high limit 0 (a packet)".into(),
        limit => format!("high limit {limit} ({} bytes)", u32::from(limit) * 4096),
    }
}

fn table(name: &str, entries: &[Entry]) -> String {
    let words: Vec<_> = entries.iter().map(|entry| format!("{}:{}", entry.vl, entry.weight)).collect();
    let rows: Vec<_> = words.chunks(ENTRIES_A_LINE).map(|chunk| [&["".into()], chunk].concat()).collect();
    format!("\n{name} table, VL:weight\n{}", if rows.is_empty() { "  none\n".into() } else { lines(&rows) })
}

/// Formats a plan as text.
pub fn infiniband(plan: &InfiniBand, traffic: Traffic) -> String {
    let Link { rate, mtu, cap, high_limit } = plan.link;
    let (promised, most) = (Bits(plan.promised), Bits(plan.link.promised()));
    let mut text = format!(
        "link {}, MTU {mtu}, {} data lanes, {}\npromised {promised} of {most} ({cap} %); {} of 64 high entries are free\n\n",
        Bits(rate),
        plan.options.max_vls,
        limit(high_limit),
        plan.free,
    );
    let lanes = examine(&plan.options, traffic);
    let mut rows = vec![row([
        "class",
        "sl",
        "vl",
        "kind",
        "conn.",
        "bandwidth",
        "latency",
        "entries",
        "distance",
        "waits at most",
        "share if all are busy",
    ])];
    for planned in &plan.classes {
        let Class { name, sl, bandwidth, latency, connections, .. } = &planned.class;
        let lane = lanes.iter().find(|lane| lane.vl == planned.vl);
        rows.push(vec![
            name.get_ref().clone(),
            sl.to_string(),
            planned.vl.to_string(),
            planned.kind.name().into(),
            maybe(bandwidth.map(|_| connections.unwrap_or(1)), |count| count.to_string()),
            maybe(*bandwidth, |bits| Bits(bits).to_string()),
            maybe(*latency, time),
            maybe(lane, |lane| (lane.entries[0] + lane.entries[1]).to_string()),
            maybe(lane.and_then(|lane| lane.distance), |distance| distance.to_string()),
            maybe(lane.and_then(|lane| lane.wait), time),
            maybe(lane, |lane| percent(lane.share)),
        ]);
    }
    text += &lines(&rows);
    text += &match other_levels(&plan.classes) {
        Some(vl) => format!("\nother levels go to VL {vl}\n"),
        None => "\nother levels are dropped (VL 15), because no class is be, ch or pbe\n".into(),
    };
    notes(plan, &lanes).iter().for_each(|note| text += &format!("note: {note}\n"));
    text += &table("high", &plan.options.tables.high);
    text += &table("low", &plan.options.tables.low);
    text
}

/// Notes on classes that would get less than their promise if all lanes were busy. The classes' bandwidths account
/// neither for the low table's part nor for packets that exceed small weights.
fn notes(plan: &InfiniBand, lanes: &[Lane]) -> Vec<String> {
    let short = |planned: &PlannedClass| {
        let promised = planned.class.bandwidth? * u64::from(planned.class.connections.unwrap_or(1));
        let lane = lanes.iter().find(|lane| lane.vl == planned.vl)?;
        let gets = (lane.share * plan.link.rate as f64) as u64;
        let name = planned.class.name.get_ref();
        (gets < promised).then(|| {
            format!(
                "class {name:?} gets {} and not the promised {} while all lanes are busy: take a larger high_limit, or a smaller cap or mtu",
                Bits(gets),
                Bits(promised)
            )
        })
    };
    plan.classes.iter().filter_map(short).collect()
}

/// Formats a plan as JSON.
pub fn infiniband_json(plan: &InfiniBand, traffic: Traffic) -> Value {
    let classes = plan.classes.iter().map(|planned| {
        json!({
            "name": planned.class.name.get_ref(), "sl": planned.class.sl, "vl": planned.vl, "kind": planned.kind.name(),
            "connections": planned.class.bandwidth.map(|_| planned.class.connections.unwrap_or(1)),
            "bandwidth_bits_per_s": planned.class.bandwidth, "latency_ns": planned.class.latency.map(nanos),
            "planned_distance": planned.distance,
        })
    });
    let mut value = tables_json(&plan.options, traffic);
    value["classes"] = classes.collect();
    value["promised_bits_per_s"] = plan.promised.into();
    value["promisable_bits_per_s"] = plan.link.promised().into();
    value["free_entries"] = plan.free.into();
    value["notes"] = notes(plan, &examine(&plan.options, traffic)).into();
    value
}

/// Formats tables as text.
pub fn tables(options: &opensm::Options, traffic: Traffic) -> String {
    let text = format!(
        "link {}, MTU {}, {} data lanes, {}; packets of {} bytes keep all lanes busy\n\n",
        Bits(traffic.rate),
        traffic.mtu,
        options.max_vls,
        limit(options.tables.high_limit),
        traffic.packet,
    );
    let mut rows = vec![row([
        "vl",
        "levels",
        "high entries",
        "weight",
        "distance",
        "mean distance",
        "low entries",
        "weight",
        "waits at most",
        "share",
    ])];
    for lane in examine(options, traffic) {
        let levels: Vec<_> = lane.levels.iter().map(u8::to_string).collect();
        rows.push(vec![
            lane.vl.to_string(),
            maybe(Some(levels.join(",")).filter(|levels| !levels.is_empty()), |levels| levels),
            lane.entries[0].to_string(),
            lane.weights[0].to_string(),
            maybe(lane.distance, |distance| distance.to_string()),
            maybe(lane.mean_distance, |distance| format!("{distance:.2}")),
            lane.entries[1].to_string(),
            lane.weights[1].to_string(),
            maybe(lane.wait, time),
            percent(lane.share),
        ]);
    }
    text + &lines(&rows) + &never(options)
}

/// Text about the levels whose lane no table serves: their packets are never sent.
fn never(options: &opensm::Options) -> String {
    let VlTables { high, low, .. } = &options.tables;
    let served = |vl: u8| high.iter().chain(low).any(|entry| entry.vl == vl && entry.weight > 0);
    let unserved = |&level: &u8| {
        let vl = options.sl2vl[usize::from(level)];
        vl < 15 && !served(vl)
    };
    let levels: Vec<_> = (0..16u8).filter(unserved).map(|level| level.to_string()).collect();
    if levels.is_empty() {
        return String::new();
    }
    format!("\nlevels {} are of lanes that no entry serves: their packets are never sent\n", levels.join(","))
}

/// Formats tables as JSON.
pub fn tables_json(options: &opensm::Options, traffic: Traffic) -> Value {
    let lanes = examine(options, traffic);
    let lanes = lanes.iter().map(|lane| {
        json!({
            "vl": lane.vl, "sl": lane.levels, "high_entries": lane.entries[0], "high_weight": lane.weights[0],
            "low_entries": lane.entries[1], "low_weight": lane.weights[1], "distance": lane.distance,
            "mean_distance": lane.mean_distance, "longest_wait_ns": lane.wait.map(nanos), "saturated_share": lane.share,
        })
    });
    let list = |table: &[Entry]| table.iter().map(|entry| json!([entry.vl, entry.weight])).collect::<Value>();
    json!({
        "rate_bits_per_s": traffic.rate, "mtu_bytes": traffic.mtu, "packet_bytes": traffic.packet, "max_vls": options.max_vls,
        "high_limit": options.tables.high_limit, "sl2vl": options.sl2vl, "high": list(&options.tables.high),
        "low": list(&options.tables.low), "lanes": lanes.collect::<Value>(),
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Formats a plan with deficits as text.
pub fn dtable(plan: &dtable::Plan, classes: &[Class]) -> String {
    let dtable::Factors { k, w } = plan.factors;
    let mut text = format!(
        "{} entries, pool {} credits of 64 bytes, k = {k}, w = {w}; a cycle has {} credits\n\n",
        plan.slots.len(),
        plan.pool,
        plan.credits(),
    );
    let mut rows = vec![row(["class", "sl", "distance", "entries", "share", "credits", "planned share"])];
    for (class, planned) in classes.iter().zip(&plan.classes) {
        rows.push(vec![
            class.name.get_ref().clone(),
            class.sl.to_string(),
            planned.class.distance.to_string(),
            planned.entries.to_string(),
            percent(planned.class.share),
            planned.credits.to_string(),
            percent(planned.credits as f64 / plan.credits() as f64),
        ]);
    }
    text += &lines(&rows);
    let words: Vec<_> = plan.slots.iter().map(|slot| format!("{}:{}", slot.level, slot.weight)).collect();
    let rows: Vec<_> = words.chunks(ENTRIES_A_LINE).map(|chunk| [&["".into()], chunk].concat()).collect();
    text + "\ntable, SL:credits\n" + &lines(&rows)
}

/// Formats a plan with deficits as JSON.
pub fn dtable_json(plan: &dtable::Plan, classes: &[Class]) -> Value {
    let rows = classes.iter().zip(&plan.classes).map(|(class, planned)| {
        json!({
            "name": class.name.get_ref(), "sl": class.sl, "distance": planned.class.distance, "entries": planned.entries,
            "share": planned.class.share, "credits": planned.credits,
        })
    });
    let slots = plan.slots.iter().map(|slot| json!([slot.level, slot.weight]));
    json!({
        "k": plan.factors.k, "w": plan.factors.w, "pool_credits": plan.pool, "cycle_credits": plan.credits(),
        "classes": rows.collect::<Value>(), "table": slots.collect::<Value>(),
    })
}
