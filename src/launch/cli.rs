//! The command line.

use std::{ffi::OsString, time::Duration};

use clap::{Parser, ValueEnum};
use deckrun::{Job, OnFailure};

const EXAMPLES: &str = "\
Examples:
  deckrun -n 4 ./hello                          four ranks of ./hello
  deckrun -n 4 --tag-output ./hello             each line led by its rank: [2] ...
  deckrun -n 8 --timeout 60s -- ./ring --laps 3 ended after a minute at the latest
  deckrun -n 2 --env DECK_SETUP_TIMEOUT=5 ./ring
  deckrun -n 4 --on-failure continue ./worker   the others go on when a rank fails

Exit code:
  0 all ranks exited with 0; otherwise the first failed rank's code (128 + N if signal N killed it)
  124 timeout; 128 + N deckrun was sent signal N; 2 wrong usage; 125 the system refused
  126 the program cannot be run; 127 there is no such program";

/// Starts the ranks of a µDECK job on this host and watches over them.
///
/// A rank finds its job by itself (udeck::init). Rank 0 reads deckrun's standard input, the others none. SIGINT, SIGTERM
/// and SIGHUP are passed on to all ranks; those still there two seconds later, or at a second signal, are killed. However
/// the job ends, nothing that it started is left running.
#[derive(Debug, Parser)]
#[command(name = "deckrun", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// How many ranks to start, 1 to 4096.
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: u32,

    /// Bind rank r to the r-th usable processor, or let ranks run anywhere. Two bound jobs share the same processors.
    #[arg(long, value_enum, default_value_t, value_name = "WHERE")]
    bind: Bind,

    /// Lead each line that a rank writes by its number: "[2] ". Lines never mix.
    #[arg(long)]
    tag_output: bool,

    /// End the job after this time: 500ms, 60s, 5m, 2h; a bare number is in seconds.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// What happens to the others when a rank exits with a code other than 0 or is killed.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    on_failure: Then,

    /// Set an environment variable for the ranks; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,

    /// The program: a path, or a name to find along PATH.
    #[arg(value_name = "PROGRAM")]
    program: OsString,

    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    args: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Bind {
    /// As `core` if there are at least as many usable processors as ranks, else as `none`.
    #[default]
    Auto,
    /// One processor per rank, in order, beginning again when they run out.
    Core,
    /// Wherever deckrun itself may run.
    None,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Then {
    /// They are ended: SIGTERM, two seconds later SIGKILL.
    #[default]
    Abort,
    /// They go on.
    Continue,
}

impl Cli {
    pub(crate) fn job(self) -> Job {
        let mut job = Job::new(self.ranks)
            .program(self.program)
            .args(self.args)
            .tag_output(self.tag_output)
            .bind(match self.bind {
                Bind::Auto => deckrun::Bind::Auto,
                Bind::Core => deckrun::Bind::Core,
                Bind::None => deckrun::Bind::None,
            })
            .on_failure(match self.on_failure {
                Then::Abort => OnFailure::Abort,
                Then::Continue => OnFailure::Continue,
            });
        for (name, value) in self.env {
            job = job.env(name, value);
        }
        match self.timeout {
            Some(limit) => job.timeout(limit),
            None => job,
        }
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE".into()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 =
        number.parse().map_err(|_| "write a whole number and a unit: 500ms, 60s, 5m, 2h".to_string())?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60 * 1000),
        "h" => number.checked_mul(3600 * 1000),
        _ => return Err(format!("`{unit}` is no unit: ms, s, m or h")),
    };
    match milliseconds {
        None => Err("too long".into()),
        Some(0) => Err("must be more than 0".into()),
        Some(milliseconds) => Ok(Duration::from_millis(milliseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        let ms = |n| Ok(Duration::from_millis(n));
        let cases = [
            ("500ms", ms(500)),
            ("60s", ms(60_000)),
            ("7", ms(7_000)),
            ("2m", ms(120_000)),
            ("1h", ms(3_600_000)),
        ];
        for (text, wanted) in cases {
            assert_eq!(duration(text), wanted, "{text}");
        }
        for text in
            ["", "s", "-1s", "1.5s", "3d", "0", "0ms", "99999999999999999999s", "18446744073709551615h"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
