//! Memory that the ranks of a host access together, element by element.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use bytemuck::{Pod, bytes_of, bytes_of_mut, cast_slice, cast_slice_mut};
use udeck_via::segments::{Elements, LockGuard, Purpose};

use crate::error::{Result, check_process};
use crate::payload::check_payload;
use crate::sharing::attach::{Wanted, all_members, checked_members, share};
use crate::sharing::{IfAbandoned, Shared};
use crate::world::World;

pub use self::atomic::AtomicElement;

/// Memory that several ranks of a host use at the same time: DECK's *shared segment*, with elements of plain
/// data.
///
/// [`World::shared_segment`] makes it, called by all ranks that share it. It has no name in any file system,
/// and is gone with its last user, however that user dies.
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/shared_segment.md"))]
///
/// # Access
///
/// There is no `&[T]`: others may write at any moment, and what a reference points to must not change.
/// Elements are copied in and out ([`get`](Self::get), [`set`](Self::set), [`copy_to`](Self::copy_to),
/// [`copy_from`](Self::copy_from)) by relaxed atomic accesses. Thus nothing is undefined, but these accesses
/// order nothing. A rank is sure to see what another one wrote in three cases: after both have passed a
/// [`barrier`](Self::barrier) in between, once it holds the [lock](Self::lock) that the other one held, or by
/// [atomics](Self::load). An element of 1, 2, 4 or 8 bytes is never seen half written. A longer one may be,
/// if nothing orders the accesses.
///
/// [`SharedMutex`](crate::SharedMutex) offers the data as a slice.
pub struct SharedSegment<T> {
    shared: Shared,
    len: usize,
    elements: PhantomData<T>,
}

impl World {
    /// Shares memory of `len` zeroed elements among all ranks of this job, which have to be on one host;
    /// [`World::shared_segment_of`] shares it among some ranks. Collective: returns when all have called it,
    /// with the same name, type and length. Waits at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// The name distinguishes several segments, and may be used again: the n-th call with a name on one rank
    /// meets the n-th on the others. After an error, use another name. The memory is reserved at once, in
    /// pages that nobody has touched yet.
    ///
    /// # Errors
    /// [`Error::OtherHost`](crate::Error::OtherHost) names a rank on another host.
    /// [`Error::SegmentMismatch`](crate::Error::SegmentMismatch): the lowest rank has made another segment by
    /// that name. [`Error::PeerLost`](crate::Error::PeerLost) and [`Error::Deadline`](crate::Error::Deadline)
    /// name the missing rank. [`Error::BadName`](crate::Error::BadName),
    /// [`Error::BadPayload`](crate::Error::BadPayload); [`Error::Via`](crate::Error::Via) if the system has
    /// no memory or descriptor.
    #[doc(alias = "deck_shmem_create")]
    pub fn shared_segment<T: Pod>(&self, name: &str, len: usize) -> Result<SharedSegment<T>> {
        let wanted = wanted::<T>(name, len);
        self.share_segment(all_members(&self.state, &wanted.title())?, &wanted)
    }

    /// Shares a segment like [`World::shared_segment`], among these ranks of this host ([`World::host_ranks`]
    /// lists all of them). This rank must be one of them.
    ///
    /// # Errors
    /// The errors of [`World::shared_segment`], and [`Error::BadMembers`](crate::Error::BadMembers).
    pub fn shared_segment_of<T: Pod>(
        &self,
        ranks: &[usize],
        name: &str,
        len: usize,
    ) -> Result<SharedSegment<T>> {
        let wanted = wanted::<T>(name, len);
        self.share_segment(checked_members(&self.state, &wanted.title(), ranks)?, &wanted)
    }

    fn share_segment<T: Pod>(&self, ranks: Vec<usize>, wanted: &Wanted<'_>) -> Result<SharedSegment<T>> {
        check_payload::<T>()?;
        let shared = share(&self.state, ranks, wanted, |_| Ok(()))?;
        Ok(SharedSegment { shared, len: wanted.len, elements: PhantomData })
    }
}

fn wanted<T: Pod>(name: &str, len: usize) -> Wanted<'_> {
    let (kind, size) = (std::any::type_name::<T>(), size_of::<T>());
    Wanted { name, purpose: Purpose::Elements, kind, size, len }
}

