//! Resource limits of this process.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PAGE: u64 = 4096;

/// Makes sure that this process may have `needed` descriptors open: raises its soft limit as far as that takes, and never
/// above the hard one. A sufficient limit stays as it is. Children inherit it.
///
/// # Errors
/// Errors of the kernel. A lower hard limit is no error: the number of descriptors in use depends on the program.
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
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::TOOMANYREFS];
    error.kind() == io::ErrorKind::OutOfMemory
        || Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// Limits on memory, files and threads: errors of the kernel beyond the limit, resource, name, the shell's option, and the
/// counted thing.
const LIMITS: [(&[Errno], Resource, &str, &str, &str); 4] = [
    (&[Errno::FBIG], Resource::Fsize, "RLIMIT_FSIZE", "-f", "bytes a file, shared memory included"),
    (&[Errno::NOMEM, Errno::AGAIN], Resource::As, "RLIMIT_AS", "-v", "bytes of address space"),
    (&[Errno::NOMEM, Errno::AGAIN], Resource::Data, "RLIMIT_DATA", "-d", "bytes of private memory"),
    (&[Errno::AGAIN], Resource::Nproc, "RLIMIT_NPROC", "-u", "processes and threads of its user"),
];

/// Adds to an error of taking memory, or of starting a thread, the limits of this process that may be the cause, and advice.
/// An error without such a limit is returned unchanged.
pub fn name_limits(error: io::Error) -> io::Error {
    let Some(errno) = Errno::from_io_error(&error) else { return error };
    let limits = LIMITS.iter().filter(|limit| limit.0.contains(&errno));
    let limits = limits.filter_map(|(_, resource, name, option, counted)| {
        let most = getrlimit(*resource).current?;
        Some(format!("at most {most} {counted} ({name}, `ulimit {option}`)"))
    });
    match limits.collect::<Vec<_>>() {
        none if none.is_empty() => error,
        some => {
            let words = format!("{error}: this process may have {}; raise it", some.join(" and "));
            io::Error::new(error.kind(), words)
        }
    }
}

/// Checks that a file, or shared memory, may have this length. The kernel ends a process that makes a longer one.
///
/// # Errors
/// `FileTooLarge`, with the name of the limit.
pub fn check_file_size(len: u64) -> io::Result<()> {
    match longest_file() {
        Some(most) if len > most => Err(name_limits(Errno::FBIG.into())),
        _ => Ok(()),
    }
}

/// Bytes of the longest file, or shared memory, that this process may make; `None`: there is no limit.
pub fn longest_file() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Bytes of address space that this process may still take; `None`: there is no limit.
pub fn spare_address_space() -> Option<u64> {
    let most = getrlimit(Resource::As).current?;
    let taken = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = taken.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    Some(most.saturating_sub(pages * PAGE))
}

/// Advice for a process that is short of descriptors, in words.
pub fn descriptor_advice() -> String {
    let soft = getrlimit(Resource::Nofile).current.map_or("none".into(), |soft| soft.to_string());
    format!("file descriptors: soft limit {soft}; raise it with ulimit -n")
}

/// Size of a mounted file system in bytes, and its free bytes.
///
/// # Errors
/// Errors of the kernel.
pub fn file_system_size(at: &std::path::Path) -> io::Result<(u64, u64)> {
    let found = rustix::fs::statvfs(at)?;
    Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
}

/// The new soft limit, if it has to be raised. `None` as a limit: there is none.
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
