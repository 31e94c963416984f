//! Report of `deckperf cpu`: a table for each size and depth, or one flat table for programs.

use std::collections::BTreeMap;

use super::{
    Chapter, CpuPlan, Form, chapter9,
    contenders::Row,
    cost::Cost,
    schedule::{BATCH, CpuOutcome, CpuSample, CpuSeries, Load, loads},
    usage::Accounting,
};
use crate::{
    experiment::plan::{Format, Payload},
    named::Named,
    report::{
        Body, Report,
        data::{Better, Key, Series},
        table_body::{Cell, Table, names},
    },
};
use udeck_cli::machine::Machine;

/// Everything that the report shows.
pub struct CpuReport {
    /// Machine of the run.
    pub machine: Machine,
    /// Plan of the run.
    pub plan: CpuPlan,
    /// Method by which the system divides processor time.
    pub accounting: Accounting,
    /// Contenders, in the order of the tables.
    pub rows: Vec<Row>,
    /// Sentences on the contenders, and on who is missing.
    pub notes: Vec<String>,
    /// Figures of the run.
    pub outcome: CpuOutcome,
}

impl CpuReport {
    /// Text with a line break at the end. JSON is a [`Run`](crate::report::data::Run), and `tables` with the medians.
    pub fn render(&self) -> String {
        let report = Report {
            machine: self.machine.clone(),
            method: self.method(),
            // No raw limit is measured in these rounds.
            noise: None,
            command: "cpu",
            series: self.series(),
            body: Body::of_tables(&self.tables()),
            findings: Vec::new(),
        };
        report.render(self.plan.format)
    }

    /// Programs get the tables of a published form behind the flat one.
    fn tables(&self) -> Vec<Table> {
        let published = match self.plan.form {
            Form::Loads => Vec::new(),
            Form::Published(Chapter::Nine) => self.chapter_9(),
        };
        let first = match (self.plan.format, self.plan.form) {
            (Format::Table, Form::Loads) => self.for_readers(),
            (Format::Table, Form::Published(_)) => Vec::new(),
            (Format::Csv | Format::Json, _) => vec![self.for_programs()],
        };
        first.into_iter().chain(published).collect()
    }

    fn chapter_9(&self) -> Vec<Table> {
        let loads = loads(&self.plan);
        let cells: Vec<_> = self.cells(&loads).collect();
        let mut lines = Vec::new();
        for contender in self.rows.iter().map(|row| row.name.as_str()) {
            for &buffers in &self.plan.depths {
                let of = cells
                    .iter()
                    .filter(|(row, _, load, _)| (row.name.as_str(), load.depth) == (contender, buffers));
                lines.push(chapter9::Line {
                    contender,
                    buffers,
                    costs: of.map(|(.., cost)| *cost).collect(),
                });
            }
        }
        chapter9::tables(&lines, &self.plan.sizes)
    }

    fn method(&self) -> String {
        let CpuOutcome { rounds, elapsed, .. } = self.outcome;
        let payload = match self.plan.payload {
            Payload::Untouched => "neither side looks at the data",
            Payload::WrittenRead => {
                "the sender writes every word, the receiver sums and checks them all, which is part of the figures"
            }
        };
        let mut text = format!(
            "interleaved: all processes live all the time, and all but two of them block; in each of {rounds} rounds \
             ({:.0} s in all) each contender runs one batch of some {} ms, those of a size one behind the other, in \
             rotating order\n\
             processor time is that of the whole process, library threads included, over its batch; a figure is the median \
             over rounds, with 95 % bounds; both: sender and receiver together\n\
             {}\n{WINDOWS}{}: {payload}\n{WAITING}{LOOPBACK}{}",
            elapsed.as_secs_f64(),
            BATCH.as_millis(),
            self.accounting.sentence(),
            self.plan.payload.name(),
            if self.plan.rate > 0 { PACED } else { "" },
        );
        if self.plan.form == Form::Published(Chapter::Nine) {
            text += chapter9::METHOD;
        }
        for note in self.notes.iter().chain(&self.outcome.losses) {
            text += &(note.replace('\n', " ") + "\n");
        }
        text
    }