impl<T: Pod> SharedSegment<T> {
    /// The segment's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The ranks that share the segment, in ascending order.
    pub fn ranks(&self) -> &[usize] {
        &self.shared.ranks
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the segment has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the element at `index`, as it is at this moment.
    ///
    /// # Panics
    /// If there is no such element.
    #[inline]
    pub fn get(&self, index: usize) -> T {
        let mut element = T::zeroed();
        self.check(index, 1);
        self.elements().load(size_of::<T>(), index * size_of::<T>(), bytes_of_mut(&mut element));
        element
    }

    /// Writes the element at `index`.
    ///
    /// # Panics
    /// If there is no such element.
    #[inline]
    pub fn set(&self, index: usize, element: T) {
        self.check(index, 1);
        self.elements().store(size_of::<T>(), index * size_of::<T>(), bytes_of(&element));
    }

    /// Copies elements from `start` on to `to`, as many as it has.
    ///
    /// # Panics
    /// If there are fewer elements.
    pub fn copy_to(&self, start: usize, to: &mut [T]) {
        self.check(start, to.len());
        self.elements().load(size_of::<T>(), start * size_of::<T>(), cast_slice_mut(to));
    }

    /// Copies `from` to the elements from `start` on.
    ///
    /// # Panics
    /// If there are fewer elements.
    pub fn copy_from(&self, start: usize, from: &[T]) {
        self.check(start, from.len());
        self.elements().store(size_of::<T>(), start * size_of::<T>(), cast_slice(from));
    }

    /// Waits until all ranks that share the segment have called `barrier`, at most the world's deadline.
    /// Whatever any of them wrote before, all see after it. One thread of a rank at a time. Faster than
    /// [`World::barrier`], and for these ranks only.
    ///
    /// # Errors
    /// [`Error::Deadline`](crate::Error::Deadline) names the missing ranks; the next call goes on waiting at
    /// the same barrier. [`Error::PeerLost`](crate::Error::PeerLost) as soon as one of them cannot come any
    /// more: it is dead, or has dropped the segment.
    pub fn barrier(&self) -> Result {
        self.shared.barrier(self.shared.deadline())
    }

    /// Like [`SharedSegment::barrier`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`SharedSegment::barrier`].
    pub fn barrier_timeout(&self, limit: Duration) -> Result {
        self.shared.barrier(limit)
    }

    /// Takes the segment's lock: one thread of all ranks that share it has it at a time. Waits at most the
    /// world's deadline. The lock protects what the program says that it protects; elements can be accessed
    /// without it.
    ///
    /// # Errors
    /// [`Error::Abandoned`](crate::Error::Abandoned): the holder of the lock died or panicked; see
    /// [`SharedSegment::recover`]. [`Error::Deadline`](crate::Error::Deadline) says which rank holds it.
    pub fn lock(&self) -> Result<SegmentLock<'_>> {
        self.lock_timeout(self.shared.deadline())
    }

    /// Like [`SharedSegment::lock`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`SharedSegment::lock`].
    pub fn lock_timeout(&self, limit: Duration) -> Result<SegmentLock<'_>> {
        Ok(SegmentLock::new(self.shared.lock(limit, IfAbandoned::Error)?, &self.shared))
    }

    /// Takes the segment's lock if it is free. Does not wait.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock); otherwise the errors of [`SharedSegment::lock`].
    pub fn try_lock(&self) -> Result<SegmentLock<'_>> {
        Ok(SegmentLock::new(self.shared.try_lock()?, &self.shared))
    }

    /// Takes the lock like [`SharedSegment::lock`], also if its holder died or panicked
    /// ([`SegmentLock::abandoned_by`] names it). Once this guard is dropped, the data count as whole again.
    ///
    /// # Errors
    /// [`Error::Deadline`](crate::Error::Deadline) says which rank holds it.
    pub fn recover(&self) -> Result<SegmentLock<'_>> {
        let guard = self.shared.lock(self.shared.deadline(), IfAbandoned::Take)?;
        Ok(SegmentLock::new(guard, &self.shared))
    }

    /// Address of the first element, at the start of a page, for code of other languages, such as an array of
    /// numpy. It stays valid while the segment lives.
    ///
    /// Other ranks may write at any moment, so Rust code makes no reference from it. What has the address orders
    /// its accesses as those by elements are ordered: by the barrier or the lock.
    pub fn as_ptr(&self) -> *mut T {
        self.elements().as_ptr().cast()
    }

    #[inline]
    fn elements(&self) -> Elements<'_> {
        self.shared.memory.elements()
    }

    #[inline]
    fn check(&self, start: usize, count: usize) {
        let inside = start.checked_add(count).is_some_and(|end| end <= self.len);
        assert!(inside, "{count} elements from {start} on of a shared segment of {} elements", self.len);
    }
}

/// Guard of a [`SharedSegment`]'s lock; dropping it releases the lock. If a panic drops it, the next rank
/// that locks gets an error.
#[must_use]
pub struct SegmentLock<'a> {
    guard: LockGuard<'a>,
    shared: &'a Shared,
    /// Whether the data stay marked as abandoned, if they are.
    keeps_mark: bool,
}

