//! Report of `deckperf ft`.

use std::time::Duration;

use udeck_cli::machine::Machine;

use super::{ALONE, Class, FtContender, FtPlan, FtRow, Way, job::ORDER};
use crate::{
    named::Named,
    report::{
        Body, Report,
        data::{Better, Key, OURS, Series},
        summary::Finding,
        table_body::{Cell, Table},
    },
    stats::{median, paired_ratio},
};

/// Name of the test of each series: NAS FT's speed.
pub const TEST: &str = "ft";
/// Label of each series with the letter of the class: speeds of two classes cannot be compared.
pub const CLASS: &str = "class";

/// Everything that the report shows.
pub struct FtReport<'a> {
    /// Machine of the run.
    pub machine: Machine,
    /// Plan of the run.
    pub plan: &'a FtPlan,
    /// Jobs with their runs.
    pub rows: &'a [FtRow],
    /// Number of rounds, and their time.
    pub outcome: (usize, Duration),
}

impl FtReport<'_> {
    /// Text in the format that the plan asks for.
    pub fn render(self) -> String {
        let report = Report {
            method: self.method(),
            noise: None,
            command: "ft",
            series: self
                .rows
                .iter()
                .filter(|row| !row.runs.is_empty())
                .map(|row| series(self.plan.class, row))
                .collect(),
            findings: self.findings(),
            body: Body::of_tables(&[self.table()]),
            machine: Machine {
                ranks: self.plan.ranks.iter().copied().max().unwrap_or(1) as usize,
                ..self.machine
            },
        };
        report.render(self.plan.format)
    }

    /// Speeds of a job by round; empty if it failed.
    fn speeds(&self, ranks: u32, way: Option<Way>) -> Vec<f64> {
        let row = self.rows.iter().find(|row| row.contender == FtContender { ranks, way });
        row.map_or(Vec::new(), |row| row.runs.iter().map(|run| run.mops).collect())
    }

    fn method(&self) -> String {
        let (rounds, elapsed) = self.outcome;
        let cores = self.machine.cores;
        let mut text = format!(
            "NAS FT, class {}, by nas-ft --order {ORDER}: each run is a job of its own, started by deckrun's library; each of \
             {rounds} rounds ({:.1} s in all) has every job once, in rotating order; every run's checksums are NPB's\n\
             a speed-up is the ratio of the speeds (Mop/s) to that of one rank in the same round; one rank sends nothing, so it \
             is the base of all ways\n\
             all ranks share this host: its memory, and its {cores} processors. A speed-up beyond {cores} cannot be had here, \
             whatever the messages cost\n",
            self.plan.class.name(),
            elapsed.as_secs_f64(),
        );
        for row in self.rows {
            if let Some(why) = &row.lost {
                let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
                text += &format!("left out: {}: {why}\n", row.contender.words());
            }
        }
        text
    }

    /// Table 7.1's shape: a row for each number of ranks, the first with the seconds of one rank.
    fn table(&self) -> Table {
        let alone = self.rows.iter().find(|row| row.contender == ALONE);
        let seconds: Vec<f64> =
            alone.map_or(Vec::new(), |row| row.runs.iter().map(|run| run.seconds).collect());
        let base = self.speeds(1, None);
        let first = self.plan.ways().map(|_| Cell::Figure(median(&seconds)));
        let row = |&ranks: &u32| {
            let speed_up = |way| paired_ratio(&self.speeds(ranks, Some(way)), &base);
            let cells = self.plan.ways().map(|way| Cell::Figure(speed_up(way).map(|ratio| ratio.median)));
            [Cell::Count(ranks.into())].into_iter().chain(cells).collect()
        };
        let columns = self.plan.ways().map(|way| format!("{}/{}", way.transport, way.protocol));
        Table {
            title: format!(
                "Speed-up of FT, class {}: the first row has the seconds of one rank, the others the speed-up over it \
                 (processors: {})",
                self.plan.class.name(),
                self.machine.cores
            ),
            name: "speed_up".into(),
            columns: ["ranks".to_owned()].into_iter().chain(columns).collect(),
            rows: [[Cell::Count(1)].into_iter().chain(first).collect()]
                .into_iter()
                .chain(self.plan.ranks.iter().map(row))
                .collect(),
        }
    }

    /// Each speed-up with its bounds; then the cost of each further protocol beside the first.
    fn findings(&self) -> Vec<Finding> {
        let base = self.speeds(1, None);
        let over_one = self
            .plan
            .ways()
            .flat_map(|way| self.plan.ranks.iter().map(move |&ranks| (ranks, way)).collect::<Vec<_>>());
        let speed_ups = over_one.filter_map(|(ranks, way)| {
            let what = format!("speed, {ranks} ranks / 1, {}, {}", way.transport, way.protocol);
            Finding::of(what, &self.speeds(ranks, Some(way)), &base)
        });
        let Some((&first, others)) = self.plan.protocols.split_first() else { return speed_ups.collect() };
        let mut found: Vec<Finding> = speed_ups.collect();
        for &transport in &self.plan.transports {
            for &ranks in &self.plan.ranks {
                let speeds = |protocol| self.speeds(ranks, Some(Way { transport, protocol }));
                found.extend(others.iter().filter_map(|&other| {
                    let what = format!("time, {other} / {first}, {transport}, {ranks} ranks");
                    Finding::of(what, &speeds(first), &speeds(other))
                }));
            }
        }
        found
    }
}

