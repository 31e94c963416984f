//! Parsers of options' values.

use std::{fs, time::Duration};

use deckrun::Hosts;

pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE".into()),
    }
}

/// Parses a list of hosts, or reads the file named behind an `@`.
pub(super) fn hosts(text: &str) -> Result<Hosts, String> {
    match text.strip_prefix('@') {
        Some(path) => hosts_of_file(path),
        None => Hosts::parse(text).map_err(|error| error.to_string()),
    }
}

pub(super) fn hosts_of_file(path: &str) -> Result<Hosts, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    Hosts::parse_file(path, &text).map_err(|error| error.to_string())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
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

/// Names that `--transport` takes. Only the program knows which of them its build has.
const TRANSPORTS: [&str; 4] = ["shm", "verbs", "tcp", "udp"];

pub(super) fn transports(text: &str) -> Result<String, String> {
    if text.split(',').all(|name| TRANSPORTS.contains(&name)) {
        return Ok(text.to_owned());
    }
    Err(format!("expected a comma-separated list, the best first, of: {}", TRANSPORTS.join(", ")))
}

/// Parses a detection time. Its minimum follows from the kernel's probes, which come once a second.
pub(super) fn detection(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < Duration::from_secs(2) => Err("must be at least 2s".into()),
        long if long > Duration::from_secs(24 * 3600) => Err("must be at most 24h".into()),
        limit => Ok(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_a_list() {
        assert_eq!(transports("shm,udp").as_deref(), Ok("shm,udp"));
        for text in ["", "shm,", "pigeon", "tcp udp"] {
            assert!(transports(text).is_err(), "{text}");
        }
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
        assert_eq!(detection("2s"), ms(2000));
        assert!(detection("1999ms").is_err() && detection("25h").is_err());
    }
}
