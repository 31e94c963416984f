//! The figures of the thesis on DECK over VIA (2005), chapters 6 and 7, with the same of these runs: curves, and a table of the
//! published numbers beside ours. `docs/evaluation.md` has the definitions.

use super::{
    charts::{self, Along, Chart},
    html::{self, Cell, Table},
    key_figures::quotient,
    show,
    source::Source,
};
use crate::{
    commands::ft,
    report::data::{Better, Key, LIMIT, OURS, Series},
    stats::{Ratio, Spread, spread},
};

/// A published quantity with ours.
#[derive(Clone)]
struct Row {
    place: &'static str,
    what: String,
    published: &'static str,
    here: String,
    note: String,
}

/// Table 7.1: speed-ups on 2, 4 and 8 nodes.
const PUBLISHED_FT: [(&str, [f64; 3]); 4] = [
    ("DECK/TCP, Fast Ethernet", [1.372, 2.10, 4.472]),
    ("DECK/TCP, Gigabit Ethernet", [1.708, 3.194, 6.151]),
    ("DECK/GM", [1.496, 3.159, 6.334]),
    ("DECK/VIA", [1.557, 3.128, 5.500]),
];
const PUBLISHED_NODES: [u64; 3] = [2, 4, 8];

/// HTML of all figures, as far as the runs have them; `None` if they have none. The charts are added to `charts`.
pub fn body(sources: &[Source], charts: &mut Vec<Chart>) -> Option<String> {
    let of = |command: &str| -> Vec<&Series> {
        let runs = sources.iter().filter(|source| source.run.command == command);
        runs.flat_map(|source| &source.run.series).filter(|one| one.key.library != LIMIT).collect()
    };
    let (vi, clones, messages) = (Vis(of("vi")), Clones(of("clones")), Messages(of("messages")));
    let speed_ups = speed_ups(&of("ft"));
    let drawn = [vi.charts(), clones.charts(), messages.charts(), ft_chart(&speed_ups)].concat();
    let rows = [vi.rows(), clones.rows(), messages.rows()].concat();
    if rows.is_empty() && speed_ups.is_empty() {
        return None;
    }
    let mut body = "<p>The thesis's times are of another machine. Its ratios, and the order of two methods, can be compared with \
                    those here. The page “DECK's evaluation, repeated” of the book has every definition.</p>"
        .to_owned();
    body += &published(&rows);
    body += &ft_table(&speed_ups);
    body += "<div class=\"grid\">";
    for chart in drawn {
        body += &html::chart(&chart, charts.len());
        charts.push(chart);
    }
    Some(body + "</div>")
}

fn published(rows: &[Row]) -> String {
    let cells = rows
        .iter()
        .map(|row| [row.place, &row.what, row.published, &row.here, &row.note].map(Cell::text).to_vec());
    let heads = ["figure", "what", "published", "#here", "95 % bounds, or how it was found"];
    let heads = heads.map(str::to_owned).to_vec();
    html::table(&Table { heads, rows: cells.collect() }, "compared")
}

/// The series that `is_it` takes, by size, each size once.
fn line<'a>(series: &[&'a Series], test: &str, is_it: impl Fn(&Key) -> bool) -> Vec<&'a Series> {
    let mut found: Vec<&Series> = Vec::new();
    for one in series.iter().filter(|one| one.key.test == test && is_it(&one.key)) {
        if found.iter().all(|known| known.key.size != one.key.size) && !one.figures().is_empty() {
            found.push(one);
        }
    }
    found.sort_by_key(|one| one.key.size);
    found
}

fn has(key: &Key, label: &str, value: &str) -> bool {
    key.labels.get(label).is_some_and(|found| found == value)
}

fn is_by(key: &Key, protocol: &str) -> bool {
    key.protocol.as_deref() == Some(protocol)
}

/// Quotients of two lines at the sizes that both have.
fn quotients(ones: &[&Series], others: &[&Series]) -> Vec<(u64, Ratio)> {
    let at = |one: &&Series| {
        let other = others.iter().find(|other| other.key.size == one.key.size)?;
        Some((one.key.size?, quotient(one, other)?))
    };
    ones.iter().filter_map(at).collect()
}

/// A row with the ratio at one size.
fn ratio_row(
    place: &'static str,
    what: &str,
    published: &'static str,
    ratio: Option<&(u64, Ratio)>,
) -> Option<Row> {
    let (size, Ratio { median, low, high, .. }) = ratio?;
    let [here, low, high] = [median, low, high].map(|figure| show::figure(*figure));
    let what = format!("{what}, {}", show::bytes(*size));
    Some(Row { place, what, published, here, note: format!("{low} to {high}") })
}

