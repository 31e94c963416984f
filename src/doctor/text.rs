//! Text of a report, for people.

use std::fmt;

use super::finding::{Finding, Mark, Report};

/// Columns in which subjects and findings begin.
const SUBJECT: usize = 11;
const STATE_COLUMN: usize = 29;
/// Maximum length of a line, in columns, unless a word is longer.
const WIDTH: usize = 100;

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Problem => "problem",
        })
    }
}

/// Writes the report; `{:#}` has the marks in colour, for a terminal.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(f, "{}", section.title)?;
            section.findings.iter().try_for_each(|finding| show(f, finding))?;
            writeln!(f)?;
        }
        let host = &self.host;
        match self.can_run {
            true => write!(f, "A job can run on {host}")?,
            false => write!(f, "No job can run on {host}")?,
        }
        let counted = |mark, one: &str| match self.count(mark) {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {one}s")),
        };
        let counts: Vec<_> =
            [counted(Mark::Problem, "problem"), counted(Mark::Note, "note")].into_iter().flatten().collect();
        match counts.len() {
            0 => writeln!(f, "; nothing is amiss."),
            _ => writeln!(f, "; {}: what helps stands behind the arrows.", counts.join(", ")),
        }
    }
}

fn show(f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
    let colour = match finding.mark {
        Mark::Ok => "32",
        Mark::Note => "33",
        Mark::Problem => "1;31",
    };
    let mark = format!("{:<width$}", finding.mark, width = SUBJECT - 2);
    match f.alternate() {
        true => write!(f, "  \x1b[{colour}m{mark}\x1b[0m")?,
        false => write!(f, "  {mark}")?,
    }
    write!(f, "{:<width$} ", finding.subject, width = STATE_COLUMN - SUBJECT - 1)?;
    // A long subject moves its own first line only.
    let begin = STATE_COLUMN.max(SUBJECT + finding.subject.chars().count() + 1);
    folded(f, &finding.state, begin, STATE_COLUMN)?;
    match &finding.remedy {
        None => Ok(()),
        Some(remedy) => {
            write!(f, "{:STATE_COLUMN$}\u{2192} ", "")?;
            folded(f, remedy, STATE_COLUMN + 2, STATE_COLUMN + 2)
        }
    }
}

/// Writes words in lines; the first line begins at column `begin`, the others at `margin`.
fn folded(f: &mut fmt::Formatter<'_>, text: &str, begin: usize, margin: usize) -> fmt::Result {
    let (mut column, mut fresh) = (begin, true);
    for word in text.split(' ') {
        let length = word.chars().count();
        if !fresh && column + 1 + length > WIDTH {
            write!(f, "\n{:margin$}{word}", "")?;
            column = margin + length;
        } else {
            let space = if fresh { "" } else { " " };
            write!(f, "{space}{word}")?;
            column += space.len() + length;
        }
        fresh = false;
    }
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Section;

    fn report(findings: Vec<Finding>, can_run: bool) -> String {
        Report { host: "n7".into(), sections: vec![Section::new("host", findings)], can_run }.to_string()
    }

    #[test]
    fn a_report_is_a_table_with_remedies_below() {
        let findings = vec![
            Finding::ok("kernel", "Linux 6.8"),
            Finding::note("a long subject, too", "seen").advise("do that"),
            Finding::problem(
                "memory",
                "x".repeat(40) + " and " + &"y".repeat(40),
                "buy ".repeat(20) + "more",
            ),
        ];
        let wanted = "\
host
  ok       kernel            Linux 6.8
  note     a long subject, too seen
                             \u{2192} do that
  problem  memory            xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx and
                             yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy
                             \u{2192} buy buy buy buy buy buy buy buy buy buy buy buy buy buy buy buy buy
                               buy buy buy more

No job can run on n7; 1 problem, 1 note: what helps stands behind the arrows.
";
        assert_eq!(report(findings, false), wanted);
    }

    #[test]
    fn a_good_host_is_praised() {
        let text = report(vec![Finding::ok("kernel", "Linux 6.8")], true);
        assert!(text.ends_with("A job can run on n7; nothing is amiss.\n"), "{text}");
    }
}
