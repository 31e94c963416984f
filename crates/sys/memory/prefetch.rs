//! Prefetching of a cache line before it is needed.

/// Fetches the line of `place` for writing: the other cores drop theirs while this one does something else. It is a hint: it
/// changes nothing that a program can see, and does nothing on processors that do not know it (on x86-64, Intel's until
/// 2014).
#[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
#[inline]
pub(crate) fn for_writing<T>(place: &T) {
    // SAFETY: a prefetch of any address neither faults nor reads or writes memory; no register but its operand is used.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) core::ptr::from_ref(place), options(nostack, preserves_flags));
    }
}

/// Fetches the line of `place` for writing, as on x86-64.
#[cfg(all(target_arch = "aarch64", not(any(loom, miri))))]
#[inline]
pub(crate) fn for_writing<T>(place: &T) {
    // SAFETY: as on x86-64.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) core::ptr::from_ref(place), options(nostack, preserves_flags));
    }
}

/// Does nothing on this target.
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), loom, miri))]
#[inline]
pub(crate) fn for_writing<T>(_: &T) {}
