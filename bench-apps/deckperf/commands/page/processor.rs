//! Processor time of messages (`deckperf cpu`): curves of all contenders beside each other, and the division into user and
//! system time.

use serde::Deserialize;

use super::{
    charts::{Along, Chart, over},
    html::{self, Cell, Table},
    show,
};
use crate::{
    distinct::{distinct, grouped},
    report::data::{OURS, Series},
};

/// Costs of a contender under one load, in the form that `cpu` writes; `null` where it cannot wait in this way.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct CostRow {
    contender: String,
    waiting: String,
    bytes: u64,
    depth: u64,
    /// Messages per second of a paced load; 0: a stream.
    paced_per_second: u64,
    messages_per_second: Option<f64>,
    sender_user_us: Option<f64>,
    sender_system_us: Option<f64>,
    sender_core_percent: Option<f64>,
    receiver_user_us: Option<f64>,
    receiver_system_us: Option<f64>,
    receiver_core_percent: Option<f64>,
    both_us: Option<f64>,
    us_per_megabit: Option<f64>,
}

/// Streams with the same number of messages under way, whose receivers wait in the same way.
#[derive(PartialEq)]
struct Stream<'a> {
    depth: &'a str,
    waiting: &'a str,
}

/// Charts for each depth, of polling and of blocking contenders: first the time of a message, then the rate.
pub fn charts(all: &[&Series]) -> Vec<Chart> {
    let mut streams = distinct(all.iter().filter_map(|series| Stream::of(series)));
    let place = |waiting: &str| ["polling", "blocking"].iter().position(|known| *known == waiting);
    streams.sort_by_key(|Stream { depth, waiting }| (depth.parse::<u64>().ok(), place(waiting)));
    let tests = [("processor-time", "Processor time, both sides"), ("message-rate", "Messages per second")];
    let of = |(test, title): (&str, &str), stream: &Stream<'_>| {
        let members =
            all.iter().filter(|one| one.key.test == test && Stream::of(one).as_ref() == Some(stream));
        let lines = grouped(members.map(|&series| (contender(series), series)));
        over(&format!("{title}: {} under way, {}", stream.depth, stream.waiting), &Along::Size, &lines)
    };
    tests.into_iter().flat_map(|test| streams.iter().filter_map(move |stream| of(test, stream))).collect()
}

impl<'a> Stream<'a> {
    fn of(series: &'a Series) -> Option<Self> {
        let labels = &series.key.labels;
        let is_paced = labels.contains_key("per-second");
        (!is_paced).then_some(Stream { depth: labels.get("buffers")?, waiting: labels.get("waiting")? })
    }
}

/// Name such as `µDECK tcp`, `Open MPI 5.0.11 shm`, `sockets udp`.
fn contender(series: &Series) -> String {
    let library = if series.key.library == OURS { "µDECK" } else { &series.key.library };
    [library, series.key.transport.as_deref().unwrap_or("")].join(" ").trim().to_owned()
}

/// Tables of user and system time at both ends, of streams and of paced messages: one for each load.
pub fn tables(rows: &[CostRow]) -> String {
    let loads = distinct(rows.iter().map(|row| (row.paced_per_second, row.depth, row.bytes)));
    loads.into_iter().map(|load| table(load, rows)).collect()
}

fn table((rate, depth, bytes): (u64, u64, u64), rows: &[CostRow]) -> String {
    let members = rows.iter().filter(|row| {
        (row.paced_per_second, row.depth, row.bytes) == (rate, depth, bytes) && row.both_us.is_some()
    });
    let figure = |figure: Option<f64>| Cell::text(&show::maybe(figure));
    let sum = |user, system| Cell::text(&format!("{} + {}", show::maybe(user), show::maybe(system)));
    let cells = members.map(|row| {
        let mut cells = vec![
            Cell::text(&row.contender),
            Cell::text(&row.waiting),
            figure(row.messages_per_second.map(f64::round)),
            sum(row.sender_user_us, row.sender_system_us),
            sum(row.receiver_user_us, row.receiver_system_us),
            figure(row.both_us),
        ];
        cells.extend(match rate {
            0 => vec![figure(row.us_per_megabit)],
            _ => vec![figure(row.sender_core_percent), figure(row.receiver_core_percent)],
        });
        cells
    });
    let mut heads = vec![
        "contender",
        "waiting",
        "#messages/s",
        "#sender: user + system, µs",
        "#receiver: user + system, µs",
        "#both, µs",
    ];
    heads.extend(match rate {
        0 => vec!["#µs/Mbit"],
        _ => vec!["#sender, % of a core", "#receiver, % of a core"],
    });
    let heads = heads.into_iter().map(str::to_owned).collect();
    let load = if rate > 0 { format!("{rate} messages per second") } else { format!("{depth} under way") };
    let table = html::table(&Table { heads, rows: cells.collect() }, "processor");
    format!(
        "<details><summary>{}, {load}: user and system time at both ends</summary>{table}</details>",
        show::bytes(bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::{Better, Key};

    fn series(library: &str, waiting: &str, depth: u64, size: u64, rate: Option<u64>) -> Series {
        let mut labels: std::collections::BTreeMap<String, String> =
            [("waiting".into(), waiting.into()), ("buffers".into(), depth.to_string())].into();
        labels.extend(rate.map(|rate| ("per-second".to_owned(), rate.to_string())));
        let key = Key {
            test: "processor-time".into(),
            library: library.into(),
            transport: Some("tcp".into()),
            size: Some(size),
            labels,
            ..Key::default()
        };
        let rounds = vec![Some(size as f64); 3];
        Series { key, unit: "us".into(), better: Better::Lower, copied_bytes_per_message: None, rounds }
    }

    #[test]
    fn contenders_that_wait_alike_share_a_chart() {
        let all: Vec<Series> = [("blocking", 64), ("polling", 64), ("polling", 2)]
            .into_iter()
            .flat_map(|(waiting, depth)| {
                [OURS, "sockets"]
                    .map(|library| [100, 500].map(|size| series(library, waiting, depth, size, None)))
            })
            .flatten()
            .chain([series(OURS, "polling", 50, 100, Some(1000))])
            .collect();
        let charts = charts(&all.iter().collect::<Vec<_>>());
        let titles: Vec<&str> = charts.iter().map(|chart| chart.title.as_str()).collect();
        let start = "Processor time, both sides: ";
        let expected = ["2 under way, polling", "64 under way, polling", "64 under way, blocking"];
        assert_eq!(titles, expected.map(|end| format!("{start}{end}")));
        let names: Vec<&str> = charts[0].lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["µDECK tcp", "sockets tcp"]);
    }

    #[test]
    fn who_cannot_wait_so_has_no_row() {
        let row = |waiting: &str, both_us| CostRow {
            contender: "Some <MPI>".into(),
            waiting: waiting.into(),
            bytes: 4096,
            depth: 2,
            receiver_user_us: Some(1.0),
            receiver_system_us: Some(2.5),
            both_us,
            ..CostRow::default()
        };
        let html = tables(&[row("polling", Some(4.0)), row("blocking", None)]);
        assert!(html.contains("4 KiB, 2 under way") && html.contains("1.00 + 2.50"), "{html}");
        assert!(html.contains("Some &lt;MPI&gt;") && !html.contains("blocking"), "{html}");
    }
}
