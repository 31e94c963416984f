//! Shared memory that several processes of a host use together: a segment with a head, a row for each process (its
//! *members*), and data.
//!
//! ```text
//! 0        head: lock, events, kind              64 bytes and more
//! head     a row for each member                 64 bytes each
//! page     data                                  from the next page on
//! ```
//!
//! The data are used in one of two ways, which is chosen when the segment is made, and is the same for all: element by
//! element ([`SharedMemory::elements`]: relaxed atomic accesses only), or by the holder of the lock
//! ([`SharedMemory::try_lock`]: a slice). The two are never mixed, because a slice must not change while it exists.
//!
//! The lock holder's slice is the only reference to memory that a peer can write. It rests on trust, in the sense of
//! SAFETY.md: a member does not write data that it was told to leave. A program that does not trust its peers copies
//! ([`LockGuard::copy_to`]).

use core::ptr::NonNull;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::memory::copy::{copy_in, copy_out};
use crate::memory::elements::Elements;
use crate::memory::segment::{self, Mapping, PeerAccess};
use crate::os::closer::PassedFd;
use crate::os::liveness::Liveness;
use crate::sync::atomic::Ordering;
use crate::sync::event_count::EventCount;
use crate::sync::member_table::{Head, MemberState, MemberTable, Row};
use crate::sync::robust_lock::Abandoned;
use crate::{os::futex, os::process};

const PAGE: usize = 4096;
/// Longest segment in bytes: as long as any arena may be.
const MAX_LEN: usize = 1 << 40;

/// Use of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedUse {
    /// Element by element.
    Elements = 1,
    /// By the holder of the lock.
    Locked = 2,
}

/// A member's view of a shared segment. When it is dropped, the member has left.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Mapping,
    liveness: Liveness,
    kind: SharedUse,
    members: u32,
    me: u32,
    data: Range<usize>,
}

impl SharedMemory {
    /// Makes a segment with `len` bytes of zeros, for `members` members, of which this process is `me`. The memory is taken
    /// at once. The descriptor is for the other members.
    ///
    /// # Errors
    /// Errors of the kernel: no descriptors, no memory, no `/proc`. `InvalidInput`: longer than a segment can be.
    pub fn create(kind: SharedUse, members: u32, me: u32, len: usize) -> io::Result<(OwnedFd, Self)> {
        let (data, whole) = layout(members, len).ok_or(io::ErrorKind::InvalidInput)?;
        let (fd, mapping) = segment::create("udeck-shared", whole, PeerAccess::Write)?;
        mapping.commit(fd.as_fd(), 0, whole)?;
        mapping.structure::<Head>(0).kind.store(kind as u32, Ordering::Release);
        let memory = Self::join(&fd, mapping, kind, members, me, data)?;
        Ok((fd, memory))
    }

