//! Memory of this process's arenas: the segments of the outbox and of the landing arena.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use udeck_sys::segment::{self, CHUNK, Mapping, PeerAccess};
use udeck_via::mem::{Arena, Backing};
use udeck_via::{Error, Result};

/// Upper bound of an arena's length in bytes, for ours and for those of peers that we map. The two processes agree
/// on it by [`crate::peer_socket_wire::VERSION`].
pub(crate) const MAX_ARENA: usize = 1 << 40;

const REMEDY: &str = "post less at a time, drop received messages sooner, or raise DECK_ARENA";

/// The outbox, from which this process sends its messages, and the landing arena, which peers write. Each device has
/// its own arenas, unless several devices are opened over the same ones.
#[derive(Clone, Debug)]
pub struct Arenas {
    pub(crate) outbox: Segment,
    pub(crate) landing: Segment,
}

impl Arenas {
    /// Reserves two arenas of at most `limit` bytes each. The kernel gives memory to them only as it is needed.
    ///
    /// # Errors
    /// The operating system's: no descriptors, no address space, no memfd.
    pub fn new(limit: usize) -> Result<Self> {
        Ok(Arenas { outbox: Segment::outbox(limit)?, landing: Segment::landing(limit)? })
    }
}

/// One of our arenas, with the file descriptor that is passed to peers.
#[derive(Clone, Debug)]
pub struct Segment {
    pub arena: Arc<Arena>,
    memory: Memory,
}

#[derive(Clone, Debug)]
struct Memory {
    fd: Arc<OwnedFd>,
    mapping: Arc<Mapping>,
}

// SAFETY: a shared mapping of our own segment, page-aligned, zeroed by the kernel; in this process only the arena
// hands out its addresses. (Peers read the outbox, and write the landing, for which the arena makes no slices.)
unsafe impl Backing for Memory {
    fn base(&self) -> NonNull<u8> {
        self.mapping.at(0, 0).expect("offset 0 is inside")
    }
    fn len(&self) -> usize {
        self.mapping.len()
    }
    fn commit(&self, offset: usize, len: usize) -> io::Result<()> {
        self.mapping.commit(self.fd.as_fd(), offset, len)
    }
}

impl Segment {
    /// Creates the outbox: messages are sent from it.
    pub fn outbox(limit: usize) -> Result<Self> {
        Self::new("outbox", limit, PeerAccess::Read)
    }

    /// Creates the landing arena: peers write it.
    pub fn landing(limit: usize) -> Result<Self> {
        Self::new("landing", limit, PeerAccess::Write)
    }

    fn new(name: &'static str, limit: usize, peers: PeerAccess) -> Result<Self> {
        if limit > MAX_ARENA {
            let what = format!("a {name} arena of {limit} bytes: at most {MAX_ARENA} (1 TiB) are possible");
            return Err(Error::InvalidParameter(what));
        }
        let len = limit.next_multiple_of(CHUNK);
        let (fd, mapping) = segment::create(&format!("udeck-{name}"), len, peers).map_err(|e| {
            let what =
                format!("reserving {len} bytes of address space for the {name} arena (see DECK_ARENA)");
            Error::os(what, e)
        })?;
        let memory = Memory { fd: Arc::new(fd), mapping: Arc::new(mapping) };
        let arena = Arena::new(name, REMEDY, peers == PeerAccess::Write, Box::new(memory.clone()));
        Ok(Segment { arena: Arc::new(arena), memory })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd.as_fd()
    }

    /// Commits all memory of the segment, as if all of it had been lent once.
    #[cfg(test)]
    pub fn commit_all(&self) {
        self.memory.commit(0, self.memory.len()).unwrap();
    }

    /// The address of a piece of the segment.
    pub fn at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        self.memory.mapping.at(offset, len)
    }
}

/// Lower bound of an arena in bytes when resource limits of the process make it smaller.
const LEAST: u64 = 16 << 20;

/// Returns half of the machine's memory, at most 4 GiB. Resource limits of this process make it less: an arena
/// counts as a file (`RLIMIT_FSIZE`), and the arenas of all `ranks` of the host take at most half of this process's
/// address space (`RLIMIT_AS`).
pub fn default_limit(ranks: usize) -> usize {
    let share = udeck_sys::spare_address_space().map(|spare| (spare / 4 / ranks as u64).max(LEAST));
    let longest = udeck_sys::longest_file().map(|longest| longest.max(CHUNK as u64));
    let bounds = share.into_iter().chain(longest).map(|most| most as usize / CHUNK * CHUNK);
    bounds.fold(unlimited(), usize::min)
}

fn unlimited() -> usize {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<usize>().ok())
        .unwrap_or(1 << 20);
    (total_kib * 512).clamp(64 << 20, 4 << 30)
}
