//! Liveness of the processes that share a segment, by the kernel's word.
//!
//! Each member locks a byte of the segment's file, at its own number, for as long as it has the segment (an open file
//! description lock, `fcntl(2)`). The kernel releases it when the last descriptor closes, whatever the process died of. Every
//! process that has the segment can ask. So no process numbers are needed, which are reused and differ between namespaces,
//! and no right to inspect other processes.
//!
//! Each member has an open file of its own (by `/proc/self/fd`), so that two ranks in one process count as two. A child made
//! by `fork()` without `exec` keeps its parent's byte: it has the parent's mapping, too.
//!
//! A lying member can lock a byte that is not its own. Then another member cannot come, or seems to live, and others wait
//! until their deadlines. It can give up its own byte while it lives, and loses the lock that it holds.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

use crate::above_stdio;

/// A member's own open file of the segment, and its byte.
#[derive(Debug)]
pub struct Liveness {
    file: OwnedFd,
    me: u32,
}

impl Liveness {
    /// Claims that member `me` of the segment `fd` lives, until this is dropped.
    ///
    /// # Errors
    /// `AddrInUse`: another process claims to be this member. The kernel's: no descriptors left, or no `/proc`.
    pub fn claim(fd: BorrowedFd<'_>, me: u32) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let file = above_stdio(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))?;
        let mut byte = byte(me);
        // SAFETY: the descriptor is open, and the structure lives during the call.
        let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut byte) };
        if status == 0 {
            return Ok(Liveness { file, me });
        }
        let error = io::Error::last_os_error();
        Err(match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => io::ErrorKind::AddrInUse.into(),
            _ => error,
        })
    }

    /// Whether this member lives: it has come and has not left.
    pub fn is_alive(&self, member: u32) -> bool {
        if member == self.me {
            return true;
        }
        let mut byte = byte(member);
        // SAFETY: as above; the kernel writes the lock that is in the way to the structure.
        let status = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut byte) };
        // A member that cannot be asked about is not known to be dead.
        status != 0 || i32::from(byte.l_type) != libc::F_UNLCK
    }
}

fn byte(member: u32) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(member),
        l_len: 1,
        // The lock belongs to an open file description, and to no process.
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::segment::{self, PeerAccess};
    use std::os::fd::AsFd;

    #[test]
    fn a_member_lives_until_it_drops_its_byte_and_has_it_alone() {
        let (fd, _mapping) = segment::create("lives", 4096, PeerAccess::Write).unwrap();
        let first = Liveness::claim(fd.as_fd(), 0).unwrap();
        assert!(first.is_alive(0) && !first.is_alive(1), "nobody else has come");
        let second = Liveness::claim(fd.as_fd(), 1).unwrap();
        assert!(first.is_alive(1) && second.is_alive(0) && !second.is_alive(5000));
        assert_eq!(Liveness::claim(fd.as_fd(), 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!second.is_alive(0));
        Liveness::claim(fd.as_fd(), 0).unwrap();
    }
}
