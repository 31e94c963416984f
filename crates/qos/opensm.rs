//! Tables as options of OpenSM, the subnet manager: written and read.
//!
//! ```text
//! qos_max_vls 8
//! qos_high_limit 10
//! qos_vlarb_high 0:255,1:40        VL:weight, up to 64
//! qos_vlarb_low 2:10
//! qos_sl2vl 0,1,2,2,...            16 of them; 15 drops
//! ```

use crate::table::{ENTRIES, Entry, LANES, MANAGEMENT_VL, VlTables};
use std::{fmt::Write, str::FromStr};
use thiserror::Error;

/// Ports for which options are meant. Each kind has options with a prefix of its own, and `qos_…` covers all kinds
/// without own options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ports {
    /// `qos_…`: all ports.
    #[default]
    All,
    /// `qos_ca_…`: ports of hosts.
    Ca,
    /// `qos_sw0_…`: port 0 of switches.
    Switch0,
    /// `qos_swe_…`: other ports of switches.
    SwitchExternal,
    /// `qos_rtr_…`: ports of routers.
    Router,
}

impl Ports {
    fn prefix(self) -> &'static str {
        match self {
            Self::All => "qos_",
            Self::Ca => "qos_ca_",
            Self::Switch0 => "qos_sw0_",
            Self::SwitchExternal => "qos_swe_",
            Self::Router => "qos_rtr_",
        }
    }
}

/// Contents of the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of virtual lanes for data, 1 to 15.
    pub max_vls: u8,
    /// Both arbitration tables, and the high limit.
    pub tables: VlTables,
    /// Lane of each service level; 15 drops its packets.
    pub sl2vl: [u8; LANES],
}

/// Why a text has no valid options.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadOptions {
    /// A line is invalid.
    #[error("line {line}: {reason}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Reason as text.
        reason: String,
    },
    /// A line is missing.
    #[error("there is no line `{name} …`")]
    Missing {
        /// Name of the option.
        name: String,
    },
}

const NAMES: [&str; 5] = ["max_vls", "high_limit", "vlarb_high", "vlarb_low", "sl2vl"];

/// Writes the lines, for OpenSM's file of options.
pub fn write(options: &Options, ports: Ports) -> String {
    let list = |table: &[Entry]| {
        let entries = table.iter().map(|entry| format!("{}:{}", entry.vl, entry.weight));
        entries.collect::<Vec<_>>().join(",")
    };
    let values = [
        options.max_vls.to_string(),
        options.tables.high_limit.to_string(),
        list(&options.tables.high),
        list(&options.tables.low),
        options.sl2vl.map(|vl| vl.to_string()).join(","),
    ];
    let mut text = String::new();
    for (name, value) in NAMES.into_iter().zip(values) {
        // OpenSM has no empty table, so one is written with a single entry without weight.
        let value = if value.is_empty() { "0:0" } else { &value };
        let _ = writeln!(text, "{}{name} {value}", ports.prefix());
    }
    text
}

/// Reads the lines for these ports out of a file of options, and ignores other options.
pub fn parse(text: &str, ports: Ports) -> Result<Options, BadOptions> {
    let mut found: [Option<(usize, &str)>; 5] = [None; 5];
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let own = name.strip_prefix(ports.prefix());
        let Some(at) = NAMES.iter().position(|known| own == Some(known)) else { continue };
        if let Some((first, _)) = found[at].replace((line, value.trim())) {
            return Err(bad(line, format!("{name} again: line {first} has it")));
        }
    }
    let get = |at: usize| {
        found[at].ok_or_else(|| BadOptions::Missing { name: format!("{}{}", ports.prefix(), NAMES[at]) })
    };
    let number = |at: usize, least: u8, most: u8| {
        let (line, value) = get(at)?;
        within(value, least, most).map_err(|reason| bad(line, reason))
    };
    let table = |at: usize| {
        let (line, value) = get(at)?;
        entries(value).map_err(|reason| bad(line, reason))
    };
    let (max_vls, high_limit) = (number(0, 1, MANAGEMENT_VL)?, number(1, 0, u8::MAX)?);
    let tables = VlTables { high: table(2)?, low: table(3)?, high_limit };
    let (line, value) = get(4)?;
    let sl2vl = lanes(value).map_err(|reason| bad(line, reason))?;
    Ok(Options { max_vls, tables, sl2vl })
}

fn bad(line: usize, reason: impl Into<String>) -> BadOptions {
    BadOptions::Line { line, reason: reason.into() }
}

fn within(word: &str, least: u8, most: u8) -> Result<u8, String> {
    let value = u8::from_str(word.trim()).ok().filter(|value| (least..=most).contains(value));
    value.ok_or_else(|| format!("{:?} is not a number from {least} to {most}", shown(word)))
}

/// Shortens a word of any length to what fits into an error text.
fn shown(word: &str) -> String {
    word.trim().chars().take(40).collect()
}

