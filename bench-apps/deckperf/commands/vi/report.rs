//! Report of a measurement of virtual interfaces, in every format.

use serde_json::Value;

use super::contender::{Detection, POLLING, TRAFFICS, TRANSFERS, Traffic, Transfer, ViContender, detections};
use crate::{
    experiment::{
        plan::{Plan, Test},
        rounds::{Results, SMALL},
        sizes,
    },
    named::Named,
    report::{
        LATENCY, Report, bandwidth,
        labelled::{self, Labelled},
        raw_limits, scheduling,
        summary::{Finding, telling_size},
        table::{self, LIMITS},
    },
};
use udeck_cli::machine::Machine;

impl Labelled for ViContender {
    const LABELS: &'static [&'static str] = &["transfer", "look", "vis", "traffic"];

    fn test(&self) -> Test {
        self.test
    }

    fn values(&self) -> Vec<Value> {
        let Self { way, traffic, .. } = self;
        vec![way.transfer.name().into(), way.detection.name().into(), way.vis.into(), traffic.name().into()]
    }
}

/// Makes the report, and computes its findings.
pub fn report(machine: Machine, plan: &Plan, results: &Results<ViContender>) -> Report {
    let (method, tables) = (method(plan, results), tables(plan, results));
    labelled::report(machine, "vi", plan.pace.window, results, method, tables, findings(plan, results))
}

fn tables(plan: &Plan, results: &Results<ViContender>) -> String {
    let tests = plan.tests.iter().flat_map(|&test| TRANSFERS.map(|transfer| (test, transfer)));
    let traffics = TRAFFICS.into_iter().filter(|_| !plan.vi_counts.is_empty());
    tests
        .map(|(test, transfer)| by_size(plan, results, test, transfer))
        .chain(traffics.map(|traffic| by_count(plan, results, traffic)))
        .collect()
}

/// Table with a column per detection; the tables of latencies also have a column per raw limit.
fn by_size(plan: &Plan, results: &Results<ViContender>, test: Test, transfer: Transfer) -> String {
    let what = match transfer {
        Transfer::Send => "send/receive",
        Transfer::RdmaWrite => "RDMA write with immediate data",
        Transfer::RdmaRead => "RDMA read",
    };
    let limits = LIMITS.into_iter().filter(|_| test == Test::Latency);
    let detections = detections(test).iter();
    let names: Vec<String> =
        detections.clone().map(Named::name).chain(limits.clone().map(str::to_owned)).collect();
    let cells = |size: usize| {
        let figure = |&detection| results.p50(ViContender::alone(test, transfer, detection), size);
        let limits = limits.clone().zip(table::limits(results, size)).map(|(_, limit)| limit);
        detections.clone().map(figure).chain(limits).map(table::cell).collect()
    };
    table::by_key(&format!("{}, {what}", table::title(test)), "# Size", &names, &plan.sizes, cells)
}

/// Table with a row per number of VIs.
fn by_count(plan: &Plan, results: &Results<ViContender>, traffic: Traffic) -> String {
    let which = match traffic {
        Traffic::OneBusy => "one busy VI among idle ones",
        Traffic::Spread => "spread over all VIs",
    };
    let names = POLLING.map(|detection| detection.name());
    let cells = |vis: usize| {
        let figure = |detection| results.p50(ViContender::among(vis, detection, traffic), SMALL);
        POLLING.map(figure).map(table::cell).to_vec()
    };
    let title = format!("Latency (us) of {SMALL} bytes, send/receive, {which}");
    table::by_key(&title, "# VIs", &names, &plan.vi_counts, cells)
}

/// Sentences on how the figures were measured.
fn method(plan: &Plan, results: &Results<ViContender>) -> String {
    let has_latency = plan.tests.contains(&Test::Latency);
    let mut text = scheduling(plan.pace.iterations, results);
    if has_latency {
        text += LATENCY;
        text += "in a ping-pong two receives are posted ahead: the next message has its descriptor, and the one just taken is \
                 posted again after the answer has been sent\n";
    }
    if plan.tests.contains(&Test::Bandwidth) {
        text += &bandwidth(plan.pace.window);
    }
    text += "send/receive goes into posted descriptors, an RDMA write always to the same place of the peer's window, and its \
             immediate data take a descriptor; neither side looks at the data\n\
             work-queue: the receiver asks each of its VIs in turn; cq: it polls one completion queue for all of them, then \
             asks the VI that this names; cq-wait: it waits there, which spins first\n";
    if has_latency {
        text += "cq-asleep: the message is posted when the receiver has fallen asleep; the time until then is not counted\n";
    }
    if !plan.vi_counts.is_empty() {
        text += "one busy VI: all messages of a batch come on one VI, of the next batch on another; spread: each comes on \
                 another VI, as if by chance; both over the same connections. A way with one VI has eight connections, which \
                 take turns\n";
    }
    text + raw_limits(results)
}

