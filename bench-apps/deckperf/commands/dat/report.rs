//! Report of a measurement of uDAPL, in every format.

use serde_json::Value;

use super::contender::{APIS, Api, DatContender, TRANSFERS};
use crate::{
    commands::vi::Transfer,
    experiment::{
        plan::{Plan, Test},
        rounds::Results,
        sizes,
    },
    named::Named,
    report::{
        LATENCY, Report, bandwidth,
        labelled::{self, Labelled},
        raw_limits, scheduling,
        summary::Finding,
        table::{self, LIMITS},
    },
    stats::{Ratio, paired_ratio},
};
use udeck_cli::machine::Machine;

impl Labelled for DatContender {
    const LABELS: &'static [&'static str] = &["transfer", "level"];

    fn test(&self) -> Test {
        self.test
    }

    fn values(&self) -> Vec<Value> {
        vec![self.transfer.name().into(), self.api.name().into()]
    }
}

/// Makes the report, and computes its findings.
pub fn report(machine: Machine, plan: &Plan, results: &Results<DatContender>) -> Report {
    let tests = plan.tests.iter().flat_map(|&test| TRANSFERS.map(|transfer| (test, transfer)));
    let tables = tests.map(|(test, transfer)| by_size(plan, results, test, transfer)).collect();
    let (method, findings) = (method(plan, results), findings(plan, results));
    labelled::report(machine, "dat", plan.pace.window, results, method, tables, findings)
}

/// Table with a column per level and their ratio; the tables of latencies also have the raw limit of a copy.
fn by_size(plan: &Plan, results: &Results<DatContender>, test: Test, transfer: Transfer) -> String {
    let what = match transfer {
        Transfer::Send => "send/receive",
        Transfer::RdmaWrite => "RDMA write that the target is told of",
        Transfer::RdmaRead => "RDMA read",
    };
    let has_limit = test == Test::Latency;
    let limit = has_limit.then(|| LIMITS[0].to_owned());
    let names: Vec<String> =
        APIS.map(|api| api.name()).into_iter().chain(["dat / vi".into()]).chain(limit).collect();
    let cells = |size: usize| {
        let figure = |api| results.p50(DatContender { test, api, transfer }, size);
        let ratio = ratio(results, test, transfer, size).map(|ratio| ratio.median);
        let limit = has_limit.then(|| table::limits(results, size)[0]);
        APIS.map(figure).into_iter().chain([ratio]).chain(limit).map(table::cell).collect()
    };
    table::by_key(&format!("{}, {what}", table::title(test)), "# Size", &names, &plan.sizes, cells)
}

/// Sentences on how the figures were measured.
fn method(plan: &Plan, results: &Results<DatContender>) -> String {
    let mut text = scheduling(plan.pace.iterations, results);
    if plan.tests.contains(&Test::Latency) {
        text += LATENCY;
        text +=
            "that of an RDMA read is the whole time of one: from its post until its completion was taken\n";
    }
    if plan.tests.contains(&Test::Bandwidth) {
        text += &bandwidth(plan.pace.window);
        text += "of RDMA reads: such a window, until all of it is complete\n";
    }
    text += "dat: udeck-dat's end points on one adapter; the receiver polls by Evd::dequeue\n\
             vi: virtual interfaces, reliable delivery; the receiver polls a completion queue, and asks the VI that it names\n\
             an RDMA write goes always to the same place; the target is told of it: by an empty message behind it (dat), by its \
             immediate data (vi); while a rank reads, the other one polls for a message; neither side looks at the data \
             (`deckperf verify --layer dat` does)\n";
    text + raw_limits(results)
}

/// Ratio of uDAPL's figures to those of the level below.
fn ratio(results: &Results<DatContender>, test: Test, transfer: Transfer, size: usize) -> Option<Ratio> {
    let of = |api| results.figures(DatContender { test, api, transfer }, size);
    paired_ratio(of(Api::Dat), of(Api::Vi))
}

/// The ratio of each pair of columns, with its bounds.
fn findings(plan: &Plan, results: &Results<DatContender>) -> Vec<Finding> {
    let mut found = Vec::new();
    for &test in &plan.tests {
        for transfer in TRANSFERS {
            for &size in &plan.sizes {
                found.extend(ratio(results, test, transfer, size).map(|ratio| Finding {
                    what: format!("dat / vi, {}, {}, {}", test.name(), transfer.name(), sizes::show(size)),
                    ratio,
                }));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use udeck::via::Caps;

    use super::*;
    use crate::{commands::dat::contender::contenders, experiment::plan::Format, report::data};

    /// A report whose figures are all different, so that each is recognised in its place. The NIC has no RDMA reads.
    fn sample(format: Format) -> String {
        let plan = Plan::sample();
        let mut results = contenders(&plan, Caps::RDMA_WRITE);
        for (number, series) in results.posts.iter_mut().enumerate() {
            series.figures = vec![number as f64 + 1.0; 3];
        }
        (results.rounds, results.elapsed) = (3, Duration::from_millis(2500));
        let machine = Machine::sample("pinned to cores 0 and 1", "shm0");
        report(machine, &plan, &results).render(format)
    }

    #[test]
    fn the_tables_read_like_this() {
        let text = sample(Format::Table);
        let tables = &text[text.find("\n\n").expect("a head")..];
        let expected = "

# Latency (us), send/receive
# Size           dat          vi    dat / vi      memcpy
0               1.00        3.00        0.33           -
8               2.00        4.00        0.50           -

# Latency (us), RDMA write that the target is told of
# Size           dat          vi    dat / vi      memcpy
0               5.00        7.00        0.71           -
8               6.00        8.00        0.75           -

# Latency (us), RDMA read
# Size           dat          vi    dat / vi      memcpy
0               9.00           -           -           -
8              10.00           -           -           -

# Bandwidth (MB/s), send/receive
# Size           dat          vi    dat / vi
0                  -           -           -
8              11.00       12.00        0.92

# Bandwidth (MB/s), RDMA write that the target is told of
# Size           dat          vi    dat / vi
0                  -           -           -
8              13.00       14.00        0.93

# Bandwidth (MB/s), RDMA read
# Size           dat          vi    dat / vi
0                  -           -           -
8              15.00           -           -
";
        assert!(tables.starts_with(expected), "{tables}");
        assert!(tables.contains("# dat / vi, bandwidth, rdma-write, 8 "), "{tables}");
    }

    #[test]
    fn csv_is_a_header_and_a_row_per_contender_and_size() {
        let text = sample(Format::Csv);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 1 + 15, "{text}");
        let columns = "size,transfer,level,test,unit,p50,p99,raw_line_us,raw_memcpy_us,raw_two_memcpys_us";
        assert_eq!(rows[0], columns);
        assert_eq!(rows[1], "0,send,dat,latency,us,1.0000,1.0000,,,");
        assert!(rows.contains(&"8,rdma-read,dat,bandwidth,MB/s,15.0000,15.0000,,,"), "{text}");
        let fields = |row: &str| row.matches(',').count();
        assert!(rows.iter().all(|row| fields(row) == fields(columns)));
    }

    #[test]
    fn json_holds_the_machine_and_every_figure() {
        let text = sample(Format::Json);
        let value: Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!((&value["command"], &value["machine"]["cpu"]), (&json!("dat"), &json!("Some CPU")));
        assert_eq!(value["results"].as_array().map(Vec::len), Some(15));
        assert_eq!(value["ratios"].as_array().map(Vec::len), Some(4 + 2));
        assert_eq!(data::Run::parse(&text).expect("the common form").series.len(), 15);
    }
}
