//! Runs that a page is made of: JSON files, or what the stages have just written.

use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{PageFailure, processor::CostRow};
use crate::data::Run;

/// A run, and what only `peers` and `collectives` have.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file, or the stage.
    pub name: String,
    /// What all commands write alike.
    pub run: Run,
    /// Empty for other commands.
    pub compared: Compared,
    /// Of `cpu`: user and system time at both ends.
    pub costs: Vec<CostRow>,
    /// As it was read.
    raw: Value,
}

/// Ours beside other libraries, with goals.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Compared {
    /// What was compared.
    pub rows: Vec<ComparedRow>,
    /// Libraries that are not there, and why.
    pub missing: Vec<String>,
    /// Libraries that failed, and how.
    pub failed: Vec<String>,
}

/// One thing that all of them did.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct ComparedRow {
    /// Unique in a run.
    pub title: String,
    /// `latency`, `stream` and so on.
    pub test: String,
    /// Of the figures.
    pub unit: String,
    /// In a message.
    pub bytes: u64,
    /// What happens to them.
    pub payload: String,
    /// Of ours.
    pub protocol: String,
    /// In the row's unit.
    pub ours: Option<f64>,
    /// The limit, the floor, and the peers.
    pub others: Vec<Other>,
    /// The name of one of them.
    pub best_peer: Option<String>,
    /// And whether they are met.
    pub targets: Vec<Target>,
}

/// Who else did it.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Other {
    /// `limit`, `floor`, or a library with its version.
    pub name: String,
    /// In the row's unit.
    pub figure: Option<f64>,
    /// Ours divided by it.
    pub ours_ratio: Option<WrittenRatio>,
}

/// A goal.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Target {
    /// Ours divided by what.
    pub against: String,
    /// Absent where one of the two was not measured.
    pub ratio: Option<WrittenRatio>,
    /// `<=0.9`.
    pub wanted: String,
    /// `met`, `missed`, `inconclusive`.
    pub verdict: String,
    /// What for.
    pub goal: String,
}

/// With bounds.
#[derive(Deserialize, Clone, Copy, Debug, Default)]
pub struct WrittenRatio {
    /// The median.
    pub value: f64,
    /// Lower 95 % bound.
    pub low_95: f64,
    /// Upper 95 % bound.
    pub high_95: f64,
}

/// Where `cpu` writes its costs.
const COSTS: &str = "/tables/cpu";

/// What `--json` writes, and the page has in it.
pub const SEVERAL: &str = "runs";

/// The runs of a file: one of `deckperf --format json`, or several of `deckperf report --json`.
///
/// # Errors
/// That it cannot be read, or is no such file.
pub fn read(path: &std::path::Path) -> Result<Vec<Source>, PageFailure> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| PageFailure::unusable(&name, error))?;
    let object: Value = serde_json::from_str(&text)
        .map_err(|error| PageFailure::unusable(&name, format!("is no JSON: {error}")))?;
    let Some(runs) = object.get(SEVERAL).and_then(Value::as_array) else {
        return Source::parse(name, object).map(|source| vec![source]);
    };
    let named = |run: &Value| match run.get("source").and_then(Value::as_str) {
        Some(stage) => stage.to_owned(),
        None => name.clone(),
    };
    runs.iter().map(|run| Source::parse(named(run), run.clone())).collect()
}

impl Source {
    /// Reads an object.
    ///
    /// # Errors
    /// That it is no run.
    pub fn parse(name: String, raw: Value) -> Result<Self, PageFailure> {
        let mut run = Run::parse(&raw.to_string()).map_err(|error| PageFailure::unusable(&name, error))?;
        // Before anything is worked out: a page of a page's data is the same page.
        for figure in run.series.iter_mut().flat_map(|series| series.rounds.iter_mut().flatten()) {
            *figure = six_digits(*figure);
        }
        let compared = serde_json::from_value(raw.clone()).unwrap_or_default();
        let costs = raw.pointer(COSTS).and_then(|rows| serde_json::from_value(rows.clone()).ok());
        Ok(Self { name, run, compared, costs: costs.unwrap_or_default(), raw })
    }

    /// Whether its messages are from memory that no cache holds (`--off-cache`).
    pub fn is_off_cache(&self) -> bool {
        self.run.machine.get("memory").and_then(Value::as_str) == Some("off-cache")
    }

    /// What the page keeps of it: all figures, without what is worked out of them.
    pub fn kept(&self) -> Value {
        let mut object = json!(self.run);
        object["source"] = json!(self.name);
        for name in ["peers", "rows", "missing", "failed", "window"] {
            if let Some(value) = self.raw.get(name) {
                object[name] = value.clone();
            }
        }
        if let Some(rows) = self.raw.pointer(COSTS) {
            object["tables"] = json!({ "cpu": rows });
        }
        object
    }
}

/// More of them no clock has.
fn six_digits(figure: f64) -> f64 {
    format!("{figure:.5e}").parse().unwrap_or(figure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{export, plan::Format, report::sample};

    #[test]
    fn what_a_page_keeps_is_a_run_again() {
        let text = export::json(&sample(Format::Json));
        let raw: Value = serde_json::from_str(&text).expect("JSON");
        let source = Source::parse("run.json".into(), raw).expect("a run");
        let again = Source::parse("again".into(), source.kept()).expect("a run");
        assert_eq!(again.run, source.run);
        assert!(source.kept().get("results").is_none() && source.kept()["source"] == "run.json");
    }

    #[test]
    fn figures_keep_six_digits() {
        assert_eq!(six_digits(0.123_456_789), 0.123_457);
        assert_eq!(six_digits(0.0), 0.0);
        assert_eq!(six_digits(1_234_567.0), 1_234_570.0);
    }
}