fn entries(value: &str) -> Result<Vec<Entry>, String> {
    let entry = |(at, word): (usize, &str)| {
        let Some((vl, weight)) = word.split_once(':') else {
            return Err(format!("entry {at}: {:?} is not VL:weight", shown(word)));
        };
        let vl = within(vl, 0, MANAGEMENT_VL - 1).map_err(|reason| format!("entry {at}: VL {reason}"))?;
        let weight = within(weight, 0, u8::MAX).map_err(|reason| format!("entry {at}: weight {reason}"))?;
        Ok(Entry { vl, weight })
    };
    let found = value.split(',').take(ENTRIES + 1).enumerate().map(entry).collect::<Result<Vec<_>, _>>()?;
    if found.len() > ENTRIES {
        return Err(format!("more than {ENTRIES} entries"));
    }
    Ok(found)
}

fn lanes(value: &str) -> Result<[u8; LANES], String> {
    let words: Vec<_> = value.split(',').collect();
    let words: [&str; LANES] = words
        .try_into()
        .map_err(|words: Vec<_>| format!("{} values, and there are {LANES} levels", words.len()))?;
    let mut lanes = [0; LANES];
    for (level, (lane, word)) in lanes.iter_mut().zip(words).enumerate() {
        *lane = within(word, 0, MANAGEMENT_VL).map_err(|reason| format!("level {level}: {reason}"))?;
    }
    Ok(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{array::uniform16, collection::vec, prelude::*};

    const GOOD: &str = "# a comment\nqos TRUE\nqos_max_vls 8 # of it\nqos_high_limit 4\nqos_vlarb_high 0:255, 1:40\n\
                        qos_vlarb_low 2:10\nqos_sl2vl 0,1,2,2,2,2,2,2,2,2,2,2,2,2,2,15\nqos_ca_max_vls 3\n";

    #[test]
    fn options_are_read_among_others() {
        let options = parse(GOOD, Ports::All).expect("good");
        assert_eq!((options.max_vls, options.tables.high_limit), (8, 4));
        assert_eq!(options.tables.high, [Entry { vl: 0, weight: 255 }, Entry { vl: 1, weight: 40 }]);
        assert_eq!((options.tables.low.len(), options.sl2vl[15]), (1, 15));
        let error = parse(GOOD, Ports::Ca).expect_err("only one of them");
        assert_eq!(error.to_string(), "there is no line `qos_ca_high_limit …`");
    }

    #[test]
    fn what_is_wrong_has_its_line_and_a_reason() {
        let cases = [
            ("qos_max_vls 8", "qos_max_vls 16", "line 3: \"16\" is not a number from 1 to 15"),
            ("qos_high_limit 4", "qos_high_limit -1", "line 4: \"-1\" is not a number from 0 to 255"),
            ("0:255, 1:40", "0:255,15:1", "line 5: entry 1: VL \"15\" is not a number from 0 to 14"),
            ("0:255, 1:40", "0:256", "line 5: entry 0: weight \"256\" is not a number from 0 to 255"),
            ("0:255, 1:40", "0:255,", "line 5: entry 1: \"\" is not VL:weight"),
            ("2:10", "", "line 6: entry 0: \"\" is not VL:weight"),
            ("0,1,2,2", "0,1,2", "line 7: 15 values, and there are 16 levels"),
            ("2,15\n", "2,16\n", "line 7: level 15: \"16\" is not a number from 0 to 15"),
            ("qos TRUE", "qos_max_vls 8", "line 3: qos_max_vls again: line 2 has it"),
        ];
        for (from, to, expected) in cases {
            let text = GOOD.replacen(from, to, 1);
            assert_eq!(
                parse(&text, Ports::All).map_err(|error| error.to_string()),
                Err(expected.into()),
                "{text}"
            );
        }
        let long = GOOD.replacen("2:10", &vec!["1:1"; 65].join(","), 1);
        assert_eq!(parse(&long, Ports::All).expect_err("65").to_string(), "line 6: more than 64 entries");
    }

    fn table() -> impl Strategy<Value = Vec<Entry>> {
        vec((0u8..15, any::<u8>()).prop_map(|(vl, weight)| Entry { vl, weight }), 1..=64)
    }

    proptest! {
        #[test]
        fn proptest_what_is_written_is_read(
            max_vls in 1u8..=15,
            (high, low) in (table(), table()),
            high_limit: u8,
            sl2vl in uniform16(0u8..16),
        ) {
            let options = Options { max_vls, tables: VlTables { high, low, high_limit }, sl2vl };
            for ports in [Ports::All, Ports::Ca, Ports::Switch0, Ports::SwitchExternal, Ports::Router] {
                prop_assert_eq!(parse(&write(&options, ports), ports), Ok(options.clone()));
            }
        }

        /// Any text, and valid text with a part replaced, gives a result and never a panic; what is accepted is a
        /// valid table.
        #[test]
        fn proptest_any_text_is_options_or_an_error(text in ".{0,200}", at in 0usize..200, cut in 0usize..20) {
            let _ = parse(&text, Ports::All);
            let chars: Vec<_> = GOOD.chars().collect();
            let (from, to) = (at.min(chars.len()), (at + cut).min(chars.len()));
            let spoilt = chars[..from].iter().copied().chain(text.chars()).chain(chars[to..].iter().copied());
            let spoilt: String = spoilt.collect();
            if let Ok(options) = parse(&spoilt, Ports::All) {
                prop_assert_eq!(options.tables.check(), Ok(()));
                prop_assert_eq!(parse(&write(&options, Ports::All), Ports::All), Ok(options));
            }
        }
    }
}
