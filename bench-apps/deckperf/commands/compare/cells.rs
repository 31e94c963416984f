//! Cells of a comparison: the figures that both sides have, as tracks of logarithms, and the mean of all figures of each test.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    effect::{Track, level_difference},
    input::Source,
    listed,
};
use crate::{
    report::data::{Better, Key, LIMIT, OURS, RAW, Run, Series},
    stats::{self, middle_mean},
};

/// A compared figure, or the mean of all figures of a test.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Key of the figure; for the mean of a test, a key that has only the test.
    pub key: Key,
    /// Number of figures in this cell.
    pub figures: usize,
    /// Unit of the medians.
    pub unit: String,
    /// Median over all rounds of the base; `None` for the mean of several figures.
    pub base_median: Option<f64>,
    /// Median over all rounds of the new side; `None` for the mean of several figures.
    pub new_median: Option<f64>,
    /// Tracks of the base, one per run.
    pub base: Vec<Track>,
    /// Tracks of the new side, one per run.
    pub new: Vec<Track>,
}

/// Cells of all of µDECK's figures that both sides have, in the order of the files; and sentences on figures that some run lacks.
pub fn cells(base: &[Source], new: &[Source]) -> (Vec<Cell>, Vec<String>) {
    let all = |source: &Source| -> BTreeSet<Key> {
        let ours = source.run.series.iter().filter(|series| series.key.library == OURS);
        ours.map(|series| series.key.clone()).collect()
    };
    let known: Vec<BTreeSet<Key>> = base.iter().chain(new).map(all).collect();
    let everywhere = |key: &Key| known.iter().all(|keys| keys.contains(key));
    let mut cells: Vec<Cell> = Vec::new();
    for series in base.first().map_or(&[][..], |source| &source.run.series) {
        if series.key.library == OURS && everywhere(&series.key) {
            cells.push(cell(series, base, new));
        }
    }
    let union: BTreeSet<&Key> = known.iter().flatten().collect();
    let lacking = |key: &Key| {
        let sources = base.iter().chain(new).zip(&known).filter(|(_, keys)| !keys.contains(key));
        listed(sources.map(|(source, _)| source.name.as_str()))
    };
    let missing = union.into_iter().filter(|key| !everywhere(key));
    let missing = missing.map(|key| format!("{} (not in {})", key.words(), lacking(key))).collect();
    let together = together(&cells);
    cells.extend(together);
    (cells, missing)
}

fn cell(series: &Series, base: &[Source], new: &[Source]) -> Cell {
    let of = |source: &Source| source.run.series.iter().find(|other| other.key == series.key).cloned();
    let median = |side: &[Source]| {
        stats::median(&side.iter().filter_map(of).flat_map(|series| series.figures()).collect::<Vec<_>>())
    };
    let tracks = |side: &[Source]| {
        side.iter().filter_map(|source| Some(track(&of(source)?, &source.run))).collect::<Vec<_>>()
    };
    let (mut base_tracks, mut new_tracks) = (tracks(base), tracks(new));
    let known: BTreeSet<&str> = RAW
        .into_iter()
        .filter(|&name| base_tracks.iter().chain(&new_tracks).all(|track| has(track, name)))
        .collect();
    for track in base_tracks.iter_mut().chain(&mut new_tracks) {
        track.limits.retain(|(name, _)| known.contains(name));
    }
    Cell {
        key: series.key.clone(),
        figures: 1,
        unit: series.unit.clone(),
        base_median: median(base),
        new_median: median(new),
        base: base_tracks,
        new: new_tracks,
    }
}

fn has(track: &Track, limit: &str) -> bool {
    track.limits.iter().any(|(name, _)| *name == limit)
}

fn track(series: &Series, run: &Run) -> Track {
    let limit = |name: &'static str| {
        let of = |other: &&Series| {
            let key = &other.key;
            key.library == LIMIT && key.protocol.as_deref() == Some(name) && key.size == series.key.size
        };
        run.series.iter().find(of).map(|limit| (name, logarithms(limit)))
    };
    Track { times: logarithms(series), limits: RAW.into_iter().filter_map(limit).collect() }
}

/// Logarithms of the times. Where figures are rates, these are the logarithms of the reciprocals. A figure that is not
/// positive has none.
fn logarithms(series: &Series) -> Vec<Option<f64>> {
    let sign = match series.better {
        Better::Lower => 1.0,
        Better::Higher => -1.0,
    };
    let one = |figure: &Option<f64>| figure.filter(|figure| *figure > 0.0 && figure.is_finite());
    series.rounds.iter().map(|figure| one(figure).map(|figure| sign * figure.ln())).collect()
}

/// Cells of the tests that have several figures: the mean of these figures within each round. The mean shows what all
/// figures have in common, while the noise of single ones cancels out.
fn together(cells: &[Cell]) -> Vec<Cell> {
    let mut tests: BTreeMap<&str, Vec<&Cell>> = BTreeMap::new();
    for cell in cells {
        tests.entry(&cell.key.test).or_default().push(cell);
    }
    let joint = |(test, members): (&str, Vec<&Cell>)| {
        let centres: Vec<Centre> = members.iter().map(|cell| Centre::of(cell)).collect();
        let side = |of: fn(&Cell) -> &Vec<Track>| {
            let runs = of(members[0]).len();
            (0..runs)
                .map(|run| {
                    let parts = members.iter().zip(&centres).map(|(cell, centre)| (&of(cell)[run], centre));
                    mean_track(&parts.collect::<Vec<_>>())
                })
                .collect()
        };
        Cell {
            key: Key { test: test.to_owned(), library: OURS.to_owned(), ..Key::default() },
            figures: members.len(),
            unit: String::new(),
            base_median: None,
            new_median: None,
            base: side(|cell| &cell.base),
            new: side(|cell| &cell.new),
        }
    };
    tests.into_iter().filter(|(_, members)| members.len() > 1).map(joint).collect()
}

