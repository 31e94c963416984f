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
    distinct::grouped,
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

/// Table 7.1: speed-ups on 2, 4 and 8 nodes. Those over Gigabit Ethernet are of another cluster than the others (§7.3).
const PUBLISHED_FT: [(&str, [f64; 3]); 4] = [
    ("DECK/TCP, Fast Ethernet", [1.372, 2.10, 4.472]),
    ("DECK/TCP, Gigabit Ethernet, another cluster", [1.708, 3.194, 6.151]),
    ("DECK/GM", [1.496, 3.159, 6.334]),
    ("DECK/VIA", [1.557, 3.128, 5.500]),
];
const PUBLISHED_NODES: [u64; 3] = [2, 4, 8];

/// HTML of all figures, as far as the runs have them; `None` if they have none. The charts are added to `charts`.
pub fn body(sources: &[Source], charts: &mut Vec<Chart>) -> Option<String> {
    let speed_ups = speed_ups(sources);
    let (mut rows, mut drawn) = (Vec::new(), Vec::new());
    let mut add = |group: &Group<'_>, of_group: Vec<Row>, charts: Vec<Chart>| {
        rows.extend(of_group.into_iter().map(|row| Row { what: row.what + &group.words(), ..row }));
        drawn.extend(charts.into_iter().map(|chart| Chart { title: chart.title + &group.words(), ..chart }));
    };
    for group in groups(sources, "vi") {
        let vi = Vis(&group.series);
        add(&group, vi.rows(), vi.charts());
    }
    for group in with_both_models(groups(sources, "clones")) {
        let clones = Clones(&group.series);
        add(&group, clones.rows(), clones.charts());
    }
    for group in groups(sources, "messages") {
        let messages = Messages(&group.series);
        add(&group, messages.rows(), messages.charts());
    }
    drawn.extend(ft_chart(&speed_ups));
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

/// Series that can be compared: of one run, over one transport.
struct Group<'a> {
    transport: Option<&'a str>,
    /// Names of the runs.
    names: Vec<&'a str>,
    /// Whether there is another group of this transport.
    is_one_of_several: bool,
    series: Vec<&'a Series>,
}

impl Group<'_> {
    /// Words behind the name of a quantity or a curve.
    fn words(&self) -> String {
        let over = self.transport.map_or(String::new(), |transport| format!(", over {transport}"));
        let of = if self.is_one_of_several { format!(" ({})", self.names.join(", ")) } else { String::new() };
        over + &of
    }
}

/// The series of a command, by run and transport.
fn groups<'a>(sources: &'a [Source], command: &str) -> Vec<Group<'a>> {
    let of_source = |source: &'a Source| {
        let series = source.run.series.iter().filter(|one| one.key.library != LIMIT);
        let by_transport = grouped(series.map(|one| (one.key.transport.as_deref(), one)));
        by_transport.into_iter().map(move |(transport, series)| Group {
            transport,
            names: vec![source.name.as_str()],
            is_one_of_several: false,
            series,
        })
    };
    let found = sources.iter().filter(|source| source.run.command == command).flat_map(of_source);
    told_apart(found.collect())
}

/// Notes which groups need their names, as another one has the same transport.
fn told_apart(mut groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    let transports: Vec<_> = groups.iter().map(|group| group.transport).collect();
    for group in &mut groups {
        group.is_one_of_several = transports.iter().filter(|other| **other == group.transport).count() > 1;
    }
    groups
}

/// Runs of `clones` in pairs: the first by work queues with the first by completion queue over the same transport, and so on. A
/// run has one of the two models.
fn with_both_models(groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    let models = |group: &Group<'_>| -> Vec<String> {
        group.series.iter().filter_map(|one| one.key.labels.get("receive").cloned()).collect()
    };
    let mut pairs: Vec<Group<'_>> = Vec::new();
    for group in groups {
        let own = models(&group);
        let lacks = |pair: &&mut Group<'_>| {
            pair.transport == group.transport && models(pair).iter().all(|model| !own.contains(model))
        };
        match pairs.iter_mut().find(lacks) {
            Some(pair) => {
                pair.names.extend(group.names);
                pair.series.extend(group.series);
            }
            None => pairs.push(group),
        }
    }
    told_apart(pairs)
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
            Crossing::Never => "from no size on".to_owned(),
            Crossing::Always => "at every size".to_owned(),
            Crossing::From(size) => format!("from {} on", show::bytes(size)),
        }
    }
}

