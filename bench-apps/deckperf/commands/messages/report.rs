//! Report of messages between two ranks, in every format.

use std::fmt::Write;

use serde_json::{Value, json};
use udeck::Protocol;

use crate::{
    experiment::{
        plan::{Payload, Plan, Test},
        rounds::{Contender, Results},
    },
    named::Named,
    report::{
        Body, Figure, LATENCY, Report, bandwidth, data,
        export::{self, field},
        raw_limits, scheduling,
        summary::findings,
        table::{self, LIMITS},
    },
};
use udeck_cli::machine::Machine;

/// Columns of the CSV.
const COLUMNS: &str = "size,protocol,test,unit,untouched_p50,untouched_p99,written_read_p50,written_read_p99,\
copied_bytes_per_message,raw_line_us,raw_memcpy_us,raw_two_memcpys_us";

/// Method of `--stats`, which shows only the copied bytes.
const STATS: &str =
    "both ranks' libraries count the bytes of payload that they copy; these are divided by the messages\n";

/// Makes the report, and computes its findings. `memory` is a sentence on the memory in which messages lay, if it was not the
/// usual one.
pub fn report(machine: Machine, plan: &Plan, results: &Results, memory: Option<&str>) -> Report {
    let (method, noise, findings) = match plan.stats {
        true => (STATS.to_owned(), None, Vec::new()),
        false => (method(plan, results, memory), results.noise(), findings(plan, results)),
    };
    let (text, csv, cells) = (tables(plan, results), csv(plan, results), cells_json(plan, results));
    Report {
        command: "messages",
        series: series(machine.network(), results),
        body: Body::of_rounds(results, plan.pace.window, text, csv, cells),
        machine,
        method,
        noise,
        findings,
    }
}

/// Sentences on how the figures were measured, one on a line.
fn method(plan: &Plan, results: &Results, memory: Option<&str>) -> String {
    let window = plan.pace.window;
    let mut text = scheduling(plan.pace.iterations, results);
    for test in &plan.tests {
        text += &match test {
            Test::Latency => LATENCY.to_owned(),
            Test::Bandwidth => bandwidth(window),
            Test::BiBandwidth => format!(
                "bidirectional bandwidth: both ranks post a window of {window} messages (fewer where those of both exceed 64 MiB) \
                 and retrieve the other's meanwhile; the bytes of both directions count, a MB is 10^6 bytes\n"
            ),
        };
    }
    for payload in &plan.payloads {
        text += match payload {
            Payload::Untouched => "untouched: neither side looks at the data\n",
            Payload::WrittenRead => {
                "written+read: the sender writes every word, the receiver sums and checks them all\n"
            }
        };
    }
    text += &memory.map_or(String::new(), |memory| format!("{memory}\n"));
    text += raw_limits(results);
    if let Some(percent) = plan.handicap {
        text += &format!(
            "handicap: rank 0 stands still for {percent} % of the time of every turn (--handicap)\n"
        );
    }
    text
}

fn tables(plan: &Plan, results: &Results) -> String {
    let mut text = String::new();
    for &test in &plan.tests {
        for &payload in plan.payloads.iter().filter(|_| !plan.stats) {
            text += &figures(plan, results, test, payload);
        }
        text += &copied(plan, results, test);
    }
    text
}

/// Table with a column per protocol. The table of untouched latencies also has a column per raw limit, because these
/// limits apply to it.
fn figures(plan: &Plan, results: &Results, test: Test, payload: Payload) -> String {
    let limits = LIMITS.into_iter().filter(|_| test == Test::Latency && payload == Payload::Untouched);
    let names: Vec<String> = protocol_names(plan).chain(limits.clone().map(str::to_owned)).collect();
    let cells = |size: usize| {
        let post = |&protocol| results.p50(Contender { test, protocol, payload }, size);
        let limits = limits.clone().zip(table::limits(results, size)).map(|(_, limit)| limit);
        plan.protocols.iter().map(post).chain(limits).map(table::cell).collect()
    };
    let title = format!("{}, {}", table::title(test), payload.name());
    table::by_key(&title, "# Size", &names, &plan.sizes, cells)
}

/// Table of the bytes that both libraries copied.
fn copied(plan: &Plan, results: &Results, test: Test) -> String {
    let cells = |size: usize| {
        let copied = plan.protocols.iter().map(|&protocol| results.copied_per_message(test, protocol, size));
        let cell = |copied| match copied {
            Some(bytes) if f64::fract(bytes) == 0.0 => format!("{bytes:.0}"),
            bytes => table::cell(bytes),
        };
        copied.map(cell).collect()
    };
    let (name, _) = table::title(test).split_once(" (").unwrap_or_default();
    let title = format!("{name} test: bytes copied by the library per message");
    table::by_key(&title, "# Size", &protocol_names(plan).collect::<Vec<_>>(), &plan.sizes, cells)
}

