//! `--explain`: which protocol a message of each size takes, and why.

use std::fmt::Write;

use udeck::Protocol;

use crate::{failure::Result, rank_pair::RankPair};

/// What decides, and a line for each size.
pub fn table(pair: &RankPair<'_>, sizes: &[usize]) -> Result<String> {
    let (world, outlet) = (pair.world(), pair.outlet(Protocol::Auto)?);
    let (config, nic) = (world.config(), world.nic().attributes());
    let mut text = String::new();
    let mut line =
        |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes everything");
    line(format_args!("# transport      {} ({})", nic.name, nic.caps));
    line(format_args!("# protocol       {} (DECK_PROTOCOL)", config.protocol));
    line(format_args!("# thresholds     {} (DECK_AUTO)", config.auto));
    line(format_args!("# receive model  {} (DECK_RECEIVE)", config.receive));
    line(format_args!("{:>10}  {:<10}  why", "bytes", Protocol::Auto));
    for &size in sizes {
        let choice = outlet.explain(size);
        line(format_args!("{size:>10}  {:<10}  {}", choice.protocol, choice.why));
    }
    Ok(text)
}
