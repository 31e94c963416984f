//! The tables of the thesis in which HADB ran over uDAPL, and their rows measured here: with all messages by UDP, and with uDAPL
//! between the servers. Each cell is a run of this program, whose command a user can give, too.

mod published;

use crate::failure::{HadbError, Result};
use crate::options::{Options, Transport};
use crate::row::Table;
use published::{Row, published};
use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::process::{Command, Stdio};
use udeck_cli::columns::lines;

/// Share of rows on the other server: each row is drawn from all.
const REMOTE: &str = "0.5";

/// The two versions of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    Udp,
    Udapl,
}

impl Version {
    const BOTH: [Version; 2] = [Version::Udp, Version::Udapl];

    fn name(self) -> &'static str {
        match self {
            Version::Udp => "UDP",
            Version::Udapl => "uDAPL",
        }
    }

    fn links(self) -> &'static str {
        match self {
            Version::Udp => "--link bare",
            Version::Udapl => "--client-link bare --node-link dat",
        }
    }
}

/// A job that measures rows of some tables.
struct Cell {
    clients: u32,
    /// Tables with their operations.
    tables: &'static [(&'static str, &'static str)],
    /// Options beside those of links, clients and time.
    options: &'static str,
}

const SMALL_BLOBS: [(&str, &str); 4] =
    [("10.6", "blob-insert"), ("10.6", "blob-read"), ("10.6", "blob-update"), ("10.6", "blob-delete")];
const LARGE_BLOBS: [(&str, &str); 4] =
    [("10.7", "blob-insert"), ("10.7", "blob-read"), ("10.7", "blob-update"), ("10.7", "blob-delete")];
const TUPLES: [(&str, &str); 2] = [("10.3", "1tup-read"), ("10.4", "4tup-run")];
const ALL: [(&str, &str); 3] = [TUPLES[0], TUPLES[1], ("10.5", "tpcb")];
const CELLS: [Cell; 5] = [
    Cell { clients: 1, tables: &TUPLES, options: "--mix 1tup-read,4tup-run" },
    Cell { clients: 2, tables: &ALL, options: "--mix 1tup-read,4tup-run,tpcb" },
    Cell { clients: 4, tables: &ALL, options: "--mix 1tup-read,4tup-run,tpcb" },
    Cell { clients: 1, tables: &SMALL_BLOBS, options: "--mix blob --blob-bytes 1K --blobs 10000" },
    Cell { clients: 1, tables: &LARGE_BLOBS, options: "--mix blob --blob-bytes 10K --blobs 5000" },
];

/// Table, operation, clients and version of a row.
type Place = (String, String, u32, Version);

/// Measured figures of all rows, of each round.
#[derive(Default)]
struct Measured {
    rows: BTreeMap<Place, Vec<Row>>,
    /// Machine and build, as the runs say.
    machine: Vec<String>,
}

/// Runs all cells, and returns the tables.
pub fn measure(options: &Options) -> Result<String> {
    let mut measured = Measured::default();
    for round in 0..options.rounds {
        for cell in &CELLS {
            for version in Version::BOTH {
                let report = run(&command(cell, version, round, options))?;
                measured.take(cell, version, &report)?;
            }
        }
    }
    Ok(measured.render(options))
}

/// Command line of a cell, without the program's name.
fn command(cell: &Cell, version: Version, round: u32, options: &Options) -> String {
    let transport = match (version, options.transport) {
        (Version::Udapl, Some(Transport::Deck(name))) => format!(" --transport {name}"),
        _ => String::new(),
    };
    format!(
        "{}{transport} --clients {} {} --remote {REMOTE} --time {} --seed {} --format json",
        version.links(),
        cell.clients,
        cell.options,
        options.time.as_secs_f64(),
        options.seed + u64::from(round),
    )
}

/// Runs this program, and parses its report.
fn run(line: &str) -> Result<Value> {
    let failed = |why: String| HadbError::Run { line: line.to_owned(), why };
    let program = env::current_exe().map_err(HadbError::system("finding this program's own file"))?;
    let mut command = Command::new(program);
    command.args(line.split(' ')).stdin(Stdio::null()).stderr(Stdio::inherit());
    let ended = command.output().map_err(HadbError::system("starting this program"))?;
    let text = String::from_utf8_lossy(&ended.stdout);
    if !ended.status.success() {
        return Err(failed(format!("{}\n{text}", ended.status)));
    }
    serde_json::from_str(&text).map_err(|why| failed(why.to_string()))
}

