//! Findings of a run: ratios of figures of the same rounds.

use udeck::Protocol;

use crate::{
    experiment::{
        plan::{Payload, Plan, Test},
        rounds::{Results, SMALL},
        sizes,
    },
    named::Named,
    stats::{Ratio, paired_ratio},
};

/// A ratio of latencies, with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Names of the numerator and the denominator.
    pub what: String,
    /// The ratio; below 1 the numerator is faster.
    pub ratio: Ratio,
}

impl Finding {
    /// The ratio within each round; `None` if one of the two was not measured.
    pub fn of(what: String, numerators: &[f64], denominators: &[f64]) -> Option<Self> {
        Some(Self { what, ratio: paired_ratio(numerators, denominators)? })
    }
}

/// Computes every ratio whose two sides were measured.
pub fn findings(plan: &Plan, results: &Results) -> Vec<Finding> {
    let latency = |protocol, payload, size| {
        results.post(Test::Latency, protocol, payload, size).map_or(&[][..], |series| &series.figures)
    };
    let mut found = Vec::new();
    let mut add = |what, numerators, denominators| found.extend(Finding::of(what, numerators, denominators));

    let large = telling_size(&plan.sizes);
    let at = sizes::show(large);
    for payload in [Payload::Untouched, Payload::WrittenRead] {
        let copy = latency(Protocol::Copy, payload, large);
        let how = payload.name();
        add(format!("hand-off / copy, {at}, {how}"), latency(Protocol::HandOff, payload, large), copy);
        add(format!("rdma-write / copy, {at}, {how}"), latency(Protocol::RdmaWrite, payload, large), copy);
        add(
            format!("hand-off / rdma-write, {at}, {how}"),
            latency(Protocol::HandOff, payload, large),
            latency(Protocol::RdmaWrite, payload, large),
        );
    }
    if let Some(raw) = results.raw(large) {
        let untouched = |protocol| latency(protocol, Payload::Untouched, large);
        add(format!("copy / two raw memcpys, {at}, untouched"), untouched(Protocol::Copy), &raw.two_copies);
        add(
            format!("rdma-write / one raw memcpy, {at}, untouched"),
            untouched(Protocol::RdmaWrite),
            &raw.copy,
        );
    }
    if let Some(raw) = results.raw(SMALL) {
        let auto = latency(Protocol::Auto, Payload::Untouched, SMALL);
        add(format!("auto, {SMALL} bytes / raw cache-line hand-over"), auto, &raw.line);
    }
    found
}

/// Size of the closing ratios: 1 MiB, or the largest that was measured.
pub fn telling_size(sizes: &[usize]) -> usize {
    match sizes.contains(&(1 << 20)) {
        true => 1 << 20,
        false => sizes.last().copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiment::rounds::{Contender, RawSeries, Series};

    fn series(protocol: Protocol, size: usize, figures: &[f64]) -> Series {
        let contender = Contender { test: Test::Latency, protocol, payload: Payload::Untouched };
        Series { contender, size, iterations: 1, figures: figures.to_vec(), copied: 0, messages: 1 }
    }

    #[test]
    fn ratios_appear_where_both_sides_were_measured() {
        let plan = Plan { sizes: vec![8, 1 << 20, 4 << 20], ..Plan::sample() };
        let results = Results {
            posts: vec![
                series(Protocol::Copy, 1 << 20, &[90.0, 100.0, 110.0]),
                series(Protocol::HandOff, 1 << 20, &[9.0, 10.0, 11.0]),
                series(Protocol::Auto, 8, &[0.1, 0.2, 0.4]),
            ],
            raws: vec![
                RawSeries { size: 8, line: vec![0.1, 0.1, 0.1], ..RawSeries::default() },
                RawSeries { size: 1 << 20, two_copies: vec![45.0, 50.0, 55.0], ..RawSeries::default() },
            ],
            rounds: 3,
            warm_up: crate::stats::steady::WarmUp::default(),
            elapsed: Duration::from_secs(1),
        };
        let found: Vec<(String, f64)> = findings(&plan, &results)
            .into_iter()
            .map(|finding| (finding.what, finding.ratio.median))
            .collect();
        assert_eq!(
            found,
            [
                ("hand-off / copy, 1M, untouched".to_owned(), 0.1),
                ("copy / two raw memcpys, 1M, untouched".to_owned(), 2.0),
                ("auto, 8 bytes / raw cache-line hand-over".to_owned(), 2.0),
            ]
        );
    }

    #[test]
    fn the_largest_size_stands_in_for_one_mebibyte() {
        assert_eq!(telling_size(&[8, 1 << 20, 4 << 20]), 1 << 20);
        assert_eq!(telling_size(&[8, 4096]), 4096);
        assert_eq!(telling_size(&[]), 0);
    }
}
