//! Curves and bars from any series of a run, by rules that know no command. Each test, transport and payload mode has a chart;
//! its axis has the message sizes, or another number in which series differ.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::show;
use crate::{
    distinct::grouped,
    experiment::sizes,
    report::data::{Better, Key, LIMIT, OURS, Series},
    stats::{Spread, spread},
};

/// Most lines in a chart: as many as there are colours.
const LINES: usize = 8;
/// Name of a label that repeats the rest of a key.
const REDUNDANT: &str = "row";

/// Library name of the floor in runs of `peers`: the least that a message needs.
const FLOOR: &str = "floor";

/// Whether these are figures of the machine and not of a contender.
fn is_limit(library: &str) -> bool {
    [LIMIT, FLOOR].contains(&library)
}

/// Lines over a common axis.
#[derive(Serialize, Clone, Debug)]
pub struct Chart {
    /// Heading of the chart.
    pub title: String,
    /// Sentence on what the chart shows, and which direction is good.
    pub sentence: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, one per contender.
    pub lines: Vec<Line>,
}

/// An axis of a chart.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Axis {
    /// Title, with the unit.
    pub title: String,
    /// Unit of the figures; empty if they have none.
    pub unit: String,
    /// Whether the figures are message sizes.
    pub bytes: bool,
    /// Whether the axis is logarithmic.
    pub log: bool,
}

/// Line of one contender.
#[derive(Serialize, Clone, Debug)]
pub struct Line {
    /// Name, unique in its chart.
    pub name: String,
    /// Whether this is a limit of the machine, and not a library.
    pub limit: bool,
    /// Points, in ascending order of `x`.
    pub points: Vec<Point>,
}

/// Point of one series.
#[derive(Serialize, Clone, Copy, Debug)]
pub struct Point {
    /// Position on the horizontal axis.
    pub x: f64,
    /// Statistics of the figures over the rounds.
    #[serde(flatten)]
    pub spread: Spread,
}

/// Series that have only their subject in common.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Heading of the bars.
    pub title: String,
    /// Sentence on which direction is good.
    pub sentence: String,
    /// Unit of the figures.
    pub unit: String,
    /// Names with their figures.
    pub bars: Vec<(String, Spread)>,
}

/// All charts and bars of a run.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    /// Charts, which have an axis.
    pub charts: Vec<Chart>,
    /// Bars, which have none.
    pub bars: Vec<Bars>,
}

/// Property in which the series of a line differ.
#[derive(Clone, Debug, PartialEq)]
pub enum Along {
    /// The message size.
    Size,
    /// The number of ranks.
    Ranks,
    /// The label of this name, whose values are numbers.
    Label(String),
}

/// Subject of a chart: unit, test, transport, payload.
type Topic = (String, String, Option<String>, Option<String>);

/// Draws all series but those that [`heat`](super::heat) shows.
pub fn draw<'a>(all: &[&'a Series]) -> Drawn {
    let topic = |&series: &&'a Series| {
        let key = &series.key;
        let topic = (series.unit.clone(), key.test.clone(), key.transport.clone(), key.payload.clone());
        (topic, series)
    };
    let mut topics: Vec<(Topic, Vec<&Series>)> = grouped(all.iter().map(topic));
    // Limits of the machine have no transport and no payload mode. They are drawn beside shared memory, whose messages go
    // through memory, too.
    let limits: Vec<(Topic, Vec<&Series>)> = topics
        .extract_if(.., |((_, _, transport, _), members)| {
            transport.is_none() && members.iter().all(|series| is_limit(&series.key.library))
        })
        .collect();
    let mut drawn = Drawn::default();
    for (topic, mut members) in topics {
        let same = |limit: &&(Topic, Vec<&'_ Series>)| limit.0.0 == topic.0 && limit.0.1 == topic.1;
        let beside = limits.iter().filter(same).filter(|_| topic.2.as_deref() == Some("shm"));
        members.extend(beside.flat_map(|(_, series)| series));
        draw_topic(&topic, &members, &mut drawn);
    }
    drawn
}

