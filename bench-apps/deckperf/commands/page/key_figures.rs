//! Key figures: those that a reader wants first, as far as a page's runs have them.

use super::{heat, show, source::Source};
use crate::{
    distinct::distinct,
    report::data::{Better, LIMIT, OURS, RAW, Series},
    stats::{Ratio, paired_ratio, spread},
};

/// One line of the first table.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyFigure {
    /// Name of the figure.
    pub what: String,
    /// The figure, with its unit.
    pub figure: String,
    /// 95 % bounds of the figure.
    pub bounds: String,
    /// Comparison with another figure.
    pub beside: String,
}

const SMALL: u64 = 8;
const LARGE: u64 = 1 << 20;

/// Key figures of all runs, in the order of the runs.
pub fn of(sources: &[Source]) -> Vec<KeyFigure> {
    sources.iter().flat_map(of_run).collect()
}

fn of_run(source: &Source) -> Vec<KeyFigure> {
    let series: Vec<&Series> = source.run.series.iter().collect();
    let mut found = match source.run.command.as_str() {
        "messages" => messages(&series),
        "peers" | "collectives" => compared(source),
        _ if series.iter().any(|one| heat::pair(&one.key).is_some()) => pairs(&series),
        _ => others(&series),
    };
    if source.is_off_cache() {
        found.iter_mut().for_each(|key| key.what += ", off the caches");
    }
    found
}

fn messages(series: &[&Series]) -> Vec<KeyFigure> {
    let mut transports: Vec<&str> = series.iter().filter_map(|one| one.key.transport.as_deref()).collect();
    transports.sort_unstable();
    transports.dedup();
    let mut found = Vec::new();
    for transport in transports {
        let over: Vec<&Series> =
            series.iter().copied().filter(|one| one.key.transport.as_deref() == Some(transport)).collect();
        let limit = |how: &str, size: u64| {
            let is_it = |one: &&&Series| {
                let key = &one.key;
                key.library == LIMIT && key.protocol.as_deref() == Some(how) && key.size == Some(size)
            };
            series.iter().find(is_it).copied().filter(|_| transport == "shm")
        };
        found.extend(small(&over, transport, |size| limit(RAW[0], size)));
        found.extend(large(&over, transport, |size| limit(RAW[1], size)));
        found.extend(stream(&over, transport));
    }
    found
}

/// The fastest way of sending a few bytes.
fn small<'a>(
    series: &[&'a Series],
    transport: &str,
    line: impl Fn(u64) -> Option<&'a Series>,
) -> Option<KeyFigure> {
    let of: Vec<&Series> = select(series, "latency", "untouched");
    let best = best(&of, size_near(&of, SMALL)?)?;
    let size = best.key.size?;
    let ratio = line(size).and_then(|line| quotient(best, line));
    let beside = ratio.map_or(String::new(), |ratio| times(&ratio, "the hand-over of a cache line"));
    Some(figure(&format!("{} over {transport}, one way", show::bytes(size)), best, beside))
}

/// Figures of a long message: given away where that is possible, and with all of its data written and read.
fn large<'a>(
    series: &[&'a Series],
    transport: &str,
    memcpy: impl Fn(u64) -> Option<&'a Series>,
) -> Vec<KeyFigure> {
    let mut found = Vec::new();
    let of = select(series, "latency", "untouched");
    let size = size_near(&of, LARGE);
    let hand_off = |one: &&&Series| one.key.protocol.as_deref() == Some("hand-off") && one.key.size == size;
    if let Some(given) = of.iter().find(hand_off).copied() {
        let ratio = size.and_then(memcpy).and_then(|copy| quotient(given, copy));
        let beside = ratio.map_or(String::new(), |ratio| times(&ratio, "a memcpy of it"));
        let what = format!("{} handed off over {transport}, one way", show::bytes(size.unwrap_or(0)));
        found.push(figure(&what, given, beside));
    }
    let of = select(series, "latency", "written+read");
    if let Some(best) = size_near(&of, LARGE).and_then(|size| best(&of, size)) {
        let copy = of
            .iter()
            .find(|one| one.key.protocol.as_deref() == Some("copy") && one.key.size == best.key.size);
        let ratio = copy.filter(|copy| copy.key != best.key).and_then(|copy| quotient(best, copy));
        let beside = ratio.map_or(String::new(), |ratio| times(&ratio, "the same with two copies"));
        let what =
            format!("{} written, sent and read over {transport}", show::bytes(best.key.size.unwrap_or(0)));
        found.push(figure(&what, best, beside));
    }
    found
}

