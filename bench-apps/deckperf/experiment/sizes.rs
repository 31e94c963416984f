//! Message sizes in the form that a user writes and reads: `8`, `4K`, `1M`, `4093`.

/// The largest message a run may ask for, in bytes: two ranks hold several of them at once.
pub const MAX_SIZE: usize = 256 << 20;

/// Default sizes: 0 to 4 MiB, as in the OSU benchmarks, in larger steps.
pub const DEFAULT_SIZES: [usize; 11] =
    [0, 1, 8, 64, 512, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Parses one size: decimal bytes, with `K` or `M` (also `KiB`, `MiB`, any case) for powers of 1024.
pub fn parse(text: &str) -> Result<usize, String> {
    let help = "sizes are bytes, or end in K or M (powers of 1024): 0, 8, 4K, 1M";
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        unknown => return Err(format!("unknown unit `{unknown}`; {help}")),
    };
    let count: usize = digits.parse().map_err(|_| format!("`{digits}` is not a whole number; {help}"))?;
    count
        .checked_mul(unit)
        .filter(|&size| size <= MAX_SIZE)
        .ok_or_else(|| format!("too large: the largest message measured is {}", show(MAX_SIZE)))
}

/// The shortest exact form, which [`parse`] reads back.
pub fn show(size: usize) -> String {
    match size {
        0 => "0".to_owned(),
        size if size.is_multiple_of(1 << 20) => format!("{}M", size >> 20),
        size if size.is_multiple_of(1 << 10) => format!("{}K", size >> 10),
        size => size.to_string(),
    }
}

/// Each size shifted by each of `offsets`, as in NetPIPE, to find errors that round numbers hide; sorted, without
/// duplicates.
pub fn perturbed(sizes: &[usize], offsets: impl Iterator<Item = isize> + Clone) -> Vec<usize> {
    let mut all: Vec<usize> = sizes
        .iter()
        .flat_map(|&size| offsets.clone().filter_map(move |offset| size.checked_add_signed(offset)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_with_and_without_units() {
        for (text, size) in
            [("0", 0), ("8", 8), ("4K", 4096), ("4kib", 4096), ("1M", 1 << 20), ("3MiB", 3 << 20), ("7b", 7)]
        {
            assert_eq!(parse(text), Ok(size), "{text}");
        }
    }

    #[test]
    fn bad_sizes_say_what_is_possible() {
        for (text, part) in [
            ("", "is not a whole number"),
            ("K", "is not a whole number"),
            ("-8", "`-8` is not a whole number"),
            ("1.5M", "`1.5` is not a whole number"),
            ("4G", "unknown unit `g`"),
            ("4 K", "is not a whole number"),
            ("257M", "the largest message measured is 256M"),
            ("99999999999999999M", "the largest message measured is 256M"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse("4G").unwrap_err().contains("0, 8, 4K, 1M"));
    }

    #[test]
    fn every_default_size_reads_back_as_shown() {
        for size in DEFAULT_SIZES.into_iter().chain([3, 4093, 4099]) {
            assert_eq!(parse(&show(size)), Ok(size));
        }
    }

    #[test]
    fn perturbing_neither_underflows_nor_repeats() {
        assert_eq!(perturbed(&[0, 1, 8], [-3, 0, 3].into_iter()), [0, 1, 3, 4, 5, 8, 11]);
        assert_eq!(perturbed(&[8, 8], -1..=1), [7, 8, 9]);
        assert_eq!(perturbed(&[64, 0], 0..=0), [0, 64]);
    }
}
