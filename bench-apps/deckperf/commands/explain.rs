//! `--explain`: which protocol a message of each size takes, and why.

use std::fmt::Write;

use udeck::Protocol;

use crate::{experiment::rank_pair::RankPair, failure::Result, report::aligned::wrapped};

/// Table of the settings that decide, and a line for each size; nothing at rank 1.
pub fn table(pair: &RankPair<'_>, sizes: &[usize]) -> Result<String> {
    if !pair.leads() {
        return Ok(String::new());
    }
    let (world, outlet) = (pair.world(), pair.outlet(Protocol::Auto)?);
    let (config, nic) = (world.config(), world.nic().attributes());
    let mut text = String::new();
    let mut line =
        |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes everything");
    for (what, said) in [
        ("transport", format!("{} ({})", nic.name, nic.caps)),
        ("protocol", format!("{} (DECK_PROTOCOL)", config.protocol)),
        ("thresholds", format!("{} (DECK_AUTO)", config.auto)),
        ("receive model", format!("{} (DECK_RECEIVE)", config.receive)),
    ] {
        let text = wrapped(&format!("# {what:<15}"), &format!("#{:16}", ""), &said);
        line(format_args!("{}", text.trim_end()));
    }
    line(format_args!("{:>10}  {:<10}  why", "bytes", Protocol::Auto));
    for &size in sizes {
        let choice = outlet.explain(size);
        let first = format!("{size:>10}  {:<10}  ", choice.protocol);
        let text = wrapped(&first, &" ".repeat(first.len()), &choice.why.to_string());
        line(format_args!("{}", text.trim_end()));
    }
    Ok(text)
}
