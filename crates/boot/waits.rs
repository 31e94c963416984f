//! Waits of a rank's calls, published where its launcher can read them, whatever the rank does or no longer
//! does.
//!
//! The launcher gives each rank a page of shared memory of its own ([`Page`]). A call that has waited for
//! [`LONG`] writes the awaited ranks there ([`Waits::publish`]), and removes them when it ends. A shorter wait
//! writes nothing: no message pays for this. The rank alone writes the page, by a system call. The launcher
//! keeps it mapped (a descriptor for each rank would be too many), and reads it when it is asked. Neither ever
//! waits for the other, a rank that hangs can be read like one that answers, and a rank can write wrong data
//! about itself only. The layout, and the checks of the reader, are in `wire.rs`.

mod wire;

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{
    io::{pread, pwrite},
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};
use udeck_sys::{
    atomic::AtomicU64,
    process::is_forked,
    segment::{self, Mapping, PeerAccess},
};

use crate::wire::bounded;

/// Time after which a wait is published: by then the wait sleeps, and the cost does not matter.
pub const LONG: Duration = Duration::from_millis(100);

/// Maximum number of a process's published waits: further waiting threads are not seen.
pub const MAX_WAITS: usize = wire::SLOTS;

/// Maximum number of ranks that a wait names.
pub const MAX_AWAITED: usize = wire::MAX_RANKS;

/// Maximum number of reads of a slot that its owner is writing at the same moment.
const READS: usize = 3;

/// Kind of a waiting call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Call {
    /// A post, or the handle of one.
    Post,
    /// A wait until all posted messages have been read.
    Flush,
    /// A retrieve.
    Retrieve,
    /// A selection among mailboxes.
    Select,
    /// The barrier of all ranks.
    Barrier,
    /// Another collective call, which the name says.
    Collective,
    /// A wait for a mailbox to be made.
    Find,
    /// A wait for a connection to a mailbox.
    Connect,
    /// A wait for message memory to come back.
    Memory,
    /// A wait for an answer of the launcher.
    Launcher,
    /// A wait for receivers, at the end.
    Finish,
    /// A wait for a shared segment or a semaphore to be made, and for all ranks that share it to come.
    Share,
    /// A wait for the lock of a shared segment.
    Lock,
    /// A wait for a permit of a semaphore.
    Acquire,
}

/// A waiting call: its name for the user, and the ranks that can end it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wait {
    /// The kind of call.
    pub call: Call,
    /// The mailbox's name, or the shared segment's; empty if there is none. A rank's bytes may be any text of
    /// at most 200 bytes.
    pub name: String,
    /// Ranks of which any could end the wait, as far as they are known: at most [`MAX_AWAITED`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_AWAITED>")]
    pub ranks: Vec<u32>,
    /// Whether ranks that are not named could end it, too.
    pub open: bool,
}

/// A wait, and how long it has lasted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The wait.
    pub wait: Wait,
    /// Its duration so far, in milliseconds.
    pub for_ms: u64,
}

/// Publishes a rank's waits. Cheap to clone; without a launcher's page it writes nothing.
#[derive(Clone, Default)]
pub struct Waits(Option<Arc<Own>>);

struct Own {
    page: OwnedFd,
    /// Slots in use.
    taken: Mutex<[bool; MAX_WAITS]>,
    serial: AtomicU32,
}

/// A published wait. Dropping it removes it from the page.
#[must_use]
pub struct Entry {
    own: Arc<Own>,
    slot: usize,
}

/// A rank's page, mapped by its launcher.
#[derive(Debug)]
pub struct Page(Mapping);

type Words = [AtomicU64; wire::PAGE / size_of::<u64>()];

impl Waits {
    /// Opens the page whose descriptor the launcher has written into the environment as `number`.
    pub(crate) fn inherited(number: &str) -> Result<Waits, String> {
        let page = udeck_sys::inherited_segment(number, wire::PAGE)?;
        let own = Own { page, taken: Mutex::default(), serial: AtomicU32::new(0) };
        let mut head = [0; wire::HEADER];
        let read = pread(&own.page, &mut head, 0).map_err(|error| error.to_string())?;
        wire::check_header(&head[..read])?;
        // A failure only means that the launcher sees nothing of this rank.
        let _ = pwrite(&own.page, &std::process::id().to_le_bytes(), wire::JOINED as u64);
        Ok(Waits(Some(Arc::new(own))))
    }

