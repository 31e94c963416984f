//! The report for other programs: CSV and JSON.

use std::fmt::Write;

use serde_json::{Value, json};
use udeck::Protocol;

use crate::{
    experiment::{
        plan::{Payload, Quantity, Test},
        rounds::{Contend, RawSeries, Results},
    },
    named::Named,
    report::{
        Figure, Report,
        data::{Better, Key, LIMIT, OURS, RAW, Run, Series, VERSION},
        summary::Finding,
    },
    stats::median,
};
use udeck_cli::machine::Machine;

const COLUMNS: &str = "size,protocol,test,unit,untouched_p50,untouched_p99,written_read_p50,written_read_p99,\
copied_bytes_per_message,raw_line_us,raw_memcpy_us,raw_two_memcpys_us";

/// A header line, then a row per test, size and protocol; a figure that was not measured is empty.
pub fn csv(report: &Report) -> String {
    let mut text = format!("{COLUMNS}\n");
    for (test, size, protocol) in cells(report) {
        let _ = write!(text, "{size},{protocol},{},{}", test.name(), test.unit());
        for payload in [Payload::Untouched, Payload::WrittenRead] {
            let figure = figure(report, test, protocol, payload, size);
            text += &field(figure.map(|figure| figure.p50));
            text += &field(figure.map(|figure| figure.p99));
        }
        text += &field(report.results.copied_per_message(test, protocol, size));
        text += &raw_fields(report.results.raw(size));
        text.push('\n');
    }
    text
}

/// One object: a [`Run`], and `window`, `results`, `raw`, `ratios`; a figure that was not measured is null.
pub fn json(report: &Report) -> String {
    let results: Vec<Value> = cells(report)
        .map(|(test, size, protocol)| {
            let of = |payload| figure(report, test, protocol, payload, size).map(figure_json);
            json!({
                "test": test.name(),
                "size": size,
                "protocol": protocol.to_string(),
                "unit": test.unit(),
                "untouched": of(Payload::Untouched),
                "written_read": of(Payload::WrittenRead),
                "copied_bytes_per_message": report.results.copied_per_message(test, protocol, size),
            })
        })
        .collect();
    let run = run("messages", &report.machine, &report.method(), series(report));
    document(run, report.plan.pace.window, &report.results, &report.findings, results)
}

/// The part of a JSON file that all commands write alike.
pub fn run(command: &str, machine: &Machine, method: &str, series: Vec<Series>) -> Run {
    Run {
        deckperf: VERSION,
        command: command.to_owned(),
        udeck: machine.version.to_owned(),
        date: machine.date.clone(),
        machine: serde_json::from_value(machine_json(machine)).unwrap_or_default(),
        method: method.lines().map(str::to_owned).collect(),
        series,
    }
}

fn series(report: &Report) -> Vec<Series> {
    let (results, network) = (&report.results, report.machine.network());
    let mut all = series_of(results, |contender, size| Key {
        protocol: Some(contender.protocol.to_string()),
        payload: Some(contender.payload.name()),
        ..key(contender.test, network, size)
    });
    for (one, posts) in all.iter_mut().zip(&results.posts) {
        one.copied_bytes_per_message =
            (posts.messages > 0).then(|| posts.copied as f64 / posts.messages as f64);
    }
    all
}

/// Series with the figures of every round: of every contender, then of the machine's limits. `key` names a contender at
/// a size.
pub fn series_of<C: Contend>(results: &Results<C>, key: impl Fn(C, usize) -> Key) -> Vec<Series> {
    let ours = results.posts.iter().map(|series| {
        of_rounds(key(series.contender, series.size), series.contender.quantity(), &series.figures)
    });
    ours.chain(raw_series(results)).collect()
}

/// Key of µDECK's figures; the caller adds the properties in which they differ.
pub fn key(test: Test, network: &str, size: usize) -> Key {
    Key {
        test: test.name(),
        library: OURS.to_owned(),
        transport: Some(network.to_owned()),
        size: Some(size as u64),
        ..Key::default()
    }
}

/// Series of a contender that took part in every round.
fn of_rounds(key: Key, quantity: Quantity, figures: &[f64]) -> Series {
    let better = match quantity {
        Quantity::Time => Better::Lower,
        Quantity::Throughput => Better::Higher,
    };
    Series {
        key,
        unit: quantity.unit().to_owned(),
        better,
        copied_bytes_per_message: None,
        rounds: figures.iter().copied().map(Some).collect(),
    }
}

