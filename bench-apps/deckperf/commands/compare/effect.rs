//! Effect of a change on one cell: how much slower it got, and how probable that is by chance.
//!
//! All values are logarithms of times, so that a difference is a ratio. The speed of a machine varies, and the limit that
//! was measured in the same rounds shows how; but a message does not follow the limit in full. So there is a range: from
//! no correction (the *absolute* difference) to a correction by the whole limit (the *relative* one).
//!
//! - With few runs on a side, nobody knows where in this range the truth lies. A side is cut into blocks of successive rounds,
//!   whose means are far less correlated than rounds are. The difference of the limits themselves from side to side is noise of the
//!   machine, and part of the error of each figure. The bounds are the union of the absolute and the relative bounds, and
//!   the chance is the larger one of the two.
//! - With [`MIN_PAIRS`] pairs of runs in alternation, the pairs show how far the message follows the limit: by a regression of
//!   the pairs' differences on the limit's differences (analysis of covariance), whose uncertainty is in the bounds. The regression
//!   is robust: a fifth of the pairs on either end counts for nothing.

use crate::stats::{self, mean, middle_mean, sorted, squares, student};

/// One figure of a run by round, as logarithms of times, with the limits of the same rounds.
#[derive(Clone, Debug, Default)]
pub struct Track {
    /// Logarithms of the times; `None` where the round has no figure.
    pub times: Vec<Option<f64>>,
    /// Logarithms of the limits, by name; all tracks of a cell have the same names.
    pub limits: Vec<(&'static str, Vec<Option<f64>>)>,
}

/// Estimated change of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// Time of the new side over time of the base: over 1 is slower.
    pub ratio: f64,
    /// Lower 95 % bound, of this cell alone.
    pub low: f64,
    /// Upper 95 % bound, of this cell alone.
    pub high: f64,
    /// Probability that chance alone makes such a difference.
    pub p_value: f64,
    /// The ratio of times as they were measured.
    pub absolute: f64,
    /// The ratio of times as multiples of the limit.
    pub relative: Option<f64>,
    /// Name of the limit that [`Effect::relative`] uses.
    pub limit: Option<&'static str>,
}

/// Fewest runs on each side that are compared by pairs.
pub const MIN_PAIRS: usize = 4;

/// Distance from the usual limit, as a factor, from which a run is left out, and its pair with it.
const DISTURBED: f64 = 3.0;

/// Blocks into which a side of few runs is cut.
const BLOCKS: usize = 8;
/// Fewest blocks: fewer say nothing about the spread.
const MIN_BLOCKS: usize = 4;
/// Fewest rounds in a block.
const MIN_BLOCK: usize = 2;

/// Variance between runs, as a share of the variance of blocks. It is added because a run of half a minute does not see all
/// moods of a machine.
const ANOTHER_RUN: f64 = 0.25;

const OUTSIDE: f64 = 0.05;

/// Estimates the effect; `None` where there are too few figures. `moved` is how far the machine's own limits differ between
/// the sides.
pub fn effect(base: &[Track], new: &[Track], moved: f64) -> Option<Effect> {
    if base.len() == new.len() && base.len() >= MIN_PAIRS {
        return by_pairs(base, new);
    }
    by_blocks(base, new, moved)
}

/// A difference with its standard error and degrees of freedom.
#[derive(Clone, Copy, Debug)]
struct Difference {
    value: f64,
    error: f64,
    degrees_of_freedom: usize,
}

impl Difference {
    fn p_value(&self) -> f64 {
        if self.value.abs() < 1e-12 {
            return 1.0;
        }
        student::exceeded(self.value / self.error, self.degrees_of_freedom)
    }

    fn bounds(&self) -> (f64, f64) {
        let reach = self.error * student::quantile(OUTSIDE, self.degrees_of_freedom);
        (self.value - reach, self.value + reach)
    }
}

