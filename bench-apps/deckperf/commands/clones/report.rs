//! Report of `deckperf clones`.

use super::{ClonesPlan, flood::Flood, idle::IdleContender};
use crate::{
    experiment::{plan::Test, rounds::Results, sizes},
    report::{
        LATENCY, bandwidth, data, export, raw_limits, scheduling,
        summary::Finding,
        table_body::{Cell, Table, names},
    },
    stats::{median, percentile},
};

/// Label of the series: how the mailboxes look for messages, `cq` or `wq`.
pub const RECEIVE: &str = "receive";

/// Sentences on how the figures were measured.
pub fn method(plan: &ClonesPlan, receive: &str, results: &Results<IdleContender>) -> String {
    let mut text = scheduling(plan.pace.iterations, results)
        + LATENCY
        + &format!(
            "idle: a mailbox per row at either rank, with so many clones of the other's; all messages of a batch go over one \
             clone, the others are connected, have been used once, and are idle. Mailboxes look for messages by {receive} \
             (DECK_RECEIVE)\n"
        );
    if plan.stream {
        text += &bandwidth(plan.pace.window);
    }
    if plan.counts.contains(&1) {
        text += "tcp: beside the one clone, either process holds an idle TCP connection to the other, for which a thread of its \
                 own sleeps. A mailbox's wait has no descriptor in it: sockets are the reactor's, a thread too\n";
    }
    if plan.flooding > 0 {
        text += &format!(
            "flood: rank 1 posts over {} clones in turn, as much as it is let, up to 16 messages at a time; rank 0 takes {} \
             messages for each, of whichever they come, and counts\n\
             memory: PSS (/proc/self/smaps_rollup) of both ranks, so what they share counts once; blocks: messages in the \
             posting rank's arena at most, and their bound: for each clone what its connection holds and one that waits. The \
             arena keeps what it once took\n",
            plan.flooding, plan.each
        );
    }
    text + raw_limits(results)
}

/// Series with the figures of every round.
pub fn series(network: &str, receive: &str, results: &Results<IdleContender>) -> Vec<data::Series> {
    export::series_of(results, |IdleContender { test, clones, tcp }, size| data::Key {
        labels: [("clones", clones.to_string()), ("beside", beside(tcp)), (RECEIVE, receive.to_owned())]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        ..export::key(test, network, size)
    })
}

fn beside(tcp: bool) -> String {
    if tcp { "tcp" } else { "nothing" }.to_owned()
}

/// Table of the latencies, with a row per size and contender.
pub fn latencies(plan: &ClonesPlan, results: &Results<IdleContender>) -> Table {
    let tcp = plan.counts.contains(&1).then_some(IdleContender::BESIDE_TCP);
    let contenders = plan.counts.iter().map(|&clones| IdleContender::among(Test::Latency, clones)).chain(tcp);
    let row = |(size, contender): (usize, IdleContender)| {
        let of = results.figures(contender, size);
        let at = |percent| Cell::Figure(percentile(of, percent));
        let line = results.raw(size).and_then(|raw| median(&raw.line));
        vec![
            Cell::Count(size as u64),
            Cell::Count(contender.clones as u64),
            Cell::text(beside(contender.tcp)),
            Cell::Figure(median(of)),
            at(99.0),
            at(99.9),
            Cell::Figure(line),
        ]
    };
    let rows = plan.busy_sizes.iter().flat_map(|&size| contenders.clone().map(move |one| (size, one)));
    Table {
        title: "Latency (us) over one clone, the others idle".to_owned(),
        name: "latency".into(),
        columns: names(&["size", "clones", "beside", "p50", "p99", "p99.9", "raw_line"]),
        rows: rows.map(row).collect(),
    }
}

/// Table of the bandwidths, with a row per size and number of clones.
pub fn streams(plan: &ClonesPlan, results: &Results<IdleContender>) -> Table {
    let row = |(size, clones): (usize, usize)| {
        let of = results.figures(IdleContender::among(Test::Bandwidth, clones), size);
        vec![
            Cell::Count(size as u64),
            Cell::Count(clones as u64),
            Cell::Figure(median(of)),
            Cell::Figure(percentile(of, 1.0)),
        ]
    };
    let sizes = plan.busy_sizes.iter().filter(|size| **size > 0);
    let rows = sizes.flat_map(|&size| plan.counts.iter().map(move |&clones| (size, clones)));
    Table {
        title: "Bandwidth (MB/s) over one clone, the others idle".to_owned(),
        name: "bandwidth".into(),
        columns: names(&["size", "clones", "p50", "p99"]),
        rows: rows.map(row).collect(),
    }
}

