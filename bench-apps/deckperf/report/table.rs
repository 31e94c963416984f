//! The report as aligned text, in the manner of the OSU benchmarks: comments start with `#`, and each size has a
//! row.

use std::fmt::Write;

use crate::{
    experiment::{
        plan::Test,
        rounds::{Contend, Results},
    },
    report::{
        aligned::{aligned, wrapped},
        summary::Finding,
    },
    stats::{median, noise::Noise},
};
use udeck_cli::machine::Machine;

/// Machine, method and noise of the run.
pub fn head(machine: &Machine, method: &str, noise: Option<&Noise>) -> String {
    let Machine { version, date, cpu, cores, kernel, build, ranks, pinning, transport, load, .. } = machine;
    let mut text = format!("# µDECK {version} deckperf, {date}\n");
    let mut line = |title: &str, sentence: &str| text += &wrapped(&format!("# {title:<9}"), REST, sentence);
    if let Some(load) = load {
        line(if load.is_busy() { "BUSY:" } else { "Load:" }, &load.sentence());
    }
    line("Machine:", &format!("{cpu}, {cores} cores, {kernel}"));
    line("Build:", build);
    line("Ranks:", &format!("{ranks}, {pinning}; transport: {transport}"));
    method.lines().for_each(|sentence| line("Method:", sentence));
    if let Some(noise) = noise {
        line("Noise:", &noise.sentence());
    }
    text
}

/// Prefix of the further lines of a sentence of the head.
pub const REST: &str = "#          ";

/// Names of the columns of [`limits`].
pub const LIMITS: [&str; 2] = ["memcpy", "2 memcpys"];

/// Medians of the machine's copies of this size.
pub fn limits<C: Contend>(results: &Results<C>, size: usize) -> [Option<f64>; 2] {
    let raw = results.raw(size);
    [raw.and_then(|raw| median(&raw.copy)), raw.and_then(|raw| median(&raw.two_copies))]
}

/// Formats a table with a row of cells per key, such as a size.
pub fn by_key(
    title: &str,
    first: &str,
    names: &[String],
    keys: &[usize],
    cells: impl Fn(usize) -> Vec<String>,
) -> String {
    let line = |&key: &usize| row(&key.to_string(), &cells(key));
    let lines: Vec<Vec<String>> = [row(first, names)].into_iter().chain(keys.iter().map(line)).collect();
    format!("\n{}{}", wrapped("# ", "# ", title), aligned(&lines, 1, |at| at == 0))
}

/// Title of a table of the test's figures.
pub fn title(test: Test) -> &'static str {
    match test {
        Test::Latency => "Latency (us)",
        Test::Bandwidth => "Bandwidth (MB/s)",
        Test::BiBandwidth => "Bidirectional bandwidth (MB/s)",
    }
}

/// The closing ratios, and the cache line with which they are compared.
pub fn shows(findings: &[Finding], line: Option<f64>) -> String {
    let Some(rounds) = findings.first().map(|finding| finding.ratio.rounds) else {
        return String::new();
    };
    let title =
        format!("What this shows: ratios within a round; median and its 95 % bounds over {rounds} rounds");
    let mut text = "\n".to_owned() + &wrapped("# ", "# ", &title);
    for finding in findings {
        let ratio = &finding.ratio;
        let _ = writeln!(
            text,
            "# {:<46}{:>8}  ({} to {})",
            finding.what,
            three_digits(ratio.median),
            three_digits(ratio.low),
            three_digits(ratio.high)
        );
    }
    if let Some(line) = line {
        let _ = writeln!(text, "# raw cache-line hand-over in this run: {:.0} ns one way", line * 1e3);
    }
    text
}

/// Formats the cells of one line of [`by_key`].
fn row(first: &str, cells: &[String]) -> Vec<String> {
    let cells = cells.iter().map(|cell| format!("{cell:>10}"));
    [format!("{first:<8}")].into_iter().chain(cells).collect()
}

/// Formats a figure, or `-` for none.
pub fn cell(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

/// Formats ratios, and figures of any magnitude, with three digits.
pub fn three_digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value if value >= 0.1 => format!("{value:.3}"),
        value if value >= 0.01 => format!("{value:.4}"),
        value => format!("{value:.5}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_kept() {
        let shown: Vec<String> =
            [1234.5, 12.345, 1.2345, 0.12345, 0.012345, 0.0012345].map(three_digits).into();
        assert_eq!(shown, ["1234", "12.3", "1.23", "0.123", "0.0123", "0.00123"]);
    }
}