impl<'a> SegmentLock<'a> {
    fn new(guard: LockGuard<'a>, shared: &'a Shared) -> Self {
        SegmentLock { guard, shared, keeps_mark: false }
    }

    /// The rank that died or panicked while it held the lock, if nobody has [recovered](SharedSegment::recover) it since.
    pub fn abandoned_by(&self) -> Option<usize> {
        self.shared.abandoned_by(&self.guard)
    }

    /// Releases the lock without a repair: data that were [abandoned](SegmentLock::abandoned_by) stay so, and the next
    /// rank that locks gets the error again. Does not wait.
    pub fn release_unrepaired(mut self) {
        self.keeps_mark = true;
    }
}

impl Drop for SegmentLock<'_> {
    fn drop(&mut self) {
        if !self.keeps_mark && !std::thread::panicking() && check_process().is_ok() {
            self.guard.repair();
        }
    }
}

impl<T> fmt::Debug for SharedSegment<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSegment({:?}, {} elements)", self.shared, self.len)
    }
}

impl fmt::Debug for SegmentLock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentLock({:?})", self.shared)
    }
}

mod atomic {
    use std::sync::atomic::Ordering;

    use bytemuck::Pod;
    use udeck_via::segments::Elements;

    use super::SharedSegment;

    /// Element types with atomics: `u32`, `i32`, `u64` and `i64`.
    pub trait AtomicElement: Pod + sealed::Words {}

    mod sealed {
        use super::Elements;

        /// Accesses to the word of an element.
        pub trait Words: Sized {
            fn load(elements: Elements<'_>, index: usize) -> Self;
            fn store(self, elements: Elements<'_>, index: usize);
            fn swap(self, elements: Elements<'_>, index: usize) -> Self;
            fn add(self, elements: Elements<'_>, index: usize) -> Self;
            fn exchange(elements: Elements<'_>, index: usize, current: Self, new: Self)
            -> Result<Self, Self>;
        }
    }

    macro_rules! words {
        ($($number:ty, $unsigned:ty, $word:ident;)*) => {$(
            impl AtomicElement for $number {}

            impl sealed::Words for $number {
                #[inline]
                fn load(elements: Elements<'_>, index: usize) -> Self {
                    elements.$word(index).load(Ordering::Acquire) as $number
                }
                #[inline]
                fn store(self, elements: Elements<'_>, index: usize) {
                    elements.$word(index).store(self as $unsigned, Ordering::Release);
                }
                #[inline]
                fn swap(self, elements: Elements<'_>, index: usize) -> Self {
                    elements.$word(index).swap(self as $unsigned, Ordering::AcqRel) as $number
                }
                #[inline]
                fn add(self, elements: Elements<'_>, index: usize) -> Self {
                    elements.$word(index).fetch_add(self as $unsigned, Ordering::AcqRel) as $number
                }
                #[inline]
                fn exchange(elements: Elements<'_>, index: usize, current: Self, new: Self) -> Result<Self, Self> {
                    let (current, new) = (current as $unsigned, new as $unsigned);
                    let word = elements.$word(index);
                    let found = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
                    found.map(|found| found as $number).map_err(|found| found as $number)
                }
            }
        )*};
    }

    words! {
        u32, u32, word32;
        i32, u32, word32;
        u64, u64, word64;
        i64, u64, word64;
    }

    /// Atomics with acquire and release ordering, like std's: a rank that reads what another rank stored or
    /// changed by them sees everything that that rank wrote before. None of them needs a lock, so no death
    /// can leave one half done.
    ///
    /// All panic if there is no element at `index`.
    impl<T: AtomicElement> SharedSegment<T> {
        /// Reads an element.
        #[inline]
        pub fn load(&self, index: usize) -> T {
            self.check(index, 1);
            T::load(self.elements(), index)
        }

        /// Writes an element.
        #[inline]
        pub fn store(&self, index: usize, value: T) {
            self.check(index, 1);
            value.store(self.elements(), index);
        }

        /// Writes an element, and returns its former value.
        #[inline]
        pub fn swap(&self, index: usize, value: T) -> T {
            self.check(index, 1);
            value.swap(self.elements(), index)
        }

        /// Adds to an element, wrapping around, and returns its former value.
        #[inline]
        pub fn fetch_add(&self, index: usize, value: T) -> T {
            self.check(index, 1);
            value.add(self.elements(), index)
        }

        /// Writes `new` if the element is `current`.
        ///
        /// # Errors
        /// The value of the element, if it is not `current`.
        #[inline]
        pub fn compare_exchange(&self, index: usize, current: T, new: T) -> Result<T, T> {
            self.check(index, 1);
            T::exchange(self.elements(), index, current, new)
        }
    }
}