/// Sizes from which the first method is ahead of the second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crossing {
    Never,
    Always,
    From(u64),
}

impl Crossing {
    /// The smallest size at which, and at all larger ones, the median of the ratio is below 1; `None` without sizes.
    fn of(ratios: &[(u64, Ratio)]) -> Option<Self> {
        let ahead = ratios.iter().rev().take_while(|(_, ratio)| ratio.median < 1.0);
        let (smallest, last) = (ratios.first()?.0, ahead.last());
        Some(match last {
            None => Crossing::Never,
            Some((size, _)) if *size == smallest => Crossing::Always,
            Some((size, _)) => Crossing::From(*size),
        })
    }

    fn words(self) -> String {
        match self {
            Crossing::Never => "at no size".to_owned(),
            Crossing::Always => "at every size".to_owned(),
            Crossing::From(size) => format!("from {} on", show::bytes(size)),
        }
    }
}

/// Series of `--layer vi`: figures 6.1 to 6.3.
struct Vis<'a>(Vec<&'a Series>);

/// Looks that stand for non-blocking and blocking calls.
const POLLED: &str = "work-queue";
const ASLEEP: &str = "cq-asleep";

impl Vis<'_> {
    fn of(&self, test: &str, transfer: &str, look: &str) -> Vec<&Series> {
        line(&self.0, test, |key| is_by(key, transfer) && has(key, "look", look) && has(key, "vis", "1"))
    }

    fn latency(&self, transfer: &str, look: &str) -> Vec<&Series> {
        self.of("latency", transfer, look)
    }

    fn rows(&self) -> Vec<Row> {
        let [send, write] = ["send", "rdma-write"];
        let blocked = |transfer| quotients(&self.latency(transfer, ASLEEP), &self.latency(transfer, POLLED));
        let written = |look| quotients(&self.latency(write, look), &self.latency(send, look));
        let ahead = |published, calls: &str, look| {
            let here = Crossing::of(&written(look))?.words();
            let what = format!("sizes at which an RDMA write is ahead, {calls}");
            let note = "the median ratio is below 1 there and at all larger sizes".to_owned();
            Some(Row { place: "6.3", what, published, here, note })
        };
        [
            ratio_row(
                "6.1",
                "blocking ÷ non-blocking, send/receive",
                "39.98 ÷ 12.33 = 3.24",
                blocked(send).first(),
            ),
            ratio_row(
                "6.2",
                "blocking ÷ non-blocking, RDMA write",
                "46.21 ÷ 19.46 = 2.37",
                blocked(write).first(),
            ),
            ratio_row(
                "6.1, 6.2",
                "RDMA write ÷ send/receive, non-blocking",
                "19.46 ÷ 12.33 = 1.58",
                written(POLLED).first(),
            ),
            ahead("above 2 KB", "non-blocking", POLLED),
            ahead("a curve", "blocking", ASLEEP),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn charts(&self) -> Vec<Chart> {
        let ways = [("send", "send/receive"), ("rdma-write", "RDMA write")];
        let lines = |test: &str, looks: [(&str, &str); 2]| -> Vec<_> {
            let all = ways.into_iter().flat_map(|way| looks.map(|look| (way, look)));
            all.map(|((transfer, way), (look, calls))| {
                (format!("{way}, {calls}"), self.of(test, transfer, look))
            })
            .collect()
        };
        let times = lines("latency", [(POLLED, "non-blocking"), (ASLEEP, "blocking")]);
        let rates = lines("bandwidth", [(POLLED, "polled"), ("cq-wait", "waited for")]);
        [("Figures 6.1 to 6.3: one-way time", times), ("Figures 6.1, 6.2: bandwidth", rates)]
            .into_iter()
            .filter_map(|(title, lines)| charts::over(title, &Along::Size, &lines))
            .collect()
    }
}

/// Series of `clones`, by work queues and by completion queue: figures 7.1 to 7.4.
struct Clones<'a>(Vec<&'a Series>);

