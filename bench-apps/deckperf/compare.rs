//! `deckperf compare`: what got faster or slower between two builds, beyond the noise of the machine. It measures nothing
//! itself: it reads files that `deckperf --format json` wrote, or has two builds of deckperf write them in turns.

mod builds;
mod cells;
mod effect;
mod input;
mod show;
mod student;
mod verdict;

use std::path::PathBuf;

use self::{
    cells::{Cell, Weather},
    effect::Effect,
    input::Source,
    verdict::Verdict,
};
use crate::plan::Format;

/// What the command line says.
#[derive(clap::Args, Clone, Debug, PartialEq)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// Runs of `deckperf --format json` or `deckperf report --json`: the base and the new one; with --base, new ones only
    #[arg(value_name = "FILE", required_unless_present = "run_a")]
    files: Vec<PathBuf>,
    /// A run of the base; may be said several times. As many files on both sides, four or more, are compared by pairs: they
    /// should have run in turns, base, new, base, new
    #[arg(long, value_name = "FILE")]
    base: Vec<PathBuf>,
    /// A build of deckperf, the base: runs both builds in turns, and compares these pairs of runs
    #[arg(long, value_name = "PROGRAM", requires = "run_b", conflicts_with_all = ["files", "base"])]
    run_a: Option<PathBuf>,
    /// The other build of deckperf
    #[arg(long, value_name = "PROGRAM", requires = "run_a")]
    run_b: Option<PathBuf>,
    /// How often each of the two builds runs
    #[arg(long, value_name = "N", default_value_t = 40, requires = "run_a",
          value_parser = clap::value_parser!(u32).range(4..=1000))]
    pairs: u32,
    /// Keep the files of these runs in this folder
    #[arg(long, value_name = "DIR", requires = "run_a")]
    keep: Option<PathBuf>,
    /// The smallest change that counts
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = parse_threshold)]
    threshold: f64,
    /// Show every figure, not only those that changed
    #[arg(long)]
    all: bool,
    /// Compare runs of different machines, pinnings, transports, windows or commands, too
    #[arg(long)]
    force: bool,
    /// What the two builds are to measure [default: --protocol auto --sizes 8,4K,64K,1M --time 0.5]
    #[arg(last = true, value_name = "ARGS", requires = "run_a")]
    measure: Vec<String>,
}

const EXAMPLES: &str = "\
A figure is slower or faster if it moved by more than the threshold, and chance
does not explain it. Machines move, too: where a run has raw limits (of a cache
line, of a memcpy), a change must show in absolute times and in multiples of the
limit. With pairs of runs, the pairs say how far a figure follows the limit. Of
figures that are said to have changed, 5 % may be chance (Benjamini and
Hochberg); if nothing has changed, any is said to have in 5 % of all comparisons.

Exit status: 0 nothing got slower; 1 something did; 2 the runs cannot be read or
compared.

Examples:
  deckperf --format json > before.json
      and later, of another build, > after.json
  deckperf compare before.json after.json
      what changed
  deckperf compare --base a1.json --base a2.json --base a3.json \\
      --base a4.json b1.json b2.json b3.json b4.json
  deckperf compare --run-a ./old --run-b ./new
      the sharpest: both builds in turns, under a minute
  deckperf compare --run-a ./old --run-b ./new --pairs 100 -- \\
      latency --protocol hand-off --sizes 8,64K --time 0.3";

/// A comparison's report.
#[derive(Debug, PartialEq)]
pub struct Printed {
    /// In the format that was asked for.
    pub text: String,
    /// Something got slower.
    pub slower: bool,
}

/// A row.
#[derive(Debug)]
struct Row {
    cell: Cell,
    effect: Option<Effect>,
    verdict: Verdict,
}

/// Everything that is shown.
#[derive(Debug)]
struct Comparison {
    base: Vec<Source>,
    new: Vec<Source>,
    rows: Vec<Row>,
    /// Figures that not all runs have.
    missing: usize,
    /// As a share.
    threshold: f64,
    weather: Option<Weather>,
    /// What `--force` overruled, and what may matter.
    remarks: Vec<String>,
    all: bool,
}

