//! Parser of numbers with units: `2.5 Gb/s`, `150 us`.

use std::time::Duration;

const RATES: [(&str, f64); 4] = [("b/s", 1.0), ("kb/s", 1e3), ("Mb/s", 1e6), ("Gb/s", 1e9)];
const TIMES: [(&str, f64); 5] = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
/// Upper bound of a number in base units: above any link and any wait, and far below where `f64` loses its last digits.
const MOST: f64 = 1e15;

/// Parses a rate in bits per second, at least 1.
pub fn rate(text: &str) -> Result<u64, String> {
    value(text, &RATES, "10 Gb/s").and_then(|bits| {
        if bits >= 1.0 { Ok(bits as u64) } else { Err(format!("{:?} is less than 1 b/s", shown(text))) }
    })
}

/// Parses a time, in whole nanoseconds.
pub fn time(text: &str) -> Result<Duration, String> {
    value(text, &TIMES, "150 us").map(|nanos| Duration::from_nanos(nanos as u64))
}

fn value(text: &str, units: &[(&str, f64)], example: &str) -> Result<f64, String> {
    let text = text.trim();
    let end = text.find(|char: char| !(char.is_ascii_digit() || char == '.')).unwrap_or(text.len());
    let (number, unit) = (text[..end].parse::<f64>(), text[end..].trim());
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "{:?} is not a number with a unit ({}), as {example:?} is",
            shown(text),
            names.join(", ")
        ));
    };
    let value = number.map_err(|_| format!("{:?} has no number before its unit", shown(text)))? * factor;
    if value <= MOST {
        Ok(value.round())
    } else {
        Err(format!("{:?} is more than any link has", shown(text)))
    }
}

/// Shortens text to the length that suits a line of an error.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(rate("2.5 Gb/s"), Ok(2_500_000_000));
        assert_eq!(rate("64kb/s"), Ok(64_000));
        assert_eq!(time("150 us"), Ok(Duration::from_micros(150)));
        assert_eq!(time("150 µs"), Ok(Duration::from_micros(150)));
        assert_eq!(time("0 s"), Ok(Duration::ZERO));
    }

    #[test]
    fn what_is_no_number_or_unit_is_said() {
        for bad in [
            "",
            "10",
            "Gb/s",
            "-1 Gb/s",
            "1 GB/s",
            "nan b/s",
            "inf b/s",
            "1e3 b/s",
            "1.2.3 b/s",
            "0 b/s",
            "0.2 b/s",
            "99999999999 Gb/s",
            "é",
        ] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        let error = rate("10 GB/s").expect_err("bytes");
        assert_eq!(
            error,
            "\"10 GB/s\" is not a number with a unit (b/s, kb/s, Mb/s, Gb/s), as \"10 Gb/s\" is"
        );
    }
}
