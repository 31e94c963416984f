//! The part of every JSON file that all commands write alike: each figure of each round, and what it is of. `report` and
//! `compare` read nothing else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sizes;

/// Of this form. A reader refuses a later one.
pub const VERSION: u32 = 1;

/// A run of `deckperf --format json`; files have more than this, for people and for other programs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Run {
    /// [`VERSION`].
    pub deckperf: u32,
    /// What was measured: `messages`, `vi`, `peers`, `collectives` and so on.
    pub command: String,
    /// Version of µDECK.
    pub udeck: String,
    /// In UTC.
    pub date: String,
    /// Where, by what is said: `cpu`, `cores`, `kernel`, `build`, `pinning`, `transport`.
    pub machine: BTreeMap<String, serde_json::Value>,
    /// How the figures came about, a sentence each.
    pub method: Vec<String>,
    /// Everything that was measured.
    pub series: Vec<Series>,
}

/// One contender at one thing: its figure in each round.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Series {
    /// What is measured, and what it is of.
    #[serde(flatten)]
    pub key: Key,
    /// Of the figures: `us`, `MB/s`, `M/s`, `GB/s` and so on.
    pub unit: String,
    /// Which figures are good ones.
    pub better: Better,
    /// That the library copied, on both sides, for a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_bytes_per_message: Option<f64>,
    /// By round, which has the same number for all series of a run; `null` where it did not take part.
    pub rounds: Vec<Option<f64>>,
}

/// What a series is of. No two series of a run have the same key.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// What is measured: `latency`, `bandwidth`, or another name of the command's own.
    pub test: String,
    /// Who does it: [`OURS`], [`LIMIT`], or a peer with its version.
    pub library: String,
    /// What messages travel over; absent of what has no messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// How: `hand-off`, `send`, or of a limit what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// What happens to the data: `untouched`, `written+read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// Bytes in a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// That take part, where these are not two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
    /// What else tells it from the others, by name, such as `vis`, `pair`, `buffers`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The library of what µDECK did.
pub const OURS: &str = "udeck";
/// The library of what the machine itself can do.
pub const LIMIT: &str = "limit";
/// Protocols of [`LIMIT`] in a run of messages or VIs: the hand-over of a cache line, a memcpy out of the other core's dirty lines, and that
/// with a copy into lines that the other core read last. In µs.
pub const RAW: [&str; 3] = ["line", "memcpy", "two-memcpys"];

/// Which figures are good ones.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Times.
    Lower,
    /// Rates.
    Higher,
}

impl Run {
    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong with it, in words that follow its name.
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
    /// The test, with what tells its figures from others, but for who does it.
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
    /// The figures of those rounds that have one.
    pub fn figures(&self) -> Vec<f64> {
        self.rounds.iter().copied().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{export, plan::Format, report::sample};

    #[test]
    fn a_written_run_is_read_again() {
        let text = export::json(&sample(Format::Json));
        let run = Run::parse(&text).expect("what was written");
        assert_eq!((run.command.as_str(), run.udeck.as_str()), ("messages", "1.2.3"));
        assert_eq!(run.machine["cpu"], "Some CPU");
        let of = |library: &str, protocol: &str, payload: Option<&str>| {
            let wanted = |series: &&Series| {
                let key = &series.key;
                (key.library.as_str(), key.protocol.as_deref(), key.payload.as_deref(), key.size)
                    == (library, Some(protocol), payload, Some(4096))
                    && key.test == "latency"
            };
            run.series.iter().find(wanted).unwrap_or_else(|| panic!("{library} {protocol} in {text}"))
        };
        let hand_off = of(OURS, "hand-off", Some("untouched"));
        assert_eq!(hand_off.rounds, [Some(0.5), Some(0.25), Some(0.75)]);
        assert_eq!((hand_off.unit.as_str(), hand_off.better), ("us", Better::Lower));
        assert_eq!(hand_off.copied_bytes_per_message, Some(0.0));
        assert_eq!(hand_off.key.transport.as_deref(), Some("shm"));
        assert_eq!(of(LIMIT, "memcpy", None).figures(), [0.5, 0.5, 1.0]);
        assert_eq!(run.series.iter().filter(|series| series.better == Better::Higher).count(), 2);
        let keys: std::collections::BTreeSet<_> = run.series.iter().map(|series| &series.key).collect();
        assert_eq!(keys.len(), run.series.len());
    }

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
