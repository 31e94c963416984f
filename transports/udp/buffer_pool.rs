//! Buffers for bytes that QUIC holds for a while: gathered bytes until they are acknowledged, and received datagrams
//! until their bytes are read.
//!
//! If long buffers were given back to the allocator, they would go back to the kernel: glibc returns the free end of
//! its heap. Each message of 1 MiB would then pay for fresh pages, zeroed by the kernel, on both sides; that took
//! half of its time. A short buffer would cost two allocations, the bytes and their reference count. So a buffer is
//! kept, and used again once QUIC has dropped it.
//!
//! There are two sizes, because a peer that sends many short datagrams must not hold a long buffer by each. Bytes
//! that fit neither size, or that come while all buffers are held, get an allocation of their own length.

use std::collections::VecDeque;

use bytes::BytesMut;

/// Bytes of a long buffer.
pub const BUFFER: usize = 64 << 10;
/// Shortest run of bytes that gets a long buffer. A shorter run must not: QUIC counts a buffer by the bytes that it
/// holds in it, so a peer must not make us hold much more memory than that. The longest datagrams within a host are
/// longer than this.
const SHORTEST: usize = BUFFER - (1 << 10);
/// Upper bound of long buffers that are kept: as much as a sender may be ahead of the receiving program, and a few more.
const MOST: usize = 40;
/// Bytes of a short buffer: a datagram of a network with the usual MTU, or a short message.
const SHORT: usize = 2 << 10;
/// Upper bound of short buffers that are kept: two batches of datagrams.
const MOST_SHORT: usize = 16;
/// Number of buffers that are tried in the search for a free one, the oldest first.
const LOOKS: usize = 4;

/// Pool of buffers of two sizes.
pub struct BufferPool {
    long: Buffers,
    short: Buffers,
}

/// Buffers of one size.
struct Buffers {
    size: usize,
    most: usize,
    /// Kept buffers, the oldest first. Pieces that were cut off a buffer may still be in use.
    kept: VecDeque<BytesMut>,
    was_used: bool,
}

impl BufferPool {
    pub fn new() -> Self {
        BufferPool { long: Buffers::new(BUFFER, MOST), short: Buffers::new(SHORT, MOST_SHORT) }
    }

    /// Returns `len` bytes, which `fill` writes.
    pub fn filled(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> BytesMut {
        self.with(len, |buffer| {
            buffer.resize(len, 0);
            fill(buffer);
        })
    }

    /// Returns a copy of `bytes`.
    pub fn copy_of(&mut self, bytes: &[u8]) -> BytesMut {
        self.with(bytes.len(), |buffer| buffer.extend_from_slice(bytes))
    }

    /// Periodic check: gives back all buffers of a size that was not used since the last check.
    pub fn check(&mut self) {
        self.long.check();
        self.short.check();
    }

    fn with(&mut self, len: usize, fill: impl FnOnce(&mut BytesMut)) -> BytesMut {
        match len {
            0..=SHORT => self.short.with(len, fill),
            SHORTEST..=BUFFER => self.long.with(len, fill),
            _ => {
                let mut buffer = BytesMut::with_capacity(len);
                fill(&mut buffer);
                buffer
            }
        }
    }
}

impl Buffers {
    fn new(size: usize, most: usize) -> Self {
        Buffers { size, most, kept: VecDeque::new(), was_used: false }
    }

    fn with(&mut self, len: usize, fill: impl FnOnce(&mut BytesMut)) -> BytesMut {
        self.was_used = true;
        let mut buffer = match self.free() {
            Some(buffer) => buffer,
            None if self.kept.len() < self.most => BytesMut::with_capacity(self.size),
            None => BytesMut::with_capacity(len),
        };
        fill(&mut buffer);
        let filled = buffer.split();
        if self.kept.len() < self.most {
            self.kept.push_back(buffer);
        }
        filled
    }

    /// Returns a buffer of which no piece is in use any more.
    fn free(&mut self) -> Option<BytesMut> {
        let size = self.size;
        let at = self.kept.iter_mut().take(LOOKS).position(|buffer| buffer.try_reclaim(size))?;
        self.kept.remove(at)
    }

    fn check(&mut self) {
        if !std::mem::take(&mut self.was_used) {
            self.kept = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_serves_again_once_it_is_dropped() {
        for [one, other] in [[BUFFER, SHORTEST], [SHORT, 1]] {
            let mut pool = BufferPool::new();
            let first = pool.copy_of(&vec![1; one]).freeze();
            let at = first.as_ptr();
            let second = pool.filled(one - 1, |bytes| bytes.fill(2));
            assert_ne!(second.as_ptr(), at, "the first is still held");
            let part = first.slice(one / 2..);
            drop(first);
            let third = pool.copy_of(&vec![3; other]);
            assert_ne!(third.as_ptr(), at, "a part of the first is still held");
            assert_eq!(part, vec![1; one - one / 2]);
            drop(part);
            let fourth = pool.copy_of(&vec![4; other]);
            assert_eq!(fourth.as_ptr(), at);
            assert_eq!(second, vec![2; one - 1]);
            assert_eq!(third, vec![3; other]);
            assert_eq!(fourth, vec![4; other]);
        }
    }

    /// A peer that leaves a gap in a stream makes us hold the bytes behind the gap.
    #[test]
    fn a_buffer_that_is_held_for_long_does_not_stop_the_others() {
        let mut pool = BufferPool::new();
        let held = pool.copy_of(b"held");
        let places: Vec<_> = (0..10).map(|_| pool.copy_of(b"passing").as_ptr()).collect();
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
        assert_eq!(&held[..], b"held");
    }

    #[test]
    fn what_is_kept_is_bounded_and_goes_when_it_is_not_used() {
        let mut pool = BufferPool::new();
        let held: Vec<_> =
            (0..2 * MOST).flat_map(|_| [pool.copy_of(&[0; BUFFER]), pool.copy_of(b"s")]).collect();
        let kept = |pool: &BufferPool| (pool.long.kept.len(), pool.short.kept.len());
        assert_eq!(kept(&pool), (MOST, MOST_SHORT));
        pool.check();
        assert_eq!(kept(&pool), (MOST, MOST_SHORT));
        drop(pool.copy_of(b"one size is still used"));
        pool.check();
        assert_eq!(kept(&pool), (0, MOST_SHORT));
        pool.check();
        assert_eq!((kept(&pool), pool.long.kept.capacity()), ((0, 0), 0));
        drop(held);
    }

    #[test]
    fn a_run_between_the_sizes_holds_no_long_buffer() {
        let mut pool = BufferPool::new();
        let between = pool.copy_of(&[5; SHORTEST - 1]);
        assert!(between.capacity() < SHORTEST + 64, "{}", between.capacity());
        let filled = pool.filled(3, |bytes| bytes.copy_from_slice(b"abc"));
        assert_eq!(&filled[..], b"abc");
        assert!(pool.long.kept.is_empty());
    }

    /// A peer can make us hold the bytes of a short datagram while all short buffers are held.
    #[test]
    fn a_short_run_beyond_those_that_are_kept_has_no_more_than_its_length() {
        let mut pool = BufferPool::new();
        let held: Vec<_> = (0..=MOST_SHORT).map(|_| pool.copy_of(b"held")).collect();
        let beyond = held.last().unwrap();
        assert!(beyond.capacity() < 64, "{}", beyond.capacity());
    }
}
