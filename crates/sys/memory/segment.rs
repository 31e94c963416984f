//! Segments: memory shared with other processes, anonymous (memfd), sealed, gone with its last user.
//!
//! No segment has a name in a file system, so `kill -9` leaves nothing behind. Sizes are sealed, so that a
//! mapping can never be cut off under its user (no SIGBUS). Pages are committed before use ([`Mapping::commit`]
//! allocates them with `fallocate`, which fails with ENOSPC/ENOMEM instead of killing us later), so a segment
//! may reserve far more address space than memory.

use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals};
use rustix::fs::{fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create, seek};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::above_stdio;
use crate::os::limits::{check_file_size, name_limits};
use crate::sync::atomic::Shared;

/// Unit in bytes in which [`Mapping::commit`] allocates in large segments: a huge page, so that the kernel can use one.
pub const CHUNK: usize = 2 << 20;
/// Unit in bytes in segments smaller than a chunk.
const PAGE: usize = 4096;
/// Kind of file system of ordinary shared memory.
const SHARED_MEMORY: i64 = libc::TMPFS_MAGIC;

/// Rights of peers in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// Peers can map it read-only, enforced by the kernel (`F_SEAL_FUTURE_WRITE`): an *outbox*.
    Read,
    /// Peers can write it: *control* and *landing* memory.
    Write,
}

impl PeerAccess {
    fn seals(self) -> SealFlags {
        let size = SealFlags::SHRINK | SealFlags::GROW;
        match self {
            PeerAccess::Read => size | SealFlags::FUTURE_WRITE,
            PeerAccess::Write => size,
        }
    }
}

/// A piece of shared memory, mapped into this process.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: a mapping is plain address space; every way to its bytes states its own rules.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Creates a segment of `len` bytes of zeros (no memory is taken yet) and maps it for writing. The descriptor
/// is what peers are given.
///
/// # Errors
/// Errors of the kernel: no descriptors left, no address space. A limit of this process that is in the way is named.
pub fn create(name: &str, len: usize, peers: PeerAccess) -> io::Result<(OwnedFd, Mapping)> {
    check_file_size(len as u64)?;
    let fd = above_stdio(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING))?;
    ftruncate(&fd, len as u64)?;
    // FUTURE_WRITE leaves the mappings that exist writable: map first, then seal.
    let mapping = Mapping::new(fd.as_fd(), len, true)?;
    fcntl_add_seals(&fd, peers.seals() | SealFlags::SEAL)?;
    Ok((fd, mapping))
}

/// Maps a segment that a peer handed over, after checking its properties: ordinary shared memory (no huge pages, of which
/// this host might have none when we touch them), sealed against resizing, of a size within `len`. Nothing of it is touched,
/// and it may have less memory than bytes ([`is_present`]).
///
/// # Errors
/// `InvalidData` when the seals, the size or the kind of memory are wrong; the kernel's otherwise.
pub fn adopt(
    fd: BorrowedFd<'_>,
    len: core::ops::RangeInclusive<usize>,
    peers: PeerAccess,
) -> io::Result<Mapping> {
    let size = check(fd, len, peers)?;
    Mapping::new(fd, size, peers == PeerAccess::Write)
}

/// Checks a segment as [`adopt`] does, without mapping it. Returns its length in bytes.
///
/// # Errors
/// Those of [`adopt`].
pub fn check(
    fd: BorrowedFd<'_>,
    len: core::ops::RangeInclusive<usize>,
    peers: PeerAccess,
) -> io::Result<usize> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let seals = fcntl_get_seals(fd)?;
    if !seals.contains(peers.seals()) {
        return Err(invalid(format!(
            "the peer's segment lacks seals: has {seals:?}, needs {:?}",
            peers.seals()
        )));
    }
    let kind = fstatfs(fd)?.f_type;
    if kind != SHARED_MEMORY {
        return Err(invalid(format!("the peer's segment is no ordinary shared memory (kind {kind:#x})")));
    }
    let size = usize::try_from(fstat(fd)?.st_size).unwrap_or(usize::MAX);
    if !len.contains(&size) {
        return Err(invalid(format!("the peer's segment has {size} bytes, expected {len:?}")));
    }
    Ok(size)
}

