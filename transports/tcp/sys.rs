//! System calls on memory that no slice may be made of: a peer or the program may be writing there.

#![allow(unsafe_code, reason = "system calls that rustix lacks")]

use std::cell::RefCell;
use std::io;
use std::mem::{align_of, offset_of, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::RecvFlags;
use udeck_session::{Direct, Outstanding, Piece, PieceMut, Pieces};

/// Size in bytes of the buffer for data around the pieces that are read in place.
const SCRATCH: usize = 64 << 10;

/// `udeck-session` promises pieces that are laid out as C's `struct iovec`.
const _: () = {
    assert!(size_of::<Piece<'_>>() == size_of::<libc::iovec>());
    assert!(size_of::<PieceMut>() == size_of::<libc::iovec>());
    assert!(align_of::<Piece<'_>>() == align_of::<libc::iovec>());
    assert!(offset_of!(PieceMut, at) == offset_of!(libc::iovec, iov_base));
    assert!(offset_of!(PieceMut, len) == offset_of!(libc::iovec, iov_len));
};

thread_local! {
    /// Read buffer: one for each thread that reads, not for each connection.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// Number of segments that the kernel has retransmitted on this connection.
pub fn retransmitted(socket: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: `tcp_info` is a plain structure of the kernel, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let at = (&raw mut info).cast();
    // SAFETY: `at` points to `length` writable bytes, and the kernel writes no more.
    match unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut length)
    } {
        0 => Ok(u64::from(info.tcpi_total_retrans)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends the bytes of `pieces`, as far as there is room. Never waits.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is no room; otherwise the kernel's error.
pub fn send(socket: BorrowedFd<'_>, pieces: &Pieces<'_>) -> io::Result<usize> {
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    let sent = match pieces.as_slice() {
        // A small message has one piece, and `send` is a shorter way through the kernel.
        // SAFETY: the connection keeps the piece readable while it is borrowed; the kernel copies it.
        [one] => unsafe { libc::send(fd, one.at.cast(), one.len, flags) },
        many => {
            // SAFETY: a header of zeros is an empty one.
            let mut header: libc::msghdr = unsafe { zeroed() };
            header.msg_iov = many.as_ptr().cast_mut().cast();
            header.msg_iovlen = many.len() as _;
            // SAFETY: as above, for each piece; the list lies on our stack, laid out as the kernel wants it, and is only
            // read.
            unsafe { libc::sendmsg(fd, &header, flags) }
        }
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Result of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// Fewer bytes than there was room for: at that moment there were no more.
    All,
    /// All the room was filled: there may be more bytes.
    Some,
    /// The stream has ended.
    End,
}

/// Reads into `direct`'s pieces, and the bytes before and behind them into a buffer. Gives `on_read` the buffer and
/// the number of bytes in the pieces. Never waits. With `peek` the bytes stay with the kernel, too ([`consume`]).
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there are no bytes; otherwise the kernel's error.
#[inline]
pub fn receive(
    socket: BorrowedFd<'_>,
    peek: bool,
    direct: Direct,
    on_read: impl FnOnce(Direct, usize, &[u8]),
) -> io::Result<Read> {
    let mut work = Some((direct, on_read));
    // The thread may be ending and its buffer gone, or the buffer is in use: `on_read` drops things whose code may
    // do anything.
    let in_buffer = BUFFER.try_with(|buffer| {
        let mut buffer = buffer.try_borrow_mut().ok()?;
        let (direct, on_read) = work.take()?;
        Some(receive_by(socket, peek, direct, &mut buffer, on_read))
    });
    match (in_buffer, work) {
        (Ok(Some(result)), _) => result,
        (_, Some((direct, on_read))) => receive_by(socket, peek, direct, &mut [0; 4096], on_read),
        (_, None) => unreachable!("it was taken to be used"),
    }
}

/// Reads into the buffer alone, otherwise as [`receive`].
///
/// # Errors
/// The errors of [`receive`].
#[inline]
pub fn receive_beside(socket: BorrowedFd<'_>, peek: bool, on_read: impl FnOnce(&[u8])) -> io::Result<Read> {
    let mut work = Some(on_read);
    let in_buffer = BUFFER.try_with(|buffer| {
        let mut buffer = buffer.try_borrow_mut().ok()?;
        Some(receive_beside_by(socket, peek, &mut buffer, work.take()?))
    });
    match (in_buffer, work) {
        (Ok(Some(result)), _) => result,
        (_, Some(on_read)) => receive_beside_by(socket, peek, &mut [0; 4096], on_read),
        (_, None) => unreachable!("it was taken to be used"),
    }
}

#[inline]
fn receive_beside_by(
    socket: BorrowedFd<'_>,
    peek: bool,
    scratch: &mut [u8],
    on_read: impl FnOnce(&[u8]),
) -> io::Result<Read> {
    let len = read_beside(socket, peek, scratch)?;
    if len == 0 {
        return Ok(Read::End);
    }
    on_read(&scratch[..len]);
    Ok(if len < scratch.len() { Read::All } else { Read::Some })
}

#[inline]
fn receive_by(
    socket: BorrowedFd<'_>,
    peek: bool,
    direct: Direct,
    scratch: &mut [u8],
    on_read: impl FnOnce(Direct, usize, &[u8]),
) -> io::Result<Read> {
    let (room, in_place) = (direct.len() + scratch.len(), direct.len());
    let len = match in_place {
        0 => read_beside(socket, peek, scratch)?,
        _ => read_into(socket, &direct, scratch)?,
    };
    if len == 0 {
        return Ok(Read::End);
    }
    let filled = len.saturating_sub(direct.before()).min(in_place);
    on_read(direct, filled, &scratch[..len - filled]);
    Ok(if len < room { Read::All } else { Read::Some })
}

/// Takes peeked bytes out of the kernel's queue. The kernel may then acknowledge them, and does so before this returns.
///
/// # Errors
/// The kernel's error.
pub fn consume(socket: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: TCP discards the bytes that are read with this flag, and writes none.
    let taken = unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), len, flags) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Reads by a bare system call. The C library's `recv` is prepared for threads that are cancelled, which takes
/// longer than the code around it.
#[inline]
fn read_beside(socket: BorrowedFd<'_>, peek: bool, scratch: &mut [u8]) -> io::Result<usize> {
    let flags = if peek { RecvFlags::DONTWAIT | RecvFlags::PEEK } else { RecvFlags::DONTWAIT };
    Ok(rustix::net::recv(socket, scratch, flags)?.0)
}

fn read_into(socket: BorrowedFd<'_>, direct: &Direct, scratch: &mut [u8]) -> io::Result<usize> {
    let pieces = direct.pieces().iter().map(|piece| (piece.at, piece.len));
    let (before, behind) = scratch.split_at_mut(direct.before());
    let before = Some((before.as_mut_ptr(), before.len())).filter(|(_, len)| *len > 0);
    let nowhere = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut list = [nowhere; Direct::MOST + 2];
    let mut used = 0;
    for (at, len) in before.into_iter().chain(pieces).chain([(behind.as_mut_ptr(), behind.len())]) {
        list[used] = libc::iovec { iov_base: at.cast(), iov_len: len };
        used += 1;
    }
    // SAFETY: a header of zeros is an empty one.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = used as _;
    // SAFETY: `direct` keeps its pieces writable while it lives, and lets no slice of them exist; the first and the
    // last piece are of our slice.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Kernel counters about a connection's peer.
#[derive(Debug, Clone, Copy)]
pub struct Liveness {
    /// Data were sent, or wait to be sent, that the peer's host has not confirmed.
    pub outstanding: bool,
    /// Milliseconds since the peer's host last sent anything.
    pub silent: u32,
    /// Unanswered tries in a row.
    pub unanswered: u8,
}

/// # Errors
/// The kernel's error.
pub fn liveness(socket: BorrowedFd<'_>) -> io::Result<Liveness> {
    // SAFETY: a plain structure of numbers.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `len` bytes into our structure.
    let failed = unsafe {
        let to = std::ptr::from_mut(&mut info).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &mut len)
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Liveness {
        outstanding: info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0,
        silent: info.tcpi_last_ack_recv,
        unanswered: info.tcpi_retransmits.max(info.tcpi_probes),
    })
}

/// Bytes of a socket's stream that the kernel holds. A socket that cannot tell any more holds none.
pub fn outstanding(socket: impl AsFd) -> Outstanding {
    Outstanding { all: bytes(socket.as_fd(), libc::TIOCOUTQ), unsent: bytes(socket.as_fd(), SIOCOUTQNSD) }
}

/// Value from `linux/sockios.h`.
const SIOCOUTQNSD: libc::Ioctl = 0x894b;

fn bytes(socket: BorrowedFd<'_>, what: libc::Ioctl) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one `int`, to where we say.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut bytes) };
    if failed == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}