    /// Attaches to a segment that another process has made and passed, with the same arguments.
    ///
    /// # Errors
    /// `InvalidData`: it is something else. `AddrInUse`: another process claims to be this member.
    pub fn attach(passed: PassedFd, kind: SharedUse, members: u32, me: u32, len: usize) -> io::Result<Self> {
        let (data, whole) = layout(members, len).ok_or(io::ErrorKind::InvalidInput)?;
        let (fd, mapping) = passed.adopt(whole..=whole, PeerAccess::Write)?;
        if mapping.structure::<Head>(0).kind.load(Ordering::Acquire) != kind as u32 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is a segment for another use"));
        }
        Self::join(&fd, mapping, kind, members, me, data)
    }

    fn join(
        fd: &OwnedFd,
        mapping: Mapping,
        kind: SharedUse,
        members: u32,
        me: u32,
        data: Range<usize>,
    ) -> io::Result<Self> {
        assert!(me < members, "a member's number is below their count");
        let liveness = Liveness::claim(fd.as_fd(), me)?;
        let memory = SharedMemory { mapping, liveness, kind, members, me, data };
        memory.table().rows[me as usize].set_state(MemberState::Present);
        Ok(memory)
    }

    /// Number of this member.
    pub fn me(&self) -> u32 {
        self.me
    }

    /// Number of members.
    pub fn members(&self) -> u32 {
        self.members
    }

    /// Head and rows of the segment.
    #[inline]
    pub fn table(&self) -> MemberTable<'_> {
        let rows = self.mapping.structures::<Row>(size_of::<Head>(), self.members as usize);
        MemberTable { head: self.mapping.structure(0), rows }
    }

    /// State of a member: [`MemberState::Present`] if it has come, has not left, and lives. `None`: it came, and is dead.
    pub fn state(&self, member: u32) -> Option<MemberState> {
        let row = &self.table().rows[member as usize];
        match row.state() {
            // The order matters: a leaving member changes its state before it gives up its byte.
            MemberState::Present if !self.liveness.is_alive(member) => match row.state() {
                MemberState::Present => None,
                state => Some(state),
            },
            state => Some(state),
        }
    }

    /// Access to the data by elements.
    ///
    /// # Panics
    /// If the segment is used under the lock.
    #[inline]
    pub fn elements(&self) -> Elements<'_> {
        assert!(
            self.kind == SharedUse::Elements,
            "the data of this segment belong to the holder of its lock"
        );
        Elements::new(&self.mapping, self.data.clone())
    }

    /// Takes the lock if it is free. `contended`: this call has slept on it.
    #[inline]
    pub fn try_lock(&self, contended: bool) -> Option<LockGuard<'_>> {
        self.table().head.lock.try_lock(self.me, contended).then(|| self.guard())
    }

    /// The member that holds the lock.
    pub fn lock_holder(&self) -> Option<u32> {
        self.table().head.lock.holder().filter(|holder| *holder < self.members)
    }

    /// Takes the lock away from its holder, if that member is dead, or has left. In the latter case it has leaked its guard,
    /// which cannot be used any more, because a guard borrows the segment.
    pub fn steal_lock(&self) -> Option<LockGuard<'_>> {
        let has_ended = |member: &u32| matches!(self.state(*member), None | Some(MemberState::Left));
        let dead = self.lock_holder().filter(has_ended)?;
        self.table().head.lock.steal(self.me, dead).then(|| self.guard())
    }

    /// Makes the guard of a lock that this member has just taken.
    #[inline]
    fn guard(&self) -> LockGuard<'_> {
        LockGuard { memory: self, unwinding: std::thread::panicking() }
    }

    /// Sleeps while the lock is held, at most `limit`.
    pub fn sleep_on_lock(&self, limit: Duration) {
        let lock = &self.table().head.lock;
        if let Some(held) = lock.prepare_sleep() {
            futex::sleep(lock.word(), held, limit);
        }
    }

    /// Sleeps until `events` is raised beyond `seen`, at most `limit`.
    pub fn sleep_on(&self, events: &EventCount, seen: u32, limit: Duration) {
        events.begin_sleep();
        futex::sleep(events.word(), seen, limit);
        events.end_sleep();
    }

    /// Gives back a permit that this member holds, and wakes one waiter for it.
    pub fn give_permit(&self) {
        let table = self.table();
        if table.give_permit(self.me) {
            futex::wake_one(table.head.permits.word());
        }
    }

    /// Raises `events`, and wakes the threads that sleep on them.
    pub fn raise(&self, events: &EventCount) {
        if events.raise() {
            futex::wake(events.word());
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // In a forked child the rows are the parent's.
        if process::is_forked() {
            return;
        }
        let table = self.table();
        table.rows[self.me as usize].set_state(MemberState::Left);
        // Waiters for this member check again.
        self.raise(&table.head.barriers);
        self.raise(&table.head.permits);
    }
}

/// Byte range of the data, and length of the segment in bytes.
fn layout(members: u32, len: usize) -> Option<(Range<usize>, usize)> {
    let head = size_of::<Head>() + members as usize * size_of::<Row>();
    let start = head.next_multiple_of(PAGE);
    let end = start.checked_add(len).filter(|end| *end <= MAX_LEN)?;
    Some((start..end, end.next_multiple_of(PAGE)))
}

/// Guard of the lock. When dropped, the lock is free; when dropped by a panic, it is abandoned, too.
#[derive(Debug)]
pub struct LockGuard<'a> {
    memory: &'a SharedMemory,
    /// Whether the thread was unwinding before it took the lock: unwinding at the drop then says nothing about the data.
    unwinding: bool,
}

impl LockGuard<'_> {
    /// The member that left the data half written, perhaps.
    #[inline]
    pub fn abandoned(&self) -> Option<Abandoned> {
        self.memory.table().head.lock.abandoned()
    }

    /// Marks the data as whole again.
    pub fn repair(&mut self) {
        self.memory.table().head.lock.repair();
    }

    /// The data, at the start of a page.
    ///
    /// # Panics
    /// This and the next three: if the segment is used by elements, or its lock is a semaphore's.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let at = self.data_at();
        // SAFETY: mapped for as long as the segment lives, which outlives the guard. Nobody else writes: in this process and in others
        // the data are reached only by who has the lock (`Locked`), and a lock is taken away from the dead only. A member that writes
        // nevertheless breaks the trust that the module's documentation names.
        unsafe { core::slice::from_raw_parts(at.as_ptr(), self.memory.data.len()) }
    }

    /// The data.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let at = self.data_at();
        // SAFETY: as above; by `&mut self` this is the only reference.
        unsafe { core::slice::from_raw_parts_mut(at.as_ptr(), self.memory.data.len()) }
    }

    /// Copies all data out, even if a peer writes there at the same time.
    ///
    /// # Panics
    /// As above, and if `to` has another length.
    pub fn copy_to(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.memory.data.len());
        // SAFETY: mapped and as long; private memory does not overlap it.
        unsafe { copy_in(to, self.data_at()) };
    }

    /// Copies all data in, even if a peer writes there at the same time.
    ///
    /// # Panics
    /// As above, and if `from` has another length.
    pub fn copy_from(&mut self, from: &[u8]) {
        assert_eq!(from.len(), self.memory.data.len());
        // SAFETY: as above.
        unsafe { copy_out(self.data_at(), from) };
    }

    fn data_at(&self) -> NonNull<u8> {
        assert!(self.memory.kind == SharedUse::Locked, "the data of this segment are used by elements");
        self.memory
            .mapping
            .at(self.memory.data.start as u64, self.memory.data.len())
            .expect("inside the segment")
    }
}

