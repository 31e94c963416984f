//! Output of rank 0: NPB's lines, so that tools which read NPB's output read this one's.

use crate::classes::{Class, Grid};
use crate::layout::Layout;
use crate::profile::{Phase, Profile};
use num_complex::Complex64;
use std::io::{self, Write};
use std::time::Duration;

/// Facts for the summary.
pub struct Summary {
    pub class: Class,
    pub ranks: usize,
    pub time: Duration,
    pub verified: bool,
}

/// Payload of the transposes, summed over ranks: as the library counted it, and as the division implies.
pub struct Payload {
    /// Bytes that went through mailboxes.
    pub posted: u64,
    pub transforms: usize,
    /// Number of points that change ranks in each transform.
    pub moved: usize,
}

/// Seconds of each transform.
#[derive(Default)]
pub struct Times {
    pub forward: Vec<f64>,
    pub inverse: Vec<f64>,
}

pub fn header(out: &mut impl Write, class: Class, layout: &Layout) -> io::Result<()> {
    let Grid { nx, ny, nz } = class.grid();
    let (across, along) = (layout.across.ranks.len(), layout.along.ranks.len());
    let kind = match (across, along) {
        (1, 1) => "0D",
        (1, _) => "1D",
        _ => "2D",
    };
    writeln!(out, "\n\n NAS Parallel Benchmarks 3.3 -- FT Benchmark\n")?;
    writeln!(out, " Size                : {nx:4}x{ny:4}x{nz:4}")?;
    writeln!(out, " Iterations          :        {:7}", class.iterations())?;
    writeln!(out, " Number of processes :        {:7}", across * along)?;
    writeln!(out, " Processor array     :        {across:3}x{along:3}")?;
    writeln!(out, " Layout type         :             {kind}")
}

/// Prints the memory that all ranks need, before they take it.
pub fn memory(out: &mut impl Write, reports: &[Vec<u64>]) -> io::Result<()> {
    let bytes: u64 = reports.iter().map(|report| report[1]).sum();
    writeln!(out, " Memory              : {:11.1} MB\n", bytes as f64 / 1e6)?;
    out.flush()
}

pub fn checksum(out: &mut impl Write, iteration: usize, sum: Complex64) -> io::Result<()> {
    let (re, im) = (fortran(sum.re), fortran(sum.im));
    writeln!(out, " T ={iteration:5}     Checksum ={re:>22}{im:>22}")
}

pub fn verification(out: &mut impl Write, class: Class, verified: bool) -> io::Result<()> {
    let word = if verified { "successful" } else { "failed" };
    writeln!(out, " Result verification {word}")?;
    writeln!(out, " class = {class:?}")
}

pub fn summary(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let &Summary { class, ranks, time, verified } = summary;
    let Grid { nx, ny, nz } = class.grid();
    let mops = mops(class, time);
    writeln!(out, "\n\n FT Benchmark Completed.")?;
    writeln!(out, " Class           = {:>24}", format!("{class:?}"))?;
    writeln!(out, " Size            = {:>24}", format!("{nx:4}x{ny:4}x{nz:4}"))?;
    writeln!(out, " Iterations      = {:24}", class.iterations())?;
    writeln!(out, " Time in seconds = {:24.2}", time.as_secs_f64())?;
    writeln!(out, " Total processes = {ranks:24}")?;
    writeln!(out, " Mop/s total     = {mops:24.2}")?;
    writeln!(out, " Mop/s/process   = {:24.2}", mops / ranks as f64)?;
    writeln!(out, " Operation type  = {:>24}", "floating point")?;
    let verdict = if verified { "SUCCESSFUL" } else { "UNSUCCESSFUL" };
    writeln!(out, " Verification    = {verdict:>24}")
}

/// Prints both figures, which show that no byte went another way than through mailboxes.
pub fn payload(out: &mut impl Write, payload: &Payload) -> io::Result<()> {
    let &Payload { posted, transforms, moved } = payload;
    let point = size_of::<Complex64>();
    let expected = (transforms * moved * point) as u64;
    writeln!(out, " Transposed      = {posted} bytes through mailboxes")?;
    writeln!(
        out,
        " Expected        = {expected} bytes: {transforms} transforms, in each {moved} points of {point} bytes change ranks"
    )
}

