//! Lists of ranks in the form that people write.

use std::fmt;

/// Shows sorted ranks with runs closed up: `rank 3`, `ranks 0-3, 7`, `no rank`.
#[derive(Debug, Clone, Copy)]
pub struct Ranks<'a>(
    /// The ranks, sorted.
    pub &'a [u32],
);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.len() {
            0 => return f.write_str("no rank"),
            1 => "rank ",
            _ => "ranks ",
        })?;
        for (i, run) in self.0.chunk_by(|a, b| a.checked_add(1) == Some(*b)).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Ranks;

    #[test]
    fn runs_are_closed_up() {
        let cases: [(&[u32], &str); 5] = [
            (&[], "no rank"),
            (&[3], "rank 3"),
            (&[0, 1], "ranks 0-1"),
            (&[0, 1, 2, 5, 7, 8], "ranks 0-2, 5, 7-8"),
            (&[u32::MAX - 1, u32::MAX], "ranks 4294967294-4294967295"),
        ];
        for (ranks, text) in cases {
            assert_eq!(Ranks(ranks).to_string(), text);
        }
    }
}
