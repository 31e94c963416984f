//! The report for other programs: CSV and JSON.

use serde_json::{Value, json};

use super::{
    contenders::Peer,
    report::{Check, Comparison, PeersReport, ReportLine},
    targets::Bound,
};
use crate::{
    named::Named,
    report::export::{self, field},
    stats::Ratio,
};

const COLUMNS: &str = "row,unit,against,figure,rounds,ours_ratio,low_95,high_95,wanted,verdict,goal";

/// A header line; then for each row a line for µDECK, the limit and each peer; then a line for each target.
pub fn csv(report: &PeersReport) -> String {
    let mut text = format!("{COLUMNS}\n");
    for line in &report.lines {
        // A title may contain a comma, so it is quoted.
        let start = format!("\"{}\",{}", line.row.title, line.row.unit.name());
        text += &format!("{start},ours{},,,,,,,\n", field(line.ours));
        for (name, other) in others(report, line) {
            let Comparison { figure, figures, ratio } = other;
            text += &format!("{start},{name}{},{figures}{},,,\n", field(figure), ratio_fields(ratio));
        }
        for check in &line.checks {
            let Check { target, against, ratio, verdict } = check;
            let (wanted, verdict, goal) = (wanted(target.bound), verdict.name(), target.goal.name());
            let rounds = ratio.map_or(0, |ratio| ratio.rounds);
            let ratio = ratio_fields(*ratio);
            text += &format!("{start},\"{against}\",,{rounds}{ratio},{wanted},{verdict},{goal}\n");
        }
    }
    text
}

/// One object: a [`Run`](crate::report::data::Run), and `peers`, `missing`, `failed`, `rows`; a figure that was not measured is null.
pub fn json(report: &PeersReport) -> String {
    let peers = report
        .peers
        .iter()
        .map(|peer| json!({ "name": peer.name, "version": peer.version, "prefix": peer.prefix, "flags": peer.flags }));
    let run = export::run(report.setting.command(), &report.machine, &report.method, report.series.clone());
    let more = json!({
        "peers": peers.collect::<Vec<_>>(),
        "missing": report.missing,
        "failed": report.losses,
        "rows": report.lines.iter().map(|line| row(report, line)).collect::<Vec<_>>(),
    });
    export::written(&run, more)
}

fn row(report: &PeersReport, line: &ReportLine) -> Value {
    let column = &line.row.column;
    let others = others(report, line).map(|(name, other)| {
        json!({ "name": name, "figure": other.figure, "rounds": other.figures, "ours_ratio": ratio(other.ratio) })
    });
    let checks = line.checks.iter().map(|check| {
        json!({
            "against": check.against,
            "ratio": ratio(check.ratio),
            "wanted": wanted(check.target.bound),
            "verdict": check.verdict.name(),
            "goal": check.target.goal.name(),
        })
    });
    json!({
        "title": line.row.title,
        "test": column.test.name(),
        "ranks": column.ranks,
        "bytes": column.bytes,
        "payload": column.payload.name(),
        "protocol": line.row.ours.to_string(),
        "unit": line.row.unit.name(),
        "ours": line.ours,
        "others": others.collect::<Vec<_>>(),
        "best_peer": line.best.map(|best| report.peers[best].title()),
        "targets": checks.collect::<Vec<_>>(),
    })
}

/// Comparisons with the limit, the floor, and the peers.
fn others<'r>(
    report: &'r PeersReport,
    line: &'r ReportLine,
) -> impl Iterator<Item = (String, Comparison)> + 'r {
    let peers = report.peers.iter().map(Peer::title).zip(line.peers.iter().copied());
    [("limit", line.limit), ("floor", line.floor)]
        .map(|(name, one)| (name.to_owned(), one))
        .into_iter()
        .chain(peers)
}

fn wanted(bound: Bound) -> String {
    match bound {
        Bound::AtMost(ratio) => format!("<={ratio}"),
        Bound::AtLeast(ratio) => format!(">={ratio}"),
    }
}

fn ratio(ratio: Option<Ratio>) -> Value {
    ratio.map_or(Value::Null, |ratio| {
        json!({ "value": ratio.median, "low_95": ratio.low, "high_95": ratio.high, "rounds": ratio.rounds })
    })
}

fn ratio_fields(ratio: Option<Ratio>) -> String {
    [ratio.map(|ratio| ratio.median), ratio.map(|ratio| ratio.low), ratio.map(|ratio| ratio.high)]
        .map(field)
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::{report::sample, targets::Setting};

    #[test]
    fn csv_has_a_line_for_everybody_and_every_target() {
        let text = csv(&sample());
        let targets: usize = Setting::Memory.rows().iter().map(|row| row.targets.len()).sum();
        assert_eq!(text.lines().count(), 1 + 5 * Setting::Memory.rows().len() + targets);
        for line in [
            "\"8 B\",us,ours,1.1250,,,,,,,",
            "\"8 B\",us,UCX 1.13.1,3.3750,6,0.3333,0.3333,0.3333,,,",
            "\"barrier, 8 ranks\",us,UCX 1.13.1,,0,,,,,,",
            "\"8 B\",us,\"the raw limit\",,6,1.2500,1.2500,1.2500,<=1.6,met,near-limit",
            "\"8 B rate\",M/s,\"the floor\",,6,0.9000,0.9000,0.9000,>=0.5,met,near-limit",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}\nis missing in\n{text}");
        }
        let columns = |line: &str| {
            let quoted =
                line.split('"').skip(1).step_by(2).map(|quoted| quoted.matches(',').count()).sum::<usize>();
            line.matches(',').count() - quoted
        };
        assert!(text.lines().all(|line| columns(line) == columns(COLUMNS)), "{text}");
    }

    #[test]
    fn json_holds_the_peers_and_every_row() {
        let value: Value = serde_json::from_str(&json(&sample())).expect("valid JSON");
        assert_eq!(value["peers"][1]["version"], "1.13.1");
        assert_eq!(
            (&value["peers"][0]["prefix"], &value["peers"][1]["prefix"]),
            (&json!("/peers/mpich"), &Value::Null)
        );
        assert_eq!(value["missing"][0], "libfabric: not installed (apt install libfabric-bin)");
        let rows = value["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), Setting::Memory.rows().len());
        assert_eq!((&rows[0]["best_peer"], &rows[0]["protocol"]), (&json!("UCX 1.13.1"), &json!("auto")));
        assert_eq!(rows[0]["targets"][1]["verdict"], "met");
        assert_eq!(rows[0]["others"][0]["name"], "limit");
        let run = crate::report::data::Run::parse(&json(&sample())).expect("what all commands write alike");
        let ucx = run.series.iter().find(|one| one.key.library == "UCX 1.13.1").expect("a series of UCX");
        assert_eq!((ucx.unit.as_str(), ucx.rounds.len(), ucx.rounds[1]), ("us", 6, Some(4.5)));
    }
}