/// Computes every ratio whose two sides were measured.
fn findings(plan: &Plan, results: &Results<ViContender>) -> Vec<Finding> {
    let of = |contender, size| results.figures(contender, size);
    let alone = |transfer, detection, size| of(ViContender::alone(Test::Latency, transfer, detection), size);
    let small = |detection| alone(Transfer::Send, detection, SMALL);
    let among = |vis, detection, traffic| of(ViContender::among(vis, detection, traffic), SMALL);
    let mut found = Vec::new();
    let mut add = |what, numerators, denominators| found.extend(Finding::of(what, numerators, denominators));

    let (polled, named) = (small(Detection::WorkQueue), small(Detection::CompletionQueue));
    if let Some(raw) = results.raw(SMALL) {
        add(format!("send, {SMALL} bytes / raw cache-line hand-over"), polled, &raw.line);
        add(format!("send, cq, {SMALL} bytes / raw cache-line hand-over"), named, &raw.line);
    }
    let large = telling_size(&plan.sizes);
    add(
        format!("rdma-write / send, {}", sizes::show(large)),
        alone(Transfer::RdmaWrite, Detection::WorkQueue, large),
        alone(Transfer::Send, Detection::WorkQueue, large),
    );
    for detection in [Detection::CompletionQueue, Detection::Wait, Detection::Asleep] {
        add(format!("{} / work-queue, {SMALL} bytes", detection.name()), small(detection), polled);
    }
    let many = || plan.vi_counts.iter().copied().filter(|&vis| vis > 1);
    for vis in many() {
        let [asked, named] = POLLING.map(|detection| among(vis, detection, Traffic::Spread));
        add(format!("cq / work-queue, {SMALL} bytes, spread over {vis} VIs"), named, asked);
    }
    for vis in many() {
        let busy = among(vis, Detection::CompletionQueue, Traffic::OneBusy);
        add(format!("cq, {} idle VIs / cq, 1 VI, {SMALL} bytes", vis - 1), busy, named);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use udeck::via::Caps;

    use super::*;
    use crate::{
        commands::vi::contender::{contenders, setups},
        experiment::plan::Format,
    };

    /// A report whose figures are all different, so that each is recognised in its place.
    fn sample(format: Format) -> String {
        let plan = Plan::sample();
        let mut results = contenders(&plan, &setups(&plan, Caps::RDMA_WRITE));
        for (number, series) in results.posts.iter_mut().enumerate() {
            series.figures = vec![number as f64 + 1.0; 3];
        }
        for raw in &mut results.raws {
            raw.line = vec![0.125; 3];
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
# Size    work-queue          cq     cq-wait   cq-asleep      memcpy   2 memcpys
0               1.00        3.00        5.00        7.00           -           -
8               2.00        4.00        6.00        8.00           -           -

# Latency (us), RDMA write with immediate data
# Size    work-queue          cq     cq-wait   cq-asleep      memcpy   2 memcpys
0               9.00       11.00       13.00       15.00           -           -
8              10.00       12.00       14.00       16.00           -           -

# Bandwidth (MB/s), send/receive
# Size    work-queue          cq     cq-wait
0                  -           -           -
8              17.00       18.00       19.00

# Bandwidth (MB/s), RDMA write with immediate data
# Size    work-queue          cq     cq-wait
0                  -           -           -
8              20.00       21.00       22.00

# Latency (us) of 8 bytes, send/receive, spread over all VIs
# VIs     work-queue          cq
1               2.00        4.00
10             23.00       24.00

# Latency (us) of 8 bytes, send/receive, one busy VI among idle ones
# VIs     work-queue          cq
1               2.00        4.00
10             25.00       26.00

# What this shows: ratios within a round; median and its 95 % bounds over 3
# rounds
# send, 8 bytes / raw cache-line hand-over          16.0  (16.0 to 16.0)
# send, cq, 8 bytes / raw cache-line hand-over      32.0  (32.0 to 32.0)
# rdma-write / send, 8                              5.00  (5.00 to 5.00)
# cq / work-queue, 8 bytes                          2.00  (2.00 to 2.00)
# cq-wait / work-queue, 8 bytes                     3.00  (3.00 to 3.00)
# cq-asleep / work-queue, 8 bytes                   4.00  (4.00 to 4.00)
# cq / work-queue, 8 bytes, spread over 10 VIs      1.04  (1.04 to 1.04)
# cq, 9 idle VIs / cq, 1 VI, 8 bytes                6.50  (6.50 to 6.50)
# raw cache-line hand-over in this run: 125 ns one way
";
        assert_eq!(tables, expected);
    }

    #[test]
    fn csv_is_a_header_and_a_row_per_contender_and_size() {
        let text = sample(Format::Csv);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 1 + 26, "{text}");
        let columns =
            "size,transfer,look,vis,traffic,test,unit,p50,p99,raw_line_us,raw_memcpy_us,raw_two_memcpys_us";
        assert_eq!(rows[0], columns);
        assert_eq!(rows[1], "0,send,work-queue,1,one-busy,latency,us,1.0000,1.0000,0.1250,,");
        for row in [
            "8,send,cq,10,spread,latency,us,24.0000,24.0000,0.1250,,",
            "8,send,cq,10,one-busy,latency,us,26.0000,26.0000,0.1250,,",
        ] {
            assert!(rows.contains(&row), "{row} is missing in {text}");
        }
        assert_eq!(rows[26], "8,rdma-write,cq-wait,1,one-busy,bandwidth,MB/s,22.0000,22.0000,0.1250,,");
        let fields = |row: &str| row.matches(',').count();
        assert!(rows.iter().all(|row| fields(row) == fields(columns)));
    }

    #[test]
    fn json_holds_the_machine_and_every_figure() {
        let value: Value = serde_json::from_str(&sample(Format::Json)).expect("valid JSON");
        assert_eq!(value["machine"]["cpu"], "Some CPU");
        assert_eq!(value["results"].as_array().map(Vec::len), Some(26));
        assert_eq!(value["results"][0]["look"], "work-queue");
        assert_eq!(value["results"][0]["traffic"], "one-busy");
        assert_eq!(value["results"][0]["figure"]["p50"], 1.0);
        assert_eq!(value["ratios"].as_array().map(Vec::len), Some(8));
    }
}
