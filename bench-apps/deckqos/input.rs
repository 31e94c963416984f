//! Parser of a plan's file: TOML with a `[link]` or a `[dtable]`, and classes.

use serde::{Deserialize, Deserializer, de::Error};
use std::{collections::BTreeMap, time::Duration};
use toml::Spanned;
use udeck_cli::{Problem, line_of, units};
use udeck_fabric::admission::Link;

/// Upper bound of a class's connections.
const MOST_CONNECTIONS: u32 = 1_000_000;
/// Number of service levels.
const LEVELS: usize = 16;
/// Upper bound of a class name's characters, so that tables stay readable.
const LONGEST_NAME: usize = 32;

/// A plan, as its file describes it.
#[derive(Debug)]
pub enum Input {
    InfiniBand { link: Link, classes: Vec<Class> },
    DTable { table: Table, classes: Vec<Class> },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    link: Option<Link>,
    dtable: Option<Table>,
    #[serde(default)]
    class: Vec<Class>,
}

/// `[dtable]`: a table with deficits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub entries: Spanned<usize>,
    /// Largest packet of all classes, in bytes.
    pub gmtu: Spanned<u32>,
    pub k: Option<Spanned<f64>>,
    pub w: Option<Spanned<f64>>,
}

/// `[[class]]`, with the keys of both kinds of plans.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    pub name: Spanned<String>,
    pub sl: u8,
    pub kind: Option<Kind>,
    pub vl: Option<u8>,
    #[serde(default, deserialize_with = "optional_rate")]
    pub bandwidth: Option<u64>,
    #[serde(default, deserialize_with = "optional_time")]
    pub latency: Option<Duration>,
    pub connections: Option<u32>,
    pub share: Option<f64>,
    pub distance: Option<u32>,
    /// Largest packet, in bytes.
    pub mtu: Option<u32>,
    /// Line of the class's name in the file, from 1.
    #[serde(skip)]
    pub line: usize,
}

/// Kind of promise to a class, as in Alfaro's thesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Bandwidth and latency are promised.
    Dbts,
    /// Bandwidth is promised.
    Db,
    /// Nothing is promised, but the class is preferred to others without a promise.
    Pbe,
    /// Nothing is promised.
    Be,
    /// Nothing is promised: the class gets what is left over.
    Ch,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Dbts => "dbts",
            Self::Db => "db",
            Self::Pbe => "pbe",
            Self::Be => "be",
            Self::Ch => "ch",
        }
    }
}

/// Reads a plan's file.
pub fn read(text: &str) -> Result<Input, Problem> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        Problem::wrong(line, error.message().replace('\n', "; "))
    })?;
    let mut classes = file.class;
    // Each class has a level of its own, so there are at most [`LEVELS`]. The check comes first because finding a
    // line takes a while.
    if let Some(class) = classes.get(LEVELS) {
        let line = line_of(text, class.name.span().start);
        return Err(Problem::wrong(
            line,
            format!("{} classes, and there are {LEVELS} levels", classes.len()),
        ));
    }
    for class in &mut classes {
        class.line = line_of(text, class.name.span().start);
    }
    check_names(&classes)?;
    let line = |span: std::ops::Range<usize>| line_of(text, span.start);
    match (file.link, file.dtable) {
        (Some(link), None) => {
            link.check(line)?;
            classes.iter().try_for_each(check_connections)?;
            Ok(Input::InfiniBand { link, classes })
        }
        (None, Some(table)) => {
            credits(*table.gmtu.get_ref())
                .map_err(|why| Problem::wrong(line(table.gmtu.span()), format!("gmtu {why}")))?;
            classes.iter().try_for_each(check_share)?;
            Ok(Input::DTable { table, classes })
        }
        (None, None) => Err(Problem::wrong(
            None,
            "there is neither [link] (InfiniBand's tables) nor [dtable]; `deckqos plan --example` prints a plan to begin with",
        )),
        (Some(_), Some(_)) => {
            Err(Problem::wrong(None, "there are both [link] and [dtable]: a plan is for one of them"))
        }
    }
}