fn protocol_names(plan: &Plan) -> impl Iterator<Item = String> {
    plan.protocols.iter().map(Protocol::to_string)
}

/// A header line, then a row per test, size and protocol; a figure that was not measured is empty.
fn csv(plan: &Plan, results: &Results) -> String {
    let mut text = format!("{COLUMNS}\n");
    for (test, size, protocol) in cells(plan) {
        let _ = write!(text, "{size},{protocol},{},{}", test.name(), test.unit());
        for payload in [Payload::Untouched, Payload::WrittenRead] {
            let figure = figure(results, test, protocol, payload, size);
            text += &field(figure.map(|figure| figure.p50));
            text += &field(figure.map(|figure| figure.p99));
        }
        text += &field(results.copied_per_message(test, protocol, size));
        text += &export::raw_fields(results.raw(size));
        text.push('\n');
    }
    text
}

/// An object per test, size and protocol; a figure that was not measured is null.
fn cells_json(plan: &Plan, results: &Results) -> Vec<Value> {
    let cell = |(test, size, protocol): (Test, usize, Protocol)| {
        let of = |payload| figure(results, test, protocol, payload, size);
        json!({
            "test": test.name(),
            "size": size,
            "protocol": protocol.to_string(),
            "unit": test.unit(),
            "untouched": of(Payload::Untouched),
            "written_read": of(Payload::WrittenRead),
            "copied_bytes_per_message": results.copied_per_message(test, protocol, size),
        })
    };
    cells(plan).map(cell).collect()
}

fn cells(plan: &Plan) -> impl Iterator<Item = (Test, usize, Protocol)> {
    plan.tests.iter().flat_map(move |&test| {
        plan.sizes
            .iter()
            .flat_map(move |&size| plan.protocols.iter().map(move |&protocol| (test, size, protocol)))
    })
}

fn figure(
    results: &Results,
    test: Test,
    protocol: Protocol,
    payload: Payload,
    size: usize,
) -> Option<Figure> {
    results.post(test, protocol, payload, size)?.figure()
}

fn series(network: &str, results: &Results) -> Vec<data::Series> {
    let mut all = export::series_of(results, |contender, size| data::Key {
        protocol: Some(contender.protocol.to_string()),
        payload: Some(contender.payload.name()),
        ..export::key(contender.test, network, size)
    });
    for (one, posts) in all.iter_mut().zip(&results.posts) {
        one.copied_bytes_per_message =
            (posts.messages > 0).then(|| posts.copied as f64 / posts.messages as f64);
    }
    all
}

impl Results {
    /// Bytes that both libraries copied for one message, over all payload modes; `None` if no message
    /// was sent.
    pub fn copied_per_message(&self, test: Test, protocol: Protocol, size: usize) -> Option<f64> {
        let series = [Payload::Untouched, Payload::WrittenRead]
            .into_iter()
            .filter_map(|payload| self.post(test, protocol, payload, size));
        let (copied, messages) = series
            .fold((0, 0), |(copied, messages), series| (copied + series.copied, messages + series.messages));
        (messages > 0).then(|| copied as f64 / messages as f64)
    }
}

/// A small run for tests.
#[cfg(test)]
fn sample_run() -> (Plan, Results) {
    use std::time::Duration;

    use crate::experiment::rounds::{RawSeries, Series};

    let series = |test, protocol, payload, size, figures: [f64; 3], copied| Series {
        contender: Contender { test, protocol, payload },
        size,
        iterations: 500,
        figures: figures.to_vec(),
        copied,
        messages: 10,
    };
    let (latency, bandwidth) = (Test::Latency, Test::Bandwidth);
    let (untouched, written) = (Payload::Untouched, Payload::WrittenRead);
    let (copy, hand_off) = (Protocol::Copy, Protocol::HandOff);
    let results = Results {
        posts: vec![
            series(latency, copy, untouched, 0, [0.5, 0.7, 0.6], 0),
            series(latency, copy, written, 0, [0.5, 0.7, 0.6], 0),
            series(latency, hand_off, untouched, 0, [0.25, 0.25, 0.25], 0),
            series(latency, hand_off, written, 0, [0.25, 0.25, 0.25], 0),
            series(latency, copy, untouched, 4096, [2.0, 1.0, 3.0], 81_920),
            series(latency, copy, written, 4096, [4.0, 4.0, 4.0], 81_920),
            series(latency, hand_off, untouched, 4096, [0.5, 0.25, 0.75], 0),
            series(latency, hand_off, written, 4096, [1.0, 2.0, 1.0], 5),
            series(bandwidth, copy, untouched, 4096, [4000.0, 5000.0, 3000.0], 81_920),
            series(bandwidth, hand_off, untouched, 4096, [40_000.0, 40_000.0, 40_000.0], 0),
        ],
        raws: vec![
            RawSeries { size: 0, line: vec![0.125; 3], ..RawSeries::default() },
            RawSeries {
                size: 4096,
                line: vec![0.125; 3],
                copy: vec![0.5, 0.5, 1.0],
                two_copies: vec![1.0, 0.5, 1.5],
            },
        ],
        rounds: 3,
        warm_up: crate::stats::steady::WarmUp::default(),
        elapsed: Duration::from_millis(2500),
    };
    (Plan { sizes: vec![0, 4096], ..Plan::sample() }, results)
}

