//! Copies out of, and into, memory that another process may be writing.

use core::hint::black_box;
use core::ptr::NonNull;

type Memcpy = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;

/// Copies bytes that a peer may be changing at the same time into `to`.
///
/// The bytes are whatever lay there at some moment, possibly torn: the caller checks them afterwards, and
/// reads them only from `to`. The copy goes through a function pointer the optimiser cannot see into, so
/// that no reasoning about "unchanged" memory survives it.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes (mapped memory; concurrent writes by other processes are
/// allowed) and does not overlap `to`.
pub unsafe fn copy_in(to: &mut [u8], from: NonNull<u8>) {
    if to.len() >= crate::memory::streamed::LONG {
        // SAFETY: our contract, which is the same.
        return unsafe { crate::memory::streamed::copy(to.as_mut_ptr(), from.as_ptr(), to.len()) };
    }
    let memcpy: Memcpy = black_box(libc::memcpy);
    // SAFETY: both ranges are valid for `to.len()` bytes and disjoint, as the caller promises; the callee is
    // opaque, so the race is with machine code, not with anything the compiler assumed.
    unsafe { memcpy(to.as_mut_ptr().cast(), from.as_ptr().cast(), to.len()) };
}

/// Copies `from` to a place where a peer may be reading or writing at the same time: [`copy_in`] in the other direction.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes (mapped memory; concurrent accesses by other processes are allowed), and does not
/// overlap `from`.
#[cfg(not(loom))]
pub unsafe fn copy_out(to: NonNull<u8>, from: &[u8]) {
    let memcpy: Memcpy = black_box(libc::memcpy);
    // SAFETY: both ranges are valid for `from.len()` bytes and disjoint, as the caller promises; the callee is opaque, as above.
    unsafe { memcpy(to.as_ptr().cast(), from.as_ptr().cast(), from.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length() {
        let source: Vec<u8> = (0..=255).collect();
        for len in 0..source.len() {
            let mut to = vec![0u8; len];
            // SAFETY: `source` has at least `len` bytes and is another allocation.
            unsafe { copy_in(&mut to, NonNull::from(&source[..]).cast()) };
            assert_eq!(to, source[..len]);
        }
    }
}