    /// Series of each contender under each load: processor time of both sides for a message, and messages per second of a stream.
    fn series(&self) -> Vec<Series> {
        let mut all = Vec::new();
        for series in self.outcome.series.iter().filter(|series| !series.samples.is_empty()) {
            let CpuSeries { row, waiting, load: Load { bytes, depth, rate }, .. } = series;
            let (library, transport) = &self.rows[*row].library;
            let labels = [("waiting", waiting.name()), ("buffers", depth.to_string())];
            let paced = (*rate > 0).then(|| ("per-second", rate.to_string()));
            let labels =
                labels.into_iter().chain(paced).map(|(name, value)| (name.to_owned(), value)).collect();
            let key = |test: &str| Key {
                test: test.to_owned(),
                library: library.clone(),
                transport: Some((*transport).to_owned()),
                payload: Some(self.plan.payload.name()),
                size: Some(*bytes as u64),
                labels: BTreeMap::clone(&labels),
                ..Key::default()
            };
            let mut add = |test, unit: &str, better, figure: fn(&CpuSample) -> f64| {
                let rounds =
                    series.samples.iter().map(|sample| (sample.messages > 0).then(|| figure(sample)));
                all.push(Series {
                    key: key(test),
                    unit: unit.to_owned(),
                    better,
                    copied_bytes_per_message: None,
                    rounds: rounds.collect(),
                });
            };
            add("processor-time", "us", Better::Lower, CpuSample::micros);
            if *rate == 0 {
                add("message-rate", "M/s", Better::Higher, |sample| sample.rate() / 1e6);
            }
        }
        all
    }

    fn for_readers(&self) -> Vec<Table> {
        let loads = loads(&self.plan);
        let mut tables: Vec<Table> = loads.iter().flat_map(|load| self.of_load(load)).collect();
        let lost: Vec<Vec<Cell>> = self
            .cells(&loads)
            .filter_map(|(row, waiting, load, cost)| {
                let cost = cost.filter(|cost| cost.lost > 0)?;
                Some(vec![
                    Cell::text(&row.name),
                    Cell::text(waiting),
                    Cell::Count(load.bytes as u64),
                    Cell::Count(load.depth),
                    Cell::Count(cost.lost),
                ])
            })
            .collect();
        if !lost.is_empty() {
            tables.push(Table {
                title: "Messages that did not arrive, in all rounds".to_owned(),
                name: "lost".into(),
                columns: names(&["contender", "waiting", "bytes", "depth", "lost"]),
                rows: lost,
            });
        }
        tables
    }

    /// Two tables of a load: both ends together, and each by itself.
    fn of_load(&self, load: &Load) -> [Table; 2] {
        let &Load { bytes, depth, rate } = load;
        let is_paced = rate > 0;
        let (name, how) = match is_paced {
            true => ("paced", format!("{bytes} bytes, {rate} messages per second")),
            false => ("stream", format!("{bytes} bytes, {depth} under way")),
        };
        let rows = |figures: &dyn Fn(Option<&Cost>) -> Vec<Cell>| {
            let row = |(row, waiting, _, cost): (&Row, String, &Load, Option<Cost>)| {
                [vec![Cell::text(&row.name), Cell::text(waiting)], figures(cost.as_ref())].concat()
            };
            self.cells(std::slice::from_ref(load)).map(row).collect()
        };
        let table = |what: &str, columns: &[&'static str], rows| Table {
            title: format!("{how}: {what}"),
            name: name.into(),
            columns: names(&[&["contender", "waiting"], columns].concat()),
            rows,
        };
        let (together, mut columns) = match is_paced {
            true => ("processor time (us) of a message", vec!["msg/s", "both", "low", "high"]),
            false => (
                "processor time (us) of a message and of a megabit",
                vec!["msg/s", "both", "low", "high", "us/Mbit"],
            ),
        };
        let both_ends = rows(&|cost| {
            let megabit = (!is_paced).then(|| Cell::Figure(cost.and_then(|cost| cost.per_megabit)));
            [rounded(cost)].into_iter().chain(both(cost)).chain(megabit).collect()
        });
        let first = table(together, &columns, both_ends);
        columns = match is_paced {
            true => vec!["s_user", "s_sys", "s_core%", "r_user", "r_sys", "r_core%"],
            false => vec!["s_user", "s_sys", "r_user", "r_sys"],
        };
        let core = if is_paced { ", and % of a core" } else { "" };
        let second = table(
            &format!("the same of sender and receiver{core}"),
            &columns,
            rows(&|cost| sides(cost, is_paced)),
        );
        [first, second]
    }

