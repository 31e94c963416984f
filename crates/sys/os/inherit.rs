//! Inherited descriptors: a stream and memory that a launcher left open for this process, or for another one that it started.
//!
//! All programs that run under one rank (`sh -c 'a; a'`, `a & a`) inherit the same stream, and it can belong to only one of
//! them: two readers would take each other's answers. The stream itself carries its owner's name. A Unix socket can be given
//! a name once; the kernel refuses the second name, whichever process tries, and whatever has become of the first process.

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, getsockname, sockopt};

use crate::memory::segment::{self, PeerAccess};

/// Prefix of the name of a taken stream; the taker's process number follows.
const TAKEN_BY: &str = "udeck-rank-of-";
/// Number of names to try: a process in another pid namespace may have such a name.
const NAMES: usize = 16;

/// Takes over the Unix stream whose descriptor number the launcher has written into the environment as `number`. Once per
/// process; the program's own children do not inherit it.
///
/// # Errors
/// In words: not a number, taken before by this process or another one, or not a Unix stream (it is then left as it was).
pub fn inherited_stream(number: &str) -> Result<UnixStream, String> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let fd: RawFd = number.parse().ok().filter(|fd| *fd > 2).ok_or("not a descriptor number above 2")?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err("this process has joined its job already".into());
    }
    // SAFETY: the launcher opened this descriptor for the process to own; nothing else here knows its number, and the
    // swap above lets it be taken once. A number that is not open makes the calls below fail; it is then given up
    // without being closed.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let is_stream = sockopt::socket_type(&fd) == Ok(SocketType::STREAM)
        && sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX);
    let taken = if is_stream { take(&fd) } else { Err("the descriptor is not a Unix stream socket".into()) };
    if let Err(why) = taken {
        std::mem::forget(fd);
        TAKEN.store(false, Ordering::Relaxed);
        return Err(why);
    }
    fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|error| error.to_string())?;
    Ok(UnixStream::from(fd))
}

/// Takes over the connection to the service of a launcher other than deckrun, which has written the descriptor's number into
/// the environment: a stream socket, or a pipe that is open both ways. Once per process; the program's own children do not
/// inherit it.
///
/// # Errors
/// In words: not a number, taken before by this process or another program that inherited it, or no such connection (it is then
/// left as it was).
pub fn inherited_channel(number: &str) -> Result<OwnedFd, String> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let fd: RawFd = number.parse().ok().filter(|fd| *fd > 2).ok_or("not a descriptor number above 2")?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err("this process has joined its job already".into());
    }
    // SAFETY: the launcher opened this descriptor for the process to own; nothing else here knows its number, and the
    // swap above lets it be taken once. What is no such connection is given up without being closed.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if let Err(why) = check_channel(&fd) {
        std::mem::forget(fd);
        TAKEN.store(false, Ordering::Relaxed);
        return Err(why);
    }
    fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|error| error.to_string())?;
    Ok(fd)
}

/// Checks that the descriptor can be read and written as a stream, and is this process's.
fn check_channel(fd: &OwnedFd) -> Result<(), String> {
    let kind = fstat(fd).map_err(|error| error.to_string())?.st_mode;
    let both_ways = fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    match FileType::from_raw_mode(kind) {
        FileType::Fifo if both_ways => Ok(()),
        FileType::Socket if sockopt::socket_type(fd) == Ok(SocketType::STREAM) => {
            if sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) { take(fd) } else { Ok(()) }
        }
        _ => Err("the descriptor is not a stream socket or two-way pipe".into()),
    }
}

/// Takes over the shared memory of `len` bytes whose descriptor number the launcher has written into the environment as
/// `number`. Once per process; the program's own children do not inherit it.
///
/// # Errors
/// In words: not a number, taken before by this process, or not such memory (it is then left as it was).
pub fn inherited_segment(number: &str, len: usize) -> Result<OwnedFd, String> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let fd: RawFd = number.parse().ok().filter(|fd| *fd > 2).ok_or("not a descriptor number above 2")?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err("this process has it already".into());
    }
    // SAFETY: the launcher opened this descriptor for the process to own; nothing else here knows its number, and the
    // swap above lets it be taken once. What is no such memory is given up without being closed.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if let Err(error) = segment::check(fd.as_fd(), len..=len, PeerAccess::Write) {
        std::mem::forget(fd);
        TAKEN.store(false, Ordering::Relaxed);
        return Err(error.to_string());
    }
    fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|error| error.to_string())?;
    Ok(fd)
}

/// Names a stream after this process, unless it has another process's name.
fn take(stream: impl AsFd) -> Result<(), String> {
    let inode = fstat(&stream).map_err(|error| error.to_string())?.st_ino;
    for number in 0..NAMES {
        let name = format!("{TAKEN_BY}{}-{inode:x}-{number}", std::process::id());
        let Ok(name) = SocketAddrUnix::new_abstract_name(name.as_bytes()) else { break };
        match bind(&stream, &name) {
            Err(Errno::ADDRINUSE) => {}
            Err(Errno::INVAL) => {
                let whose = owner(&stream);
                return whose.map_or(Ok(()), |process| {
                    Err(format!("another program of this rank, process {process}, has joined the job by it"))
                });
            }
            // A system that gives no names cannot tell two programs apart.
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// The process after which a stream is named.
fn owner(stream: impl AsFd) -> Option<String> {
    let address = SocketAddrUnix::try_from(getsockname(stream).ok()?).ok()?;
    let name = std::str::from_utf8(address.abstract_name()?).ok()?;
    Some(name.strip_prefix(TAKEN_BY)?.split('-').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::{inherited_channel, inherited_stream, take};

    /// A duplicate stands for the descriptor of another process.
    #[test]
    fn a_stream_is_taken_once_whatever_becomes_of_who_took_it() {
        let (_launcher, stream) = UnixStream::pair().unwrap();
        let other = stream.try_clone().unwrap();
        take(&stream).unwrap();
        let why = take(&other).unwrap_err();
        assert!(why.contains(&format!("process {},", std::process::id())), "{why}");
        stream.shutdown(Shutdown::Both).unwrap();
        drop(stream);
        take(&other).unwrap_err();
        let (_launcher, stream) = UnixStream::pair().unwrap();
        take(&stream).unwrap();
    }

    #[test]
    fn descriptors_that_are_not_the_launchers_are_refused() {
        for value in ["", "x", "-1", "0", "2", "99999999999"] {
            assert!(inherited_stream(value).is_err(), "{value:?}");
            assert!(inherited_channel(value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn a_descriptor_that_is_something_else_is_left_alone() {
        use std::{io::Read, os::fd::AsRawFd};
        let mut file = std::fs::File::open("/dev/zero").unwrap();
        let why = inherited_stream(&file.as_raw_fd().to_string()).unwrap_err();
        assert!(why.contains("not a Unix stream socket"), "{why}");
        let (mut end, _other) = std::io::pipe().unwrap();
        for fd in [file.as_raw_fd(), end.as_raw_fd()] {
            assert_eq!(
                inherited_channel(&fd.to_string()).unwrap_err(),
                "the descriptor is not a stream socket or two-way pipe"
            );
        }
        file.read_exact(&mut [0; 8]).unwrap();
        end.read_exact(&mut []).unwrap();
    }
}
