//! The table of `deckperf collectives`: every row has one goal, which is in the row.

use super::{bracketed, cell, heads, wanted};
use crate::{
    commands::peers::report::{PeersReport, ReportLine},
    named::Named,
    report::aligned::aligned,
};

/// Table of the times per operation, in µs.
pub(super) fn figures(report: &PeersReport) -> String {
    let mut lines =
        heads(report, &["# What (us)"], &["ours"], &["ours / best peer", "goal", "verdict"]).to_vec();
    let mut before = None;
    for line in &report.lines {
        if before.replace(line.row.column.ranks).is_some_and(|ranks| ranks != line.row.column.ranks) {
            lines.push(Vec::new());
        }
        lines.push(row(line));
    }
    let figures = 1..2 + report.peers.len();
    "\n".to_owned() + &aligned(&lines, 1, |at| !figures.contains(&at))
}

fn row(line: &ReportLine) -> Vec<String> {
    let figures = [line.ours].into_iter().chain(line.peers.iter().map(|peer| peer.figure)).map(cell);
    let checks = line.checks.iter().flat_map(|check| {
        let ratio = check.ratio.map_or("-".to_owned(), bracketed);
        [ratio, wanted(check.target.bound), check.verdict.name()]
    });
    [line.row.title.to_owned()].into_iter().chain(figures).chain(checks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::{report::sample_of, targets::Setting};

    #[test]
    fn goals_stand_in_the_rows() {
        let text = figures(&sample_of(Setting::Groups));
        for line in [
            "#                                              MPICH     UCX",
            "# What (us)                              ours  5.0.2  1.13.1",
            "barrier, 2 ranks                         1.12   4.50    3.38",
            "barrier, 8 ranks                         1.12   4.50       -",
            "# What (us)                              ours / best peer        goal   verdict",
            "barrier, 2 ranks                         0.333 (0.333 to 0.333)  ≤ 0.8  met",
            "barrier, 8 ranks                         0.250 (0.250 to 0.250)  ≤ 0.6  met",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}\nis missing in\n{text}");
        }
    }

    #[test]
    fn lines_fit_and_columns_stand_apart() {
        let report = sample_of(Setting::Groups);
        for line in figures(&report).lines() {
            assert!(line.chars().count() <= crate::report::aligned::WIDTH, "{line}");
        }
    }
}
