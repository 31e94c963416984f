//! Data of runs whose contenders differ in a test and in labels: as CSV, as JSON, and round by round.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::{
    experiment::{
        plan::Test,
        rounds::{Contend, Results, Series},
    },
    report::{data, export},
};

/// A contender that is named by its test and its labels.
pub trait Labelled: Contend {
    /// Names of the labels. The first label is the way in which data are transferred.
    const LABELS: &'static [&'static str];

    fn test(&self) -> Test;

    /// The labels' values, in the same order.
    fn values(&self) -> Vec<Value>;
}

/// A header line, then a row per contender and size; a figure that was not measured is empty.
pub fn csv<C: Labelled>(results: &Results<C>) -> String {
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
pub fn cells<C: Labelled>(results: &Results<C>) -> Vec<Value> {
    let cell = |series: &Series<C>| {
        let test = series.contender.test();
        let mut cell = json!({
            "test": test.name(),
            "size": series.size,
            "unit": test.unit(),
            "figure": series.figure().map(export::figure_json),
        });
        for (name, value) in C::LABELS.iter().zip(series.contender.values()) {
            cell[*name] = value;
        }
        cell
    };
    rows(results).into_iter().map(cell).collect()
}

/// Series of every contender's figures, then of the machine's limits. The first label becomes the protocol.
pub fn series<C: Labelled>(results: &Results<C>, network: &str) -> Vec<data::Series> {
    let ours = results.posts.iter().map(|series| {
        let test = series.contender.test();
        let mut key = export::key(test, network, series.size);
        let values = series.contender.values();
        let mut labels = C::LABELS.iter().zip(values.iter().map(plain));
        key.protocol = labels.next().map(|(_, transfer)| transfer);
        key.labels = labels.map(|(name, value)| ((*name).to_owned(), value)).collect();
        export::of_rounds(key, test.quantity(), &series.figures)
    });
    ours.chain(export::raw_series(results)).collect()
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
