//! The table of `deckperf collectives`: every row has one goal, which stands in the row.

use super::{bracketed, cell, wanted};
use crate::peers::report::{PeersReport, ReportLine};

/// Wide enough for the longest title.
const TITLE: usize = 41;

/// µs for an operation.
pub(super) fn figures(report: &PeersReport) -> String {
    let cells = |words: &[&str]| words.iter().map(|word| format!("{word:>10}")).collect::<String>();
    let names: Vec<&str> = report.peers.iter().map(|peer| peer.name).collect();
    let versions: Vec<&str> = report.peers.iter().map(|peer| peer.version.as_str()).collect();
    let mut text = format!("\n{:<TITLE$}{:>10}{}\n", "#", "", cells(&names));
    let end = format!("{:<26}{:<7}verdict", "ours / best peer", "goal");
    text += &format!("{:<TITLE$}{}{}   {end}\n", "# What (us)", cells(&["ours"]), cells(&versions));
    let mut before = None;
    for line in &report.lines {
        if before.replace(line.row.column.ranks).is_some_and(|ranks| ranks != line.row.column.ranks) {
            text.push('\n');
        }
        text += &row(line);
    }
    text
}

fn row(line: &ReportLine) -> String {
    let figures = [line.ours].into_iter().chain(line.peers.iter().map(|peer| peer.figure));
    let figures: String = figures.map(|value| format!("{:>10}", cell(value))).collect();
    let checks = line.checks.iter().map(|check| {
        let ratio = check.ratio.map_or("-".to_owned(), bracketed);
        format!("   {ratio:<26}{:<7}{}", wanted(check.target.bound), check.verdict.name())
    });
    format!("{:<TITLE$}{figures}{}\n", line.row.title, checks.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{report::sample_of, targets::Course};

    #[test]
    fn goals_stand_in_the_rows() {
        let text = figures(&sample_of(Course::Groups));
        for line in [
            "#                                                       MPICH       UCX",
            "# What (us)                                    ours     5.0.2    1.13.1   ours / best peer          goal   verdict",
            "barrier, 2 ranks                               1.12      4.50      3.38   0.333 (0.333 to 0.333)    ≤ 0.8  met",
            "barrier, 8 ranks                               1.12      4.50         -   0.250 (0.250 to 0.250)    ≤ 0.6  met",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}\nis missing in\n{text}");
        }
    }

    #[test]
    fn lines_fit_and_columns_stand_apart() {
        let report = sample_of(Course::Groups);
        for line in figures(&report).lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
        for line in &report.lines {
            assert!(line.row.title.len() < TITLE, "{}", line.row.title);
        }
    }
}