impl Drop for LockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // In a forked child the lock is the parent's.
        if process::is_forked() {
            return;
        }
        let lock = &self.memory.table().head.lock;
        if std::thread::panicking() && !self.unwinding && lock.abandoned().is_none() {
            lock.abandon(Abandoned { member: self.memory.me, panicked: true });
        }
        if lock.unlock() {
            futex::wake_one(lock.word());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket::{self, Received};

    /// Passes `fd` to this process, as a peer does.
    fn passed(fd: &OwnedFd) -> PassedFd {
        let (ours, theirs) = socket::pair().unwrap();
        assert!(socket::send(ours.as_fd(), b"x", &[fd.as_fd()]).unwrap());
        match socket::receive(theirs.as_fd(), &mut [0; 8]).unwrap() {
            Received::Datagram { mut fds, .. } => fds.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn pair(kind: SharedUse, len: usize) -> (SharedMemory, SharedMemory) {
        let (fd, first) = SharedMemory::create(kind, 2, 0, len).unwrap();
        assert_eq!(first.state(1), Some(MemberState::Absent));
        let second = SharedMemory::attach(passed(&fd), kind, 2, 1, len).unwrap();
        (first, second)
    }

    #[test]
    fn whoever_has_the_lock_has_the_data() {
        let (first, second) = pair(SharedUse::Locked, 5000);
        let mut guard = first.try_lock(false).unwrap();
        assert!(second.try_lock(false).is_none() && second.steal_lock().is_none(), "its holder lives");
        assert_eq!(second.lock_holder(), Some(0));
        guard.bytes_mut()[4999] = 7;
        drop(guard);
        let mut guard = second.try_lock(false).unwrap();
        assert_eq!((guard.bytes().len(), guard.bytes()[4999], guard.abandoned()), (5000, 7, None));
        let mut copy = vec![0; 5000];
        guard.copy_to(&mut copy);
        copy[0] = 9;
        guard.copy_from(&copy);
        assert_eq!((guard.bytes()[0], guard.bytes()[4999]), (9, 7));
    }

    #[test]
    fn a_panic_under_the_lock_abandons_it() {
        let (first, second) = pair(SharedUse::Locked, 8);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = first.try_lock(false).unwrap();
                panic!("as intended");
            });
            holder.join()
        });
        assert!(panicked.is_err());
        let mut guard = second.try_lock(false).unwrap();
        assert_eq!(guard.abandoned(), Some(Abandoned { member: 0, panicked: true }));
        guard.repair();
        drop(guard);
        assert_eq!(first.try_lock(false).unwrap().abandoned(), None);
    }

    #[test]
    fn who_drops_it_has_left_and_who_loses_its_byte_is_dead() {
        let (first, second) = pair(SharedUse::Elements, 8);
        assert_eq!(first.state(1), Some(MemberState::Present));
        drop(second);
        assert_eq!(first.state(1), Some(MemberState::Left));
        // This is the state that a killed process leaves.
        first.table().rows[1].set_state(MemberState::Present);
        assert_eq!(first.state(1), None);
        assert!(first.table().head.lock.try_lock(1, false));
        assert_eq!(first.steal_lock().unwrap().abandoned(), Some(Abandoned { member: 1, panicked: false }));
    }

    #[test]
    fn another_length_use_or_member_is_refused() {
        let (fd, _first) = SharedMemory::create(SharedUse::Elements, 2, 0, 8).unwrap();
        let kind =
            |use_, me, len| SharedMemory::attach(passed(&fd), use_, 2, me, len).map_err(|error| error.kind());
        assert_eq!(kind(SharedUse::Elements, 1, 1 << 20).unwrap_err(), io::ErrorKind::InvalidData);
        assert_eq!(kind(SharedUse::Locked, 1, 8).unwrap_err(), io::ErrorKind::InvalidData);
        assert_eq!(kind(SharedUse::Elements, 0, 8).unwrap_err(), io::ErrorKind::AddrInUse);
        assert!(kind(SharedUse::Elements, 1, 8).is_ok());
        let too_long = SharedMemory::create(SharedUse::Elements, 2, 0, usize::MAX).unwrap_err();
        assert_eq!(too_long.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    #[should_panic(expected = "belong to the holder of its lock")]
    fn locked_data_have_no_elements() {
        let (first, _second) = pair(SharedUse::Locked, 8);
        first.elements();
    }

    #[test]
    #[should_panic(expected = "used by elements")]
    fn data_used_by_elements_are_no_slice() {
        let (first, _second) = pair(SharedUse::Elements, 8);
        first.try_lock(false).unwrap().bytes();
    }
}
