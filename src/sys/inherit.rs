//! A stream that the launcher left open for this process.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// Takes over the Unix stream whose descriptor the launcher has written into the environment as `number`. Once per
/// process; the program's own children do not inherit it.
///
/// # Errors
/// In words: not a number, taken before, or not a Unix stream (it is then left as it was).
pub fn inherited_stream(number: &str) -> Result<UnixStream, String> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let fd: RawFd = number.parse().ok().filter(|fd| *fd > 2).ok_or("it is no descriptor's number")?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err("this process has joined its job already".into());
    }
    // SAFETY: the launcher opened this descriptor for the process to own; nothing else here knows its number, and the
    // swap above lets it be taken once. A number that is not open makes the calls below fail; it is then given up
    // without being closed.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let is_stream = sockopt::socket_type(&fd) == Ok(SocketType::STREAM)
        && sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX);
    if !is_stream {
        std::mem::forget(fd);
        TAKEN.store(false, Ordering::Relaxed);
        return Err("it is no Unix socket of this process".into());
    }
    fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|error| error.to_string())?;
    Ok(UnixStream::from(fd))
}

#[cfg(test)]
mod tests {
    use super::inherited_stream;

    #[test]
    fn descriptors_that_are_not_the_launchers_are_refused() {
        for value in ["", "x", "-1", "0", "2", "99999999999"] {
            assert!(inherited_stream(value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn a_descriptor_that_is_something_else_is_left_alone() {
        use std::{io::Read, os::fd::AsRawFd};
        let mut file = std::fs::File::open("/dev/zero").unwrap();
        let why = inherited_stream(&file.as_raw_fd().to_string()).unwrap_err();
        assert!(why.contains("no Unix socket"), "{why}");
        file.read_exact(&mut [0; 8]).unwrap();
    }
}