/// Computes every ratio to the fewest clones whose two sides were measured; beside a single clone, the goal is at most 1.05.
pub fn findings(plan: &ClonesPlan, results: &Results<IdleContender>) -> Vec<Finding> {
    let Some((&fewest, more)) = plan.counts.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    for &size in &plan.busy_sizes {
        let of = |contender| results.figures(contender, size);
        let base = of(IdleContender::among(Test::Latency, fewest));
        let at = if plan.busy_sizes.len() > 1 { format!(", {}", sizes::show(size)) } else { String::new() };
        found.extend(more.iter().filter_map(|&clones| {
            let what = match fewest {
                1 => format!("{} idle clones / none{at} (goal: 1.05)", clones - 1),
                _ => format!("{clones} clones / {fewest}{at}"),
            };
            Finding::of(what, of(IdleContender::among(Test::Latency, clones)), base)
        }));
        if fewest == 1 {
            let what = format!("idle tcp / none{at} (goal: 1.05)");
            found.extend(Finding::of(what, of(IdleContender::BESIDE_TCP), base));
        }
    }
    found
}

/// Table of the floods, with a row per message size.
pub fn floods(floods: &[Flood]) -> Table {
    let kib = |bytes: u64| Cell::Count(bytes >> 10);
    let row = |flood: &Flood| {
        let extremes = flood.extremes();
        let count = |count: Option<u64>| Cell::Figure(count.map(|count| count as f64));
        let head = [Cell::Count(flood.size as u64), Cell::Count(flood.delivered.len() as u64)];
        let delivered = [
            count(extremes.map(|(_, least)| least)),
            count(extremes.map(|(most, _)| most)),
            Cell::Figure(flood.unfairness()),
        ];
        let blocks = [Cell::Count(flood.blocks), Cell::Count(flood.bound)];
        [&head[..], &delivered, &flood.memory.map(kib), &blocks].concat()
    };
    Table {
        title: "Flood: messages given out by clone (most / least; goal: 1.2), and memory (KiB)".to_owned(),
        name: "flood".into(),
        columns: names(&[
            "size", "clones", "least", "most", "ratio", "before", "idle", "flooded", "after", "blocks",
            "bound",
        ]),
        rows: floods.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        commands::clones::idle::contenders,
        experiment::plan::{Format, Pace},
    };

    fn plan(counts: &[usize], sizes: &[usize]) -> ClonesPlan {
        ClonesPlan {
            counts: counts.to_vec(),
            busy_sizes: sizes.to_vec(),
            stream: sizes.len() > 1,
            pace: Pace { iterations: None, time: std::time::Duration::ZERO, window: 64 },
            flooding: 0,
            each: 1,
            sizes: Vec::new(),
            format: Format::Table,
            pin: false,
        }
    }

    /// Results whose series have the figures 1, 2, 3 and so on.
    fn numbered(plan: &ClonesPlan) -> Results<IdleContender> {
        let mut results = contenders(plan);
        for (number, series) in results.posts.iter_mut().enumerate() {
            series.figures = vec![number as f64 + 1.0; 3];
        }
        results
    }

    fn ratios(plan: &ClonesPlan) -> Vec<(String, f64)> {
        let found = findings(plan, &numbered(plan));
        found.into_iter().map(|finding| (finding.what, finding.ratio.median)).collect()
    }

    #[test]
    fn every_ratio_is_to_the_one_clone() {
        let plan = plan(&[1, 10, 1000], &[8]);
        let expected = [
            ("9 idle clones / none (goal: 1.05)", 2.0),
            ("999 idle clones / none (goal: 1.05)", 3.0),
            ("idle tcp / none (goal: 1.05)", 4.0),
        ];
        assert_eq!(ratios(&plan), expected.map(|(what, ratio)| (what.to_owned(), ratio)));
        let table = latencies(&plan, &numbered(&plan));
        assert_eq!(table.rows.len(), 4);
        let row = [Cell::Count(8), Cell::Count(1), Cell::text("tcp"), Cell::Figure(Some(4.0))];
        assert_eq!(table.rows[3][..4], row);
    }

    #[test]
    fn without_one_clone_every_ratio_is_to_the_fewest_and_no_tcp_is_measured() {
        let plan = plan(&[10, 40], &[0, 4096]);
        // Latencies of 10 clones are 1 and 2, of 40 clones 3 and 4; then come streams, of 4096 bytes only.
        let expected = [("40 clones / 10, 0", 3.0), ("40 clones / 10, 4K", 2.0)];
        assert_eq!(ratios(&plan), expected.map(|(what, ratio)| (what.to_owned(), ratio)));
        let (latencies, streams) = (latencies(&plan, &numbered(&plan)), streams(&plan, &numbered(&plan)));
        assert_eq!((latencies.rows.len(), streams.rows.len()), (4, 2));
        assert_eq!(streams.rows[1][..3], [Cell::Count(4096), Cell::Count(40), Cell::Figure(Some(6.0))]);
    }

    #[test]
    fn a_flood_is_a_row() {
        let flood = Flood {
            size: 8,
            delivered: vec![90, 108],
            memory: [1 << 20, 2 << 20, 3 << 20, 1 << 20],
            blocks: 7,
            bound: 129,
        };
        let table = floods(&[flood]);
        let [row] = &table.rows[..] else { panic!("one row") };
        assert_eq!(row.len(), table.columns.len());
        assert_eq!(row[4], Cell::Figure(Some(1.2)));
        assert_eq!(row[5..9], [1024, 2048, 3072, 1024].map(Cell::Count));
    }
}