#[cfg(test)]
fn sample_machine() -> Machine {
    Machine::sample("pinned to cores 0 and 1", "shm0")
}

/// Report of a small run, for tests.
#[cfg(test)]
pub fn sample() -> Report {
    let (plan, results) = sample_run();
    report(sample_machine(), &plan, &results, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::Format;

    #[test]
    fn a_run_reads_like_this() {
        let expected = "\
# µDECK 1.2.3 deckperf, 2026-01-02 03:04 UTC
# Machine: Some CPU, 2 cores, Linux 6.1
# Build:   rustc 1.95.0, optimised
# Ranks:   2, pinned to cores 0 and 1; transport: shm0
# Method:  interleaved: in each of 3 rounds (2.5 s in all) every contender of a
#          size runs one batch of about 1.5 ms, in rotating order
# Method:  warm-up: no round is dropped (until the median of 3 rounds lies
#          between the 5th and the 95th percentile of those after them)
# Method:  a figure is the median over the batches; 99 % of the batches are at
#          least as good as p99
# Method:  latency is half the round trip of a ping-pong
# Method:  bandwidth is a window of 64 messages (fewer where they exceed 64
#          MiB), then one empty message back; a MB is 10^6 bytes
# Method:  untouched: neither side looks at the data
# Method:  written+read: the sender writes every word, the receiver sums and
#          checks them all
# Method:  raw limits, by two threads on the same cores in the same rounds while
#          rank 1 sleeps: hand-over = a counter to and fro through 64 pairs of
#          cache lines; memcpy = one copy out of the other core's dirty cache
#          lines; 2 memcpys = that and a copy into lines that the other core
#          read last
# Noise:   the raw line stayed within x1.00 (p90 / p10; up to x1.5 is quiet)
#          during this run

# Latency (us), untouched
# Size          copy    hand-off      memcpy   2 memcpys
0               0.60        0.25           -           -
4096            2.00        0.50        0.50        1.00

# Latency (us), written+read
# Size          copy    hand-off
0               0.60        0.25
4096            4.00        1.00

# Latency test: bytes copied by the library per message
# Size          copy    hand-off
0                  0           0
4096            8192        0.25

# Bandwidth (MB/s), untouched
# Size          copy    hand-off
0                  -           -
4096         4000.00    40000.00

# Bandwidth (MB/s), written+read
# Size          copy    hand-off
0                  -           -
4096               -           -

# Bandwidth test: bytes copied by the library per message
# Size          copy    hand-off
0                  -           -
4096            8192           0

# What this shows: ratios within a round; median and its 95 % bounds over 3
# rounds
# hand-off / copy, 4K, untouched                   0.250  (0.250 to 0.250)
# hand-off / copy, 4K, written+read                0.250  (0.250 to 0.500)
# copy / two raw memcpys, 4K, untouched             2.00  (2.00 to 2.00)
# raw cache-line hand-over in this run: 125 ns one way
";
        assert_eq!(sample().render(Format::Table), expected);
    }

    #[test]
    fn stats_show_what_was_copied_and_no_times() {
        let (plan, results) = sample_run();
        let plan = Plan { stats: true, ..plan };
        let text = report(sample_machine(), &plan, &results, None).render(Format::Table);
        let (head, tables) = text.split_once("\n\n").unwrap();
        assert!(head.contains("# Method:  both ranks' libraries count"), "{head}");
        let expected = "\
# Latency test: bytes copied by the library per message
# Size          copy    hand-off
0                  0           0
4096            8192        0.25

# Bandwidth test: bytes copied by the library per message
# Size          copy    hand-off
0                  -           -
4096            8192           0
";
        assert_eq!(tables, expected);
    }

    #[test]
    fn without_a_second_core_the_limits_are_missing_and_said_to_be() {
        let (plan, mut results) = sample_run();
        for raw in &mut results.raws {
            raw.line.clear();
            raw.copy.clear();
            raw.two_copies.clear();
        }
        let text = report(sample_machine(), &plan, &results, None).render(Format::Table);
        assert!(text.contains("# Method:  raw limits: not measured, they need two cores\n"), "{text}");
        assert!(!text.contains("in this run"), "{text}");
    }

    #[test]
    fn csv_is_a_header_and_a_row_per_test_size_and_protocol() {
        let text = sample().render(Format::Csv);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(
            rows,
            [
                COLUMNS,
                "0,copy,latency,us,0.6000,0.7000,0.6000,0.7000,0.0000,0.1250,,",
                "0,hand-off,latency,us,0.2500,0.2500,0.2500,0.2500,0.0000,0.1250,,",
                "4096,copy,latency,us,2.0000,3.0000,4.0000,4.0000,8192.0000,0.1250,0.5000,1.0000",
                "4096,hand-off,latency,us,0.5000,0.7500,1.0000,2.0000,0.2500,0.1250,0.5000,1.0000",
                "0,copy,bandwidth,MB/s,,,,,,0.1250,,",
                "0,hand-off,bandwidth,MB/s,,,,,,0.1250,,",
                "4096,copy,bandwidth,MB/s,4000.0000,3000.0000,,,8192.0000,0.1250,0.5000,1.0000",
                "4096,hand-off,bandwidth,MB/s,40000.0000,40000.0000,,,0.0000,0.1250,0.5000,1.0000",
            ]
        );
        let columns = |row: &str| row.matches(',').count();
        assert!(rows.iter().all(|row| columns(row) == columns(COLUMNS)));
    }

    #[test]
    fn one_protocol_and_one_test_give_exactly_a_row_per_size() {
        let (mut plan, results) = sample_run();
        plan.tests.truncate(1);
        plan.protocols.truncate(1);
        assert_eq!(csv(&plan, &results).lines().count(), 1 + plan.sizes.len());
    }

    #[test]
    fn json_holds_the_machine_and_every_figure() {
        let text = sample().render(Format::Json);
        let value: Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!(value["machine"]["cpu"], "Some CPU");
        assert_eq!(value["rounds"], 3);
        assert_eq!(value["results"].as_array().map(Vec::len), Some(8));
        let cell = &value["results"][3];
        assert_eq!((&cell["protocol"], &cell["size"]), (&json!("hand-off"), &json!(4096)));
        assert_eq!(
            cell["untouched"],
            json!({"p50": 0.5, "p99": 0.75, "batches": 3, "iterations_per_batch": 500})
        );
        assert_eq!(value["results"][4]["untouched"], Value::Null);
        assert_eq!(value["raw"][1]["memcpy_us"], 0.5);
        assert_eq!(value["ratios"][0]["of"], "hand-off / copy, 4K, untouched");
        assert_eq!(value["ratios"][0]["median"], 0.25);
    }

    #[test]
    fn a_written_run_is_read_again() {
        let text = sample().render(Format::Json);
        let run = data::Run::parse(&text).expect("what was written");
        assert_eq!((run.command.as_str(), run.udeck.as_str()), ("messages", "1.2.3"));
        assert_eq!(run.machine["cpu"], "Some CPU");
        let of = |library: &str, protocol: &str, payload: Option<&str>| {
            let wanted = |series: &&data::Series| {
                let key = &series.key;
                (key.library.as_str(), key.protocol.as_deref(), key.payload.as_deref(), key.size)
                    == (library, Some(protocol), payload, Some(4096))
                    && key.test == "latency"
            };
            run.series.iter().find(wanted).unwrap_or_else(|| panic!("{library} {protocol} in {text}"))
        };
        let hand_off = of(data::OURS, "hand-off", Some("untouched"));
        assert_eq!(hand_off.rounds, [Some(0.5), Some(0.25), Some(0.75)]);
        assert_eq!((hand_off.unit.as_str(), hand_off.better), ("us", data::Better::Lower));
        assert_eq!(hand_off.copied_bytes_per_message, Some(0.0));
        assert_eq!(hand_off.key.transport.as_deref(), Some("shm"));
        assert_eq!(of(data::LIMIT, "memcpy", None).figures(), [0.5, 0.5, 1.0]);
        assert_eq!(run.series.iter().filter(|series| series.better == data::Better::Higher).count(), 2);
        let keys: std::collections::BTreeSet<_> = run.series.iter().map(|series| &series.key).collect();
        assert_eq!(keys.len(), run.series.len());
    }
}