    fn for_programs(&self) -> Table {
        let loads = loads(&self.plan);
        let rows = self.cells(&loads).map(|(row, waiting, load, cost)| {
            let mut cells = vec![Cell::text(&row.name), Cell::text(waiting)];
            cells.extend([load.bytes as u64, load.depth, load.rate].map(Cell::Count));
            cells.push(Cell::Figure(cost.map(|cost| cost.rate)));
            cells.extend(sides(cost.as_ref(), true));
            cells.extend(both(cost.as_ref()));
            cells.push(Cell::Figure(cost.and_then(|cost| cost.per_megabit)));
            cells.push(cost.map_or(Cell::Figure(None), |cost| Cell::Count(cost.lost)));
            cells.push(Cell::Count(cost.map_or(0, |cost| cost.both.rounds) as u64));
            cells
        });
        Table {
            title: "Processor time of messages".to_owned(),
            name: "cpu".into(),
            columns: names(&[
                "contender",
                "waiting",
                "bytes",
                "depth",
                "paced_per_second",
                "messages_per_second",
                "sender_user_us",
                "sender_system_us",
                "sender_core_percent",
                "receiver_user_us",
                "receiver_system_us",
                "receiver_core_percent",
                "both_us",
                "low_95",
                "high_95",
                "us_per_megabit",
                "lost",
                "rounds",
            ]),
            rows: rows.collect(),
        }
    }

    /// Cells in the order of the rows; a cell has no cost where the contender lacks the ability.
    fn cells<'r>(
        &'r self,
        loads: &'r [Load],
    ) -> impl Iterator<Item = (&'r Row, String, &'r Load, Option<Cost>)> + 'r {
        loads.iter().flat_map(move |load| {
            self.rows.iter().enumerate().flat_map(move |(number, row)| {
                self.plan.waitings.iter().map(move |&waiting| {
                    let wanted = |series: &&CpuSeries| {
                        (series.row, series.waiting, series.load) == (number, waiting, *load)
                    };
                    let found = self.outcome.series.iter().find(wanted);
                    let cost = found.and_then(|series| Cost::of(&series.samples, load.bytes));
                    (row, waiting.name(), load, cost)
                })
            })
        })
    }
}

fn rounded(cost: Option<&Cost>) -> Cell {
    cost.map_or(Cell::Figure(None), |cost| Cell::Count(cost.rate.round() as u64))
}

fn sides(cost: Option<&Cost>, with_core: bool) -> Vec<Cell> {
    let side = |at: usize| {
        let side = cost.map(|cost| cost.sides[at]);
        let mut cells = vec![side.map(|side| side.user), side.map(|side| side.system)];
        cells.extend(with_core.then(|| side.map(|side| side.core)));
        cells
    };
    [side(0), side(1)].concat().into_iter().map(Cell::Figure).collect()
}