fn stream(series: &[&Series], transport: &str) -> Option<KeyFigure> {
    let of = [select(series, "bandwidth", "written+read"), select(series, "bandwidth", "untouched")]
        .into_iter()
        .find(|of| !of.is_empty())?;
    let best = best(&of, size_near(&of, LARGE)?)?;
    let payload = best.key.payload.as_deref().map_or("", show::payload);
    let what = format!("bandwidth with {} over {transport}, {payload}", show::bytes(best.key.size?));
    Some(figure(&what, best, String::new()))
}

/// Figures of a comparison: the first time, the last time with data written and read, the first rate, and how many goals are met.
fn compared(source: &Source) -> Vec<KeyFigure> {
    let rows = &source.compared.rows;
    let latency = |row: &&super::source::ComparedRow| row.test == "latency" && row.best_peer.is_some();
    let first = rows.iter().find(latency);
    let large = |row: &&super::source::ComparedRow| {
        latency(row) && row.payload == "written+read" && row.bytes == LARGE
    };
    let handed_off = rows.iter().filter(large).find(|row| row.protocol == "hand-off");
    let last = handed_off.or_else(|| rows.iter().find(large));
    let rate = rows.iter().find(|row| row.unit == "M/s" && row.best_peer.is_some());
    let chosen = [first, last, rate].into_iter().flatten();
    let network = source.run.machine.get("transport").and_then(|value| value.as_str()).unwrap_or("?");
    let mut found: Vec<KeyFigure> = chosen
        .filter_map(|row| {
            let peer = row.best_peer.as_deref()?;
            let other = row.others.iter().find(|other| other.name == peer)?;
            let ratio = other.ours_ratio?;
            let unit = show::unit(&row.unit);
            let both = middle_round(&source.run.series, &row.title, peer, ratio.value);
            let both = both.map_or(String::new(), |[ours, theirs]| {
                format!(": {} beside {} {unit} in the middle round", show::figure(ours), show::figure(theirs))
            });
            let of_ours = source.run.series.iter().find(|one| is_of(one, &row.title, OURS));
            let bounds = of_ours.and_then(|ours| spread(&ours.figures()));
            Some(KeyFigure {
                what: format!("{} over {network}, beside other libraries", row.title),
                figure: format!("{} {unit}", show::figure(row.ours?)),
                bounds: bounds.as_ref().map_or(String::new(), show::bounds),
                beside: format!(
                    "{} × the best peer, {peer}{both} (95 %: {} to {})",
                    show::figure(ratio.value),
                    show::figure(ratio.low_95),
                    show::figure(ratio.high_95),
                ),
            })
        })
        .collect();
    let verdicts: Vec<&str> =
        rows.iter().flat_map(|row| &row.targets).map(|target| target.verdict.as_str()).collect();
    let count = |verdict: &str| verdicts.iter().filter(|one| **one == verdict).count();
    if !verdicts.is_empty() {
        found.push(KeyFigure {
            what: format!("goals that are met over {network}"),
            figure: format!("{} of {}", count("met"), verdicts.len()),
            bounds: String::new(),
            beside: format!("{} missed, {} inconclusive", count("missed"), count("inconclusive")),
        });
    }
    found
}

fn is_of(series: &Series, row: &str, library: &str) -> bool {
    series.key.library == library && series.key.labels.get("row").is_some_and(|title| title == row)
}

