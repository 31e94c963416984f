//! A trace, checked against the Trace Event Format, and the needs of viewers.
//!
//! Source: *Trace Event Format* (Google), and Perfetto's reading of it: slices of a thread lie inside each other, and arrows begin
//! and end inside slices.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

use serde_json::Value;

/// A trace that has been read.
#[derive(Debug)]
pub struct Trace {
    /// The whole file.
    pub file: Value,
    events: Vec<Value>,
}

/// A process and a thread of the trace.
type Track = (u64, u64);

impl Trace {
    /// Reads a file, and checks it.
    ///
    /// # Panics
    /// Panics with all faults of the trace, or if it cannot be read.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let trace = Self::parse(&text);
        let faults = trace.faults();
        assert!(faults.is_empty(), "{}: {faults:#?}", path.display());
        trace
    }

    fn parse(text: &str) -> Self {
        let file: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON: {error}"));
        let events = file["traceEvents"].as_array().cloned().unwrap_or_default();
        Self { file, events }
    }

    /// The events of this name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.events.iter().filter(move |event| event["name"] == name)
    }

    /// The events of this kind.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.events.iter().filter(move |event| event["ph"] == kind)
    }

    /// Facts about a rank.
    #[must_use]
    pub fn rank(&self, rank: usize) -> &Value {
        &self.file["otherData"]["ranks"][rank]
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.events.is_empty() {
            faults.push("there are no events".into());
        }
        if !matches!(self.file["displayTimeUnit"].as_str(), Some("ns" | "ms")) {
            faults.push("displayTimeUnit is neither ns nor ms".into());
        }
        for event in &self.events {
            if let Err(fault) = well_formed(event) {
                faults.push(format!("{fault}: {event}"));
            }
        }
        if faults.is_empty() {
            let tracks = self.slices();
            faults.extend(self.unnamed());
            faults.extend(crossing(&tracks));
            faults.extend(self.broken_arrows(&tracks));
        }
        faults.truncate(20);
        faults
    }

    /// Slices of each thread, the outer ones first.
    fn slices(&self) -> BTreeMap<Track, Vec<(u64, u64)>> {
        let mut tracks: BTreeMap<Track, Vec<(u64, u64)>> = BTreeMap::new();
        for event in self.of_kind("X") {
            let start = nanoseconds(&event["ts"]).unwrap_or(0);
            let end = start + nanoseconds(&event["dur"]).unwrap_or(0);
            tracks.entry(track(event)).or_default().push((start, end));
        }
        tracks.values_mut().for_each(|slices| slices.sort_by_key(|(start, end)| (*start, u64::MAX - end)));
        tracks
    }

    /// Processes and threads that viewers would show as numbers.
    fn unnamed(&self) -> Vec<String> {
        let named = |name: &str| -> BTreeSet<Track> { self.named(name).map(track).collect() };
        let (processes, threads) = (named("process_name"), named("thread_name"));
        let processes: BTreeSet<u64> = processes.into_iter().map(|(pid, _)| pid).collect();
        let shown: BTreeSet<Track> =
            self.events.iter().filter(|event| event["ph"] != "M").map(track).collect();
        let nameless = shown.iter().filter(|track| !processes.contains(&track.0) || !threads.contains(track));
        nameless.map(|track| format!("{track:?} has no name")).collect()
    }

    fn broken_arrows(&self, tracks: &BTreeMap<Track, Vec<(u64, u64)>>) -> Vec<String> {
        let mut arrows: BTreeMap<&str, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (kind, is_start) in [("s", true), ("f", false)] {
            for event in self.of_kind(kind) {
                let (starts, ends) = arrows.entry(event["id"].as_str().unwrap_or_default()).or_default();
                if is_start { starts } else { ends }.push(event);
            }
        }
        let mut faults = Vec::new();
        for (id, (starts, ends)) in arrows {
            let ([start], [end]) = (&starts[..], &ends[..]) else {
                faults.push(format!("arrow {id} has {} starts and {} ends", starts.len(), ends.len()));
                continue;
            };
            let error: u64 = [start, end].iter().map(|event| self.clock_error(track(event).0)).sum();
            let at = |event: &Value| nanoseconds(&event["ts"]).unwrap_or(0);
            if at(end) + error < at(start) {
                faults.push(format!("arrow {id} ends at {} before it begins at {}", at(end), at(start)));
            }
            for event in [start, end] {
                let inside = tracks
                    .get(&track(event))
                    .is_some_and(|slices| slices.iter().any(|(from, to)| (*from..=*to).contains(&at(event))));
                if !inside {
                    faults.push(format!("arrow {id} lies in no slice: {event}"));
                }
            }
        }
        faults
    }

    fn clock_error(&self, rank: u64) -> u64 {
        self.rank(rank as usize)["clock_error_ns"].as_u64().unwrap_or(0)
    }
}

fn track(event: &Value) -> Track {
    (event["pid"].as_u64().unwrap_or(u64::MAX), event["tid"].as_u64().unwrap_or(u64::MAX))
}

/// Converts a time in microseconds, which has at most three digits after the point.
fn nanoseconds(value: &Value) -> Option<u64> {
    value.as_f64().filter(|micros| *micros >= 0.0).map(|micros| (micros * 1000.0).round() as u64)
}

