//! The record of counts: a text that people review, one path a line.

use std::{collections::BTreeMap, fmt, process::Command};

/// Instructions per operation, by path.
pub type Paths = BTreeMap<String, f64>;

/// Counts, and the toolchain that built the programs.
#[derive(Debug, PartialEq)]
pub struct Record {
    pub toolchain: Toolchain,
    pub paths: Paths,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// Version, commit and date, as printed by `rustc --version`.
    pub rustc: String,
    /// Target triple.
    pub target: String,
}

/// Suffix of a path that does the same without this library.
const BARE: &str = "_bare";

/// Instructions above those of the bare twin, for each path that has one; the twins are left out.
pub fn above_bare(paths: Paths) -> Paths {
    let bare = |path: &str| paths.get(&format!("{path}{BARE}")).copied();
    let ours = paths.iter().filter(|(path, _)| !path.ends_with(BARE));
    ours.map(|(path, count)| (path.clone(), count - bare(path).unwrap_or(0.0))).collect()
}

const HEADER: &str = "\
# Instructions per operation on the fast paths, as callgrind counts them; bench-apps/counts has the paths, one function each, in
# files counted.rs. Of those over verbs (verbs_…), the record has what they take above bare calls of the library.
# `cargo xtask counts` compares, `cargo xtask counts --write` renews this file. It changes only in a commit whose message
# gives the reason.
";

impl Record {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut rustc, mut target, mut paths) = (None, None, Paths::new());
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |what: &str| format!("line {}: {what}: {line:?}", index + 1);
            let (name, value) = line.split_once(' ').ok_or_else(|| bad("a name without a value"))?;
            let value = value.trim_start();
            match name {
                "rustc" => rustc = Some(value.to_owned()),
                "target" => target = Some(value.to_owned()),
                path => {
                    let count = value.parse().ok().filter(|count: &f64| count.is_finite() && *count > 0.0);
                    let count = count.ok_or_else(|| bad("not a number of instructions"))?;
                    if paths.insert(path.to_owned(), count).is_some() {
                        return Err(bad("recorded twice"));
                    }
                }
            }
        }
        let rustc = rustc.ok_or("no line `rustc`")?;
        let target = target.ok_or("no line `target`")?;
        Ok(Record { toolchain: Toolchain { rustc, target }, paths })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Toolchain { rustc, target } = &self.toolchain;
        write!(f, "{HEADER}\n{:24} {rustc}\n{:24} {target}\n\n", "rustc", "target")?;
        self.paths.iter().try_for_each(|(path, count)| writeln!(f, "{path:24} {count:8.1}"))
    }
}

impl Toolchain {
    /// The toolchain that cargo builds with here.
    pub fn in_use() -> Result<Self, String> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(&rustc)
            .arg("-vV")
            .output()
            .map_err(|error| format!("cannot start {}: {error}", rustc.display()))?;
        Self::parse(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
            format!("`{} -vV` printed something unexpected ({})", rustc.display(), output.status)
        })
    }

    /// Parses `rustc 1.95.0 (59807616e 2026-04-14)`, and further down `host: x86_64-unknown-linux-gnu`.
    fn parse(printed: &str) -> Option<Self> {
        let rustc = printed.lines().find_map(|line| line.strip_prefix("rustc "))?;
        let target = printed.lines().find_map(|line| line.strip_prefix("host: "))?;
        Some(Toolchain { rustc: rustc.to_owned(), target: target.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let toolchain =
            Toolchain::parse("rustc 1.95.0 (5980 2026-04-14)\nbinary: rustc\nhost: x86_64-linux\n");
        let paths = [("post".to_owned(), 284.2), ("retrieve".to_owned(), 779.0)].into();
        Record { toolchain: toolchain.expect("both lines are there"), paths }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        assert_eq!(record().toolchain.rustc, "1.95.0 (5980 2026-04-14)");
        assert_eq!(record().toolchain.target, "x86_64-linux");
        assert_eq!(Record::parse(&record().to_string()).unwrap(), record());
    }

    #[test]
    fn a_path_with_a_bare_twin_counts_above_it() {
        let paths = [("post", 300.0), ("post_bare", 200.5), ("other", 7.0)];
        let above = above_bare(paths.map(|(path, count)| (path.to_owned(), count)).into());
        assert_eq!(above.into_iter().collect::<Vec<_>>(), [("other".into(), 7.0), ("post".into(), 99.5)]);
    }

    #[test]
    fn nonsense_is_named_with_its_line() {
        let good = record().to_string();
        let lines = good.lines().count();
        for (bad, what) in [
            ("post 1.0", "recorded twice"),
            ("send many", "not a number"),
            ("send 0", "not a number"),
            ("send NaN", "not a number"),
            ("send", "without a value"),
        ] {
            let problem = Record::parse(&format!("{good}{bad}\n")).unwrap_err();
            assert!(problem.contains(&format!("line {}", lines + 1)) && problem.contains(what), "{problem}");
        }
        assert!(Record::parse("target x\n").unwrap_err().contains("rustc"));
        assert!(Record::parse("rustc x\n").unwrap_err().contains("target"));
    }
}