fn both(cost: Option<&Cost>) -> [Cell; 3] {
    let both = cost.map(|cost| cost.both);
    [both.map(|both| both.median), both.map(|both| both.low), both.map(|both| both.high)].map(Cell::Figure)
}

const WINDOWS: &str = "messages go from rank 0 in windows of so many (under way), each acknowledged by an empty message or a \
                       byte; every message's length is checked, and all arrive, or are counted as lost (UDP sockets: their \
                       acknowledgement says how many have come; what is lost is not sent again)\n";
const WAITING: &str = "polling: ours loops over `try_retrieve`, uDAPL over `Evd::dequeue`, sockets are non-blocking, an MPI looks \
                       by itself; blocking: ours calls `retrieve`, uDAPL `Evd::wait`, which spin for 50 us at most, yield, and \
                       sleep, sockets block in the kernel, and no MPI has it (-)\n\
                       uDAPL: send and receive; each side has as many buffers as messages are under way, and uses them in turn\n";
const LOOPBACK: &str = "sockets, tcp and udp go over the loopback device, where the kernel's receiving half runs in the sender's \
                        system call; ours and uDAPL over udp are encrypted\n";
const PACED: &str = "paced: the sender sleeps until each message is due, however the receiver waits; s_ and r_core% are the \
                     shares of a core that sender and receiver take\n";

