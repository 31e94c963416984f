//! The verdict on a count, compared with the recorded one.

use super::record::{Paths, Toolchain};
use std::{collections::BTreeSet, fmt};

/// Allowed difference between a path and its record.
#[derive(Debug, PartialEq)]
pub enum Tolerance {
    /// The same compiler built the recorded program: a difference in either direction counts.
    SameCompiler,
    /// Another compiler built the recorded program. It explains a moderate increase, and any decrease. A larger
    /// increase counts nevertheless: a newer toolchain does not switch the check off.
    OtherCompiler { recorded: String, here: String },
}

/// Tolerance for the same compiler, in percent.
const SAME: f64 = 5.0;
/// Tolerance for another compiler, in percent: from 1.95 to 1.97 no path moved by more than 6.
const OTHER: f64 = 15.0;

/// A path, with its recorded and its counted instructions.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub path: String,
    pub recorded: Option<f64>,
    pub counted: Option<f64>,
}

/// A row for each path that is recorded or counted.
pub fn rows(recorded: &Paths, counted: &Paths) -> Vec<Row> {
    let paths: BTreeSet<_> = recorded.keys().chain(counted.keys()).collect();
    let row = |path: &String| Row {
        path: path.clone(),
        recorded: recorded.get(path).copied(),
        counted: counted.get(path).copied(),
    };
    paths.into_iter().map(row).collect()
}

impl Tolerance {
    pub fn between(recorded: &Toolchain, here: &Toolchain) -> Self {
        if recorded.rustc == here.rustc {
            return Tolerance::SameCompiler;
        }
        Tolerance::OtherCompiler { recorded: recorded.rustc.clone(), here: here.rustc.clone() }
    }
}

impl Row {
    /// Change in percent of the record.
    fn change(&self) -> Option<f64> {
        let (recorded, counted) = self.recorded.zip(self.counted)?;
        Some((counted / recorded - 1.0) * 100.0)
    }

    /// The problem of the path, and its remedy.
    pub fn problem(&self, tolerance: &Tolerance) -> Option<String> {
        const RENEW: &str = "`cargo xtask counts --write` renews the record";
        let path = &self.path;
        let (most, less_matters) = match tolerance {
            Tolerance::SameCompiler => (SAME, true),
            Tolerance::OtherCompiler { .. } => (OTHER, false),
        };
        let (Some(recorded), Some(counted), Some(change)) = (self.recorded, self.counted, self.change())
        else {
            return Some(match self.recorded {
                Some(_) => format!("{path} is recorded and was not counted: if it is gone, {RENEW}"),
                None => format!("{path} is not recorded: {RENEW}"),
            });
        };
        let off = change.abs();
        let figures = format!("{counted:.1} instructions, recorded {recorded:.1}");
        if change > most {
            let why = "make it cheaper, or give the reason in a commit";
            Some(format!("{path} became {off:.1} % dearer: {figures}: {why}: {RENEW}"))
        } else if less_matters && change < -most {
            let why = "keep the gain, in a commit that says where it comes from";
            Some(format!("{path} became {off:.1} % cheaper: {figures}: {why}: {RENEW}"))
        } else {
            None
        }
    }
}

/// Formats a line of the table.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
        // Avoids "-0.0".
        let rounded = |change: f64| (change * 10.0).round() / 10.0 + 0.0;
        let change = self.change().map_or("-".into(), |change| format!("{:+.1} %", rounded(change)));
        write!(f, "{:24} {:>12} {:>10} {change:>8}", self.path, number(self.counted), number(self.recorded))
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tolerance::SameCompiler => write!(f, "{SAME} % either way"),
            Tolerance::OtherCompiler { recorded, here } => {
                write!(f, "{OTHER} % upwards: recorded with rustc {recorded}, this is {here}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other() -> Tolerance {
        let toolchain = |rustc: &str| Toolchain { rustc: rustc.into(), target: "t".into() };
        Tolerance::between(&toolchain("1.95.0"), &toolchain("1.96.0"))
    }

    fn problem(recorded: f64, counted: f64, tolerance: &Tolerance) -> Option<String> {
        let row = Row { path: "post".into(), recorded: Some(recorded), counted: Some(counted) };
        row.problem(tolerance)
    }

    #[test]
    fn within_five_percent_nothing_is_wrong_and_beyond_the_path_is_named() {
        let same = Tolerance::SameCompiler;
        for counted in [95.1, 100.0, 104.9] {
            assert_eq!(problem(100.0, counted, &same), None, "{counted}");
        }
        for (counted, word) in [(105.1, "5.1 % dearer"), (94.9, "5.1 % cheaper")] {
            let problem = problem(100.0, counted, &same).expect("out of tolerance");
            assert!(problem.contains("post") && problem.contains(word), "{problem}");
            assert!(problem.contains("100.0") && problem.contains("--write"), "{problem}");
        }
    }

    #[test]
    fn another_compiler_may_differ_more_but_not_by_any_amount() {
        assert!(matches!(other(), Tolerance::OtherCompiler { .. }));
        assert_eq!(problem(100.0, 114.0, &other()), None);
        assert_eq!(problem(100.0, 50.0, &other()), None);
        assert!(problem(100.0, 116.0, &other()).is_some());
    }

    #[test]
    fn a_path_on_one_side_only_is_told_under_any_compiler() {
        let paths = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 10.0)).collect();
        let rows = rows(&paths(&["both", "gone"]), &paths(&["both", "new"]));
        for tolerance in [Tolerance::SameCompiler, other()] {
            let problems: Vec<_> = rows.iter().filter_map(|row| row.problem(&tolerance)).collect();
            assert_eq!(problems.len(), 2, "{problems:?}");
            assert!(problems[0].starts_with("gone is recorded and was not counted"), "{problems:?}");
            assert!(problems[1].starts_with("new is not recorded"), "{problems:?}");
        }
    }

    #[test]
    fn the_table_shows_the_change() {
        let row = Row { path: "post".into(), recorded: Some(200.0), counted: Some(190.0) };
        assert!(row.to_string().ends_with("190.0      200.0   -5.0 %"), "{row}");
        let row = Row { counted: Some(199.99), ..row };
        assert!(row.to_string().ends_with(" +0.0 %"), "{row}");
        assert!(Row { recorded: None, ..row }.to_string().ends_with('-'));
    }
}