/// Whether the system has memory for all of `[start, end)` of a segment: its maker has committed it. A read of an absent page
/// would take memory, on our account. Once memory is there, it stays: a sealed segment ([`PeerAccess::Read`]) cannot be given
/// holes. Costs a look at each page, and no memory. Does not block since Linux 6.5; before, it waits for a maker that is
/// committing memory at the moment.
///
/// # Errors
/// Errors of the kernel.
pub fn is_present(fd: BorrowedFd<'_>, start: usize, end: usize) -> io::Result<bool> {
    if start >= end {
        return Ok(true);
    }
    if let Some(pages) = pages_present(fd, start, end) {
        return Ok(pages >= end.div_ceil(PAGE) - start / PAGE);
    }
    match seek(fd, SeekFrom::Hole(start as u64)) {
        Ok(hole) => Ok(hole >= end as u64),
        // Such a system cannot say (Linux can, since 3.8).
        Err(rustix::io::Errno::INVAL) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Number of pages of `[start, end)`, which is not empty, that the system has: in memory or swapped out (cachestat(2), Linux
/// 6.5). `None` where the system cannot say. Unlike `SEEK_HOLE` it does not take the file's lock, which a maker holds while
/// it commits.
fn pages_present(fd: BorrowedFd<'_>, start: usize, end: usize) -> Option<usize> {
    // The number is the same on every architecture; not every libc crate's target knows it.
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [start as u64, (end - start) as u64];
    // Pages cached, dirty, under writeback, evicted, evicted lately. Evicted pages of shared memory are swapped out.
    let mut counts = [0u64; 5];
    // SAFETY: `struct cachestat_range` is two and `struct cachestat` five 64-bit words, which live during the call.
    let status = unsafe {
        libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0 as libc::c_uint)
    };
    (status == 0).then_some((counts[0] + counts[3]) as usize)
}

/// Reads bytes at `offset` of a segment that its maker may give holes at any moment. A hole reads as zeros; unlike a load
/// from a mapping, this takes no memory for it. Blocks only for the disk to which a page was swapped out.
///
/// # Errors
/// Errors of the kernel; `UnexpectedEof` beyond the segment's end.
pub fn read_at(fd: BorrowedFd<'_>, mut offset: u64, mut to: &mut [u8]) -> io::Result<()> {
    while !to.is_empty() {
        let read = match rustix::io::pread(fd, &mut *to, offset) {
            Err(rustix::io::Errno::INTR) => continue,
            read => read?,
        };
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (to, offset) = (&mut to[read..], offset + read as u64);
    }
    Ok(())
}

impl Mapping {
    /// Maps all of `fd` at an address aligned to [`CHUNK`], so that the kernel can use huge pages, if the system's settings
    /// allow it (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`). `MADV_COLLAPSE` would make huge pages whatever the
    /// settings are. But it holds this process's memory map, and cannot be interrupted, until every processor has run a work
    /// item of the kernel's: seconds, with a busy processor, in which no connection is answered.
    fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        Self::map(fd, len, writable).map_err(name_limits)
    }

    fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "empty segment"));
        }
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        if len < CHUNK {
            // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
            let base = unsafe { mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
            return Ok(Mapping { base: non_null(base), len, writable });
        }
        // SAFETY: reserves fresh address space, one chunk more than needed.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                len + CHUNK,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let skip = reserved.align_offset(CHUNK);
        let base = reserved.wrapping_byte_add(skip);
        // SAFETY: replaces a part of our own reservation, which nobody uses.
        let mapped = unsafe { mmap(base, len, prot, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
        // SAFETY: gives back those parts of the reservation that the mapping did not replace.
        unsafe {
            if skip > 0 {
                munmap(reserved, skip)?;
            }
            let end = base.wrapping_byte_add(if mapped.is_ok() { len } else { 0 });
            let rest = reserved as usize + len + CHUNK - end as usize;
            if rest > 0 {
                munmap(end, rest)?;
            }
        }
        Ok(Mapping { base: non_null(mapped?), len, writable })
    }

    /// Length of the address space in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of `offset`, if `len` bytes from there lie inside. The caller has to know which accesses are allowed.
    #[inline]
    pub fn at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        // SAFETY: `offset <= end <= self.len`, within the mapping.
        (end <= self.len).then(|| unsafe { self.base.add(offset) })
    }

    /// The shared structure at `offset`.
    ///
    /// # Panics
    /// When it would lie outside, be misaligned, or the mapping is read-only: offsets are the program's own
    /// constants, never a peer's.
    pub fn structure<T: Shared>(&self, offset: usize) -> &T {
        let at = self.at(offset as u64, size_of::<T>()).expect("structure inside the mapping").cast::<T>();
        assert!(at.is_aligned() && self.writable, "misaligned or read-only shared structure");
        // SAFETY: in bounds, aligned, zero-initialised by the kernel or written by a peer; `Shared` types are
        // atomics only, so any bytes are valid and concurrent writes are atomic accesses.
        unsafe { at.as_ref() }
    }

    /// The `count` shared structures from `offset` on, one after the other.
    ///
    /// # Panics
    /// Those of [`Mapping::structure`].
    pub fn structures<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let len = count.checked_mul(size_of::<T>()).expect("structures inside the mapping");
        let at = self.at(offset as u64, len).expect("structures inside the mapping").cast::<T>();
        assert!(at.is_aligned() && self.writable, "misaligned or read-only shared structures");
        // SAFETY: as in `structure`, for each of them.
        unsafe { core::slice::from_raw_parts(at.as_ptr(), count) }
    }

    /// Takes memory for `[offset, offset + len)` of this segment and maps it, rounded to whole chunks (pages, in
    /// a segment smaller than a chunk). Memory is taken once and kept. May take a millisecond per chunk.
    ///
    /// # Errors
    /// ENOSPC or ENOMEM when the machine has none left; nothing is half done then that matters.
    pub fn commit(&self, fd: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<()> {
        let unit = if self.len < CHUNK { PAGE } else { CHUNK };
        let start = offset / unit * unit;
        let end = offset.saturating_add(len).next_multiple_of(unit).min(self.len);
        fallocate(fd, FallocateFlags::empty(), start as u64, (end - start) as u64)?;
        if !self.populate(start, end - start) && unit == CHUNK {
            self.touch(start, end - start);
        }
        Ok(())
    }

    /// Reads each page, which [`is_present`] counts from then on: for Linux before 5.14, which cannot populate.
    #[cold]
    fn touch(&self, start: usize, len: usize) {
        for offset in (start..start + len).step_by(PAGE) {
            let Some(at) = self.at(offset as u64, 1) else { return };
            // SAFETY: a byte of our mapping, committed just now: nobody writes there yet, and nobody uses what is read.
            unsafe { at.as_ptr().read_volatile() };
        }
    }

    /// Maps committed pages into this process's page tables. It is an optimisation: a failure (`false`) only means that first
    /// touches fault.
    pub fn populate(&self, start: usize, len: usize) -> bool {
        let Some(at) = self.at(start as u64, len) else { return false };
        let advice = if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: populating pages of our own mapping changes no contents.
        unsafe { madvise(at.as_ptr().cast(), len, advice) }.is_ok()
    }

    /// Populates as [`Mapping::populate`] does, if all pages are in memory at this moment: it takes no memory.
    pub fn populate_resident(&self, start: usize, len: usize) {
        let mut pages = [0u8; CHUNK / PAGE];
        let Some(at) = self.at(start as u64, len).filter(|_| len <= CHUNK) else { return };
        // SAFETY: asks about pages of our own mapping, one byte for each, for which there is room.
        let asked = unsafe { libc::mincore(at.as_ptr().cast(), len, pages.as_mut_ptr()) };
        if asked == 0 && pages[..len.div_ceil(PAGE)].iter().all(|page| page & 1 != 0) {
            self.populate(start, len);
        }
    }
}

