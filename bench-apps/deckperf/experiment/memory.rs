//! Memory use of this process, by the kernel's own accounting.

use std::{fs, io};

use crate::failure::{PerfError, Result};

/// Proportional set size in bytes: private pages, and this process's part of each shared page. Summed over all processes
/// that share a segment, it counts the segment once.
pub fn proportional() -> Result<u64> {
    let failed = PerfError::system("reading /proc/self/smaps_rollup");
    match fs::read_to_string("/proc/self/smaps_rollup") {
        Ok(text) => pss(&text).ok_or_else(|| failed(io::ErrorKind::InvalidData.into())),
        Err(error) => Err(failed(error)),
    }
}

fn pss(smaps: &str) -> Option<u64> {
    let line = smaps.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_found_among_its_likes() {
        let text =
            "5555-7fff ---p 00000000 00:00 0 [rollup]\nRss:  900 kB\nPss:   123 kB\nPss_Dirty:  7 kB\n";
        assert_eq!(pss(text), Some(123 << 10));
        assert_eq!(pss("Rss: 1 kB\n"), None);
        assert_eq!(pss("Pss: many kB\n"), None);
    }

    #[test]
    fn memory_that_is_written_counts() {
        const BYTES: usize = 64 << 20;
        let before = proportional().expect("a mounted /proc");
        let written = std::hint::black_box(vec![1u8; BYTES]);
        let after = proportional().expect("a mounted /proc");
        assert!(after >= before + BYTES as u64 / 2, "{before} and {after}");
        drop(written);
    }
}