/// Prints a line for each phase of each rank. `ranks`: words of each rank's profile, and bytes per second of
/// copying memory.
pub fn profile(out: &mut impl Write, ranks: &[Vec<u64>]) -> io::Result<()> {
    writeln!(out, "\n rank phase          seconds     GB read and written    GB/s   of the memory's")?;
    for (rank, words) in ranks.iter().enumerate() {
        let Some((limit, words)) = words.split_last() else { continue };
        let (profile, limit) = (Profile::from_words(words), *limit as f64);
        for phase in Phase::ALL.into_iter().filter(|phase| !profile.spent(*phase).is_zero()) {
            let (seconds, bytes) = (profile.spent(phase).as_secs_f64(), profile.bytes(phase) as f64);
            write!(out, " {rank:4} {:<10} {seconds:11.6}", phase.name())?;
            if bytes > 0.0 {
                let rate = bytes / seconds;
                let (gigabytes, gigabytes_per_second) = (bytes / 1e9, rate / 1e9);
                write!(out, " {gigabytes:23.3} {gigabytes_per_second:7.2} {:15.0} %", 100.0 * rate / limit)?;
            }
            writeln!(out)?;
        }
        writeln!(out, " {rank:4} memory, while all ranks copy: {:.2} GB/s", limit / 1e9)?;
    }
    Ok(())
}

/// Prints one line with medians of the rounds.
pub fn transforms(
    out: &mut impl Write,
    class: Class,
    ranks: usize,
    times: Times,
    error: f64,
) -> io::Result<()> {
    let Grid { nx, ny, nz } = class.grid();
    let rounds = times.forward.len();
    let [forward, inverse] = [times.forward, times.inverse].map(|times| 1e3 * median(times));
    let each = (forward + inverse) / 2.0;
    writeln!(
        out,
        "nas-ft, {nx} x {ny} x {nz} points, {ranks} ranks, {rounds} rounds: forward {forward:.2} ms, inverse {inverse:.2} ms, \
         per transform {each:.2} ms; greatest error {error:.1e}"
    )
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let (low, high) = (times.len().saturating_sub(1) / 2, times.len() / 2);
    (times[low] + times[high]) / 2.0
}

/// NPB's count of operations, in millions per second; 0 where no time was measured.
fn mops(class: Class, time: Duration) -> f64 {
    let points = class.grid().points() as f64;
    let setup = 14.8157 + 7.19641 * points.ln();
    let iteration = 5.23518 + 7.21113 * points.ln();
    let operations = points * (setup + iteration * class.iterations() as f64);
    if time.is_zero() { 0.0 } else { 1e-6 * operations / time.as_secs_f64() }
}

/// Formats as Fortran's 1PD22.12: one digit before the point, twelve after it, a signed exponent of two digits
/// after a D.
fn fortran(x: f64) -> String {
    let text = format!("{x:.12E}");
    match text.split_once('E').and_then(|(digits, power)| Some((digits, power.parse::<i32>().ok()?))) {
        Some((digits, power)) => format!("{digits}D{power:+03}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_look_like_fortrans() {
        let cases = [
            (554.6087004964, "5.546087004964D+02"),
            (-0.001, "-1.000000000000D-03"),
            (0.0, "0.000000000000D+00"),
            (1e100, "1.000000000000D+100"),
            (f64::NAN, "NaN"),
        ];
        for (x, expected) in cases {
            assert_eq!(fortran(x), expected);
        }
    }

    #[test]
    fn the_checksum_line_is_npbs() {
        let line = text(|out| checksum(out, 1, Complex64::new(554.6087004964, 484.5363331978)));
        assert_eq!(line, " T =    1     Checksum =    5.546087004964D+02    4.845363331978D+02\n");
    }

    #[test]
    fn the_summary_has_npbs_lines_and_its_verdict() {
        for (verified, verdict) in [(true, "SUCCESSFUL"), (false, "UNSUCCESSFUL")] {
            let time = Duration::from_millis(1500);
            let text = text(|out| summary(out, &Summary { class: Class::W, ranks: 4, time, verified }));
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
                line.and_then(|rest| rest.split_once('=')).map(|(_, value)| value.trim().to_owned())
            };
            assert_eq!(field("Class").as_deref(), Some("W"));
            assert_eq!(field("Size").as_deref(), Some("128x 128x  32"));
            assert_eq!(field("Iterations").as_deref(), Some("6"));
            assert_eq!(field("Time in seconds").as_deref(), Some("1.50"));
            assert_eq!(field("Total processes").as_deref(), Some("4"));
            assert_eq!(field("Verification").as_deref(), Some(verdict));
        }
    }

    #[test]
    fn the_median_is_the_middle_or_between_the_two() {
        assert_eq!([vec![3.0], vec![3.0, 1.0], vec![9.0, 1.0, 2.0]].map(median), [3.0, 2.0, 2.0]);
    }

    #[test]
    fn mops_is_npbs_formula() {
        // The expected value is for class A in one second, by a calculator.
        let expected = 7_136.443_763_977_819;
        assert!((mops(Class::A, Duration::from_secs(1)) / expected - 1.0).abs() < 1e-9);
        assert_eq!(mops(Class::A, Duration::ZERO), 0.0);
    }
}