/// A shared structure, checked once and kept mapped.
#[derive(Debug)]
pub struct SharedRef<T: Shared> {
    at: NonNull<T>,
    mapping: Arc<Mapping>,
}

// SAFETY: a reference to atomics in memory that the `Arc` keeps mapped.
unsafe impl<T: Shared> Send for SharedRef<T> {}
// SAFETY: as above; `Shared` types are `Sync`.
unsafe impl<T: Shared> Sync for SharedRef<T> {}

impl<T: Shared> SharedRef<T> {
    /// The structure at `offset` of `mapping`.
    ///
    /// # Panics
    /// Those of [`Mapping::structure`].
    pub fn new(mapping: Arc<Mapping>, offset: usize) -> Self {
        let at = NonNull::from(mapping.structure::<T>(offset));
        SharedRef { at, mapping }
    }
}

impl<T: Shared> Clone for SharedRef<T> {
    fn clone(&self) -> Self {
        SharedRef { at: self.at, mapping: self.mapping.clone() }
    }
}

impl<T: Shared> core::ops::Deref for SharedRef<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: checked in `new`, and `mapping` keeps it mapped.
        unsafe { self.at.as_ref() }
    }
}

fn non_null(address: *mut core::ffi::c_void) -> NonNull<u8> {
    NonNull::new(address.cast()).expect("the kernel does not map page zero")
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; users of its addresses hold this object alive.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};
    use rustix::io::Errno;

    #[test]
    fn both_sides_see_the_same_words() {
        let (fd, ours) = create("test", 8192, PeerAccess::Write).unwrap();
        let theirs = adopt(fd.as_fd(), 8192..=8192, PeerAccess::Write).unwrap();
        ours.structure::<AtomicU64>(64).store(42, Ordering::Release);
        assert_eq!(theirs.structure::<AtomicU64>(64).load(Ordering::Acquire), 42);
        theirs.structure::<AtomicU64>(4096).store(43, Ordering::Release);
        assert_eq!(ours.structure::<AtomicU64>(4096).load(Ordering::Acquire), 43);
    }

    #[test]
    fn an_outbox_can_only_be_read_by_others() {
        let (fd, ours) = create("outbox", 4 * CHUNK, PeerAccess::Read).unwrap();
        ours.commit(fd.as_fd(), CHUNK, 100).unwrap();
        assert!(adopt(fd.as_fd(), 1..=usize::MAX, PeerAccess::Read).is_ok());
        assert!(Mapping::new(fd.as_fd(), 4 * CHUNK, true).is_err(), "the seal forbids it");
        assert!(ours.at(0, 0).unwrap().as_ptr().addr().is_multiple_of(CHUNK));
    }

    #[test]
    fn unsealed_or_odd_segments_are_refused() {
        let fd = memfd_create("raw", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let error = adopt(fd.as_fd(), 1..=8192, PeerAccess::Write).unwrap_err();
        assert!(error.to_string().contains("seals"), "{error}");
        let (fd, _) = create("small", 4096, PeerAccess::Write).unwrap();
        let error = adopt(fd.as_fd(), 8192..=8192, PeerAccess::Write).unwrap_err();
        assert!(error.to_string().contains("4096 bytes"), "{error}");
        assert!(adopt(fd.as_fd(), 4096..=4096, PeerAccess::Read).is_err(), "not sealed against writers");
        let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(fd) = memfd_create("huge", huge) else { return println!("skipped: no huge pages here") };
        ftruncate(&fd, CHUNK as u64).unwrap();
        fcntl_add_seals(&fd, PeerAccess::Read.seals()).unwrap();
        let error = adopt(fd.as_fd(), CHUNK..=CHUNK, PeerAccess::Read).unwrap_err();
        assert!(error.to_string().contains("no ordinary shared memory"), "{error}");
    }

    #[test]
    fn what_is_committed_is_present_and_nothing_else() {
        let (fd, ours) = create("sparse", 4 * CHUNK, PeerAccess::Read).unwrap();
        let present = |start, end| is_present(fd.as_fd(), start, end).unwrap();
        assert!(!present(0, 1) && !present(3 * CHUNK, 4 * CHUNK));
        ours.commit(fd.as_fd(), CHUNK, 1).unwrap();
        assert!(present(CHUNK, 2 * CHUNK) && !present(CHUNK, 2 * CHUNK + 1) && !present(0, CHUNK + 1));
        let theirs = adopt(fd.as_fd(), 1..=usize::MAX, PeerAccess::Read).unwrap();
        (0..4).for_each(|chunk| theirs.populate_resident(chunk * CHUNK, CHUNK));
        assert!(!present(0, 1) && !present(2 * CHUNK, 2 * CHUNK + 1), "looking takes no memory");
        ours.touch(2 * CHUNK, CHUNK);
        assert!(present(CHUNK, 3 * CHUNK));
        ours.commit(fd.as_fd(), 3 * CHUNK, CHUNK).unwrap();
        assert!(present(CHUNK, 4 * CHUNK), "up to the end");
    }

    #[test]
    fn what_is_read_of_a_hole_takes_no_memory() {
        let (fd, ours) = create("sparse", 4 * CHUNK, PeerAccess::Write).unwrap();
        ours.commit(fd.as_fd(), CHUNK, 1).unwrap();
        ours.structure::<AtomicU64>(2 * CHUNK - 8).store(u64::MAX, Ordering::Relaxed);
        let mut read = [7; 64];
        read_at(fd.as_fd(), 2 * CHUNK as u64 - 8, &mut read).unwrap();
        assert_eq!((&read[..8], &read[8..]), (&[0xff; 8][..], &[0; 56][..]));
        assert!(!is_present(fd.as_fd(), 2 * CHUNK, 2 * CHUNK + 1).unwrap());
        let beyond = read_at(fd.as_fd(), 4 * CHUNK as u64 - 8, &mut read).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_look_does_not_wait_for_a_maker_that_commits() {
        const CHUNKS: usize = 64;
        let (fd, ours) = create("busy", CHUNKS * CHUNK, PeerAccess::Write).unwrap();
        ours.commit(fd.as_fd(), 0, 1).unwrap();
        if pages_present(fd.as_fd(), 0, 1).is_none() {
            return println!("skipped: this kernel has no cachestat (Linux 6.5)");
        }
        let (all, done) = (CHUNK..CHUNKS * CHUNK, AtomicU64::new(0));
        let has = |at: usize| pages_present(fd.as_fd(), at, at + 1) == Some(1);
        let of_all = |flags| fallocate(&fd, flags, all.start as u64, (all.end - all.start) as u64);
        // Returns whether a check was over while the maker was committing: not in each round, on a busy machine, but in one.
        let round = || {
            done.store(0, Ordering::SeqCst);
            std::thread::scope(|scope| {
                let maker = scope.spawn(|| {
                    let made = of_all(FallocateFlags::empty());
                    done.store(1, Ordering::SeqCst);
                    made
                });
                while !has(all.start) && done.load(Ordering::SeqCst) == 0 {}
                assert!(is_present(fd.as_fd(), 0, 1).unwrap());
                let over = !has(all.end - 1);
                maker.join().unwrap().map(|()| over)
            })
        };
        for _ in 0..200 {
            match round() {
                Err(Errno::NOSPC | Errno::NOMEM) => {
                    return println!("skipped: {} MiB of shared memory are not to be had", all.end >> 20);
                }
                over if over.unwrap() => return,
                _ => of_all(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE).unwrap(),
            }
        }
        panic!("each look waited for the maker");
    }

    #[test]
    fn bounds_hold_for_any_offset() {
        let (_fd, ours) = create("bounds", 4096, PeerAccess::Write).unwrap();
        assert!(ours.at(0, 4096).is_some() && ours.at(4096, 0).is_some());
        for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, usize::MAX), (u64::MAX, usize::MAX)] {
            assert!(ours.at(offset, len).is_none(), "{offset} {len}");
        }
    }
}
