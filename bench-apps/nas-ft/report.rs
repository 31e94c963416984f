//! What rank 0 prints: NPB's lines, so that tools which read NPB's output read this one's.

use crate::classes::{Class, Grid};
use crate::profile::{Phase, Profile};
use num_complex::Complex64;
use std::io::{self, Write};
use std::time::Duration;

/// What the summary is about.
pub struct Summary {
    pub class: Class,
    pub ranks: usize,
    pub time: Duration,
    pub verified: bool,
}

/// Payload of the transposes, summed over ranks: as the library counted it, and what the division says.
pub struct Payload {
    /// Bytes that went through mailboxes.
    pub posted: u64,
    pub transposes: usize,
    /// Points that change ranks in each transpose.
    pub moved: usize,
}

pub fn header(out: &mut impl Write, class: Class, ranks: usize) -> io::Result<()> {
    let Grid { nx, ny, nz } = class.grid();
    writeln!(out, "\n\n NAS Parallel Benchmarks 3.3 -- FT Benchmark\n")?;
    writeln!(out, " Size                : {nx:4}x{ny:4}x{nz:4}")?;
    writeln!(out, " Iterations          :        {:7}", class.iterations())?;
    writeln!(out, " Number of processes :        {ranks:7}")?;
    writeln!(out, " Processor array     :        {:3}x{ranks:3}", 1)?;
    writeln!(out, " Layout type         :             1D\n")
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

/// Both figures, so that a reader sees that no byte went another way than through mailboxes.
pub fn payload(out: &mut impl Write, payload: &Payload) -> io::Result<()> {
    let &Payload { posted, transposes, moved } = payload;
    let point = size_of::<Complex64>();
    let expected = (transposes * moved * point) as u64;
    writeln!(out, " Transposed      = {posted} bytes through mailboxes")?;
    writeln!(
        out,
        " Expected        = {expected} bytes: {transposes} transposes of {moved} points of {point} bytes"
    )
}

pub fn profile(out: &mut impl Write, profile: &Profile) -> io::Result<()> {
    writeln!(out, "\n Rank 0's seconds by phase")?;
    Phase::ALL.iter().try_for_each(|&phase| {
        writeln!(out, " {:<15} = {:24.6}", phase.name(), profile.spent(phase).as_secs_f64())
    })
}

/// NPB's count of operations, in millions per second; 0 where no time was measured.
fn mops(class: Class, time: Duration) -> f64 {
    let points = class.grid().points() as f64;
    let setup = 14.8157 + 7.19641 * points.ln();
    let iteration = 5.23518 + 7.21113 * points.ln();
    let operations = points * (setup + iteration * class.iterations() as f64);
    if time.is_zero() { 0.0 } else { 1e-6 * operations / time.as_secs_f64() }
}

/// Fortran's 1PD22.12: one digit before the point, twelve behind, a signed exponent of two digits after a D.
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
    fn mops_is_npbs_formula() {
        // Class A in one second, by a calculator.
        let expected = 7_136.443_763_977_819;
        assert!((mops(Class::A, Duration::from_secs(1)) / expected - 1.0).abs() < 1e-9);
        assert_eq!(mops(Class::A, Duration::ZERO), 0.0);
    }
}
