//! The report as aligned text.

mod groups;

use std::fmt::Write;

use super::{
    confidence::PeerRatio,
    contenders::Peer,
    report::{PeersReport, ReportLine},
    targets::{Bound, Course},
};
use crate::table::{head, three_digits, wrapped};

/// The head, the table, and the targets.
pub fn render(report: &PeersReport) -> String {
    let mut text = head(&report.machine, &report.method, None);
    for peer in &report.peers {
        text += &wrapped(
            "# Peer:    ",
            "#          ",
            &format!("{}{}: {}", peer.title(), place(peer), peer.flags),
        );
    }
    for (title, lines) in [("# Missing: ", &report.missing), ("# Failed:  ", &report.losses)] {
        for line in lines {
            let (what, said) = line.split_once('\n').unwrap_or((line.as_str(), ""));
            text += &wrapped(title, "#          ", what);
            said.lines().for_each(|said| text += &format!("#          {said}\n"));
        }
    }
    if report.course == Course::Groups {
        return text + &groups::figures(report) + EXPLAINED;
    }
    text + &figures(report) + &targets(report)
}

const EXPLAINED: &str = "# What the goals mean, and why they are these: docs/measuring.md, section Goals\n";

/// Nothing of what is installed.
fn place(peer: &Peer) -> String {
    peer.prefix.as_ref().map_or(String::new(), |prefix| format!(" in {}", prefix.display()))
}

fn figures(report: &PeersReport) -> String {
    let cells = |words: &[&str]| words.iter().map(|word| format!("{word:>10}")).collect::<String>();
    let names: Vec<&str> = report.peers.iter().map(|peer| peer.name).collect();
    let versions: Vec<&str> = report.peers.iter().map(|peer| peer.version.as_str()).collect();
    let mut text = "\n".to_owned();
    if !names.is_empty() {
        text += &format!("{:<59}{}\n", "#", cells(&names));
    }
    let start = cells(&["ours", "limit", "floor"]);
    text += &format!("{:<24}{:>5}{start}{}   ours / best peer\n", "# What", "unit", cells(&versions));
    let mut before = None;
    for line in &report.lines {
        if before.replace(line.row.column.test).is_some_and(|test| test != line.row.column.test) {
            text.push('\n');
        }
        let others = line.peers.iter().map(|peer| peer.figure);
        let figures = [line.ours, line.limit.figure, line.floor.figure].into_iter().chain(others);
        let figures: String = figures.map(|value| format!("{:>10}", cell(value))).collect();
        let best = line.best.and_then(|best| line.peers[best].ratio).map_or("-".to_owned(), bracketed);
        let _ = writeln!(text, "{:<24}{:>5}{figures}   {best}", line.row.title, line.row.unit.name());
    }
    text
}

fn targets(report: &PeersReport) -> String {
    let mut text = format!(
        "\n{:<24}{:<29}{:<25}{:<9}{:<14}{}\n",
        "# Target", "ours divided by", "ratio (95 % bounds)", "wanted", "verdict", "goal"
    );
    for line in &report.lines {
        text += &checks(line);
    }
    text + EXPLAINED
}

fn checks(line: &ReportLine) -> String {
    let checks = line.checks.iter().map(|check| {
        let ratio = check.ratio.map_or("-".to_owned(), bracketed);
        let (title, against, wanted) = (line.row.title, &check.against, wanted(check.target.bound));
        let (verdict, goal) = (check.verdict.name(), check.target.goal.name());
        format!("{title:<24}{against:<29}{ratio:<25}{wanted:<9}{verdict:<14}{goal}\n")
    });
    checks.collect()
}

fn wanted(bound: Bound) -> String {
    match bound {
        Bound::AtMost(ratio) => format!("≤ {ratio}"),
        Bound::AtLeast(ratio) => format!("≥ {ratio}"),
    }
}

fn bracketed(ratio: PeerRatio) -> String {
    let PeerRatio { value, low, high, .. } = ratio;
    format!("{} ({} to {})", short(value), short(low), short(high))
}

/// Three digits, but no more than three decimals.
fn short(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { three_digits(ratio) }
}

fn cell(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), three_digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::report::sample;

    #[test]
    fn a_run_reads_like_this() {
        let text = render(&sample());
        for line in [
            "# Peer:    MPICH 5.0.2 in /peers/mpich: no flags",
            "# Peer:    UCX 1.13.1: no flags",
            "# Missing: libfabric: not installed (apt install libfabric-bin)",
            "# Failed:  UCX, 2 ranks: did not end within 20 s, killed",
            "#                                                               MPICH       UCX",
            "# What                   unit      ours     limit     floor     5.0.2    1.13.1   ours / best peer",
            "8 B                        us      1.12     0.900      1.01      4.50      3.38   0.333 (0.333 to 0.333)",
            "barrier, 8 ranks           us      1.12     0.900         -      4.50         -   0.250 (0.250 to 0.250)",
            "# Target                ours divided by              ratio (95 % bounds)      wanted   verdict       \
             goal",
            "8 B                     the raw limit                1.25 (1.25 to 1.25)      ≤ 1.6    met           \
             near-limit",
            "8 B rate                the floor                    0.900 (0.900 to 0.900)   ≥ 0.5    met           \
             near-limit",
            "1 MiB w+r, hand-off     ours, 1 MiB w+r, one copy    1.00 (1.00 to 1.00)      ≤ 1      met           \
             no-copy",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}\nis missing in\n{text}");
        }
    }

    #[test]
    fn lines_fit_and_columns_stand_apart() {
        let text = render(&sample());
        for line in text.lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
        for line in &sample().lines {
            assert!(line.row.title.len() < 24, "{}", line.row.title);
            assert!(line.checks.iter().all(|check| check.against.len() < 29), "{}", line.row.title);
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