/// A plan for tests.
#[cfg(test)]
pub fn sample_plan() -> CpuPlan {
    use std::time::Duration;

    CpuPlan {
        sizes: vec![100],
        depths: vec![2],
        rate: 1000,
        payload: Payload::WrittenRead,
        kinds: Form::Loads.kinds(),
        waitings: Form::Loads.waitings(),
        form: Form::Loads,
        iterations: None,
        time: Duration::from_secs(1),
        format: Format::Table,
        folder: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::cpu::cost::tests::{a_round, usage};
    use crate::commands::cpu::order::{Waiting, Way};

    fn report(format: Format) -> CpuReport {
        let row = |name: &str, waitings| Row {
            name: name.to_owned(),
            library: (name.to_owned(), "shm"),
            way: Way::Send,
            waitings,
            bytes: [0, 1 << 20],
            is_needed: false,
        };
        let plan = CpuPlan { format, ..sample_plan() };
        let loads = loads(&plan);
        let series = |load| {
            let samples = vec![a_round(), CpuSample { lost: 2, ..a_round() }, a_round()];
            CpuSeries { row: 0, waiting: Waiting::Polling, load, iterations: 50, samples }
        };
        CpuReport {
            machine: Machine::sample("sender on core 0, receiver on core 1", "each contender's own"),
            plan,
            accounting: Accounting::Exact,
            rows: vec![row("Some MPI", &[Waiting::Polling][..]), row("µDECK verbs", &[][..])],
            notes: vec!["µDECK verbs is not measured: no device".to_owned()],
            outcome: CpuOutcome {
                series: loads.into_iter().map(series).collect(),
                rounds: 3,
                elapsed: Duration::from_secs(2),
                losses: vec![],
            },
        }
    }

    #[test]
    fn readers_get_a_table_for_each_load() {
        let text = report(Format::Table).render();
        let expected = "
# 100 bytes, 2 under way: processor time (us) of a message and of a megabit
# contender   waiting   msg/s   both    low   high   us/Mbit
Some MPI      polling  100000  13.00  13.00  13.00  16250.00
Some MPI     blocking       -      -      -      -         -
µDECK verbs   polling       -      -      -      -         -
µDECK verbs  blocking       -      -      -      -         -

# 100 bytes, 2 under way: the same of sender and receiver
# contender   waiting  s_user  s_sys  r_user  r_sys
Some MPI      polling    1.00   2.00   10.00   0.00
Some MPI     blocking       -      -       -      -
µDECK verbs   polling       -      -       -      -
µDECK verbs  blocking       -      -       -      -

# 100 bytes, 1000 messages per second: processor time (us) of a message
";
        assert!(text.contains(expected), "{text}");
        let lost = "# contender  waiting  bytes  depth  lost\nSome MPI     polling    100      2     2\nSome MPI     polling    100     50     2\n";
        assert!(text.contains(lost), "{text}");
        for said in
            ["# Method:  user and system time are exact here", "µDECK verbs is not measured: no device"]
        {
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn chapter_9_has_a_table_for_each_graph_in_every_format() {
        let chapter_9 = |format| {
            let mut report = report(format);
            report.plan.form = Form::Published(Chapter::Nine);
            (report.plan.rate, report.plan.waitings) = (0, vec![Waiting::Polling]);
            report.render()
        };
        let text = chapter_9(Format::Table);
        let expected = "
# Graph 9.9: processor time for a message that arrived: user and system time of
# the receiving process, in us
# contender  buffers    part  100 B
Some MPI           2    user  10.00
Some MPI           2  system   0.00
µDECK verbs        2    user      -
µDECK verbs        2  system      -
";
        assert!(text.ends_with(expected), "{text}");
        assert_eq!(text.matches("\n# Graph 9.").count(), 9, "{text}");
        let csv = chapter_9(Format::Csv);
        let heads = csv.split("\n\n").map(|table| table.lines().next().unwrap_or_default());
        assert_eq!(heads.clone().count(), 10, "{csv}");
        assert!(heads.skip(1).all(|head| head.starts_with("contender,buffers,") && head.ends_with("100 B")));
        let json: serde_json::Value = serde_json::from_str(&chapter_9(Format::Json)).expect("valid JSON");
        let row = &json["tables"]["graph-9.5"][0];
        assert_eq!(row["contender"], "Some MPI");
        assert_eq!(row["buffers"], "2");
        assert_eq!(row["100 B"].as_f64().map(f64::round), Some(99.0), "2 of 302 messages are lost");
        assert!(json["tables"]["cpu"].is_array(), "the flat table stays");
    }

    #[test]
    fn tables_fit_eighty_columns() {
        let mut report = report(Format::Table);
        report.rows[0].name = "Open MPI tcp".to_owned();
        for series in &mut report.outcome.series {
            // Each side takes a millisecond for a message, as when it polls for a thousand messages a second.
            series.samples = vec![CpuSample { messages: 1, sender: usage(1000, 1), ..a_round() }; 5];
        }
        let text = report.render();
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(crate::report::aligned::WIDTH), "{text}");
    }

    #[test]
    fn programs_get_one_row_for_each_contender_waiting_and_load() {
        let text = report(Format::Csv).render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 2 * 2 * 2, "{text}");
        let row = "Some MPI,polling,100,2,0,100000.0000,1.0000,2.0000,30.0000,10.0000,0.0000,100.0000,13.0000,13.0000,\
                   13.0000,16250.0000,2,3";
        assert_eq!(lines[1], row);
        assert_eq!(lines[2], "Some MPI,blocking,100,2,0,,,,,,,,,,,,,0");
        let value: serde_json::Value =
            serde_json::from_str(&report(Format::Json).render()).expect("valid JSON");
        assert_eq!(value["tables"]["cpu"][0]["sender_core_percent"].as_f64().map(f64::round), Some(30.0));
        assert!(value["tables"]["cpu"][1]["both_us"].is_null());
        let run = crate::report::data::Run::parse(&value.to_string()).expect("what all commands write alike");
        assert_eq!((run.command.as_str(), run.series.len()), ("cpu", 3), "a stream's rate has a series, too");
        let one = &run.series[0];
        assert_eq!(
            (one.key.test.as_str(), one.rounds.len(), &one.key.labels["waiting"][..]),
            ("processor-time", 3, "polling")
        );
        assert!(one.rounds[0].is_some_and(|figure| (figure - 13.0).abs() < 1e-6), "{one:?}");
    }
}