/// Reads, or has measured, and compares.
///
/// # Errors
/// What cannot be read or compared, in a sentence or two.
pub fn compare(args: &CompareArgs, format: Format) -> Result<Printed, String> {
    let sides = match (&args.run_a, &args.run_b) {
        (Some(a), Some(b)) => {
            vec![builds::measure(&[a, b], args.pairs, &args.measure, args.keep.as_deref())?]
        }
        _ => read(args)?,
    };
    let judged: Result<Vec<Comparison>, String> =
        sides.into_iter().map(|(base, new)| judge(base, new, args)).collect();
    let judged = judged?;
    let slower = judged.iter().flat_map(|one| &one.rows).any(|row| row.verdict == Verdict::Slower);
    Ok(Printed { text: show::render_all(&judged, format), slower })
}

/// The runs of the base and of what is compared with it.
type Sides = (Vec<Source>, Vec<Source>);

/// The runs of both sides, by subject where files have several: each is compared by itself.
fn read(args: &CompareArgs) -> Result<Vec<Sides>, String> {
    let (base, new) = match (&args.base[..], &args.files[..]) {
        ([], [base, new]) => (std::slice::from_ref(base), std::slice::from_ref(new)),
        ([], files) => {
            let count = files.len();
            return Err(format!(
                "takes two files, base and new, and got {count}; several of the base are --base FILE each"
            ));
        }
        (base, new) => (base, new),
    };
    let all = |files: &[PathBuf]| files.iter().map(|file| Source::read(file)).collect::<Result<Vec<_>, _>>();
    let (base, new) = (all(base)?, all(new)?);
    let files = || base.iter().chain(&new);
    if files().all(|runs| runs.len() == 1) {
        return Ok(vec![(base.into_iter().flatten().collect(), new.into_iter().flatten().collect())]);
    }
    let of = |runs: &[Source], subject: &str| runs.iter().find(|one| one.subject() == subject).cloned();
    let first = base.first().into_iter().flatten().map(Source::subject);
    let common: Vec<String> =
        first.filter(|subject| files().all(|runs| of(runs, subject).is_some())).collect();
    if common.is_empty() {
        return Err("no run is in all of these files: measure the same commands and transports".into());
    }
    let side =
        |files: &[Vec<Source>], subject: &str| files.iter().filter_map(|runs| of(runs, subject)).collect();
    Ok(common.iter().map(|subject| (side(&base, subject), side(&new, subject))).collect())
}

fn judge(base: Vec<Source>, new: Vec<Source>, args: &CompareArgs) -> Result<Comparison, String> {
    let sources: Vec<&Source> = base.iter().chain(&new).collect();
    let obstacles = input::obstacles(&sources);
    if !obstacles.is_empty() && !args.force {
        let all = obstacles.join("\n  ");
        return Err(format!("these runs are not comparable (--force compares them all the same):\n  {all}"));
    }
    let mut remarks: Vec<String> = obstacles.into_iter().map(|why| format!("--force: {why}")).collect();
    remarks.extend(input::remarks(&sources));
    let (cells, missing) = cells::cells(&base, &new);
    if cells.is_empty() {
        return Err("the runs have no figure in common: measure the same tests, protocols and sizes".into());
    }
    let threshold = args.threshold / 100.0;
    let moved = cells::moved(&base, &new);
    let effects: Vec<Option<Effect>> =
        cells.iter().map(|cell| effect::effect(&cell.base, &cell.new, moved)).collect();
    let verdicts = verdict::verdicts(&effects, threshold);
    let parts = cells.into_iter().zip(effects).zip(verdicts);
    let mut rows: Vec<Row> = parts.map(|((cell, effect), verdict)| Row { cell, effect, verdict }).collect();
    // What changed comes first, and of that what changed most.
    let change = |row: &Row| row.effect.as_ref().map_or(0.0, |effect| effect.ratio.ln().abs());
    rows.sort_by(|one, other| {
        let verdicts = one.verdict.cmp(&other.verdict);
        let figures = other.cell.figures.cmp(&one.cell.figures);
        verdicts.then(figures).then(change(other).total_cmp(&change(one)))
    });
    let weather = cells::weather(&base, &new);
    Ok(Comparison { base, new, rows, missing, threshold, weather, remarks, all: args.all })
}

fn parse_threshold(text: &str) -> Result<f64, String> {
    let percent: f64 =
        text.trim_end_matches('%').parse().map_err(|_| "not a number of percent".to_owned())?;
    if percent > 0.0 && percent <= 1000.0 {
        Ok(percent)
    } else {
        Err("between 0 (excluded) and 1000 %".into())
    }
}

#[cfg(test)]
#[path = "compare/tests.rs"]
mod tests;