fn well_formed(event: &Value) -> Result<(), &'static str> {
    let text = |name: &str| event[name].as_str().filter(|text| !text.is_empty());
    let kind = text("ph").ok_or("no ph")?;
    text("name").ok_or("no name")?;
    for name in ["pid", "tid"] {
        event[name].as_u64().ok_or("pid and tid are numbers")?;
    }
    nanoseconds(&event["ts"]).ok_or("no ts")?;
    let is_object = |value: &Value| value.is_null() || value.is_object();
    if !is_object(&event["args"]) {
        return Err("args is an object");
    }
    match kind {
        "X" => nanoseconds(&event["dur"]).map(drop).ok_or("no dur"),
        "b" | "e" => {
            let id = event["id2"]["local"].as_str().filter(|id| !id.is_empty());
            id.and(text("cat")).map(drop).ok_or("what is apart from its thread has an id and a category")
        }
        "i" => matches!(text("s"), Some("t" | "p" | "g")).then_some(()).ok_or("no scope"),
        "s" | "f" => {
            text("id").and(text("cat")).ok_or("an arrow has an id and a category")?;
            let is_bound = kind == "s" || text("bp") == Some("e");
            is_bound.then_some(()).ok_or("an arrow's end binds to the slice around it")
        }
        "M" => match text("name") {
            Some("process_name" | "thread_name") => {
                event["args"]["name"].as_str().map(drop).ok_or("a name is a string")
            }
            Some("process_sort_index") => {
                event["args"]["sort_index"].as_u64().map(drop).ok_or("an index is a number")
            }
            _ => Err("unknown metadata"),
        },
        _ => Err("an unknown kind"),
    }
}

/// Slices of one thread that begin inside each other and end outside.
fn crossing(tracks: &BTreeMap<Track, Vec<(u64, u64)>>) -> Vec<String> {
    let mut faults = Vec::new();
    for (track, slices) in tracks {
        let mut around: Vec<(u64, u64)> = Vec::new();
        for (start, end) in slices {
            while around.last().is_some_and(|(_, outer)| outer <= start) {
                around.pop();
            }
            if let Some((from, to)) = around.last().filter(|(_, outer)| outer < end) {
                let mut fault = String::new();
                let _ = write!(fault, "{track:?}: {start} to {end} crosses the end of {from} to {to}");
                faults.push(fault);
            }
            around.push((*start, *end));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &str = r#"{"ph":"M","pid":0,"tid":0,"ts":0,"name":"process_name","args":{"name":"rank 0"}},
        {"ph":"M","pid":0,"tid":1,"ts":0,"name":"thread_name","args":{"name":"main"}},"#;
    const SLICE: &str = r#"{"ph":"X","pid":0,"tid":1,"ts":1.5,"dur":2.000,"name":"post"}"#;

    fn faults(events: &str) -> Vec<String> {
        let head =
            r#"{"displayTimeUnit":"ns","otherData":{"ranks":[{"clock_error_ns":500}]},"traceEvents":["#;
        Trace::parse(&format!("{head}{NAMES}{events}]}}")).faults()
    }

    fn slice(ts: &str, dur: &str) -> String {
        SLICE.replace("1.5", ts).replace("2.000", dur)
    }

    fn arrow(kind: &str, ts: &str, rest: &str) -> String {
        let event = format!(r#","pid":0,"tid":1,"ts":{ts},"id":"0x1","name":"message","cat":"udeck""#);
        format!(r#"{{"ph":"{kind}"{event}{rest}}}"#)
    }

    #[test]
    fn what_is_right_is_accepted() {
        let (start, end) = (arrow("s", "1.5", ""), arrow("f", "3.4", ",\"bp\":\"e\""));
        assert_eq!(faults(&format!("{SLICE},{start},{end},{}", slice("2.0", "1.5"))), [""; 0]);
        // The difference is within the clocks' error.
        let (start, end) = (arrow("s", "3.4", ""), arrow("f", "2.5", ",\"bp\":\"e\""));
        assert_eq!(faults(&format!("{SLICE},{start},{end}")), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_found() {
        let (start, end) = (arrow("s", "1.5", ""), arrow("f", "3.4", ",\"bp\":\"e\""));
        for (events, fault) in [
            (SLICE.replace("\"ph\":\"X\"", "\"ph\":\"?\""), "unknown kind"),
            (SLICE.replace("\"tid\":1,", ""), "pid and tid"),
            (SLICE.replace("\"ts\":1.5", "\"ts\":-1"), "no ts"),
            (SLICE.replace("\"tid\":1", "\"tid\":2"), "no name"),
            (format!("{SLICE},{}", slice("3.0", "1.0")), "crosses"),
            (format!("{SLICE},{start}"), "1 starts and 0 ends"),
            (format!("{SLICE},{start},{end},{end}"), "1 starts and 2 ends"),
            (format!("{SLICE},{start},{}", arrow("f", "3.6", ",\"bp\":\"e\"")), "in no slice"),
            (format!("{SLICE},{start},{}", arrow("f", "3.4", "")), "binds"),
            (
                format!("{},{},{}", slice("1", "9"), arrow("s", "9", ""), arrow("f", "7", ",\"bp\":\"e\"")),
                "before it begins",
            ),
        ] {
            let found = faults(&events);
            assert!(found.iter().any(|found| found.contains(fault)), "{events}: {found:?}");
        }
    }
}
