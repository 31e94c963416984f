//! `deckperf compare`: what got faster or slower between two builds, beyond the noise of the machine. It measures nothing
//! itself: it reads files that `deckperf --format json` wrote, or has two builds of deckperf write them in turns.

mod builds;
mod cells;
mod effect;
mod input;
mod show;
mod verdict;

use std::path::{Path, PathBuf};

use self::{
    cells::{Cell, LineVariation},
    effect::Effect,
    input::Source,
    verdict::Verdict,
};
use crate::{distinct::distinct, experiment::plan::Format};

/// Arguments of `deckperf compare`
#[derive(clap::Args, Clone, Debug, PartialEq)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// Runs of `deckperf --format json` or `deckperf report --json`: the base and the new one; with --base, new ones only
    #[arg(value_name = "FILE", required_unless_present = "run_a")]
    files: Vec<PathBuf>,
    /// A run of the base; may be given several times. Equal numbers of files, four or more, are compared by pairs: they
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
    /// Arguments of both builds [default: --protocol auto --sizes 8,4K,64K,1M --time 0.5]
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
    /// The report in the format that was asked for.
    pub text: String,
    /// Whether something got slower.
    pub slower: bool,
    /// Sentences for which CSV has no place; the other formats have them in `text`.
    pub notes: Vec<String>,
}

/// One row of the comparison.
#[derive(Debug)]
struct Row {
    cell: Cell,
    effect: Option<Effect>,
    verdict: Verdict,
}

/// Everything that the report shows.
#[derive(Debug)]
struct Comparison {
    base: Vec<Source>,
    new: Vec<Source>,
    rows: Vec<Row>,
    /// Sentences on figures that some runs lack.
    missing: Vec<String>,
    /// Smallest change that counts, as a share.
    threshold: f64,
    line_variation: Option<LineVariation>,
    /// Sentences on differences that `--force` overruled, and on differences that may matter.
    remarks: Vec<String>,
    all: bool,
}

/// Compares runs that it reads from files, or has two builds measure.
///
/// # Errors
/// A sentence or two on what cannot be read or compared.
pub fn compare(args: &CompareArgs, format: Format) -> Result<Printed, String> {
    let (sides, left_out) = match (&args.run_a, &args.run_b) {
        (Some(a), Some(b)) => {
            (vec![builds::measure(&[a, b], args.pairs, &args.measure, args.keep.as_deref())?], Vec::new())
        }
        _ => read(args)?,
    };
    let judged: Result<Vec<Comparison>, String> =
        sides.into_iter().map(|(base, new)| judge(base, new, args)).collect();
    let mut judged = judged?;
    if let Some(first) = judged.first_mut() {
        first.remarks.splice(0..0, left_out);
    }
    let slower = judged.iter().flat_map(|one| &one.rows).any(|row| row.verdict == Verdict::Slower);
    let notes = match format {
        Format::Csv => judged.iter().flat_map(show::notes).collect(),
        _ => Vec::new(),
    };
    Ok(Printed { text: show::render_all(&judged, format), slower, notes })
}

/// The runs of both sides: the base, and the new ones.
type Sides = (Vec<Source>, Vec<Source>);

/// A file and its runs by subject; no two runs have the same subject.
struct File {
    name: String,
    runs: Vec<(String, Source)>,
}

impl File {
    fn read(path: &Path) -> Result<Self, String> {
        let mut runs: Vec<(String, Source)> = Vec::new();
        for source in Source::read(path)? {
            let subject = source.subject();
            let earlier = runs.iter().filter(|(_, other)| other.subject() == subject).count();
            let subject = if earlier == 0 { subject } else { format!("{subject}, number {}", earlier + 1) };
            runs.push((subject, source));
        }
        Ok(Self { name: path.display().to_string(), runs })
    }

    fn of(&self, subject: &str) -> Option<&Source> {
        self.runs.iter().find(|(name, _)| name == subject).map(|(_, source)| source)
    }
}

/// Reads the runs of both sides. Where files have several subjects, each subject is compared by itself. The second value has a
/// sentence for each subject that some files lack.
fn read(args: &CompareArgs) -> Result<(Vec<Sides>, Vec<String>), String> {
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
    let all = |files: &[PathBuf]| files.iter().map(|file| File::read(file)).collect::<Result<Vec<_>, _>>();
    let (base, new) = (all(base)?, all(new)?);
    let files = || base.iter().chain(&new);
    if files().all(|file| file.runs.len() == 1) {
        let only = |side: Vec<File>| side.into_iter().flat_map(|file| file.runs).map(|(_, source)| source);
        return Ok((vec![(only(base).collect(), only(new).collect())], Vec::new()));
    }
    let subjects = distinct(files().flat_map(|file| &file.runs).map(|(subject, _)| subject.as_str()));
    let (common, others): (Vec<&str>, Vec<&str>) =
        subjects.into_iter().partition(|subject| files().all(|file| file.of(subject).is_some()));
    let left_out = others.into_iter().map(|subject| {
        let names = files().filter(|file| file.of(subject).is_none()).map(|file| file.name.as_str());
        format!("not compared: {subject}, which is not in {}", listed(names))
    });
    let left_out: Vec<String> = left_out.collect();
    if common.is_empty() {
        let each = left_out.join("\n  ");
        return Err(format!(
            "no run is in all of these files: measure the same commands and transports\n  {each}"
        ));
    }
    let side =
        |files: &[File], subject: &str| files.iter().filter_map(|file| file.of(subject)).cloned().collect();
    let sides = common.iter().map(|subject| (side(&base, subject), side(&new, subject))).collect();
    Ok((sides, left_out))
}

/// Joins a few names, and says how many more there are.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 3;
    let mut names: Vec<&str> = names.collect();
    names.dedup();
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    let named = names.join(", ");
    if more == 0 { named } else { format!("{named} and {more} more") }
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
    // Changed rows come first, sorted by the size of the change.
    let change = |row: &Row| row.effect.as_ref().map_or(0.0, |effect| effect.ratio.ln().abs());
    rows.sort_by(|one, other| {
        let verdicts = one.verdict.cmp(&other.verdict);
        let figures = other.cell.figures.cmp(&one.cell.figures);
        verdicts.then(figures).then(change(other).total_cmp(&change(one)))
    });
    let line_variation = cells::line_variation(&base, &new);
    Ok(Comparison { base, new, rows, missing, threshold, line_variation, remarks, all: args.all })
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
mod tests;