/// A contender's series along an axis; its key lacks the property of the axis.
type Setting<'a> = (Key, Vec<&'a Series>);

fn draw_topic(topic: &Topic, members: &[&Series], drawn: &mut Drawn) {
    let mut left: Vec<&Series> = members.to_vec();
    let mut found: Vec<(Along, Vec<Setting<'_>>)> = Vec::new();
    for along in axes(members) {
        let mut lines: BTreeMap<Key, Vec<&Series>> = BTreeMap::new();
        for series in left.iter().filter(|series| along.of(&series.key).is_some()) {
            lines.entry(along.removed_from(&series.key)).or_default().push(series);
        }
        lines.retain(|_, points| points.len() > 1);
        let taken: BTreeSet<&Key> = lines.values().flatten().map(|series| &series.key).collect();
        left.retain(|series| !taken.contains(&series.key));
        if !lines.is_empty() {
            found.push((along, lines.into_iter().collect()));
        }
    }
    add_points(&mut found, &mut left);
    for (along, mut lines) in found {
        let place = |line: &Key| members.iter().position(|one| along.removed_from(&one.key) == *line);
        lines.sort_by_key(|(line, _)| place(line));
        drawn.charts.extend(split(lines).into_iter().map(|lines| chart(topic, &along, &lines)));
    }
    left.retain(|series| !is_limit(&series.key.library) || left_needs(members, series));
    if !left.is_empty() {
        drawn.bars.push(bars(topic, &left));
    }
}

/// Adds series that were measured at one size as points beside the curves.
fn add_points<'a>(found: &mut [(Along, Vec<Setting<'a>>)], left: &mut Vec<&'a Series>) {
    let Some((along @ Along::Size, lines)) = found.first_mut() else { return };
    left.retain(|series| {
        let alike = lines.iter().any(|(key, _)| key.ranks == series.key.ranks);
        let fits = alike && series.key.library != LIMIT && series.key.size.is_some() && lines.len() < LINES;
        if fits {
            lines.push((along.removed_from(&series.key), vec![*series]));
        }
        !fits
    });
}

/// Whether the bars need this limit: a limit is a bar only beside bars of its size.
fn left_needs(members: &[&Series], limit: &Series) -> bool {
    let sizes: BTreeSet<_> =
        members.iter().filter(|series| !is_limit(&series.key.library)).map(|s| s.key.size).collect();
    sizes.len() == 1 && sizes.contains(&limit.key.size)
}

/// Possible axes: the size first, then the property that has the most values.
fn axes(members: &[&Series]) -> Vec<Along> {
    let names: BTreeSet<&String> = members.iter().flat_map(|series| series.key.labels.keys()).collect();
    let labels = names.into_iter().map(|name| Along::Label(name.clone()));
    let mut found: Vec<(usize, Along)> = [Along::Size, Along::Ranks]
        .into_iter()
        .chain(labels)
        .map(|along| {
            let values: BTreeSet<u64> =
                members.iter().filter_map(|s| along.of(&s.key)).map(f64::to_bits).collect();
            (values.len(), along)
        })
        .filter(|(values, _)| *values > 1)
        .collect();
    found.sort_by_key(|(values, along)| (*along != Along::Size, std::cmp::Reverse(*values)));
    found.into_iter().map(|(_, along)| along).collect()
}

/// Splits lines into charts that have no more lines than there are colours: by library, or else in portions.
fn split(lines: Vec<Setting<'_>>) -> Vec<Vec<Setting<'_>>> {
    let ours = |(key, _): &Setting<'_>| key.library == OURS;
    let is_limit = |(key, _): &Setting<'_>| is_limit(&key.library);
    if lines.iter().filter(|line| !is_limit(line)).count() <= LINES {
        return vec![lines];
    }
    let (mine, others): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| ours(line) || is_limit(line));
    let portions = |lines: Vec<(Key, Vec<_>)>| lines.chunks(LINES).map(<[_]>::to_vec).collect::<Vec<_>>();
    portions(mine).into_iter().chain(portions(others)).collect()
}