fn by_blocks(base: &[Track], new: &[Track], moved: f64) -> Option<Effect> {
    let absolute = of_blocks(&blocks(base, None)?, &blocks(new, None)?, moved);
    let names = base.first().map_or(&[][..], |track| &track.limits);
    let relative = (0..names.len())
        .filter_map(|at| {
            Some((names[at].0, of_blocks(&blocks(base, Some(at))?, &blocks(new, Some(at))?, moved)))
        })
        .min_by(|(_, one), (_, other)| one.error.total_cmp(&other.error));
    let (mut low, mut high) = absolute.bounds();
    let (mut value, mut p_value) = (absolute.value, absolute.p_value());
    if let Some((_, relative)) = &relative {
        let (its_low, its_high) = relative.bounds();
        (low, high) = (low.min(its_low), high.max(its_high));
        // The smaller of the two values counts; 0 if one says slower and the other faster.
        value = match value * relative.value > 0.0 {
            true if relative.value.abs() < value.abs() => relative.value,
            true => value,
            false => 0.0,
        };
        p_value = if value == 0.0 { 1.0 } else { p_value.max(relative.p_value()) };
    }
    Some(Effect {
        ratio: value.exp(),
        low: low.exp(),
        high: high.exp(),
        p_value,
        absolute: absolute.value.exp(),
        relative: relative.as_ref().map(|(_, relative)| relative.value.exp()),
        limit: relative.map(|(name, _)| name),
    })
}

/// Means of blocks of the side's rounds, in the order of time; `None` if there are too few.
fn blocks(side: &[Track], limit: Option<usize>) -> Option<Vec<f64>> {
    let figures: Vec<f64> = side.iter().flat_map(|track| corrected(track, limit)).collect();
    let count = BLOCKS.min(figures.len() / MIN_BLOCK);
    let edge = |block: usize| block * figures.len() / count;
    (count >= MIN_BLOCKS).then(|| {
        let blocks = (0..count).map(|block| &figures[edge(block)..edge(block + 1)]);
        blocks.map(middle_mean).collect()
    })
}

/// Figures of the rounds that have one; `limit`, if given, is subtracted.
fn corrected(track: &Track, limit: Option<usize>) -> Vec<f64> {
    let limit = limit.map(|at| &track.limits[at].1);
    let of = |(round, time): (usize, &Option<f64>)| match limit {
        None => *time,
        Some(limit) => Some((*time)? - limit.get(round).copied().flatten()?),
    };
    track.times.iter().enumerate().filter_map(of).collect()
}

fn of_blocks(base: &[f64], new: &[f64], moved: f64) -> Difference {
    let error = |blocks: &[f64]| {
        let count = blocks.len() as f64;
        squares(blocks) / (count - 1.0) * (1.0 / count + ANOTHER_RUN)
    };
    Difference {
        value: mean(new) - mean(base),
        error: (error(base) + error(new) + moved * moved).sqrt(),
        degrees_of_freedom: base.len().min(new.len()) - 1,
    }
}

/// Distance between the levels of two sides, whatever the reason; `None` where a side has no figures.
pub fn level_difference(base: &[Vec<Option<f64>>], new: &[Vec<Option<f64>>]) -> Option<f64> {
    Some(level(&new.concat())? - level(&base.concat())?)
}