    /// Publishes a wait that has lasted `lasted`. Returns `None` if there is no page, or no free slot.
    pub fn publish(&self, wait: &Wait, lasted: Duration) -> Option<Entry> {
        let own = self.0.as_ref().filter(|_| !is_forked())?;
        let slot = {
            let mut taken = own.taken.lock();
            let slot = taken.iter().position(|taken| !taken)?;
            taken[slot] = true;
            slot
        };
        let serial = own.serial.fetch_add(1, Ordering::Relaxed) | 1;
        let since = monotonic().saturating_sub(lasted.as_nanos() as u64);
        let _ = pwrite(&own.page, &wire::encode(wait, since, serial), wire::offset(slot));
        Some(Entry { own: Arc::clone(own), slot })
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits").field("is_read", &self.0.is_some()).finish()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The page belongs to the parent.
        if is_forked() {
            return;
        }
        let _ = pwrite(&self.own.page, &wire::FREE, wire::offset(self.slot));
        self.own.taken.lock()[self.slot] = false;
    }
}

impl Page {
    /// Makes a page, and the descriptor that the rank inherits.
    ///
    /// # Errors
    /// The kernel's: no descriptors left, no memory.
    pub fn new() -> io::Result<(Page, OwnedFd)> {
        // The size is sealed: a rank can take no memory by it.
        let (fd, mapping) = segment::create("udeck-waits", wire::PAGE, PeerAccess::Write)?;
        mapping.commit(fd.as_fd(), 0, wire::PAGE)?;
        pwrite(&fd, &wire::header(), 0)?;
        Ok((Page(mapping), fd))
    }

    /// Returns the number of the process by which the rank has joined its job, as written by the rank, and its
    /// waits that have lasted [`LONG`], the oldest first.
    pub fn read(&self) -> (Option<u32>, Vec<Published>) {
        let joined = wire::joined(&self.bytes(0));
        let now = monotonic();
        let slots = (0..MAX_WAITS).filter_map(|slot| self.slot(slot));
        let mut waits: Vec<_> = slots
            .map(|(wait, since)| Published { wait, for_ms: now.saturating_sub(since) / 1_000_000 })
            .collect();
        waits.sort_by_key(|published| std::cmp::Reverse(published.for_ms));
        (joined, waits)
    }

    fn slot(&self, slot: usize) -> Option<(Wait, u64)> {
        (0..READS).find_map(|_| wire::decode(&self.bytes(wire::offset(slot) as usize)))
    }

    /// Copies bytes of the page as they are at this moment, word by word.
    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let words: &Words = self.0.structure(0);
        let mut bytes = [0; N];
        for (place, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(&words[offset / size_of::<u64>()..])
        {
            place.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        bytes
    }
}

/// Returns nanoseconds of the clock that all processes of a host share.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(page: OwnedFd) -> Waits {
        Waits(Some(Arc::new(Own { page, taken: Mutex::default(), serial: AtomicU32::new(0) })))
    }

    fn wait(name: &str) -> Wait {
        Wait { call: Call::Post, name: name.into(), ranks: vec![1], open: false }
    }

    #[test]
    fn what_waits_is_read_for_as_long_as_it_waits_the_oldest_first() {
        let (page, fd) = Page::new().unwrap();
        let waits = own(fd);
        assert_eq!(page.read(), (None, Vec::new()));
        let young = waits.publish(&wait("young"), LONG).unwrap();
        let old = waits.publish(&wait("old"), Duration::from_secs(7)).unwrap();
        let (_, seen) = page.read();
        assert_eq!(seen.iter().map(|seen| &seen.wait).collect::<Vec<_>>(), [&wait("old"), &wait("young")]);
        assert!((7000..600_000).contains(&seen[0].for_ms), "{seen:?}");
        drop((young, old));
        assert_eq!(page.read().1, []);
    }

    #[test]
    fn more_waits_than_places_are_not_seen_and_places_are_used_again() {
        let (page, fd) = Page::new().unwrap();
        let waits = own(fd);
        let mut entries: Vec<_> = (0..MAX_WAITS).map(|_| waits.publish(&wait("a"), LONG).unwrap()).collect();
        assert!(waits.publish(&wait("b"), LONG).is_none());
        drop(entries.remove(3));
        let _again = waits.publish(&wait("b"), LONG).unwrap();
        assert_eq!(page.read().1.len(), MAX_WAITS);
    }

    #[test]
    fn without_a_page_nothing_is_written() {
        assert!(Waits::default().publish(&wait("a"), LONG).is_none());
    }

    #[test]
    fn a_rank_cannot_make_its_page_larger() {
        let (_page, fd) = Page::new().unwrap();
        assert!(pwrite(&fd, &[1], wire::PAGE as u64).is_err());
    }
}