impl Measured {
    /// Takes the figures of a run's report.
    fn take(&mut self, cell: &Cell, version: Version, report: &Value) -> Result {
        let bad = || HadbError::Run { line: cell.options.to_owned(), why: format!("reported {report}") };
        for (table, operation) in cell.tables {
            let mixes = report["mixes"].as_array().ok_or_else(bad)?;
            let mix = mixes.iter().find(|mix| mix["mix"] == *operation).ok_or_else(bad)?;
            let figure = |name: &str| mix["figures"][name].as_f64().ok_or_else(bad);
            let row = Row {
                transactions: mix["transactions"].as_u64().ok_or_else(bad)?,
                per_s: figure("transactions_per_s")?,
                mean_ms: figure("mean_us")? / 1e3,
                range_ms: Some((figure("min_us")? / 1e3, figure("max_us")? / 1e3)),
            };
            let place = ((*table).to_owned(), (*operation).to_owned(), cell.clients, version);
            self.rows.entry(place).or_default().push(row);
        }
        let machine = &report["machine"];
        let text = |name: &str| machine[name].as_str().unwrap_or("unknown").to_owned();
        self.machine = vec![
            format!(
                "hadb {}, {}",
                report["udeck"].as_str().unwrap_or(""),
                report["date"].as_str().unwrap_or("")
            ),
            format!("{}, {} cores", text("cpu"), machine["cores"]),
            text("kernel"),
        ];
        if version == Version::Udapl {
            self.machine.push(text("transport"));
        }
        Ok(())
    }

    fn render(&self, options: &Options) -> String {
        let seconds = options.time.as_secs_f64();
        let mut text = String::new();
        for line in &self.machine {
            let _ = writeln!(text, "# {line}");
        }
        for version in Version::BOTH {
            let _ = writeln!(text, "# {}: hadb {}", version.name(), version.links());
        }
        let _ = writeln!(
            text,
            "# {} rounds of {seconds} s; a row is the round with the median throughput.\n\
             # Ratios are uDAPL : UDP, the median of the rounds with lowest and highest.",
            options.rounds
        );
        text += &parameters(seconds);
        for (table, title) in [
            ("10.3", "1tup-read"),
            ("10.4", "4tup-run"),
            ("10.5", "TPC-B"),
            ("10.6", "BLOBs of 1 KB"),
            ("10.7", "BLOBs of 10 KB"),
        ] {
            text += &self.table(table, title);
        }
        text
    }

