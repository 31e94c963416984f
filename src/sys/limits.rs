//! The bounds that the system puts on a process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sees to it that this process may have `needed` descriptors open: raises its soft limit as far as that takes, and never
/// above the hard one. A limit that suffices stays as it is. Children inherit it.
///
/// # Errors
/// The kernel's. That the hard limit is lower is none: how many are used depends on what the program does.
pub fn make_room_for_descriptors(needed: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    match raised(limit.current, limit.maximum, needed) {
        Some(current) => Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit })?),
        None => Ok(()),
    }
}

/// Whether an error says that this process, or the system, is short of descriptors or of memory for them: trying again
/// later may help.
pub fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// What a process can do that is short of descriptors, in words.
pub fn descriptor_advice() -> String {
    let soft = getrlimit(Resource::Nofile).current.map_or("none".into(), |soft| soft.to_string());
    format!("file descriptors: soft limit {soft}; raise it with ulimit -n")
}

/// The size of a mounted file system in bytes, and how many of them are free.
///
/// # Errors
/// The kernel's.
pub fn file_system_size(at: &std::path::Path) -> io::Result<(u64, u64)> {
    let found = rustix::fs::statvfs(at)?;
    Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
}

/// The new soft limit, if there is reason for one. `None` in a limit: there is none.
fn raised(soft: Option<u64>, hard: Option<u64>, needed: u64) -> Option<u64> {
    let soft = soft?;
    let possible = hard.map_or(needed, |hard| hard.min(needed));
    (possible > soft).then_some(possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_only_as_far_as_needed_and_possible() {
        assert_eq!(raised(Some(1024), Some(4096), 3000), Some(3000));
        assert_eq!(raised(Some(1024), Some(4096), 9000), Some(4096), "the hard limit stands");
        assert_eq!(raised(Some(1024), None, 9000), Some(9000));
        assert_eq!(raised(Some(1024), Some(4096), 1024), None, "it suffices");
        assert_eq!(raised(Some(4096), Some(4096), 9000), None, "nothing to gain");
        assert_eq!(raised(None, None, 9000), None, "unlimited");
    }

    #[test]
    fn what_is_made_room_for_is_possible() {
        let before = getrlimit(Resource::Nofile);
        let Some(soft) = before.current else { return };
        let needed = soft + 1;
        make_room_for_descriptors(needed).unwrap();
        let after = getrlimit(Resource::Nofile).current;
        let hard = before.maximum.unwrap_or(u64::MAX);
        assert_eq!(after, Some(needed.min(hard)));
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
