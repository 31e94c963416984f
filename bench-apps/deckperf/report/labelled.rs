//! Reports of runs whose contenders differ in a test and in labels: as tables, as CSV, and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Body, Report, data, export, summary::Finding};
use crate::{
    experiment::{
        plan::Test,
        rounds::{Contend, Results, Series},
    },
    named::Named,
};
use udeck_cli::machine::Machine;

/// A contender that is named by its test and its labels.
pub trait Labelled: Contend {
    /// Names of the labels. The first label is the way in which data are transferred.
    const LABELS: &'static [&'static str];

    fn test(&self) -> Test;

    /// The labels' values, in the same order.
    fn values(&self) -> Vec<Value>;
}

/// Report of a layer whose contenders have labels.
pub fn report<C: Labelled>(
    machine: Machine,
    command: &'static str,
    window: u64,
    results: &Results<C>,
    method: String,
    tables: String,
    findings: Vec<Finding>,
) -> Report {
    Report {
        command,
        method,
        noise: results.noise(),
        series: series(results, machine.network()),
        findings,
        body: Body::of_rounds(results, window, tables, csv(results), cells(results)),
        machine,
    }
}

/// A header line, then a row per contender and size; a figure that was not measured is empty.
fn csv<C: Labelled>(results: &Results<C>) -> String {
    let mut text = format!("size,{}", C::LABELS.join(","));
    text += ",test,unit,p50,p99,raw_line_us,raw_memcpy_us,raw_two_memcpys_us\n";
    for series in rows(results) {
        let test = series.contender.test();
        let _ = write!(text, "{}", series.size);
        for value in series.contender.values() {
            let _ = write!(text, ",{}", plain(&value));
        }
        let _ = write!(text, ",{},{}", test.name(), test.unit());
        let figure = series.figure();
        text += &export::field(figure.map(|figure| figure.p50));
        text += &export::field(figure.map(|figure| figure.p99));
        text += &export::raw_fields(results.raw(series.size));
        text.push('\n');
    }
    text
}

/// An object per contender and size; a figure that was not measured is null.
fn cells<C: Labelled>(results: &Results<C>) -> Vec<Value> {
    let cell = |series: &Series<C>| {
        let test = series.contender.test();
        let mut cell = json!({
            "test": test.name(),
            "size": series.size,
            "unit": test.unit(),
            "figure": series.figure(),
        });
        for (name, value) in C::LABELS.iter().zip(series.contender.values()) {
            cell[*name] = value;
        }
        cell
    };
    rows(results).into_iter().map(cell).collect()
}

/// Series of every contender's figures, then of the machine's limits. The first label becomes the protocol.
fn series<C: Labelled>(results: &Results<C>, network: &str) -> Vec<data::Series> {
    export::series_of(results, |contender, size| {
        let values = contender.values();
        let mut labels = C::LABELS.iter().zip(values.iter().map(plain));
        data::Key {
            protocol: labels.next().map(|(_, transfer)| transfer),
            labels: labels.map(|(name, value)| ((*name).to_owned(), value)).collect(),
            ..export::key(contender.test(), network, size)
        }
    })
}

/// Series sorted by test and size; equal ones keep the order of the columns.
fn rows<C: Labelled>(results: &Results<C>) -> Vec<&Series<C>> {
    let mut rows: Vec<_> = results.posts.iter().collect();
    rows.sort_by_key(|series| (series.contender.test() == Test::Bandwidth, series.size));
    rows
}

/// Text of a value as a table shows it: a string without its quotation marks.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
