//! Copying long data where a processor, or `memcpy`, is slow at it.
//!
//! Data longer than the caches are copied past the caches ([`crate::memory::streamed`]).
//!
//! `memcpy` copies lengths of about 4 to 500 KiB by `rep movsb` on x86 processors that say that it is fast (ERMS, FSRM). On
//! AMD's Zen 3 it is not, if the destination lies at 1 to 31 bytes above the source, as counted within a page: 128 KiB take
//! 64 µs instead of 2.6. That is no rare case: the messages of a peer begin at a page, and memory that `malloc` maps, as for
//! a long `Vec`, begins 16 bytes behind one.

use core::hint::black_box;

const PAGE: usize = 4096;
/// Length in bytes up to which a piece is copied by vector instructions.
const PIECE: usize = 2048;
/// Distances from source to destination at which `rep movsb` is slow, in bytes.
const SLOW: core::ops::Range<usize> = 1..32;

/// Copies as [`slice::copy_from_slice`] does, in pieces where that would be slow.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn copy_bytes(to: &mut [u8], from: &[u8]) {
    let above = to.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) % PAGE;
    if to.len() > PIECE && SLOW.contains(&above) {
        copy_in_pieces(to, from);
    } else if to.len() >= crate::memory::streamed::LONG {
        copy_past_caches(to, from);
    } else {
        to.copy_from_slice(from);
    }
}

#[cold]
fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "as many bytes are copied as there is room for");
    // SAFETY: both are slices of so many bytes, one of them exclusive.
    unsafe { crate::memory::streamed::copy(to.as_mut_ptr(), from.as_ptr(), to.len()) };
}

#[cold]
fn copy_in_pieces(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "as many bytes are copied as there is room for");
    for (to, from) in to.chunks_mut(PIECE).zip(from.chunks(PIECE)) {
        // The compiler would make one `memcpy` of the loop.
        black_box(to).copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_wherever_it_lies() {
        let source: Vec<u8> = (0..4 * PAGE).map(|at| (at % 251) as u8).collect();
        for len in [0, 1, PIECE, PIECE + 1, 2 * PAGE + 7] {
            for above in [0, 1, 16, 31, 32, PAGE - 16] {
                let mut room = vec![0; 4 * PAGE];
                let apart = source.as_ptr().addr().wrapping_sub(room.as_ptr().addr());
                let start = apart.wrapping_add(above) % PAGE;
                copy_bytes(&mut room[start..start + len], &source[..len]);
                assert_eq!(room[start..start + len], source[..len], "{len} bytes, {above} above");
                assert!(room[..start].iter().chain(&room[start + len..]).all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    #[should_panic(expected = "as many bytes")]
    fn lengths_have_to_agree() {
        let source = vec![1; 4 * PAGE];
        let mut room = vec![0; 4 * PAGE];
        let start = (source.as_ptr().addr().wrapping_sub(room.as_ptr().addr()) + 16) % PAGE;
        copy_bytes(&mut room[start..start + PAGE], &source[..PAGE + 1]);
    }
}