/// Levels that are subtracted from a cell's tracks before tracks of several cells are averaged. Without this, a round that lacks
/// some of them would be another mixture.
struct Centre {
    times: f64,
    limits: BTreeMap<&'static str, f64>,
}

impl Centre {
    fn of(cell: &Cell) -> Self {
        let tracks = || cell.base.iter().chain(&cell.new);
        let centre = |figures: Vec<f64>| if figures.is_empty() { 0.0 } else { middle_mean(&figures) };
        let names = tracks().flat_map(|track| track.limits.iter().map(|(name, _)| *name));
        let limit = |name: &'static str| {
            let all = tracks().flat_map(|track| &track.limits).filter(|(other, _)| *other == name);
            (name, centre(all.flat_map(|(_, figures)| figures.iter().copied().flatten()).collect()))
        };
        Self {
            times: centre(tracks().flat_map(|track| track.times.iter().copied().flatten()).collect()),
            limits: names.map(limit).collect(),
        }
    }
}

fn mean_track(parts: &[(&Track, &Centre)]) -> Track {
    let rounds = parts.iter().map(|(track, _)| track.times.len()).max().unwrap_or(0);
    let mean = |of: &dyn Fn(&Track, &Centre, usize) -> Option<f64>| -> Vec<Option<f64>> {
        let round = |round| {
            let there: Vec<f64> =
                parts.iter().filter_map(|(track, centre)| of(track, centre, round)).collect();
            (!there.is_empty()).then(|| stats::mean(&there))
        };
        (0..rounds).map(round).collect()
    };
    let times = mean(&|track, centre, round| Some((*track.times.get(round)?)? - centre.times));
    let of_limit = |name: &'static str| {
        mean(&|track, centre, round| {
            let (_, figures) = track.limits.iter().find(|(other, _)| *other == name)?;
            Some((*figures.get(round)?)? - centre.limits.get(name)?)
        })
    };
    let names = RAW.into_iter().filter(|name| parts.iter().any(|(track, _)| has(track, name)));
    Track { times, limits: names.map(|name| (name, of_limit(name))).collect() }
}

/// Distance of the machine's limits between the sides: the root of the mean square of the differences of logarithms. The
/// limits are measured by the same code on both sides, so any difference comes from the machine.
pub fn moved(base: &[Source], new: &[Source]) -> f64 {
    let limits = |series: &&Series| series.key.library == LIMIT && series.unit == "us";
    let keys = base.first().map_or(&[][..], |source| &source.run.series).iter().filter(limits);
    let side = |side: &[Source], key: &Key| -> Vec<Vec<Option<f64>>> {
        let of = |source: &Source| source.run.series.iter().find(|series| series.key == *key).map(logarithms);
        side.iter().filter_map(of).collect()
    };
    let differences: Vec<f64> = keys
        .filter_map(|series| level_difference(&side(base, &series.key), &side(new, &series.key)))
        .map(|difference| difference * difference)
        .collect();
    let count = differences.len().max(1) as f64;
    (differences.iter().sum::<f64>() / count).sqrt()
}

/// Variation of the hand-over of a cache line.
#[derive(Clone, Debug, PartialEq)]
pub struct LineVariation {
    /// For each run of both sides, its name and the shortest and longest level of its tenths, in µs.
    pub runs: Vec<(String, f64, f64)>,
    /// Median over all rounds of the base, in µs.
    pub base: f64,
    /// Median over all rounds of the new side, in µs.
    pub new: f64,
}

/// Computes the variation; `None` where a run has no such limit.
pub fn line_variation(base: &[Source], new: &[Source]) -> Option<LineVariation> {
    let one = |source: &Source| -> Option<(String, f64, f64)> {
        let by_round = lines(&source.run)?;
        let tenth = by_round.len().div_ceil(10).max(1);
        let levels = by_round.chunks(tenth).map(middle_mean);
        let (low, high) = levels
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), level| (low.min(level), high.max(level)));
        Some((source.name.clone(), low, high))
    };
    let side = |side: &[Source]| -> Option<f64> {
        let all: Option<Vec<Vec<f64>>> = side.iter().map(|source| lines(&source.run)).collect();
        Some(middle_mean(&all?.concat()))
    };
    let runs = base.iter().chain(new).map(one).collect::<Option<Vec<_>>>()?;
    Some(LineVariation { runs, base: side(base)?, new: side(new)? })
}

/// Median over the sizes, by round.
fn lines(run: &Run) -> Option<Vec<f64>> {
    let is_line = |series: &&Series| {
        series.key.library == LIMIT && series.key.protocol.as_deref() == Some(RAW[0]) && series.unit == "us"
    };
    let all: Vec<&Series> = run.series.iter().filter(is_line).collect();
    let rounds = all.iter().map(|series| series.rounds.len()).max()?;
    let of = |round| {
        let figures: Vec<f64> =
            all.iter().filter_map(|series| series.rounds.get(round).copied().flatten()).collect();
        stats::median(&figures)
    };
    let by_round: Vec<f64> = (0..rounds).filter_map(of).collect();
    (!by_round.is_empty()).then_some(by_round)
}