/// The speeds of every round.
fn series(class: Class, row: &FtRow) -> Series {
    let way = row.contender.way;
    let key = Key {
        test: TEST.to_owned(),
        library: OURS.to_owned(),
        transport: way.map(|way| way.transport.to_owned()),
        protocol: way.map(|way| way.protocol.to_string()),
        ranks: Some(row.contender.ranks.into()),
        labels: [(CLASS.to_owned(), class.name())].into(),
        ..Key::default()
    };
    Series {
        key,
        unit: "Mop/s".to_owned(),
        better: Better::Higher,
        copied_bytes_per_message: None,
        rounds: row.runs.iter().map(|run| Some(run.mops)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::ft::{FtRun, tests::plan};
    use crate::report::aligned;

    /// A report of three rounds; 4 ranks over TCP have failed.
    fn sample(format: crate::experiment::plan::Format) -> String {
        sample_of(&FtPlan { format, ..plan() })
    }

    fn sample_of(plan: &FtPlan) -> String {
        let row = |contender: FtContender| {
            let handshake = contender.way.is_some_and(|way| way.protocol == udeck::Protocol::Handshake);
            let speed = f64::from(contender.ranks) * if handshake { 0.4 } else { 0.8 };
            let speed = if contender == ALONE { 1.0 } else { speed };
            let lost = contender.ranks == 4 && contender.way.is_some_and(|way| way.transport == "tcp");
            let run = |weather: f64| FtRun { seconds: 2.0 / weather / speed, mops: 100.0 * weather * speed };
            let runs = if lost { Vec::new() } else { [1.0, 0.5, 2.0].map(run).to_vec() };
            FtRow { contender, runs, lost: lost.then(|| "no network\n    at all".to_owned()) }
        };
        let rows: Vec<FtRow> = plan.contenders().into_iter().map(row).collect();
        let machine = Machine::sample("placed by the system", "shm, tcp");
        FtReport { machine, plan, rows: &rows, outcome: (3, Duration::from_millis(2500)) }.render()
    }

    #[test]
    fn the_table_has_the_shape_of_table_7_1() {
        let text = sample(crate::experiment::plan::Format::Table);
        let expected = "
# Speed-up of FT, class S: the first row has the seconds of one rank, the others
# the speed-up over it (processors: 2)
# ranks  shm/auto  shm/handshake  tcp/auto  tcp/handshake
1            2.00           2.00      2.00           2.00
2            1.60           0.80      1.60           0.80
4            3.20           1.60         -              -
";
        assert!(text.contains(expected), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= aligned::WIDTH), "{text}");
        let words = text.replace("\n#          ", " ");
        for sentence in [
            "A speed-up beyond 2 cannot be had here",
            "left out: 4 ranks over tcp by handshake: no network at all",
            "# time, handshake / auto, shm, 4 ranks",
        ] {
            assert!(words.contains(sentence), "{sentence} is missing in {text}");
        }
    }

    #[test]
    fn series_of_two_classes_have_no_key_in_common() {
        let keys = |class| {
            let plan = FtPlan { class, format: crate::experiment::plan::Format::Json, ..plan() };
            let run = crate::report::data::Run::parse(&sample_of(&plan)).expect("a run");
            run.series.into_iter().map(|one| one.key).collect::<Vec<_>>()
        };
        let (small, larger) = (keys(Class::S), keys(Class::W));
        assert_eq!((small.len(), &small), (7, &keys(Class::S)));
        assert!(small.iter().all(|key| !larger.contains(key)), "{small:?}");
        assert_eq!(small[0].words(), "ft ranks=1 class=S");
    }

    #[test]
    fn json_has_every_run_that_succeeded() {
        let run = crate::report::data::Run::parse(&sample(crate::experiment::plan::Format::Json));
        let run = run.expect("a run");
        assert_eq!((run.command.as_str(), run.series.len()), ("ft", 1 + 4 + 2));
        let of = |ranks| run.series.iter().find(|one| one.key.ranks == Some(ranks)).expect("a series");
        assert_eq!(of(1).figures(), [100.0, 50.0, 200.0]);
        assert_eq!((of(1).key.transport.as_deref(), of(2).key.transport.as_deref()), (None, Some("shm")));
    }
}
