//! Report of `deckperf clones`.

use super::{ClonesPlan, flood::Flood, idle::IdleContender};
use crate::{
    experiment::{
        plan::Test,
        rounds::{Results, SMALL},
    },
    report::{
        LATENCY, data, export, raw_limits, scheduling,
        summary::Finding,
        table_body::{Cell, Table, names},
    },
    stats::{median, percentile},
};

/// Sentences on how the figures were measured.
pub fn method(plan: &ClonesPlan, results: &Results<IdleContender>) -> String {
    scheduling(plan.pace.iterations, results)
        + LATENCY
        + &format!(
            "idle: a mailbox per row at either rank, with so many clones of the other's; all messages of a batch go over one \
             clone, the others are connected, have been used once, and are idle\n\
             tcp: beside the one clone, either process holds an idle TCP connection to the other, for which a thread of its own \
             sleeps. A mailbox's wait has no descriptor in it: sockets are the reactor's, a thread too\n\
             flood: rank 1 posts over {} clones in turn, as much as it is let, up to 16 messages at a time; rank 0 takes {} \
             messages for each, of whichever they come, and counts\n\
             memory: PSS (/proc/self/smaps_rollup) of both ranks, so what they share counts once; blocks: messages in the \
             posting rank's arena at most, and their bound: for each clone what its connection holds and one that waits. The \
             arena keeps what it once took\n",
            plan.flooding, plan.each
        )
        + raw_limits(results)
}

fn figures(results: &Results<IdleContender>, clones: usize, tcp: bool) -> &[f64] {
    results.figures(IdleContender { clones, tcp }, SMALL)
}

/// Series with the figures of every round.
pub fn series(network: &str, results: &Results<IdleContender>) -> Vec<data::Series> {
    export::series_of(results, |IdleContender { clones, tcp }, size| data::Key {
        labels: [("clones", clones.to_string()), ("beside", beside(tcp).to_owned())]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        ..export::key(Test::Latency, network, size)
    })
}

fn beside(tcp: bool) -> &'static str {
    if tcp { "tcp" } else { "nothing" }
}

/// Table of the latencies, with a row per contender.
pub fn latencies(counts: &[usize], results: &Results<IdleContender>) -> Table {
    let line = results.raw(SMALL).and_then(|raw| median(&raw.line));
    let contenders = counts.iter().map(|&clones| (clones, false)).chain([(1, true)]);
    let row = |(clones, tcp)| {
        let of = figures(results, clones, tcp);
        let at = |percent| Cell::Figure(percentile(of, percent));
        let figures = [Cell::Figure(median(of)), at(99.0), at(99.9), Cell::Figure(line)];
        [&[Cell::Count(clones as u64), Cell::text(beside(tcp))][..], &figures].concat()
    };
    Table {
        title: format!("Latency (us) of {SMALL} bytes over one clone, the others idle"),
        name: "latency".into(),
        columns: names(&["clones", "beside", "p50", "p99", "p99.9", "raw_line"]),
        rows: contenders.map(row).collect(),
    }
}

/// Computes every ratio whose two sides were measured; the goal is at most 1.05.
pub fn findings(counts: &[usize], results: &Results<IdleContender>) -> Vec<Finding> {
    let one = figures(results, 1, false);
    let more = counts.iter().filter(|&&clones| clones > 1);
    let ratio = |what, of| Finding::of(what, of, one);
    let idle = more.filter_map(|&clones| {
        ratio(format!("{} idle clones / none (goal: 1.05)", clones - 1), figures(results, clones, false))
    });
    let tcp = ratio("idle tcp / none (goal: 1.05)".to_owned(), figures(results, 1, true));
    idle.chain(tcp).collect()
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
    use crate::commands::clones::idle::contenders;

    #[test]
    fn every_ratio_is_to_the_one_clone() {
        let counts = [1, 10, 1000];
        let mut results = contenders(&counts);
        for (number, series) in results.posts.iter_mut().enumerate() {
            series.figures = vec![number as f64 + 1.0; 3];
        }
        let found = findings(&counts, &results);
        let ratios: Vec<_> = found.iter().map(|finding| (&finding.what[..], finding.ratio.median)).collect();
        assert_eq!(
            ratios,
            [
                ("9 idle clones / none (goal: 1.05)", 2.0),
                ("999 idle clones / none (goal: 1.05)", 3.0),
                ("idle tcp / none (goal: 1.05)", 4.0),
            ]
        );
        let table = latencies(&counts, &results);
        assert_eq!(table.rows.len(), 4);
        assert_eq!(table.rows[3][..3], [Cell::Count(1), Cell::text("tcp"), Cell::Figure(Some(4.0))]);
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