    /// One table in the thesis's shape, and its ratios beside the published ones.
    fn table(&self, table: &str, title: &str) -> String {
        let of_blobs = table >= "10.6";
        let has_range = table <= "10.4";
        let key = if of_blobs { "operation" } else { "clients" };
        let mut heads = vec!["", key, "transactions", "throughput", "mean resp."];
        if has_range {
            heads.extend(["minimal", "maximal"]);
        }
        let mut rows = vec![heads.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        let mut ratios: Vec<Vec<String>> =
            vec![["ratio", "tps: thesis", "here", "mean resp.: thesis", "here"].map(str::to_owned).to_vec()];
        let published = published();
        for version in Version::BOTH {
            for (nth, (operation, clients)) in order(table).into_iter().enumerate() {
                let place = (table.to_owned(), operation.to_owned(), clients, version);
                let Some(rounds) = self.rows.get(&place) else { continue };
                let name = if of_blobs { operation.replace("blob-", "") } else { clients.to_string() };
                let first = if nth == 0 { version.name() } else { "" };
                rows.push(middle(rounds).cells(first, &name, has_range));
                let udp = (place.0.clone(), place.1.clone(), clients, Version::Udp);
                if version == Version::Udapl
                    && let (Some(base), Some(theirs), Some(base_there)) =
                        (self.rows.get(&udp), published.get(&place), published.get(&udp))
                {
                    let of = |figure: fn(&Row) -> f64| {
                        let there = figure(theirs) / figure(base_there);
                        let here = rounds.iter().zip(base).map(|(row, base)| figure(row) / figure(base));
                        [format!("{there:.2}"), spread(here.collect())]
                    };
                    let [throughput, response] = [of(|row| row.per_s), of(|row| row.mean_ms)];
                    ratios.push([vec![name], throughput.to_vec(), response.to_vec()].concat());
                }
            }
        }
        format!("\nTable {table}: {title}\n{}\n{}", lines(&rows), lines(&ratios))
    }
}

/// Operation and number of clients of a table's rows, in their order.
fn order(table: &str) -> Vec<(&'static str, u32)> {
    let rows = CELLS.iter().flat_map(|cell| cell.tables.iter().map(move |row| (row, cell.clients)));
    rows.filter(|((of, _), _)| *of == table).map(|((_, operation), clients)| (*operation, clients)).collect()
}

/// Tables 10.1 and 10.2, the parameters.
fn parameters(seconds: f64) -> String {
    let both = |table: Table| published::grouped(u64::from(2 * table.rows()));
    let settings = [
        vec!["branches".to_owned(), both(Table::Branches)],
        vec!["tellers".to_owned(), both(Table::Tellers)],
        vec!["accounts".to_owned(), both(Table::Accounts)],
    ];
    let length = |size: &str, operations: &str| {
        let (some, time) = (format!("{operations} operations"), format!("{seconds} s"));
        vec![size.to_owned(), some.clone(), time.clone(), time, some]
    };
    let heads = ["size", "insert", "read", "update", "delete"].map(str::to_owned).to_vec();
    let blobs = [heads, length("1 KB", "10,000"), length("10 KB", "5,000")];
    format!(
        "\nTable 10.1: settings of TPC-B\n{}\nTable 10.2: lengths of the tests of BLOBs (insert and delete: \
         {seconds} s at most)\n{}",
        lines(&settings),
        lines(&blobs)
    )
}

/// The row with the median throughput: of an even number, the lower one of the middle.
fn middle(rounds: &[Row]) -> &Row {
    let mut sorted: Vec<&Row> = rounds.iter().collect();
    sorted.sort_by(|one, other| one.per_s.total_cmp(&other.per_s));
    sorted[(sorted.len() - 1) / 2]
}

/// Median, and with several values the lowest and the highest one.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    match &values[..] {
        [] => String::new(),
        [one] => format!("{one:.2}"),
        all => format!("{:.2} ({:.2}-{:.2})", all[(all.len() - 1) / 2], all[0], all[all.len() - 1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    fn options(line: &str) -> Options {
        Options::parse_from(line.split(' ')).check().expect("fits")
    }

    /// A report of a run in which uDAPL is faster by a fifth, and slower in the second round.
    fn report(cell: &Cell, version: Version, round: u32) -> Value {
        let faster = if version == Version::Udp { 1.0 } else { [1.2, 0.9, 1.3][round as usize % 3] };
        let mix = |(_, operation): &(&str, &str)| {
            json!({"mix": operation, "transactions": 123_456_u64, "figures": {
                "transactions_per_s": 98_765.4 * faster, "mean_us": 1_234.5 / faster, "min_us": 9.0, "max_us": 512_345.0}})
        };
        json!({"udeck": "0", "date": "today", "machine": {"cpu": "a processor", "cores": 2, "kernel": "a kernel",
            "transport": "uDAPL's end points over shm between servers; clients have UDP sockets"},
            "mixes": cell.tables.iter().map(mix).collect::<Vec<_>>()})
    }

    fn rendered(rounds: u32) -> String {
        let mut measured = Measured::default();
        for round in 0..rounds {
            for (cell, version) in CELLS.iter().flat_map(|cell| Version::BOTH.map(|version| (cell, version)))
            {
                measured.take(cell, version, &report(cell, version, round)).expect("all figures");
            }
        }
        measured.render(&options(&format!("hadb --tables --rounds {rounds}")))
    }

    #[test]
    fn the_tables_have_the_rows_and_columns_of_the_thesis_on_80_columns() {
        for text in [rendered(1), rendered(3)] {
            let wide = text.lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{text}");
        }
        let text = rendered(3);
        let part = |table: &str| {
            let found = text.split("\nTable ").find(|part| part.starts_with(table)).expect("a table");
            found.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let table = part("10.3");
        let heads = ["clients", "transactions", "throughput", "mean", "resp.", "minimal", "maximal"];
        assert_eq!(table[1], heads);
        let row = ["UDP", "1", "123,456", "98,765.4", "tps", "1.234", "ms", "0.009", "ms", "512.35", "ms"];
        assert_eq!(table[2], row);
        let clients: Vec<&str> = [&table[2..3], &table[5..6]].concat().iter().map(|row| row[0]).collect();
        assert_eq!(clients, ["UDP", "uDAPL"]);
        // Published are 2768.4 : 2658.0 and 0.34 : 0.36.
        assert_eq!(table[10], ["1", "1.04", "1.20", "(0.90-1.30)", "0.94", "0.83", "(0.77-1.11)"]);
        assert_eq!(part("10.1")[3], ["accounts", "64,000"]);
        assert_eq!(part("10.5").len(), 2 + 4 + 1 + 3, "two and four clients: {text}");
        assert_eq!(part("10.7")[2][..3], ["UDP", "insert", "123,456"]);
    }

    #[test]
    fn each_cell_is_a_run_that_the_command_line_allows() {
        let mut mixes = 0;
        for (cell, version) in CELLS.iter().flat_map(|cell| Version::BOTH.map(|version| (cell, version))) {
            let line = command(cell, version, 1, &options("hadb --tables --transport tcp --time 0.5"));
            let run = options(&format!("hadb {line}"));
            assert_eq!((run.clients, run.seed), (Some(cell.clients), 2), "{line}");
            assert_eq!(run.transport.is_some(), version == Version::Udapl, "{line}");
            let names: Vec<_> = run.mixes().into_iter().map(crate::options::Mix::name).collect();
            assert_eq!(names, cell.tables.iter().map(|(_, operation)| *operation).collect::<Vec<_>>());
            mixes += names.len();
        }
        assert_eq!(mixes, published().len(), "a run of each published row");
    }
}