/// Series of `--layer vi`: figures 6.1 to 6.3.
struct Vis<'a>(&'a [&'a Series]);

/// Looks that stand for non-blocking and blocking calls.
const POLLED: &str = "work-queue";
const ASLEEP: &str = "cq-asleep";

impl Vis<'_> {
    fn of(&self, test: &str, transfer: &str, look: &str) -> Vec<&Series> {
        line(self.0, test, |key| is_by(key, transfer) && has(key, "look", look) && has(key, "vis", "1"))
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

/// Largest size of figures 7.1 and 7.2: 64 KB (§7.1).
const LARGEST_OF_7_1: u64 = 64 << 10;

/// Series of `clones`, by work queues and by completion queue: figures 7.1 to 7.4.
struct Clones<'a>(&'a [&'a Series]);

impl Clones<'_> {
    fn of(&self, test: &str, receive: &str, clones: &str) -> Vec<&Series> {
        line(self.0, test, |key| {
            has(key, "receive", receive) && has(key, "clones", clones) && has(key, "beside", "nothing")
        })
    }

    fn rows(&self) -> Vec<Row> {
        let growth = |place, published, receive: &str, clones: &str| {
            let ratios = quotients(&self.of("latency", receive, clones), &self.of("latency", receive, "10"));
            let published_sizes = ratios.iter().filter(|(size, _)| *size <= LARGEST_OF_7_1);
            let worst = published_sizes.max_by(|a, b| a.1.median.total_cmp(&b.1.median));
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
                ratios.iter().find(|(size, _)| *size == LARGEST_OF_7_1)
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

/// Size of figure 7.6's bandwidths: 4 MB (§7.2).
const SIZE_OF_7_6: u64 = 4 << 20;

/// Series of messages by `handshake` and others: figures 7.5 and 7.6.
struct Messages<'a>(&'a [&'a Series]);

impl Messages<'_> {
    fn of(&self, test: &str, protocol: &str) -> Vec<&Series> {
        let untouched = |key: &Key| key.payload.as_deref() == Some("untouched");
        line(self.0, test, |key| is_by(key, protocol) && untouched(key))
    }

    fn rows(&self) -> Vec<Row> {
        let both = |test| quotients(&self.of(test, "handshake"), &self.of(test, "eager"));
        let (times, rates) = (both("latency"), both("bandwidth"));
        let long = rates.last().filter(|(size, _)| *size >= SIZE_OF_7_6);
        let bandwidth =
            ratio_row("7.6", "bandwidth by handshake ÷ by eager", "205 ÷ 226 = 0.91 at 4 MB", long);
        [
            ratio_row("7.5", "time by handshake ÷ by eager", "86.85 ÷ 22.99 = 3.78", times.first()),
            bandwidth.map(|row| Row {
                note: row.note + "; DECK/GM, the published 226, sends such messages by a handshake as well",
                ..row
            }),
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

/// Speed-ups of FT as series, by way, then by ranks: the ratio to one rank in each round of the same run.
fn speed_ups(sources: &[Source]) -> Vec<(String, Vec<Series>)> {
    let runs: Vec<_> = sources.iter().filter(|source| source.run.command == "ft").collect();
    let mut all: Vec<(String, Vec<Series>)> = Vec::new();
    for run in &runs {
        for (mut way, series) in speed_ups_of(&run.run.series) {
            if runs.len() > 1 {
                way += &format!(" ({})", run.name);
            }
            all.push((way, series));
        }
    }
    all
}

/// Speed-ups of one run, which has one class.
fn speed_ups_of(speeds: &[Series]) -> Vec<(String, Vec<Series>)> {
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
        // Runs of older releases do not tell their class.
        let class = one.key.labels.get(ft::CLASS).map_or(String::new(), |class| format!(", class {class}"));
        Some((format!("{transport}, {protocol}{class}"), speed_up(one)))
    });
    grouped(ways)
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
mod tests;