/// Both figures of the round whose ratio is nearest to `ratio`, the median of all ratios. The medians of the two sides come from
/// different rounds: on a machine whose speed varies, their quotient may be anything.
fn middle_round(series: &[Series], row: &str, peer: &str, ratio: f64) -> Option<[f64; 2]> {
    let of = |library| series.iter().find(|one| is_of(one, row, library));
    let pairs = of(OURS)?.rounds.iter().zip(&of(peer)?.rounds);
    let distance = |pair: &[f64; 2]| (pair[0] / pair[1] / ratio).ln().abs();
    pairs
        .filter_map(|(ours, theirs)| Some([(*ours)?, (*theirs)?]))
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// The best pair of ranks, and the worst.
fn pairs(series: &[&Series]) -> Vec<KeyFigure> {
    let median = |one: &Series| spread(&one.figures()).map(|spread| spread.median);
    let mut of: Vec<(&Series, (u64, u64), f64)> =
        series.iter().filter_map(|one| Some((*one, heat::pair(&one.key)?, median(one)?))).collect();
    let Some((first, ..)) = of.first().copied() else { return Vec::new() };
    of.retain(|(one, ..)| {
        (&one.key.test, &one.key.protocol, one.key.size)
            == (&first.key.test, &first.key.protocol, first.key.size)
    });
    of.sort_by(|a, b| a.2.total_cmp(&b.2));
    let ends = [of.first(), of.last()].into_iter().flatten().zip(["lowest", "highest"]);
    ends.map(|((one, (from, to), _), which)| {
        let what = format!("{} of all pairs, {which}", show::test(&one.key.test).to_lowercase());
        figure(&what, one, format!("from rank {from} to rank {to}"))
    })
    .collect()
}

/// µDECK's figures at the smallest size, for the first tests of the run.
fn others(series: &[&Series]) -> Vec<KeyFigure> {
    let ours = series.iter().filter(|one| one.key.library == OURS);
    let tests = distinct(ours.map(|one| one.key.test.as_str()));
    let mut found = Vec::new();
    for test in tests.into_iter().take(3) {
        let of: Vec<&Series> =
            series.iter().copied().filter(|one| one.key.library == OURS && one.key.test == test).collect();
        let size = size_near(&of, SMALL);
        let of: Vec<&Series> = of.into_iter().filter(|one| one.key.size == size).collect();
        if let Some(best) = of.iter().copied().min_by(|a, b| good(a, b)) {
            let how = [best.key.protocol.clone(), best.key.transport.clone(), best.key.size.map(show::bytes)];
            let how: Vec<String> = how.into_iter().flatten().collect();
            found.push(figure(&format!("{}: {}", show::test(test), how.join(", ")), best, String::new()));
        }
    }
    found
}

fn figure(what: &str, series: &Series, beside: String) -> KeyFigure {
    let unit = show::unit(&series.unit);
    let spread = spread(&series.figures());
    let by = series.key.protocol.as_deref().filter(|by| !what.contains("handed off") && !what.contains(by));
    KeyFigure {
        what: by.map_or(what.to_owned(), |by| format!("{what} (by {by})")),
        figure: spread.map_or("–".into(), |spread| format!("{} {unit}", show::figure(spread.median))),
        bounds: spread.as_ref().map_or(String::new(), show::bounds),
        beside,
    }
}

fn times(ratio: &Ratio, what: &str) -> String {
    let Ratio { median, low, high, .. } = ratio;
    let [median, low, high] = [median, low, high].map(|figure| show::figure(*figure));
    format!("{median} × {what} (95 %: {low} to {high})")
}

/// Paired ratio over the rounds that both series have.
pub fn quotient(one: &Series, other: &Series) -> Option<Ratio> {
    let both = one.rounds.iter().zip(&other.rounds).filter_map(|(one, other)| Some(((*one)?, (*other)?)));
    let (ones, others): (Vec<f64>, Vec<f64>) = both.unzip();
    paired_ratio(&ones, &others)
}

fn select<'a>(series: &[&'a Series], test: &str, payload: &str) -> Vec<&'a Series> {
    let is_it = |one: &&&Series| {
        let key = &one.key;
        key.library == OURS && key.test == test && key.payload.as_deref() == Some(payload)
    };
    series.iter().filter(is_it).copied().collect()
}

/// The size `wanted`, or else the largest below it, or else the smallest.
fn size_near(series: &[&Series], wanted: u64) -> Option<u64> {
    let sizes = || series.iter().filter_map(|one| one.key.size);
    sizes().filter(|size| *size <= wanted).max().or_else(|| sizes().min())
}

fn best<'a>(series: &[&'a Series], size: u64) -> Option<&'a Series> {
    series.iter().copied().filter(|one| one.key.size == Some(size)).min_by(|a, b| good(a, b))
}