/// Converts bytes to credits of 64 bytes.
pub fn credits(bytes: u32) -> Result<u32, String> {
    if bytes > 0 && bytes.is_multiple_of(64) {
        Ok(bytes / 64)
    } else {
        Err(format!("is {bytes} bytes: take a multiple of 64"))
    }
}

fn check_names(classes: &[Class]) -> Result<(), Problem> {
    if classes.is_empty() {
        return Err(Problem::wrong(None, "there is no [[class]], so there is nothing to plan"));
    }
    let (mut names, mut levels) = (BTreeMap::new(), BTreeMap::new());
    for class in classes {
        let (name, line) = (class.name.get_ref().as_str(), class.line);
        if name.is_empty() || name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(Problem::wrong(
                line,
                format!("a name has 1 to {LONGEST_NAME} characters that can be printed"),
            ));
        }
        if let Some(first) = names.insert(name, line) {
            return Err(Problem::wrong(line, format!("class {name:?} again: line {first} has it")));
        }
        if class.sl > 15 {
            return Err(Problem::wrong(
                line,
                format!("class {name:?}: sl = {}, and levels are 0 to 15", class.sl),
            ));
        }
        if let Some(first) = levels.insert(class.sl, line) {
            let reason =
                format!("class {name:?}: level {} is that of line {first}; each class has its own", class.sl);
            return Err(Problem::wrong(line, reason));
        }
    }
    Ok(())
}

/// Checks that a class of an InfiniBand plan has the keys of its kind.
fn check_connections(class: &Class) -> Result<(), Problem> {
    let wrong = |reason: String| {
        Err(Problem::wrong(class.line, format!("class {:?}: {reason}", class.name.get_ref())))
    };
    let Some(kind) = class.kind else {
        return wrong(
            "there is no kind: dbts (bandwidth and latency), db (bandwidth), pbe, be or ch (nothing)".into(),
        );
    };
    for (key, is_there) in [
        ("share", class.share.is_some()),
        ("distance", class.distance.is_some()),
        ("mtu", class.mtu.is_some()),
    ] {
        if is_there {
            return wrong(format!("{key} is for plans with [dtable]"));
        }
    }
    let (bandwidth, latency) = (matches!(kind, Kind::Dbts | Kind::Db), kind == Kind::Dbts);
    for (key, is_there, wanted) in [
        ("bandwidth", class.bandwidth.is_some(), bandwidth),
        ("latency", class.latency.is_some(), latency),
        ("connections", class.connections.is_some() && !bandwidth, false),
    ] {
        if is_there != wanted {
            return wrong(format!(
                "kind {} {} {key}",
                kind.name(),
                if wanted { "needs a" } else { "has no" }
            ));
        }
    }
    match class.connections {
        Some(connections) if !(1..=MOST_CONNECTIONS).contains(&connections) => {
            wrong(format!("connections = {connections}: take 1 to {MOST_CONNECTIONS}"))
        }
        _ => Ok(()),
    }
}

/// Checks that a class of a DTable plan has a share, a distance and a largest packet.
fn check_share(class: &Class) -> Result<(), Problem> {
    let wrong = |reason: String| {
        Err(Problem::wrong(class.line, format!("class {:?}: {reason}", class.name.get_ref())))
    };
    for (key, is_there) in [
        ("kind", class.kind.is_some()),
        ("vl", class.vl.is_some()),
        ("bandwidth", class.bandwidth.is_some()),
        ("latency", class.latency.is_some()),
        ("connections", class.connections.is_some()),
    ] {
        if is_there {
            return wrong(format!("{key} is for plans with [link]"));
        }
    }
    for (key, is_there) in [
        ("share", class.share.is_some()),
        ("distance", class.distance.is_some()),
        ("mtu", class.mtu.is_some()),
    ] {
        if !is_there {
            return wrong(format!("{key} is not there"));
        }
    }
    match credits(class.mtu.unwrap_or(0)) {
        Ok(_) => Ok(()),
        Err(why) => wrong(format!("mtu {why}")),
    }
}

fn optional_rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    units::rate(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn optional_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    units::time(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}