fn by_pairs(base: &[Track], new: &[Track]) -> Option<Effect> {
    // Each pair has the difference of the times, then the difference of each limit.
    let names: Vec<&'static str> = base[0].limits.iter().map(|(name, _)| *name).collect();
    let usual = usual(base.iter().chain(new));
    let pairs: Vec<(f64, Vec<f64>)> = base
        .iter()
        .zip(new)
        .filter(|(base, new)| usual(base) && usual(new))
        .filter_map(|(base, new)| {
            let limits = base.limits.iter().zip(&new.limits);
            let moved = limits.map(|((_, base), (_, new))| Some(level(new)? - level(base)?));
            Some((level(&new.times)? - level(&base.times)?, moved.collect::<Option<Vec<f64>>>()?))
        })
        .collect();
    if pairs.len() < MIN_PAIRS {
        return None;
    }
    let times: Vec<f64> = pairs.iter().map(|(time, _)| *time).collect();
    let moved = |at: usize| -> Vec<f64> { pairs.iter().map(|(_, limits)| limits[at]).collect() };
    let best = (0..names.len())
        .map(|at| (at, regression(&times, &moved(at))))
        .min_by(|(_, one), (_, other)| one.error.total_cmp(&other.error));
    let absolute = mean(&times);
    let judged = best.map_or_else(|| of_pairs(&times), |(_, difference)| difference);
    let (low, high) = judged.bounds();
    Some(Effect {
        ratio: judged.value.exp(),
        low: low.exp(),
        high: high.exp(),
        p_value: judged.p_value(),
        absolute: absolute.exp(),
        relative: best.map(|(at, _)| (absolute - mean(&moved(at))).exp()),
        limit: best.map(|(at, _)| names[at]),
    })
}

/// Middle mean of the figures that exist.
fn level(figures: &[Option<f64>]) -> Option<f64> {
    let there: Vec<f64> = figures.iter().copied().flatten().collect();
    (!there.is_empty()).then(|| middle_mean(&there))
}

/// Whether the first limit of a run is near its value in most of the runs. A value that is several times larger or smaller
/// means that another program had one of the cores, and the run says nothing. Only the limit decides, never the figure.
fn usual<'t>(tracks: impl Iterator<Item = &'t Track>) -> impl Fn(&Track) -> bool {
    let line = |track: &Track| level(&track.limits.first()?.1);
    let middle = stats::median(&tracks.filter_map(line).collect::<Vec<_>>());
    move |track| {
        let apart = line(track).zip(middle).map(|(line, middle)| (line - middle).abs());
        apart.is_none_or(|apart| apart < DISTURBED.ln())
    }
}

fn of_pairs(times: &[f64]) -> Difference {
    trimmed(times, 1)
}

/// Value of `times` where the limit has not moved, if `times` follow the limit by a share between nothing and all. The
/// share is the median of the slopes between any two pairs (Theil and Sen).
fn regression(times: &[f64], limit: &[f64]) -> Difference {
    let pairs = (0..times.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    let slope = |(one, other): (usize, usize)| {
        let run = limit[one] - limit[other];
        (run.abs() > 1e-9).then(|| (times[one] - times[other]) / run)
    };
    let slopes: Vec<f64> = pairs.filter_map(slope).collect();
    let share = stats::median(&slopes).map_or(0.0, |slope| slope.clamp(0.0, 1.0));
    let left: Vec<f64> = times.iter().zip(limit).map(|(y, x)| y - share * x).collect();
    let Difference { value, error, degrees_of_freedom } = trimmed(&left, 2);
    // The error of the share counts as far as the limit has moved.
    let (moved, spread) = (mean(limit), squares(limit) / limit.len() as f64);
    let lever = if spread > 1e-12 { moved * moved / spread } else { 0.0 };
    Difference { value, error: error * (1.0 + lever).sqrt(), degrees_of_freedom }
}

/// The mean without the lowest and the highest fifth. Its error comes from the winsorised variance (Yuen 1974), with one
/// degree of freedom less for each of `estimated`. A pair in which another program ran counts for little.
fn trimmed(values: &[f64], estimated: usize) -> Difference {
    let mut sorted = sorted(values);
    let (cut, last) = (sorted.len() / 5, sorted.len() - 1);
    let kept = sorted.len() - 2 * cut;
    let value = mean(&sorted[cut..sorted.len() - cut]);
    let ends = (sorted[cut], sorted[last - cut]);
    sorted.iter_mut().for_each(|value| *value = value.clamp(ends.0, ends.1));
    let degrees_of_freedom = kept.saturating_sub(estimated).max(1);
    Difference {
        value,
        error: (squares(&sorted) / (kept as f64 * degrees_of_freedom as f64)).sqrt(),
        degrees_of_freedom,
    }
}

#[cfg(test)]
mod tests;
