//! Figures, units and names in the form that people read.

use crate::{
    experiment::sizes,
    report::data::{Better, Key, LIMIT, OURS, RAW},
    stats::Spread,
};

/// Formats a figure with three significant digits, or with all of its whole digits where these are more.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        large if large >= 100.0 => 0,
        small => (2 - small.log10().floor() as i32).clamp(0, 6) as usize,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), ""), |(whole, rest)| (whole, rest));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        let left = whole.len() - at;
        if at > 0 && left.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if rest.is_empty() { grouped } else { format!("{grouped}.{rest}") }
}

/// Formats a figure, or `–` for none.
pub fn maybe(value: Option<f64>) -> String {
    value.map_or("–".into(), figure)
}

/// Formats the bounds of a median.
pub fn bounds(spread: &Spread) -> String {
    format!("{} to {}", figure(spread.low), figure(spread.high))
}

/// Formats a count, or a figure that is no whole number.
pub fn count(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e9 { format!("{value:.0}") } else { figure(value) }
}

/// Unit with its sign: `us` is the ASCII spelling of µs.
pub fn unit(unit: &str) -> String {
    match unit {
        "us" => "µs".to_owned(),
        _ if unit.starts_with("us/") => unit.replacen("us", "µs", 1),
        _ => unit.to_owned(),
    }
}

/// Size such as `8 B`, `4 KiB`, `1 MiB`.
pub fn bytes(size: u64) -> String {
    let short = sizes::show(size as usize);
    match short.chars().last() {
        Some('K') => format!("{} KiB", &short[..short.len() - 1]),
        Some('M') => format!("{} MiB", &short[..short.len() - 1]),
        _ => format!("{short} B"),
    }
}

/// Name of a test in a heading.
pub fn test(name: &str) -> String {
    match name {
        "latency" => "One-way time".to_owned(),
        "bandwidth" => "Bandwidth".to_owned(),
        "stream" => "Many messages under way".to_owned(),
        _ => capitalized(&name.replace('-', " ")),
    }
}

/// Name of a contender and its way: `hand-off`, `UCX 1.22.0`, `one memcpy`.
pub fn contender(key: &Key) -> String {
    let how = key.protocol.as_deref();
    match (key.library.as_str(), how) {
        (OURS, Some(protocol)) => protocol.to_owned(),
        (OURS, None) => "µDECK".to_owned(),
        (LIMIT, Some(how)) => match RAW.iter().position(|raw| *raw == how) {
            Some(0) => "limit: cache line".to_owned(),
            Some(1) => "limit: memcpy".to_owned(),
            Some(_) => "limit: 2 memcpys".to_owned(),
            // The protocol `bare` means two threads without a library.
            None if how == "bare" => "limit".to_owned(),
            None => format!("limit: {how}"),
        },
        (library, _) => library.to_owned(),
    }
}

/// Payload mode, in words that follow a title.
pub fn payload(name: &str) -> &str {
    match name {
        "untouched" => "data untouched",
        "written+read" => "data written and read",
        other => other,
    }
}

/// Sentence on the direction of good figures.
pub fn direction(better: Better) -> &'static str {
    match better {
        Better::Lower => "Lower is better.",
        Better::Higher => "Higher is better.",
    }
}

/// Capitalises the first letter.
pub fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.089_12, "0.0891"),
            (1.0, "1.00"),
            (23.45, "23.4"),
            (123.4, "123"),
            (1_234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1_234.0, "-1,234"),
            (0.000_012_3, "0.000012"),
        ] {
            assert_eq!(figure(value), text, "{value}");
        }
    }

    #[test]
    fn sizes_and_units_are_spelt_out() {
        assert_eq!([bytes(0), bytes(8), bytes(4096), bytes(1 << 20)], ["0 B", "8 B", "4 KiB", "1 MiB"]);
        assert_eq!([unit("us"), unit("us/message"), unit("MB/s")], ["µs", "µs/message", "MB/s"]);
    }
}
