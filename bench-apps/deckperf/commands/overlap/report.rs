//! Report of `deckperf overlap`.

use std::time::Duration;

use super::{
    OverlapPlan, TimedSide, WORK_PER_TRANSFER,
    overlap_ratio::{OverlapSample, OverlapSeries},
};
use crate::{
    experiment::rounds::MIN_ROUNDS,
    named::Named,
    report::table_body::{Cell, Table, names},
};
use udeck_cli::machine::Machine;

const COLUMNS: [&str; 9] = [
    "size",
    "protocol",
    "transfer_us",
    "compute_us",
    "both_us",
    "hidden",
    "hidden_p1",
    "hidden_p99",
    "availability",
];

/// Sentences on how the figures were measured.
pub fn method(machine: &Machine, plan: &OverlapPlan, rounds: usize, elapsed: Duration) -> String {
    let work = match plan.compute {
        Some(time) => format!("{} us", time.as_secs_f64() * 1e6),
        None => format!("{WORK_PER_TRANSFER} times its transfer"),
    };
    format!(
        "in each of {rounds} rounds ({:.1} s in all, at least {MIN_ROUNDS}) every row runs three batches next to each other, \
         in rotating order: the transfer alone, the computation alone, and both (post, compute, wait)\n\
         hidden = 1 - (both - compute) / transfer, availability = compute / both, of each round; then the median, and the \
         1st and 99th percentile\n\
         sender: rank 0 posts, computes, and waits for the word of rank 1, which does nothing but retrieve, that it has the \
         message; receiver: rank 0 says that it is ready, computes, and retrieves what rank 1 posts at that word; the payload \
         is untouched\n\
         each message goes with computation of {work}, which touches no memory\n\
         {} cores for two ranks that both spin: announced messages (copy, rdma-write) move behind a computation only when the \
         thread deck-progress gets a core, which looks every millisecond whether the rank does\n",
        elapsed.as_secs_f64(),
        machine.cores
    )
}

/// A table per side.
pub fn tables(series: &[OverlapSeries]) -> Vec<Table> {
    [TimedSide::Sender, TimedSide::Receiver]
        .into_iter()
        .map(|side| Table {
            title: format!("Overlap of transfer and computation at the {}", side.name()),
            name: side.name(),
            columns: names(&COLUMNS),
            rows: series.iter().filter(|series| series.side.timed == side).map(row).collect(),
        })
        .collect()
}

fn row(series: &OverlapSeries) -> Vec<Cell> {
    let p50 = |of: fn(&OverlapSample) -> f64| Cell::Figure(series.p50(of));
    let hidden = |percent| Cell::Figure(series.percentile(OverlapSample::hidden, percent));
    vec![
        Cell::Count(series.size as u64),
        Cell::text(series.side.protocol),
        p50(|sample| sample.transfer),
        p50(|sample| sample.compute),
        p50(|sample| sample.both),
        p50(OverlapSample::hidden),
        hidden(1.0),
        hidden(99.0),
        p50(OverlapSample::availability),
    ]
}

#[cfg(test)]
mod tests {
    use udeck::Protocol;

    use super::*;
    use crate::commands::overlap::batch::Side;

    #[test]
    fn each_side_has_its_rows() {
        let with = |timed, size, both| OverlapSeries {
            samples: vec![OverlapSample { transfer: 10.0, compute: 20.0, both }; 3],
            ..OverlapSeries::new(Side { timed, protocol: Protocol::HandOff }, size)
        };
        let all = [
            with(TimedSide::Sender, 8, 20.0),
            with(TimedSide::Receiver, 8, 25.0),
            with(TimedSide::Receiver, 9, 30.0),
        ];
        let tables = tables(&all);
        assert_eq!(tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [1, 2]);
        let figures = [10.0, 20.0, 25.0, 0.5, 0.5, 0.5, 0.8].map(|figure| Cell::Figure(Some(figure)));
        let expected = [&[Cell::Count(8), Cell::text("hand-off")][..], &figures].concat();
        assert_eq!(tables[1].rows[0], expected);
        assert_eq!(expected.len(), COLUMNS.len());
    }
}