fn chart(topic: &Topic, along: &Along, lines: &[Setting<'_>]) -> Chart {
    let keys: Vec<&Key> = lines.iter().map(|(key, _)| key).collect();
    let first = lines[0].1[0];
    let lines: Vec<Line> = lines
        .iter()
        .map(|(key, series)| line(name(key, &keys), is_limit(&key.library), along, series))
        .filter(|line| !line.points.is_empty())
        .collect();
    let log = is_wide(&lines);
    let by = if *along == Along::Size { String::new() } else { format!(", by {}", along.title()) };
    chart_of(title(topic) + &by, along, first, lines, log)
}

/// Whether the figures need a logarithmic axis: the largest is more than five times the smallest.
fn is_wide(lines: &[Line]) -> bool {
    let figures = || lines.iter().flat_map(|line| &line.points).map(|point| point.spread.p10);
    let (low, high) = figures().fold((f64::INFINITY, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
    low > 0.0 && high > 5.0 * low
}

/// Draws lines with these names along an axis, if any of them has two points.
pub fn over(title: &str, along: &Along, lines: &[(String, Vec<&Series>)]) -> Option<Chart> {
    let first = *lines.iter().flat_map(|(_, series)| series).next()?;
    let lines = lines.iter().map(|(name, series)| line(name.clone(), false, along, series));
    let lines: Vec<Line> = lines.filter(|line| line.points.len() > 1).collect();
    let log = *along == Along::Size || is_wide(&lines);
    (!lines.is_empty()).then(|| chart_of(title.to_owned(), along, first, lines, log))
}

fn line(name: String, limit: bool, along: &Along, series: &[&Series]) -> Line {
    let point = |one: &&Series| Some(Point { x: along.of(&one.key)?, spread: spread(&one.figures())? });
    let mut points: Vec<Point> = series.iter().filter_map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    Line { name, limit, points }
}

/// A chart of these lines; `like` has the unit and the good direction, `log` is of the vertical axis.
fn chart_of(title: String, along: &Along, like: &Series, lines: Vec<Line>, log: bool) -> Chart {
    let x = Axis {
        title: along.title(),
        unit: String::new(),
        bytes: *along == Along::Size,
        log: along.is_log(&lines),
    };
    let unit = show::unit(&like.unit);
    let sentence = sentence(&lines, &x, like.better, &like.unit);
    Chart { title, sentence, x, y: Axis { title: unit.clone(), unit, bytes: false, log }, lines }
}

fn title((_, test, transport, payload): &Topic) -> String {
    let mut title = show::test(test);
    if let Some(transport) = transport {
        title += &format!(" over {transport}");
    }
    if let Some(payload) = payload {
        title += &format!(", {}", show::payload(payload));
    }
    title
}

/// Name of a contender: the library, and the properties in which its key differs from the others.
fn name(key: &Key, all: &[&Key]) -> String {
    let mut name = show::contender(key);
    let libraries: BTreeSet<&str> =
        all.iter().map(|key| key.library.as_str()).filter(|library| !is_limit(library)).collect();
    if key.library == OURS && libraries.len() > 1 {
        name = key.protocol.as_ref().map_or("µDECK".into(), |protocol| format!("µDECK, {protocol}"));
    } else if !is_limit(&key.library) && key.library != OURS {
        let ways: BTreeSet<_> =
            all.iter().filter(|one| one.library == key.library).map(|one| &one.protocol).collect();
        name +=
            &key.protocol.as_ref().filter(|_| ways.len() > 1).map_or(String::new(), |way| format!(", {way}"));
    }
    if all.iter().any(|one| one.size != key.size) {
        name += &key.size.map_or(String::new(), |size| format!(", {}", show::bytes(size)));
    }
    if all.iter().any(|one| one.ranks != key.ranks) {
        name += &key.ranks.map_or(String::new(), |ranks| format!(", {ranks} ranks"));
    }
    for (label, value) in &key.labels {
        if label != REDUNDANT && all.iter().any(|one| one.labels.get(label) != Some(value)) {
            name += &format!(", {} {value}", label.replace('_', " "));
        }
    }
    name
}

/// Sentence on the best contender at each end of the axis.
fn sentence(lines: &[Line], x: &Axis, better: Better, unit: &str) -> String {
    let contenders: Vec<&Line> = lines.iter().filter(|line| !line.limit).collect();
    let xs: Vec<f64> = contenders.iter().flat_map(|line| &line.points).map(|point| point.x).collect();
    let ends = [xs.iter().copied().fold(f64::INFINITY, f64::min), xs.iter().copied().fold(0.0, f64::max)];
    let best = |at: f64| {
        let there =
            |line: &&&Line| line.points.iter().find(|point| point.x == at).map(|point| point.spread.median);
        let medians = contenders.iter().filter_map(|line| Some((there(&line)?, &line.name)));
        let good = |(a, _): &(f64, &String), (b, _): &(f64, &String)| match better {
            Better::Lower => a.total_cmp(b),
            Better::Higher => b.total_cmp(a),
        };
        medians.min_by(good)
    };
    let place =
        |at: f64| if x.bytes { show::bytes(at as u64) } else { format!("{} {}", show::count(at), x.title) };
    let mut text = show::direction(better).to_owned();
    let said = ends.map(|at| {
        best(at).map(|(median, name)| {
            let who = if contenders.len() > 1 { format!(" ({name})") } else { String::new() };
            format!("{} {} at {}{who}", show::figure(median), show::unit(unit), place(at))
        })
    });
    if let [Some(first), Some(last)] = said {
        let best = if contenders.len() > 1 { "Best" } else { "It is" };
        text += &format!(" {best}: {first}, and {last}.");
    }
    text
}

fn bars(topic: &Topic, members: &[&Series]) -> Bars {
    let keys: Vec<&Key> = members.iter().map(|series| &series.key).collect();
    let bars = members
        .iter()
        .filter_map(|series| Some((name(&series.key, &keys), spread(&series.figures())?)))
        .collect();
    let sentence = show::direction(members[0].better).to_owned();
    Bars { title: title(topic), sentence, unit: show::unit(&topic.0), bars }
}

impl Along {
    fn of(&self, key: &Key) -> Option<f64> {
        match self {
            Along::Size => key.size.map(|size| size as f64),
            Along::Ranks => key.ranks.map(|ranks| ranks as f64),
            Along::Label(name) => {
                let text = key.labels.get(name)?;
                text.parse().ok().or_else(|| sizes::parse(text).ok().map(|size| size as f64))
            }
        }
    }

    fn removed_from(&self, key: &Key) -> Key {
        let mut key = key.clone();
        key.labels.remove(REDUNDANT);
        match self {
            Along::Size => key.size = None,
            Along::Ranks => key.ranks = None,
            Along::Label(name) => _ = key.labels.remove(name),
        }
        key
    }

    fn title(&self) -> String {
        match self {
            Along::Size => "bytes in a message".to_owned(),
            Along::Ranks => "ranks".to_owned(),
            Along::Label(name) => name.replace('_', " "),
        }
    }

    /// Whether the axis is logarithmic: always for sizes, otherwise if the values span more than a decade.
    fn is_log(&self, lines: &[Line]) -> bool {
        let xs = || lines.iter().flat_map(|line| &line.points).map(|point| point.x);
        let (low, high) = xs().fold((f64::INFINITY, 0.0_f64), |(low, high), x| (low.min(x), high.max(x)));
        *self == Along::Size || low > 0.0 && high > 10.0 * low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(library: &str, protocol: &str, size: u64, figure: f64) -> Series {
        let key = Key {
            test: "latency".into(),
            library: library.into(),
            transport: Some("shm".into()).filter(|_| library != LIMIT),
            protocol: Some(protocol.into()),
            size: Some(size),
            ..Key::default()
        };
        let rounds = vec![Some(figure), None, Some(figure)];
        Series { key, unit: "us".into(), better: Better::Lower, copied_bytes_per_message: None, rounds }
    }

    #[test]
    fn sizes_are_the_axis_and_protocols_the_lines_with_the_limit_beside() {
        let all = [
            series(OURS, "copy", 8, 2.0),
            series(OURS, "copy", 64, 4.0),
            series(OURS, "eager", 8, 1.0),
            series(OURS, "eager", 64, 8.0),
            series(LIMIT, "memcpy", 8, 0.5),
            series(LIMIT, "memcpy", 64, 0.5),
        ];
        let Drawn { charts, bars } = draw(&all.iter().collect::<Vec<_>>());
        let [chart] = &charts[..] else { panic!("{charts:?}") };
        assert!(bars.is_empty());
        assert_eq!(chart.title, "One-way time over shm");
        let names: Vec<_> = chart.lines.iter().map(|line| (line.name.as_str(), line.limit)).collect();
        assert_eq!(names, [("copy", false), ("eager", false), ("limit: memcpy", true)]);
        assert_eq!(
            chart.sentence,
            "Lower is better. Best: 1.00 µs at 8 B (eager), and 4.00 µs at 64 B (copy)."
        );
        assert!(chart.x.bytes && chart.x.log && chart.y.log);
        assert_eq!(chart.lines[0].points[1].spread.rounds, 2);
    }

    #[test]
    fn a_numeric_label_is_the_axis_where_all_sizes_are_the_same() {
        let mut all: Vec<Series> = (0..4).map(|at| series(OURS, "send", 8, f64::from(at) + 1.0)).collect();
        for (one, vis) in all.iter_mut().zip(["1", "10", "1000", "one-busy"]) {
            one.key.labels.insert("vis".into(), vis.into());
        }
        let Drawn { charts, bars } = draw(&all.iter().collect::<Vec<_>>());
        assert_eq!(
            (charts.len(), charts[0].x.title.as_str(), charts[0].lines[0].points.len()),
            (1, "vis", 3)
        );
        assert_eq!(bars[0].bars.len(), 1);
    }

    #[test]
    fn what_has_one_size_is_a_point_beside_curves() {
        let all = [series(OURS, "copy", 8, 2.0), series(OURS, "copy", 64, 4.0), series(OURS, "auto", 8, 1.0)];
        let Drawn { charts, bars } = draw(&all.iter().collect::<Vec<_>>());
        let lines: Vec<_> =
            charts[0].lines.iter().map(|line| (line.name.as_str(), line.points.len())).collect();
        assert_eq!((lines, bars.len()), (vec![("copy", 2), ("auto", 1)], 0));
    }

    #[test]
    fn series_without_an_axis_are_bars() {
        let all = [series(OURS, "auto", 8, 2.0), series("UCX 1.2", "send", 8, 4.0)];
        let Drawn { charts, bars } = draw(&all.iter().collect::<Vec<_>>());
        assert!(charts.is_empty());
        let names: Vec<_> =
            bars[0].bars.iter().map(|(name, spread)| (name.as_str(), spread.median)).collect();
        assert_eq!(names, [("µDECK, auto", 2.0), ("UCX 1.2", 4.0)]);
    }

    #[test]
    fn a_chart_has_no_more_lines_than_there_are_colours() {
        let names: Vec<String> = (0..20).map(|at| format!("way-{at}")).collect();
        let all: Vec<Series> =
            names.iter().flat_map(|way| [8, 64].map(|size| series(OURS, way, size, 1.0))).collect();
        let Drawn { charts, .. } = draw(&all.iter().collect::<Vec<_>>());
        assert_eq!(charts.iter().map(|chart| chart.lines.len()).collect::<Vec<_>>(), [8, 8, 4]);
    }
}
