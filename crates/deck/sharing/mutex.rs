//! Memory that the ranks of a host use one at a time.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use udeck_via::segments::{LockGuard, Purpose};

use crate::error::{Result, check_process};
use crate::payload::check_payload;
use crate::sharing::attach::{Wanted, all_members, checked_members, share};
use crate::sharing::{IfAbandoned, Shared};
use crate::world::World;

/// Memory of a host that one rank uses at a time, as a slice: a mutex around `[T]`, between processes.
///
/// [`World::shared_mutex`] makes it, called by all ranks that share it. It is gone with its last user. Like
/// std's mutex, it reports that its last holder may have left the data half written, because that rank was
/// killed or panicked.
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/shared_mutex.md"))]
///
/// # Trust
///
/// The guard's slice lies in memory that the other ranks map, too. The safe interface cannot write there
/// without the lock. With `DECK_TRUST=none` each lock copies the data out, and back if they were borrowed
/// mutably.
pub struct SharedMutex<T> {
    shared: Shared,
    len: usize,
    elements: PhantomData<T>,
}

impl World {
    /// Shares memory of `len` zeroed elements among all ranks of this job, for the holder of its lock.
    /// Otherwise like [`World::shared_segment`].
    ///
    /// # Errors
    /// The errors of [`World::shared_segment`].
    pub fn shared_mutex<T: Pod>(&self, name: &str, len: usize) -> Result<SharedMutex<T>> {
        let wanted = wanted::<T>(name, len);
        self.share_mutex(all_members(&self.state, &wanted.title())?, &wanted)
    }

    /// Shares a mutex like [`World::shared_mutex`], among these ranks of this host. This rank must be one of
    /// them.
    ///
    /// # Errors
    /// The errors of [`World::shared_segment_of`].
    pub fn shared_mutex_of<T: Pod>(&self, ranks: &[usize], name: &str, len: usize) -> Result<SharedMutex<T>> {
        let wanted = wanted::<T>(name, len);
        self.share_mutex(checked_members(&self.state, &wanted.title(), ranks)?, &wanted)
    }

    fn share_mutex<T: Pod>(&self, ranks: Vec<usize>, wanted: &Wanted<'_>) -> Result<SharedMutex<T>> {
        check_payload::<T>()?;
        let shared = share(&self.state, ranks, wanted, |_| Ok(()))?;
        Ok(SharedMutex { shared, len: wanted.len, elements: PhantomData })
    }
}

fn wanted<T: Pod>(name: &str, len: usize) -> Wanted<'_> {
    let (kind, size) = (std::any::type_name::<T>(), size_of::<T>());
    Wanted { name, purpose: Purpose::Locked, kind, size, len }
}

impl<T: Pod> SharedMutex<T> {
    /// The mutex's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The ranks that share the mutex, in ascending order.
    pub fn ranks(&self) -> &[usize] {
        &self.shared.ranks
    }

    /// Takes the lock, and with it the data. One thread of all ranks that share it has it at a time. Waits at
    /// most the world's deadline.
    ///
    /// # Errors
    /// [`Error::Abandoned`](crate::Error::Abandoned): the last holder died or panicked; see
    /// [`SharedMutex::recover`]. [`Error::Deadline`](crate::Error::Deadline) says which rank holds it.
    pub fn lock(&self) -> Result<SharedMutexGuard<'_, T>> {
        self.lock_timeout(self.shared.deadline())
    }

    /// Like [`SharedMutex::lock`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`SharedMutex::lock`].
    pub fn lock_timeout(&self, limit: Duration) -> Result<SharedMutexGuard<'_, T>> {
        Ok(self.guard(self.shared.lock(limit, IfAbandoned::Error)?))
    }

    /// Takes the lock if it is free. Does not wait.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock); otherwise the errors of [`SharedMutex::lock`].
    pub fn try_lock(&self) -> Result<SharedMutexGuard<'_, T>> {
        Ok(self.guard(self.shared.try_lock()?))
    }

    /// Takes the lock like [`SharedMutex::lock`], also if its last holder died or panicked
    /// ([`SharedMutexGuard::abandoned_by`] names it). Once this guard is dropped, the data count as whole
    /// again.
    ///
    /// # Errors
    /// [`Error::Deadline`](crate::Error::Deadline) says which rank holds it.
    pub fn recover(&self) -> Result<SharedMutexGuard<'_, T>> {
        Ok(self.guard(self.shared.lock(self.shared.deadline(), IfAbandoned::Take)?))
    }

    /// Waits until all ranks that share the mutex have called `barrier`, like
    /// [`SharedSegment::barrier`](crate::SharedSegment::barrier).
    ///
    /// # Errors
    /// The errors of [`SharedSegment::barrier`](crate::SharedSegment::barrier).
    pub fn barrier(&self) -> Result {
        self.shared.barrier(self.shared.deadline())
    }

    fn guard<'a>(&'a self, guard: LockGuard<'a>) -> SharedMutexGuard<'a, T> {
        let copy = (!self.shared.world.config().trusting).then(|| {
            let mut data = vec![T::zeroed(); self.len];
            guard.copy_to(cast_slice_mut(&mut data));
            PrivateCopy { data, changed: false }
        });
        SharedMutexGuard { guard, shared: &self.shared, copy, elements: PhantomData }
    }
}

/// Guard of a [`SharedMutex`], with its data; dropping it releases the lock. If a panic drops it, the next
/// rank that locks gets an error.
#[must_use]
pub struct SharedMutexGuard<'a, T: Pod> {
    guard: LockGuard<'a>,
    shared: &'a Shared,
    /// Private copy of the data, at a rank that does not trust its peers.
    copy: Option<PrivateCopy<T>>,
    elements: PhantomData<T>,
}

struct PrivateCopy<T> {
    data: Vec<T>,
    changed: bool,
}

impl<T: Pod> SharedMutexGuard<'_, T> {
    /// The rank that died or panicked while it had the lock, if nobody has [recovered](SharedMutex::recover) it since.
    pub fn abandoned_by(&self) -> Option<usize> {
        self.shared.abandoned_by(&self.guard)
    }
}

impl<T: Pod> Deref for SharedMutexGuard<'_, T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        match &self.copy {
            None => cast_slice(self.guard.bytes()),
            Some(copy) => &copy.data,
        }
    }
}

impl<T: Pod> DerefMut for SharedMutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.copy {
            None => cast_slice_mut(self.guard.bytes_mut()),
            Some(copy) => {
                copy.changed = true;
                &mut copy.data
            }
        }
    }
}

impl<T: Pod> Drop for SharedMutexGuard<'_, T> {
    fn drop(&mut self) {
        // In a forked child the data are the parent's.
        if check_process().is_err() {
            return;
        }
        if let Some(copy) = self.copy.as_ref().filter(|copy| copy.changed) {
            self.guard.copy_from(cast_slice(&copy.data));
        }
        if !std::thread::panicking() {
            self.guard.repair();
        }
    }
}

impl<T> fmt::Debug for SharedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMutex({:?}, {} elements)", self.shared, self.len)
    }
}

impl<T: Pod> fmt::Debug for SharedMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMutexGuard({:?})", self.shared)
    }
}
