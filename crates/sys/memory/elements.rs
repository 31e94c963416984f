//! Elements of plain data in memory that other processes use at the same time.
//!
//! Every access is a relaxed atomic one, so a concurrent write by any member is no data race. The width of the accesses
//! follows from the element's size, which all members have in common: the largest of 8, 4, 2 and 1 that divides it. So all
//! accesses to a place have the same width, too. An element of one such width is read and written whole. A reader may see a
//! part of a longer element while it is being written (unless a barrier lies in between).
//!
//! These are plain `core` atomics, not those that loom replaces, because they order nothing. Order comes from the segment's
//! lock, barrier or semaphore, or from the read-modify-writes of an element.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::ops::Range;

use crate::memory::segment::Mapping;

/// Data of a segment, addressed by bytes from 0.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    base: NonNull<u8>,
    len: usize,
    segment: PhantomData<&'a Mapping>,
}

impl<'a> Elements<'a> {
    /// The elements of `data`, which begin at the start of a page, and are accessed through this type only.
    #[inline]
    pub(crate) fn new(mapping: &'a Mapping, data: Range<usize>) -> Self {
        let base = mapping.at(data.start as u64, data.len()).expect("inside the segment");
        Elements { base, len: data.len(), segment: PhantomData }
    }

    /// Address of the first byte, for code of other languages. No code of this library uses it.
    #[inline]
    pub fn as_ptr(self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies the bytes from `at` on out, of elements of `size` bytes.
    ///
    /// # Panics
    /// If the bytes are not all in the data, or are no whole elements.
    #[inline]
    pub fn load(self, size: usize, at: usize, to: &mut [u8]) {
        self.check(size, at, to.len());
        match width(size) {
            8 => to.chunks_exact_mut(8).zip(self.words::<AtomicU64>(at)).for_each(|(to, word)| {
                to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }),
            4 => to.chunks_exact_mut(4).zip(self.words::<AtomicU32>(at)).for_each(|(to, word)| {
                to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }),
            2 => to.chunks_exact_mut(2).zip(self.words::<AtomicU16>(at)).for_each(|(to, word)| {
                to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }),
            _ => to.iter_mut().zip(self.words::<AtomicU8>(at)).for_each(|(to, word)| {
                *to = word.load(Ordering::Relaxed);
            }),
        }
    }

    /// Copies `from` to the bytes from `at` on, of elements of `size` bytes.
    ///
    /// # Panics
    /// Those of [`Elements::load`].
    #[inline]
    pub fn store(self, size: usize, at: usize, from: &[u8]) {
        self.check(size, at, from.len());
        match width(size) {
            8 => from.as_chunks().0.iter().zip(self.words::<AtomicU64>(at)).for_each(|(from, word)| {
                word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
            }),
            4 => from.as_chunks().0.iter().zip(self.words::<AtomicU32>(at)).for_each(|(from, word)| {
                word.store(u32::from_ne_bytes(*from), Ordering::Relaxed);
            }),
            2 => from.as_chunks().0.iter().zip(self.words::<AtomicU16>(at)).for_each(|(from, word)| {
                word.store(u16::from_ne_bytes(*from), Ordering::Relaxed);
            }),
            _ => from.iter().zip(self.words::<AtomicU8>(at)).for_each(|(from, word)| {
                word.store(*from, Ordering::Relaxed);
            }),
        }
    }

    /// The word of an element of 4 bytes.
    ///
    /// # Panics
    /// If the element does not lie in the data.
    #[inline]
    pub fn word32(self, index: usize) -> &'a AtomicU32 {
        &self.words(self.check(4, index.saturating_mul(4), 4))[0]
    }

    /// The word of an element of 8 bytes.
    ///
    /// # Panics
    /// If the element does not lie in the data.
    #[inline]
    pub fn word64(self, index: usize) -> &'a AtomicU64 {
        &self.words(self.check(8, index.saturating_mul(8), 8))[0]
    }

    #[inline]
    fn check(self, size: usize, at: usize, len: usize) -> usize {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "bytes {at}..{at}+{len} of data of {} bytes", self.len);
        assert!(at.is_multiple_of(size) && len.is_multiple_of(size), "no whole elements of {size} bytes");
        at
    }

    /// The data from `at` on, by words of one of the four atomic types: `at` is a multiple of the word, and inside.
    #[inline]
    fn words<A: Word>(self, at: usize) -> &'a [A] {
        let count = (self.len - at) / size_of::<A>();
        debug_assert!(at.is_multiple_of(size_of::<A>()));
        // SAFETY: the data begin at a page and are mapped for `'a`; `at` is inside and aligned. Atomics take any bytes, and others' accesses are
        // atomic, of the same width.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(at).cast::<A>(), count) }
    }
}

/// One of the four atomic types.
trait Word {}
impl Word for AtomicU8 {}
impl Word for AtomicU16 {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}

/// Width in bytes of the accesses to elements of `size` bytes.
#[inline]
const fn width(size: usize) -> usize {
    match size {
        size if size.is_multiple_of(8) => 8,
        size if size.is_multiple_of(4) => 4,
        size if size.is_multiple_of(2) => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::segment::{PeerAccess, create};

    #[test]
    fn elements_of_every_size_come_back_and_touch_no_others() {
        let (_fd, mapping) = create("elements", 8192, PeerAccess::Write).unwrap();
        let all = Elements::new(&mapping, 4096..4096 + 960);
        for size in [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 40] {
            all.store(1, 0, &[0xee; 960]);
            let from: Vec<u8> = (0..2 * size as u8).collect();
            all.store(size, 3 * size, &from);
            let mut to = vec![0; 4 * size];
            all.load(size, 2 * size, &mut to);
            assert!(to[..size].iter().chain(&to[3 * size + size..]).all(|byte| *byte == 0xee), "{size}");
            assert_eq!(to[size..3 * size], from[..], "{size}");
        }
    }

    #[test]
    fn what_lies_outside_or_across_is_refused() {
        let (_fd, mapping) = create("elements", 8192, PeerAccess::Write).unwrap();
        let all = Elements::new(&mapping, 4096..4096 + 24);
        let refused =
            |size, at, len| std::panic::catch_unwind(|| all.load(size, at, &mut vec![0; len])).is_err();
        for (size, at, len) in [(8, 24, 8), (8, 16, 16), (8, 4, 8), (8, 0, 4), (8, usize::MAX - 7, 8)] {
            assert!(refused(size, at, len), "{size} {at} {len}");
        }
        assert!(!refused(8, 16, 8) && !refused(8, 24, 0));
        assert!(std::panic::catch_unwind(|| all.word64(3)).is_err());
        assert!(std::panic::catch_unwind(|| all.word32(usize::MAX)).is_err());
        all.word32(5).store(7, Ordering::Relaxed);
        assert_eq!(all.word32(5).load(Ordering::Relaxed), 7);
    }
}
