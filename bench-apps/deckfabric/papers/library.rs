//! The library itself in virtual time, beside the schedules of its collective operations (no figures of a paper).

use super::{Extent, Row, Section};
use crate::{dependent, input};
use indicatif::ProgressBar;
use std::path::Path;

/// Steps of the progress bar.
pub const RUNS: u64 = PLAYED.len() as u64;

/// Bytes of a flit.
const FLIT: f64 = 64.0;

/// An experiment: an operation, its bytes for each other rank, the number of those ranks, and its name.
type Played = (&'static str, u32, fn(u32) -> u32, &'static str);

const PLAYED: [Played; 4] = [
    ("barrier", 0, |_| 0, "barrier"),
    ("all-to-all", 64, |ranks| ranks - 1, "all-to-all of 64 bytes"),
    ("transpose-2d", 128, both_ways, "FT's transposes, 128 bytes (class S over 1,024)"),
    ("transpose-2d", 256, both_ways, "FT's transposes, 256 bytes (class W over 1,024)"),
];

/// Other ranks in the row and in the column of a square grid.
fn both_ways(ranks: u32) -> u32 {
    2 * (ranks.isqrt() - 1)
}

pub const TITLE: &str = "The library itself in virtual time, and schedules of the same operations: cycles until the last rank is done";

pub fn section(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let (topology, ranks) = match extent {
        Extent::Quick => ("kind = \"tree\"\nk = 4\nn = 2", 16),
        Extent::Reduced => ("kind = \"dragonfly\"\nhosts = 4\ngroup = 8\nglobal = 4", 1024),
    };
    let (mut rows, mut claims) = (Vec::new(), Vec::new());
    for (operation, bytes, others, name) in PLAYED {
        let text = format!(
            "measured = 100000000\n[topology]\n{topology}\n[network]\npacket = 8\nbuffer = 256\nlink = 20\n\
             [collective]\noperation = \"{operation}\"\nranks = {ranks}\nbytes = {bytes}\nlibrary = true\n"
        );
        let scenario = input::read(&text, None).map_err(|bad| bad.reason)?;
        let (_, runs) = dependent::runs(&scenario, Path::new("")).map_err(|bad| bad.reason)?;
        let (schedule, library) = runs
            .first()
            .map_or((0, 0), |run| (run.cycles.1, run.library.map_or(0, |library| library.cycles.1)));
        rows.push(Row::new(format!("{name}: its schedule"), None, schedule as f64));
        rows.push(Row::new(format!("{name}: the library"), None, library as f64));
        claims.push(match operation {
            // The schedule's ranks begin in cycle 1.
            "barrier" => (
                "the library's barrier takes what its schedule takes".into(),
                schedule.abs_diff(library) <= 1,
            ),
            _ => {
                let least = f64::from(others(ranks)) * f64::from(bytes) / FLIT;
                (format!("{name}: no faster than a host's link"), library as f64 >= least)
            }
        });
        bar.inc(1);
    }
    Ok(Section {
        how: format!(
            "{ranks} ranks in one process, after each has done the operation once; what they compute takes no time."
        ),
        rows,
        claims,
        ..Section::default()
    })
}
