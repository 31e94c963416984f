//! Atomics and fences of the code for shared memory. Under loom they are loom's; with `access-trace`, their accesses are noted.
//!
//! Loom cannot model memory shared between processes, so the structures are generic over the place of their cells and loom
//! checks them within one process; the orderings are the same text in both builds.

#[cfg(all(feature = "access-trace", not(loom)))]
pub use crate::sync::access_trace::{AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(all(not(feature = "access-trace"), not(loom)))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// The word itself, for a system call.
#[cfg(all(feature = "access-trace", not(loom)))]
pub(crate) fn raw(word: &AtomicU32) -> &core::sync::atomic::AtomicU32 {
    word.raw()
}
/// The word itself, for a system call.
#[cfg(all(not(feature = "access-trace"), not(loom)))]
pub(crate) fn raw(word: &AtomicU32) -> &AtomicU32 {
    word
}

/// Types that may lie in memory which another process writes.
///
/// # Safety
/// Implementors consist of atomics only (any bit pattern is valid, and a concurrent write by the peer is an
/// atomic access like any other), have no padding that matters, and no drop glue.
pub unsafe trait Shared: Sync {}

// SAFETY: atomics only.
unsafe impl Shared for AtomicU32 {}
// SAFETY: atomics only.
unsafe impl Shared for AtomicU64 {}
// SAFETY: an array of `Shared` elements.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}
