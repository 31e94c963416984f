//! The report as aligned text.

mod groups;

use super::{
    contenders::Peer,
    report::PeersReport,
    targets::{Bound, Setting},
};
use crate::{
    distinct::grouped,
    named::Named,
    report::{
        aligned::{aligned, wrapped},
        table::{REST, head, three_digits},
    },
    stats::Ratio,
};

/// The head, the table, and the targets.
pub fn render(report: &PeersReport) -> String {
    let mut text = head(&report.machine, &report.method, None);
    for peer in &report.peers {
        text += &wrapped("# Peer:    ", REST, &format!("{}{}: {}", peer.title(), place(peer), peer.flags));
    }
    for (title, lines) in [("# Missing: ", &report.missing), ("# Failed:  ", &report.losses)] {
        for line in lines {
            let (what, said) = line.split_once('\n').unwrap_or((line.as_str(), ""));
            text += &wrapped(title, REST, what);
            said.lines().for_each(|said| text += &format!("{REST}{said}\n"));
        }
    }
    if report.setting == Setting::Groups {
        return text + &groups::figures(report) + EXPLAINED;
    }
    text + &figures(report) + &targets(report)
}

const EXPLAINED: &str = "# What the goals mean, and why they are these: docs/measuring.md, section Goals\n";

/// Place of the peer's folder; empty for an installed peer.
fn place(peer: &Peer) -> String {
    peer.prefix.as_ref().map_or(String::new(), |prefix| format!(" in {}", prefix.display()))
}

/// Two lines of heads over the figures: names, and versions. `title` is for the first columns, `last` for the column that `end`
/// fills.
fn heads(report: &PeersReport, title: &[&str], bare: &[&str], last: &[&str]) -> [Vec<String>; 2] {
    let blank = |words: &[&str]| vec![String::new(); words.len()];
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let names = report.peers.iter().map(|peer| peer.name.to_owned()).collect();
    let versions = report.peers.iter().map(|peer| peer.version.clone()).collect();
    let mut first = blank(title);
    first[0] = "#".to_owned();
    [
        [first, blank(bare), names, blank(last)].concat(),
        [words(title), words(bare), versions, words(last)].concat(),
    ]
}

fn figures(report: &PeersReport) -> String {
    let mut lines =
        heads(report, &["# What", "unit"], &["ours", "limit", "floor"], &["ours / best peer"]).to_vec();
    let mut before = None;
    for line in &report.lines {
        if before.replace(line.row.column.test).is_some_and(|test| test != line.row.column.test) {
            lines.push(Vec::new());
        }
        let others = line.peers.iter().map(|peer| peer.figure);
        let figures = [line.ours, line.limit.figure, line.floor.figure].into_iter().chain(others).map(cell);
        let best = line.best.and_then(|best| line.peers[best].ratio).map_or("-".to_owned(), bracketed);
        let names = [line.row.title.to_owned(), line.row.unit.name()];
        lines.push(names.into_iter().chain(figures).chain([best]).collect());
    }
    let last = lines[0].len() - 1;
    "\n".to_owned() + &aligned(&lines, 2, |at| at == 0 || at == last)
}

/// Table of the targets, by goal and by denominator.
fn targets(report: &PeersReport) -> String {
    let head = ["# Target", "ratio (95 % bounds)", "wanted", "verdict"];
    let checks = report.lines.iter().flat_map(|line| line.checks.iter().map(move |check| (line, check)));
    let mut groups = grouped(checks.map(|(line, check)| {
        let title = format!("# {}: ours divided by {}", check.target.goal.name(), check.against);
        let ratio = check.ratio.map_or("-".to_owned(), bracketed);
        let wanted = wanted(check.target.bound);
        (title, vec![line.row.title.to_owned(), ratio, wanted, check.verdict.name()])
    }));
    groups.sort_by(|(one, _), (other, _)| one.cmp(other));
    let all = groups.iter().flat_map(|(_, rows)| rows).cloned();
    let lines: Vec<Vec<String>> = std::iter::once(head.map(str::to_owned).to_vec()).chain(all).collect();
    let text = aligned(&lines, 1, |_| true);
    let mut printed = text.lines();
    let mut text = format!("\n{}\n", printed.next().unwrap_or_default());
    for (title, rows) in &groups {
        text += &format!("\n{title}\n");
        printed.by_ref().take(rows.len()).for_each(|row| text += &format!("{row}\n"));
    }
    text + EXPLAINED
}

fn wanted(bound: Bound) -> String {
    match bound {
        Bound::AtMost(ratio) => format!("≤ {ratio}"),
        Bound::AtLeast(ratio) => format!("≥ {ratio}"),
    }
}

fn bracketed(ratio: Ratio) -> String {
    let Ratio { median, low, high, .. } = ratio;
    format!("{} ({} to {})", short(median), short(low), short(high))
}

/// Formats a ratio with three digits, but at most three decimals.
fn short(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { three_digits(ratio) }
}

fn cell(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), three_digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::report::sample;

    #[test]
    fn a_run_reads_like_this() {
        let text = render(&sample());
        for line in [
            "# Peer:    MPICH 5.0.2 in /peers/mpich: no flags",
            "# Peer:    UCX 1.13.1: no flags",
            "# Missing: libfabric: not installed (apt install libfabric-bin)",
            "# Failed:  UCX, 2 ranks: did not end within 20 s, killed",
            "#                                                  MPICH     UCX",
            "# What                  unit   ours  limit  floor  5.0.2  1.13.1",
            "8 B                       us   1.12  0.900   1.01   4.50    3.38",
            "barrier, 8 ranks          us   1.12  0.900      -   4.50       -",
            "# What                  unit  ours / best peer",
            "8 B                       us  0.333 (0.333 to 0.333)",
            "barrier, 8 ranks          us  0.250 (0.250 to 0.250)",
            "# Target                ratio (95 % bounds)     wanted  verdict",
            "# near-limit: ours divided by the raw limit",
            "8 B                     1.25 (1.25 to 1.25)     ≤ 1.6   met",
            "# near-limit: ours divided by the floor",
            "8 B rate                0.900 (0.900 to 0.900)  ≥ 0.5   met",
            "# no-copy: ours divided by ours, 1 MiB w+r, one copy",
            "1 MiB w+r, hand-off     1.00 (1.00 to 1.00)     ≤ 1     met",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}\nis missing in\n{text}");
        }
    }

    #[test]
    fn lines_fit_and_columns_stand_apart() {
        let text = render(&sample());
        for line in text.lines() {
            assert!(line.chars().count() <= crate::report::aligned::WIDTH, "{line}");
        }
    }

    #[test]
    fn what_a_program_said_stays_a_comment() {
        let mut report = sample();
        report.missing = vec!["MPICH: cannot build\n    error: x\n    error: y".to_owned()];
        let text = render(&report);
        assert!(
            text.contains(
                "# Missing: MPICH: cannot build\n#              error: x\n#              error: y\n"
            )
        );
    }
}
