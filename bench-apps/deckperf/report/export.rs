//! The report for other programs: CSV and JSON.

use serde_json::{Value, json};

use crate::{
    experiment::{
        plan::{Quantity, Test},
        rounds::{Contend, RawSeries, Results},
    },
    named::Named,
    report::{
        Body,
        data::{Better, Key, LIMIT, OURS, RAW, Run, Series, VERSION},
        summary::Finding,
    },
    stats::median,
};
use udeck_cli::machine::Machine;

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

impl Body {
    /// Body of a run of rounds, beside whose figures stand the machine's limits.
    pub fn of_rounds<C: Contend>(
        results: &Results<C>,
        window: u64,
        text: String,
        csv: String,
        cells: Vec<Value>,
    ) -> Self {
        let raw = |raw: &RawSeries| {
            json!({
                "size": raw.size,
                "line_us": median(&raw.line),
                "memcpy_us": median(&raw.copy),
                "two_memcpys_us": median(&raw.two_copies),
            })
        };
        let json = json!({
            "window": window,
            "rounds": results.rounds,
            "dropped_rounds": results.warm_up.dropped,
            "results": cells,
            "raw": results.raws.iter().map(raw).collect::<Vec<_>>(),
        });
        Body { text, csv, json, line: median(&results.lines()) }
    }
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

/// Last three columns of a row: the limits at its size.
pub fn raw_fields(raw: Option<&RawSeries>) -> String {
    let limit = |of: fn(&RawSeries) -> &Vec<f64>| field(raw.and_then(|raw| median(of(raw))));
    [limit(|raw| &raw.line), limit(|raw| &raw.copy), limit(|raw| &raw.two_copies)].concat()
}

/// A comma and the value, if there is one.
pub fn field(value: Option<f64>) -> String {
    value.map_or(",".to_owned(), |value| format!(",{value:.4}"))
}
