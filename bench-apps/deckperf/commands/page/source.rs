//! Sources of a page: runs from JSON files, or runs that the stages have just written.

use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{PageFailure, processor::CostRow};
use crate::report::data::Run;

/// A run, and the parts that only some commands write.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the file or of the stage.
    pub name: String,
    /// The part that all commands write alike.
    pub run: Run,
    /// Comparison of `peers` or `collectives`; empty for other commands.
    pub compared: Compared,
    /// Costs of `cpu`: user and system time at both ends.
    pub costs: Vec<CostRow>,
    /// The JSON object as it was read.
    raw: Value,
}

/// Comparison of µDECK with other libraries, with goals.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Compared {
    /// Rows of the comparison.
    pub rows: Vec<ComparedRow>,
    /// Libraries that were not found, and why.
    pub missing: Vec<String>,
    /// Libraries that failed, and how.
    pub failed: Vec<String>,
}

/// One row of a comparison.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct ComparedRow {
    /// Title, unique in a run.
    pub title: String,
    /// Name of the test: `latency`, `stream` and so on.
    pub test: String,
    /// Unit of the figures.
    pub unit: String,
    /// Bytes of a message.
    pub bytes: u64,
    /// Payload mode of the messages.
    pub payload: String,
    /// Protocol of µDECK.
    pub protocol: String,
    /// Figure of µDECK, in the row's unit.
    pub ours: Option<f64>,
    /// Figures of the limit, the floor, and the peers.
    pub others: Vec<Other>,
    /// Name of the best peer, if there is one.
    pub best_peer: Option<String>,
    /// Targets, with their verdicts.
    pub targets: Vec<Target>,
}

/// Figure of the limit, the floor, or a peer.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Other {
    /// Name: `limit`, `floor`, or a library with its version.
    pub name: String,
    /// The figure, in the row's unit.
    pub figure: Option<f64>,
    /// µDECK's figure divided by this one.
    pub ours_ratio: Option<WrittenRatio>,
}

/// A target of a row.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Target {
    /// Denominator of the ratio, whose numerator is µDECK's figure.
    pub against: String,
    /// The ratio; absent where one of the two was not measured.
    pub ratio: Option<WrittenRatio>,
    /// Bound of the ratio, such as `<=0.9`.
    pub wanted: String,
    /// Verdict: `met`, `missed`, `inconclusive`.
    pub verdict: String,
    /// Name of the goal.
    pub goal: String,
}

/// A ratio with its bounds.
#[derive(Deserialize, Clone, Copy, Debug, Default)]
pub struct WrittenRatio {
    /// Median of the ratio.
    pub value: f64,
    /// Lower 95 % bound.
    pub low_95: f64,
    /// Upper 95 % bound.
    pub high_95: f64,
}

/// JSON pointer to the costs in a file of `cpu`.
const COSTS: &str = "/tables/cpu";

/// Name of the array of runs in a file of `report --json` and in the page.
pub const SEVERAL: &str = "runs";

/// The runs of a file: one of `deckperf --format json`, or several of `deckperf report --json`.
///
/// # Errors
/// The file cannot be read, or holds no run.
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
    /// Parses the JSON object of a run.
    ///
    /// # Errors
    /// The object is no run.
    pub fn parse(name: String, raw: Value) -> Result<Self, PageFailure> {
        let mut run = Run::parse(&raw.to_string()).map_err(|error| PageFailure::unusable(&name, error))?;
        // Figures are rounded before anything is computed from them, so that a page of a page's data is the same page.
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

    /// The part of the run that the page keeps: all figures, without values computed from them.
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

/// Rounds to six significant digits: no clock has more.
fn six_digits(figure: f64) -> f64 {
    format!("{figure:.5e}").parse().unwrap_or(figure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{commands::messages::sample, experiment::plan::Format};

    #[test]
    fn what_a_page_keeps_is_a_run_again() {
        let text = sample().render(Format::Json);
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
