//! The part of a JSON file that all commands write alike: each figure of each round, with its key. `report` and `compare` read
//! nothing else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::sizes;

/// Version of this form. A reader refuses a later one.
pub const VERSION: u32 = 1;

/// A run of `deckperf --format json`; files have more than this, for people and for other programs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Run {
    /// Version of the form: [`VERSION`].
    pub deckperf: u32,
    /// Subject of the measurement: `messages`, `vi`, `peers`, `collectives` and so on.
    pub command: String,
    /// Version of µDECK.
    pub udeck: String,
    /// Date and time, in UTC.
    pub date: String,
    /// Description of the machine by name: `cpu`, `cores`, `kernel`, `build`, `pinning`, `transport`.
    pub machine: BTreeMap<String, serde_json::Value>,
    /// Sentences on how the figures were measured.
    pub method: Vec<String>,
    /// All series of the run.
    pub series: Vec<Series>,
}

/// Figures of one contender under one key: one figure in each round.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Series {
    /// Key of the figures.
    #[serde(flatten)]
    pub key: Key,
    /// Unit of the figures: `us`, `MB/s`, `M/s`, `GB/s` and so on.
    pub unit: String,
    /// Whether low or high figures are good.
    pub better: Better,
    /// Bytes per message that the library copied, both sides together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_bytes_per_message: Option<f64>,
    /// Figures by round, with the same numbering in all series of a run; `null` where the contender did not take part.
    pub rounds: Vec<Option<f64>>,
}

/// Identity of a series. No two series of a run have the same key.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Test: `latency`, `bandwidth`, or another name of the command's own.
    pub test: String,
    /// Contender: [`OURS`], [`LIMIT`], or a peer with its version.
    pub library: String,
    /// Transport of the messages; absent where there are no messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Protocol: `hand-off`, `send`; for [`LIMIT`], the name of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Payload mode: `untouched`, `written+read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// Bytes in a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Ranks that take part, where they are not two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
    /// Further properties that distinguish the series, by name, such as `vis`, `pair`, `buffers`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Value of [`Key::library`] for µDECK.
pub const OURS: &str = "udeck";
/// Value of [`Key::library`] for the limits of the machine itself.
pub const LIMIT: &str = "limit";
/// Protocols of [`LIMIT`] in a run of messages or VIs: the hand-over of a cache line; a memcpy out of the other core's
/// dirty lines; the same with a copy into lines that the other core read last before it. In µs.
pub const RAW: [&str; 3] = ["line", "memcpy", "two-memcpys"];

/// Direction of good figures.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Low figures are good: times.
    Lower,
    /// High figures are good: rates.
    Higher,
}

impl Run {
    /// Reads a file's text.
    ///
    /// # Errors
    /// A description of what is wrong with the text, in words that follow the file's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Form {
            deckperf: Option<u32>,
        }
        let form: Form = serde_json::from_str(text).map_err(|error| format!("is no JSON object: {error}"))?;
        match form.deckperf {
            None => Err(
                "has no figures that can be read: it is not of `deckperf --format json`, or of a release \
                         that wrote none; measure again"
                    .into(),
            ),
            Some(version) if version > VERSION => {
                Err(format!("has form {version}, and this deckperf reads up to {VERSION}: use the newer one"))
            }
            Some(_) => serde_json::from_str(text).map_err(|error| format!("is damaged: {error}")),
        }
    }
}

impl Run {
    /// A sentence on the other programs of the machine, if they used much of it.
    pub fn load_if_busy(&self) -> Option<String> {
        let load = self.machine.get("load").filter(|load| load["busy"] == true)?;
        load["says"].as_str().map(str::to_owned)
    }
}

impl Key {
    /// The key in words, without its library.
    pub fn words(&self) -> String {
        let size = self.size.map(|size| usize::try_from(size).map_or(size.to_string(), sizes::show));
        let words = [Some(self.named()), self.protocol.clone(), self.payload.clone(), size];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// The test with its number of ranks and its labels.
    pub fn named(&self) -> String {
        let ranks = self.ranks.map(|ranks| format!("ranks={ranks}"));
        let labels = self.labels.iter().map(|(name, value)| format!("{name}={value}"));
        [Some(self.test.clone()), ranks].into_iter().flatten().chain(labels).collect::<Vec<_>>().join(" ")
    }
}

impl Series {
    /// The figures of the rounds that have one.
    pub fn figures(&self) -> Vec<f64> {
        self.rounds.iter().copied().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_run_is_refused_in_words() {
        for (text, words) in [
            ("nothing", "is no JSON object"),
            ("{}", "measure again"),
            ("{\"deckperf\": 99}", "use the newer one"),
            ("{\"deckperf\": 1}", "is damaged: missing field `command`"),
        ] {
            let said = Run::parse(text).expect_err(text);
            assert!(said.contains(words), "{said}");
        }
    }
}