impl Clones<'_> {
    fn of(&self, test: &str, receive: &str, clones: &str) -> Vec<&Series> {
        line(&self.0, test, |key| {
            has(key, "receive", receive) && has(key, "clones", clones) && has(key, "beside", "nothing")
        })
    }

    fn rows(&self) -> Vec<Row> {
        let growth = |place, published, receive: &str, clones: &str| {
            let ratios = quotients(&self.of("latency", receive, clones), &self.of("latency", receive, "10"));
            let worst = ratios.iter().max_by(|a, b| a.1.median.total_cmp(&b.1.median));
            let what = format!("{receive}: time with {clones} VIs ÷ with 10, at its worst size");
            ratio_row(place, &what, published, worst)
        };
        let beside = |place, what: &str, published, test: &str, at: fn(&Medians) -> Option<&(u64, f64)>| {
            // The two models are settings of a whole job, so their rounds are not the same.
            let [cq, wq] = ["cq", "wq"].map(|receive| medians(&self.of(test, receive, "30")));
            let both = cq.iter().filter_map(|(size, cq)| {
                let (_, wq) = wq.iter().find(|(other, _)| other == size)?;
                Some((*size, cq / wq))
            });
            let both: Vec<_> = both.collect();
            let (size, ratio) = at(&both)?;
            let what = format!("{what}, {}", show::bytes(*size));
            let note = "medians of two jobs, one after the other".to_owned();
            Some(Row { place, what, published, here: show::figure(*ratio), note })
        };
        let time = "cq ÷ wq: time with 30 VIs";
        [
            growth("7.1", "1.08 at most", "wq", "30"),
            growth("7.1", "1.10 at most", "wq", "35"),
            growth("7.1", "none (the nodes swap)", "wq", "40"),
            growth("7.2", "below 1.03", "cq", "40"),
            beside("7.3", time, "about 0.5", "latency", |ratios| ratios.first()),
            beside("7.3", time, "about 0.85 at 64 KB", "latency", |ratios| {
                ratios.iter().find(|(size, _)| *size == 64 << 10)
            }),
            beside(
                "7.4",
                "cq ÷ wq: bandwidth with 30 VIs",
                "above 1, and 1 from 1 MB on",
                "bandwidth",
                |ratios| ratios.last(),
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn charts(&self) -> Vec<Chart> {
        let models = ["wq", "cq"];
        let smallest =
            self.0.iter().filter(|one| one.key.test == "latency").filter_map(|one| one.key.size).min();
        let by_number = models.map(|receive| {
            let is_it = |one: &&&Series| {
                let key = &one.key;
                key.test == "latency"
                    && key.size == smallest
                    && has(key, "receive", receive)
                    && has(key, "beside", "nothing")
            };
            (receive.to_owned(), self.0.iter().filter(is_it).copied().collect())
        });
        let with_30 = |test: &str| models.map(|receive| (receive.to_owned(), self.of(test, receive, "30")));
        let title = smallest.map_or(String::new(), |size| {
            format!("Figures 7.1, 7.2: one-way time of {} by VIs of the mailbox", show::bytes(size))
        });
        [
            charts::over(&title, &Along::Label("clones".into()), &by_number),
            charts::over("Figure 7.3: one-way time with 30 VIs", &Along::Size, &with_30("latency")),
            charts::over("Figure 7.4: bandwidth with 30 VIs", &Along::Size, &with_30("bandwidth")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Medians, or ratios of them, by size.
type Medians = [(u64, f64)];

fn medians(line: &[&Series]) -> Vec<(u64, f64)> {
    let of = |one: &&Series| Some((one.key.size?, spread(&one.figures())?.median));
    line.iter().filter_map(of).collect()
}

/// Series of messages by `handshake` and others: figures 7.5 and 7.6.
struct Messages<'a>(Vec<&'a Series>);

impl Messages<'_> {
    fn of(&self, test: &str, protocol: &str) -> Vec<&Series> {
        let untouched = |key: &Key| key.payload.as_deref() == Some("untouched");
        line(&self.0, test, |key| is_by(key, protocol) && untouched(key))
    }

    fn rows(&self) -> Vec<Row> {
        let both = |test| quotients(&self.of(test, "handshake"), &self.of(test, "eager"));
        let (times, rates) = (both("latency"), both("bandwidth"));
        [
            ratio_row("7.5", "time by handshake ÷ by eager", "86.85 ÷ 22.99 = 3.78", times.first()),
            ratio_row("7.6", "bandwidth by handshake ÷ by eager", "205 ÷ 226 = 0.91 at 4 MB", rates.last()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn charts(&self) -> Vec<Chart> {
        if self.of("latency", "handshake").is_empty() {
            return Vec::new(); // a run that has nothing to do with these figures
        }
        let lines =
            |test: &str| ["handshake", "eager", "auto"].map(|how| (how.to_owned(), self.of(test, how)));
        [
            charts::over("Figure 7.5: one-way time", &Along::Size, &lines("latency")),
            charts::over("Figure 7.6: bandwidth", &Along::Size, &lines("bandwidth")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Speed-ups of FT as series, by way, then by ranks: the ratio to one rank in each round.
fn speed_ups(speeds: &[&Series]) -> Vec<(String, Vec<Series>)> {
    let ft = || speeds.iter().filter(|one| one.key.test == ft::TEST && one.key.library == OURS);
    let Some(alone) = ft().find(|one| one.key.ranks == Some(1)) else { return Vec::new() };
    let speed_up = |one: &Series| Series {
        unit: "×".to_owned(),
        better: Better::Higher,
        rounds: one.rounds.iter().zip(&alone.rounds).map(|(one, alone)| Some((*one)? / (*alone)?)).collect(),
        ..one.clone()
    };
    let ways = ft().filter_map(|one| {
        let (transport, protocol) = (one.key.transport.as_deref()?, one.key.protocol.as_deref()?);
        Some((format!("{transport}, {protocol}"), speed_up(one)))
    });
    crate::distinct::grouped(ways)
}

fn ft_chart(speed_ups: &[(String, Vec<Series>)]) -> Vec<Chart> {
    let lines: Vec<_> =
        speed_ups.iter().map(|(way, series)| (way.clone(), series.iter().collect())).collect();
    charts::over("Table 7.1: speed-up of FT over one rank", &Along::Ranks, &lines).into_iter().collect()
}

/// Table 7.1 with a row for each library of the thesis, and for each way here.
fn ft_table(speed_ups: &[(String, Vec<Series>)]) -> String {
    if speed_ups.is_empty() {
        return String::new();
    }
    let theirs = PUBLISHED_FT.iter().map(|(library, figures)| {
        let figures = figures.iter().map(|figure| Cell::text(&figure.to_string()));
        [Cell::text(&format!("{library} (published)"))].into_iter().chain(figures).collect::<Vec<_>>()
    });
    let ours = speed_ups.iter().map(|(way, series)| {
        let at = |nodes: u64| -> Option<Spread> {
            spread(&series.iter().find(|one| one.key.ranks == Some(nodes))?.figures())
        };
        let figures = PUBLISHED_NODES.map(|nodes| {
            at(nodes).map_or(Cell::text("–"), |spread| Cell::spread(&spread, "×").class("ours"))
        });
        [Cell::text(&format!("µDECK, {way}"))].into_iter().chain(figures).collect()
    });
    let heads = ["table 7.1: speed-up of FT".to_owned()].into_iter();
    let heads = heads.chain(PUBLISHED_NODES.map(|nodes| format!("#{nodes} nodes or ranks"))).collect();
    let table = html::table(&Table { heads, rows: theirs.chain(ours).collect() }, "compared");
    format!(
        "{table}<p>The thesis has a node for each process. Here all ranks share this host: a speed-up beyond its number of \
         processors cannot be had.</p>"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ratio(median: f64) -> Ratio {
        Ratio { median, low: median, high: median, rounds: 3 }
    }

    #[test]
    fn the_crossing_is_the_size_from_which_all_larger_ones_are_ahead() {
        let of = |medians: &[f64]| {
            let sizes = (0..).map(|power| 1 << power);
            Crossing::of(&sizes.zip(medians).map(|(size, &median)| (size, ratio(median))).collect::<Vec<_>>())
        };
        assert_eq!(of(&[1.5, 0.9, 1.2, 0.8, 0.7]), Some(Crossing::From(8)));
        assert_eq!(of(&[0.9, 0.9]), Some(Crossing::Always));
        assert_eq!(of(&[0.9, 1.0]), Some(Crossing::Never));
        assert_eq!(of(&[]), None);
        assert_eq!(Crossing::From(4096).words(), "from 4 KiB on");
    }

    /// A run with these series: test, protocol, size, ranks, labels, and the figures of its rounds.
    fn run(command: &str, series: Vec<serde_json::Value>) -> Source {
        let all = series.into_iter().map(|mut one| {
            let base = json!({ "library": "udeck", "transport": "shm", "unit": "us", "better": "lower" });
            for (name, value) in base.as_object().expect("an object") {
                if one.get(name).is_none() {
                    one[name] = value.clone();
                }
            }
            one
        });
        let raw = json!({
            "deckperf": 1, "command": command, "udeck": "1", "date": "", "machine": {}, "method": [],
            "series": all.collect::<Vec<_>>(),
        });
        Source::parse(command.into(), raw).expect("a run")
    }

    fn vi(transfer: &str, look: &str, size: u64, times: [f64; 3]) -> serde_json::Value {
        json!({ "test": "latency", "protocol": transfer, "size": size, "rounds": times,
                "labels": { "look": look, "vis": "1", "traffic": "one-busy" } })
    }

    #[test]
    fn send_and_write_cross_where_the_write_is_ahead() {
        let times = |factor: f64| [1.0, 4.0, 2.0].map(|weather| factor * weather);
        let source = run(
            "vi",
            vec![
                vi("send", POLLED, 8, times(1.0)),
                vi("send", POLLED, 4096, times(3.0)),
                vi("send", ASLEEP, 8, times(5.0)),
                vi("rdma-write", POLLED, 8, times(1.5)),
                vi("rdma-write", POLLED, 4096, times(2.0)),
            ],
        );
        let mut charts = Vec::new();
        let body = body(&[source], &mut charts).expect("figures");
        for part in [
            "blocking ÷ non-blocking, send/receive, 8 B</td><td>39.98 ÷ 12.33 = 3.24</td><td class=\"number\">5.00<",
            "RDMA write ÷ send/receive, non-blocking, 8 B</td><td>19.46 ÷ 12.33 = 1.58</td><td class=\"number\">1.50<",
            "ahead, non-blocking</td><td>above 2 KB</td><td class=\"number\">from 4 KiB on<",
        ] {
            assert!(body.contains(part), "{part} is missing in {body}");
        }
        let [chart] = &charts[..] else { panic!("one chart: {charts:?}") };
        let names: Vec<&str> = chart.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            ["send/receive, non-blocking", "RDMA write, non-blocking"],
            "of one point there is no line"
        );
    }

    #[test]
    fn more_clones_are_compared_with_ten_and_both_models_with_each_other() {
        let clones = |receive: &str, clones: &str, size: u64, time: f64| {
            json!({ "test": "latency", "size": size, "rounds": [time, time, time],
                    "labels": { "receive": receive, "clones": clones, "beside": "nothing" } })
        };
        let of = |receive: &str, base: f64| {
            run(
                "clones",
                vec![
                    clones(receive, "10", 8, base),
                    clones(receive, "30", 8, 1.25 * base),
                    clones(receive, "40", 8, 1.5 * base),
                    clones(receive, "10", 65536, 10.0 * base),
                    clones(receive, "30", 65536, 10.0 * base),
                    clones(receive, "40", 65536, 10.0 * base),
                ],
            )
        };
        let mut charts = Vec::new();
        let body = body(&[of("wq", 4.0), of("cq", 1.0)], &mut charts).expect("figures");
        for part in [
            "wq: time with 30 VIs ÷ with 10, at its worst size, 8 B</td><td>1.08 at most</td><td class=\"number\">1.25<",
            "cq: time with 40 VIs ÷ with 10, at its worst size, 8 B</td><td>below 1.03</td><td class=\"number\">1.50<",
            "cq ÷ wq: time with 30 VIs, 64 KiB</td><td>about 0.85 at 64 KB</td><td class=\"number\">0.250<",
        ] {
            assert!(body.contains(part), "{part} is missing in {body}");
        }
        let axes: Vec<(&str, usize)> =
            charts.iter().map(|chart| (chart.x.title.as_str(), chart.lines.len())).collect();
        assert_eq!(axes, [("clones", 2), ("bytes in a message", 2)]);
    }

    #[test]
    fn speed_ups_stand_beside_table_7_1() {
        let ft = |ranks: u64, way: Option<(&str, &str)>, speeds: [f64; 3]| {
            let mut one = json!({ "test": "ft", "unit": "Mop/s", "better": "higher", "ranks": ranks, "rounds": speeds });
            if let Some((transport, protocol)) = way {
                (one["transport"], one["protocol"]) = (json!(transport), json!(protocol));
            }
            one
        };
        let source = run(
            "ft",
            vec![
                ft(1, None, [100.0, 200.0, 50.0]),
                ft(2, Some(("tcp", "handshake")), [150.0, 300.0, 75.0]),
                ft(4, Some(("tcp", "handshake")), [160.0, 320.0, 80.0]),
            ],
        );
        let mut charts = Vec::new();
        let body = body(&[source], &mut charts).expect("figures");
        assert!(body.contains("DECK/VIA (published)</th><td class=\"number\">1.557</td>"), "{body}");
        let ours = body.split("µDECK, tcp, handshake</th>").nth(1).expect("a row of ours");
        let row = ours.split("</tr>").next().expect("a row");
        assert!(row.contains(">1.50<") && row.contains(">1.60<") && row.contains(">–<"), "{row}");
        assert_eq!((charts.len(), charts[0].lines[0].points.len()), (1, 2));
    }

    #[test]
    fn runs_of_other_commands_have_none_of_these_figures() {
        assert!(body(&[run("matrix", Vec::new())], &mut Vec::new()).is_none());
    }
}
