//! The report as aligned text, in the manner of the OSU benchmarks: comments start with `#`, and each size has a
//! row.

use std::fmt::Write;

use crate::{
    experiment::{
        plan::{Payload, Test},
        rounds::{Contend, Contender, RawSeries, Results},
    },
    named::Named,
    report::{
        Report,
        aligned::{aligned, wrapped},
        summary::Finding,
    },
    stats::{median, noise::Noise},
};
use udeck_cli::machine::Machine;

/// The head, the tables, and the closing ratios.
pub fn render(report: &Report) -> String {
    if report.plan.stats {
        return stats(report);
    }
    let mut text = head(&report.machine, &report.method(), report.results.noise().as_ref());
    for &test in &report.plan.tests {
        for &payload in &report.plan.payloads {
            text += &figures(report, test, payload);
        }
        text += &copied(report, test);
    }
    text + &shows(&report.findings, &report.results.raws)
}

/// Report of `--stats`: only the copied bytes.
fn stats(report: &Report) -> String {
    let method =
        "both ranks' libraries count the bytes of payload that they copy; these are divided by the messages";
    let mut text = head(&report.machine, method, None);
    report.plan.tests.iter().for_each(|&test| text += &copied(report, test));
    text
}

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

/// Table with a column per protocol. The table of untouched latencies also has a column per raw limit, because these
/// limits apply to it.
fn figures(report: &Report, test: Test, payload: Payload) -> String {
    let (plan, results) = (&report.plan, &report.results);
    let mut names = protocol_names(report);
    let raw = test == Test::Latency && payload == Payload::Untouched;
    if raw {
        names.extend(LIMITS.map(str::to_owned));
    }
    let cells = |size: usize| {
        let post = |&protocol| results.p50(Contender { test, protocol, payload }, size);
        plan.protocols
            .iter()
            .map(post)
            .chain(raw.then(|| limits(results, size)).into_iter().flatten())
            .collect()
    };
    by_key(&format!("{}, {}", title(test), payload.name()), "# Size", &names, &plan.sizes, cells)
}

/// Names of the columns of [`limits`].
pub const LIMITS: [&str; 2] = ["memcpy", "2 memcpys"];

/// Medians of the machine's copies of this size.
pub fn limits<C: Contend>(results: &Results<C>, size: usize) -> [Option<f64>; 2] {
    let raw = results.raw(size);
    [raw.and_then(|raw| median(&raw.copy)), raw.and_then(|raw| median(&raw.two_copies))]
}

/// Formats a table with a row of figures per key, such as a size.
pub fn by_key(
    title: &str,
    first: &str,
    names: &[String],
    keys: &[usize],
    cells: impl Fn(usize) -> Vec<Option<f64>>,
) -> String {
    let line = |&key: &usize| {
        let cells: Vec<String> = cells(key).into_iter().map(cell).collect();
        row(&key.to_string(), &cells)
    };
    let lines: Vec<Vec<String>> = [row(first, names)].into_iter().chain(keys.iter().map(line)).collect();
    titled(title, &lines)
}

/// Title of a table of the test's figures.
pub fn title(test: Test) -> &'static str {
    match test {
        Test::Latency => "Latency (us)",
        Test::Bandwidth => "Bandwidth (MB/s)",
        Test::BiBandwidth => "Bidirectional bandwidth (MB/s)",
    }
}

fn copied(report: &Report, test: Test) -> String {
    let name = match test {
        Test::Latency => "Latency",
        Test::Bandwidth => "Bandwidth",
        Test::BiBandwidth => "Bidirectional bandwidth",
    };
    let mut lines = vec![row("# Size", &protocol_names(report))];
    for &size in &report.plan.sizes {
        let copied = |&protocol| report.results.copied_per_message(test, protocol, size);
        let cells: Vec<String> = report
            .plan
            .protocols
            .iter()
            .map(|protocol| match copied(protocol) {
                Some(bytes) if bytes.fract() == 0.0 => format!("{bytes:.0}"),
                bytes => cell(bytes),
            })
            .collect();
        lines.push(row(&size.to_string(), &cells));
    }
    titled(&format!("{name} test: bytes copied by the library per message"), &lines)
}

/// The closing ratios, and the cache line with which they are compared.
pub fn shows(findings: &[Finding], raws: &[RawSeries]) -> String {
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
    let lines: Vec<f64> = raws.iter().flat_map(|raw| raw.line.iter().copied()).collect();
    if let Some(line) = median(&lines) {
        let _ = writeln!(text, "# raw cache-line hand-over in this run: {:.0} ns one way", line * 1e3);
    }
    text
}

fn protocol_names(report: &Report) -> Vec<String> {
    report.plan.protocols.iter().map(|protocol| protocol.to_string()).collect()
}

