//! Processor time of this process, as the system counts it.

use rustix::param::clock_ticks_per_second;
use std::fs;

/// Processor time in user and in system mode, in microseconds.
///
/// The time is that of `getrusage`, but read from `/proc/self/stat`, with a resolution of a hundredth of a second: a call of
/// `getrusage` would be unsafe code here.
pub fn used() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let (user, system) = ticks(&stat).unwrap_or_default();
    let tick = 1_000_000 / clock_ticks_per_second().max(1);
    (user * tick, system * tick)
}

/// Parses the 14th and 15th field; the second field is the program's name in parentheses, which may contain any
/// character.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticks_are_found_behind_any_name() {
        let stat = "12 (a ) b) S 1 12 12 0 -1 4194560 100 0 0 0 77 33 0 0 20 0 1 0";
        assert_eq!(ticks(stat), Some((77, 33)));
        assert_eq!(ticks("12 (a) S 1"), None);
    }

    #[test]
    fn work_takes_time() {
        let (user, system) = used();
        let mut spent = 0_u64;
        while used() == (user, system) {
            spent = std::hint::black_box(spent + 1);
        }
        let later = used();
        assert!(later.0 >= user && later.1 >= system);
    }
}