/// Series of the machine's own limits, with the names of [`RAW`].
fn raw_series<C: Contend>(results: &Results<C>) -> impl Iterator<Item = Series> + '_ {
    let named = |raw: &RawSeries| [raw.line.clone(), raw.copy.clone(), raw.two_copies.clone()];
    results.raws.iter().flat_map(move |raw| {
        let measured = RAW.into_iter().zip(named(raw)).filter(|(_, figures)| !figures.is_empty());
        let size = Some(raw.size as u64);
        measured.map(move |(name, figures)| {
            let key = Key {
                test: Test::Latency.name(),
                library: LIMIT.to_owned(),
                protocol: Some(name.to_owned()),
                size,
                ..Key::default()
            };
            of_rounds(key, Quantity::Time, &figures)
        })
    })
}

/// The JSON document around `cells`, in which the two layers differ.
pub fn document<C: Contend>(
    run: Run,
    window: u64,
    results: &Results<C>,
    findings: &[Finding],
    cells: Vec<Value>,
) -> String {
    let raw: Vec<Value> = results
        .raws
        .iter()
        .map(|raw| {
            json!({
                "size": raw.size,
                "line_us": median(&raw.line),
                "memcpy_us": median(&raw.copy),
                "two_memcpys_us": median(&raw.two_copies),
            })
        })
        .collect();
    let ratios: Vec<Value> = findings.iter().map(ratio_json).collect();
    let more = json!({
        "window": window,
        "rounds": results.rounds,
        "dropped_rounds": results.warm_up.dropped,
        "noise": results.noise().map(|noise| noise.json()),
        "results": cells,
        "raw": raw,
        "ratios": ratios,
    });
    written(&run, more)
}

/// Text of a run, with further members that only this command has.
pub fn written(run: &Run, more: Value) -> String {
    let mut object = json!(run);
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        // Figures of every round come last; the members that people look for stand before them.
        let series = object.remove("series");
        object.extend(more);
        object.extend(series.map(|series| ("series".to_owned(), series)));
    }
    format!("{object:#}\n")
}

/// JSON description of the machine.
pub fn machine_json(machine: &Machine) -> Value {
    let mut object = json!({
        "cpu": machine.cpu,
        "cores": machine.cores,
        "kernel": machine.kernel,
        "build": machine.build,
        "ranks": machine.ranks,
        "pinning": machine.pinning,
        "transport": machine.transport,
    });
    if let Some(load) = &machine.load {
        object["load"] = load.json();
    }
    if machine.off_cache {
        // Without the option nothing is written, as in runs that are older than the option.
        object["memory"] = json!("off-cache");
    }
    object
}

/// A ratio with its bounds.
pub fn ratio_json(finding: &Finding) -> Value {
    let ratio = &finding.ratio;
    json!({
        "of": finding.what,
        "median": ratio.median,
        "low_95": ratio.low,
        "high_95": ratio.high,
        "rounds": ratio.rounds,
    })
}

fn cells(report: &Report) -> impl Iterator<Item = (Test, usize, Protocol)> {
    let plan = &report.plan;
    plan.tests.iter().flat_map(move |&test| {
        plan.sizes
            .iter()
            .flat_map(move |&size| plan.protocols.iter().map(move |&protocol| (test, size, protocol)))
    })
}

fn figure(report: &Report, test: Test, protocol: Protocol, payload: Payload, size: usize) -> Option<Figure> {
    report.results.post(test, protocol, payload, size)?.figure()
}

/// JSON object of a figure in a [`document`].
pub fn figure_json(figure: Figure) -> Value {
    json!({
        "p50": figure.p50,
        "p99": figure.p99,
        "batches": figure.batches,
        "iterations_per_batch": figure.iterations,
    })
}

/// Last three columns of a row: the limits at its size.
pub fn raw_fields(raw: Option<&RawSeries>) -> String {
    let limit = |of: fn(&RawSeries) -> &Vec<f64>| field(raw.and_then(|raw| median(of(raw))));
    [limit(|raw| &raw.line), limit(|raw| &raw.copy), limit(|raw| &raw.two_copies)].concat()
}

/// A comma and the value, if there is one.
pub fn field(value: Option<f64>) -> String {
    value.map_or(",".to_owned(), |value| format!(",{value:.4}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::plan::Format, report::sample};

    #[test]
    fn csv_is_a_header_and_a_row_per_test_size_and_protocol() {
        let text = csv(&sample(Format::Csv));
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
        let mut report = sample(Format::Csv);
        report.plan.tests.truncate(1);
        report.plan.protocols.truncate(1);
        assert_eq!(csv(&report).lines().count(), 1 + report.plan.sizes.len());
    }

    #[test]
    fn json_holds_the_machine_and_every_figure() {
        let text = json(&sample(Format::Json));
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
}