/// Formats the cells of one line for [`titled`].
fn row(first: &str, cells: &[String]) -> Vec<String> {
    let cells = cells.iter().map(|cell| format!("{cell:>10}"));
    [format!("{first:<8}")].into_iter().chain(cells).collect()
}

/// Formats a table: its first line is the head, and its first column names each line.
fn titled(title: &str, lines: &[Vec<String>]) -> String {
    format!("\n{}{}", wrapped("# ", "# ", title), aligned(lines, 1, |at| at == 0))
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
    use crate::{experiment::plan::Format, report::sample};

    #[test]
    fn a_run_reads_like_this() {
        let expected = "\
# µDECK 1.2.3 deckperf, 2026-01-02 03:04 UTC
# Machine: Some CPU, 2 cores, Linux 6.1
# Build:   rustc 1.95.0, optimised
# Ranks:   2, pinned to cores 0 and 1; transport: shm0
# Method:  interleaved: in each of 3 rounds (2.5 s in all) every contender of a
#          size runs one batch of about 1.5 ms, in rotating order
# Method:  warm-up: no round is dropped (until the median of 3 rounds lies
#          between the 5th and the 95th percentile of those after them)
# Method:  a figure is the median over the batches; 99 % of the batches are at
#          least as good as p99
# Method:  latency is half the round trip of a ping-pong
# Method:  bandwidth is a window of 64 messages (fewer where they exceed 64
#          MiB), then one empty message back; a MB is 10^6 bytes
# Method:  untouched: neither side looks at the data
# Method:  written+read: the sender writes every word, the receiver sums and
#          checks them all
# Method:  raw limits, by two threads on the same cores in the same rounds while
#          rank 1 sleeps: hand-over = a counter to and fro through 64 pairs of
#          cache lines; memcpy = one copy out of the other core's dirty cache
#          lines; 2 memcpys = that and a copy into lines that the other core
#          read last
# Noise:   the raw line stayed within x1.00 (p90 / p10; up to x1.5 is quiet)
#          during this run

# Latency (us), untouched
# Size          copy    hand-off      memcpy   2 memcpys
0               0.60        0.25           -           -
4096            2.00        0.50        0.50        1.00

# Latency (us), written+read
# Size          copy    hand-off
0               0.60        0.25
4096            4.00        1.00

# Latency test: bytes copied by the library per message
# Size          copy    hand-off
0                  0           0
4096            8192        0.25

# Bandwidth (MB/s), untouched
# Size          copy    hand-off
0                  -           -
4096         4000.00    40000.00

# Bandwidth (MB/s), written+read
# Size          copy    hand-off
0                  -           -
4096               -           -

# Bandwidth test: bytes copied by the library per message
# Size          copy    hand-off
0                  -           -
4096            8192           0

# What this shows: ratios within a round; median and its 95 % bounds over 3
# rounds
# hand-off / copy, 4K, untouched                   0.250  (0.250 to 0.250)
# hand-off / copy, 4K, written+read                0.250  (0.250 to 0.500)
# copy / two raw memcpys, 4K, untouched             2.00  (2.00 to 2.00)
# raw cache-line hand-over in this run: 125 ns one way
";
        assert_eq!(render(&sample(Format::Table)), expected);
    }

    #[test]
    fn stats_show_what_was_copied_and_no_times() {
        let mut report = sample(Format::Table);
        report.plan.stats = true;
        let text = render(&report);
        let (head, tables) = text.split_once("\n\n").unwrap();
        assert!(head.contains("# Method:  both ranks' libraries count"), "{head}");
        let expected = "\
# Latency test: bytes copied by the library per message
# Size          copy    hand-off
0                  0           0
4096            8192        0.25

# Bandwidth test: bytes copied by the library per message
# Size          copy    hand-off
0                  -           -
4096            8192           0
";
        assert_eq!(tables, expected);
    }

    #[test]
    fn without_a_second_core_the_limits_are_missing_and_said_to_be() {
        let mut report = sample(Format::Table);
        for raw in &mut report.results.raws {
            raw.line.clear();
            raw.copy.clear();
            raw.two_copies.clear();
        }
        let text = render(&report);
        assert!(text.contains("# Method:  raw limits: not measured, they need two cores\n"), "{text}");
        assert!(!text.contains("in this run"), "{text}");
    }

    #[test]
    fn three_digits_are_kept() {
        let shown: Vec<String> =
            [1234.5, 12.345, 1.2345, 0.12345, 0.012345, 0.0012345].map(three_digits).into();
        assert_eq!(shown, ["1234", "12.3", "1.23", "0.123", "0.0123", "0.00123"]);
    }
}