/// Orders series by their medians, so that the better one is the lesser one.
pub fn good(a: &Series, b: &Series) -> std::cmp::Ordering {
    let of = |one: &Series| spread(&one.figures()).map_or(f64::INFINITY, |spread| spread.median);
    match a.better {
        Better::Lower => of(a).total_cmp(&of(b)),
        Better::Higher => of(b).total_cmp(&of(a)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{commands::messages::sample, experiment::plan::Format};

    #[test]
    fn a_run_of_messages_has_its_first_figures_and_what_they_are_beside() {
        let raw = serde_json::from_str(&sample().render(Format::Json)).expect("JSON");
        let found = of(&[Source::parse("run".into(), raw).expect("a run")]);
        let of = |what: &str| {
            found.iter().find(|key| key.what == what).unwrap_or_else(|| panic!("{what}: {found:?}"))
        };
        let small = of("0 B over shm, one way (by hand-off)");
        assert_eq!((small.figure.as_str(), small.bounds.as_str()), ("0.250 µs", "0.250 to 0.250"));
        assert_eq!(small.beside, "2.00 × the hand-over of a cache line (95 %: 2.00 to 2.00)");
        // The ratios of the rounds are 0.5 / 0.5, 0.25 / 0.5, 0.75 / 1.
        let given = of("4 KiB handed off over shm, one way");
        assert_eq!(given.figure, "0.500 µs");
        assert!(given.beside.starts_with("0.750 × a memcpy of it (95 %"), "{given:?}");
        let read = of("4 KiB written, sent and read over shm (by hand-off)");
        assert!(read.beside.starts_with("0.250 × the same with two copies (95 %"), "{read:?}");
        assert_eq!(of("bandwidth with 4 KiB over shm, data untouched (by hand-off)").figure, "40,000 MB/s");
    }

    /// On a machine whose speed varies from round to round, the medians of the two sides come from different rounds, and
    /// contradict the ratio.
    #[test]
    fn a_ratio_stands_beside_figures_whose_quotient_it_is() {
        let series = |library: &str, rounds: [f64; 5]| {
            json!({ "test": "latency", "library": library, "labels": { "row": "8 B" }, "unit": "us",
                    "better": "lower", "rounds": rounds })
        };
        let ratio = json!({ "value": 0.9, "low_95": 0.5, "high_95": 1.0 });
        let raw = json!({
            "deckperf": 1, "command": "peers", "udeck": "1", "date": "", "machine": { "transport": "udp" }, "method": [],
            // The quotients are 0.5, 0.8, 0.9, 1.0, 1.0; the quotient of the medians is 0.8.
            "series": [
                series("udeck", [600.0, 600.0, 216.0, 100.0, 800.0]),
                series("MPICH 5", [1200.0, 750.0, 240.0, 100.0, 800.0]),
            ],
            "rows": [{ "title": "8 B", "test": "latency", "unit": "us", "ours": 600.0, "best_peer": "MPICH 5",
                       "others": [{ "name": "MPICH 5", "figure": 750.0, "ours_ratio": ratio }] }],
        });
        let found = of(&[Source::parse("peers".into(), raw).expect("a run")]);
        assert_eq!(
            found[0].beside,
            "0.900 × the best peer, MPICH 5: 216 beside 240 µs in the middle round (95 %: 0.500 to 1.00)"
        );
        assert_eq!((found[0].figure.as_str(), found[0].bounds.as_str()), ("600 µs", "100 to 800"));
    }

    #[test]
    fn goals_are_counted_by_their_verdicts() {
        let target =
            |verdict: &str| json!({ "verdict": verdict, "wanted": "<=1", "against": "x", "goal": "y" });
        let raw = json!({
            "deckperf": 1, "command": "peers", "udeck": "1", "date": "", "machine": { "transport": "tcp" }, "method": [],
            "series": [],
            "rows": [
                { "title": "8 B", "targets": [target("met"), target("missed")] },
                { "title": "4 KiB", "targets": [target("met"), target("inconclusive")] },
            ],
        });
        let found = of(&[Source::parse("peers".into(), raw).expect("a run")]);
        let [goals] = &found[..] else { panic!("{found:?}") };
        assert_eq!((goals.what.as_str(), goals.figure.as_str()), ("goals that are met over tcp", "2 of 4"));
        assert_eq!(goals.beside, "1 missed, 1 inconclusive");
    }
}
