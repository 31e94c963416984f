//! Input of a comparison: reads files of runs, and checks whether they may be compared.

use std::{collections::BTreeSet, fs, path::Path};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    commands::page::SEVERAL,
    report::data::{OURS, Run},
};

/// A run and its file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the file.
    pub name: String,
    /// The run itself.
    pub run: Run,
    /// Messages under way in its bandwidth test.
    pub window: Option<u64>,
}

impl Source {
    /// Reads a file's runs: one of `--format json`, or all that `report --json` has written.
    ///
    /// # Errors
    /// A sentence with the file's name.
    pub fn read(file: &Path) -> Result<Vec<Self>, String> {
        let name = file.display().to_string();
        let text = fs::read_to_string(file).map_err(|error| format!("{name} cannot be read: {error}"))?;
        let object: Value = serde_json::from_str(&text).unwrap_or_default();
        let Some(runs) = object.get(SEVERAL).and_then(Value::as_array) else {
            return Self::parse(name, &text).map(|source| vec![source]);
        };
        let one = |run: &Value| {
            let stage = run.get("source").and_then(Value::as_str).unwrap_or("a run");
            Self::parse(format!("{name}, {stage}"), &run.to_string())
        };
        runs.iter().map(one).collect()
    }

    /// Name of the run's subject: its command, the transports of its messages, and the memory that they come from.
    pub fn subject(&self) -> String {
        let ours = self.run.series.iter().filter(|series| series.key.library == OURS);
        let over: BTreeSet<&str> = ours.filter_map(|series| series.key.transport.as_deref()).collect();
        let over: Vec<&str> = over.into_iter().collect();
        let over = if over.is_empty() { String::new() } else { format!(" over {}", over.join(", ")) };
        let memory = self.run.machine.get("memory").and_then(Value::as_str);
        let memory = memory.map_or(String::new(), |memory| format!(", {memory}"));
        format!("{}{over}{memory}", self.run.command)
    }

    /// Reads one run from the text of a file.
    ///
    /// # Errors
    /// A sentence with the file's name.
    pub fn parse(name: String, text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct More {
            window: Option<u64>,
        }
        let run = Run::parse(text).map_err(|error| format!("{name} {error}"))?;
        let window = serde_json::from_str(text).ok().and_then(|more: More| more.window);
        Ok(Self { name, run, window })
    }
}

/// Conditions that two runs have to share: name in the files, and name for people.
const CONDITIONS: [(&str, &str); 5] = [
    ("cpu", "processor"),
    ("cores", "number of cores"),
    ("pinning", "pinning"),
    ("transport", "transport"),
    ("memory", "memory"),
];

/// Reasons why these runs are not comparable, a sentence each.
pub fn obstacles(sources: &[&Source]) -> Vec<String> {
    let Some((first, others)) = sources.split_first() else { return Vec::new() };
    let mut found = BTreeSet::new();
    for other in others {
        let mut differ = |what: &str, one: String, another: String| {
            if one != another {
                found.insert(format!("{what}: {one} in {}, {another} in {}", first.name, other.name));
            }
        };
        for (key, what) in CONDITIONS {
            differ(what, said(first, key), said(other, key));
        }
        differ("what was measured", first.run.command.clone(), other.run.command.clone());
        let window = |source: &Source| source.window.map_or("none".to_owned(), |window| window.to_string());
        differ("messages in a window", window(first), window(other));
    }
    for source in sources.iter().filter(|source| said(source, "build").contains("NOT optimised")) {
        found.insert(format!("{} is of a build that is not optimised", source.name));
    }
    found.into_iter().collect()
}

/// Differences that may matter, but are no obstacle, a sentence each.
pub fn remarks(sources: &[&Source]) -> Vec<String> {
    let differing = |(key, what): (&str, &str)| {
        let all: BTreeSet<String> = sources.iter().map(|source| said(source, key)).collect();
        let all: Vec<String> = all.into_iter().collect();
        (all.len() > 1).then(|| format!("the runs differ in their {what}: {}", all.join("; ")))
    };
    let says = |source: &&Source| source.run.load_if_busy().map(|says| (source.name.clone(), says));
    let busy: Vec<(String, String)> = sources.iter().filter_map(says).collect();
    let busy = busy.first().map(|(name, says)| {
        format!("{} of {} runs are of a busy machine, such as {name}: {says}", busy.len(), sources.len())
    });
    [("kernel", "kernels"), ("build", "builds")].into_iter().filter_map(differing).chain(busy).collect()
}

fn said(source: &Source, key: &str) -> String {
    match source.run.machine.get(key) {
        None => "not recorded".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}
