//! Buffers for long runs of bytes that QUIC holds for a while: what was gathered to be sent, until it is acknowledged, and received
//! datagrams, until their bytes are read.
//!
//! Given back to the allocator, they would go back to the kernel: glibc returns the free end of its heap. Each message of 1 MiB would
//! then pay for fresh pages, zeroed by the kernel, on both sides; that took half of its time. So a buffer is kept, and used again once
//! QUIC has dropped it. A short run has an allocation of its own size: a peer that sends many short ones must not hold a long buffer by
//! each.

use std::collections::VecDeque;

use bytes::BytesMut;

/// Bytes of a buffer.
pub const BUFFER: usize = 64 << 10;
/// Shorter runs have memory of their own: QUIC counts a buffer as what it holds, so a peer must not make us hold much more than that.
/// The longest datagrams within a host are longer than this.
const SHORTEST: usize = BUFFER - (1 << 10);
/// Buffers that are kept, at most: as much as a sender may be ahead of the program that receives, and a few.
const MOST: usize = 40;

/// See the module.
#[derive(Default)]
pub struct BufferPool {
    /// The oldest first. What was cut off one of them may be in use.
    buffers: VecDeque<BytesMut>,
    /// For short runs.
    short: BytesMut,
    was_used: bool,
}

impl BufferPool {
    /// Bytes that `fill` writes.
    pub fn filled(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> BytesMut {
        if !Self::is_long(len) {
            self.short.resize(len, 0);
            fill(&mut self.short);
            return self.short.split();
        }
        self.take(len, |buffer| {
            buffer.resize(len, 0);
            fill(buffer);
        })
    }

    /// A copy.
    pub fn copy_of(&mut self, bytes: &[u8]) -> BytesMut {
        if !Self::is_long(bytes.len()) {
            return BytesMut::from(bytes);
        }
        self.take(bytes.len(), |buffer| buffer.extend_from_slice(bytes))
    }

    fn is_long(len: usize) -> bool {
        (SHORTEST..=BUFFER).contains(&len)
    }

    fn take(&mut self, len: usize, fill: impl FnOnce(&mut BytesMut)) -> BytesMut {
        self.was_used = true;
        let free = match self.buffers.front_mut() {
            Some(oldest) => oldest.try_reclaim(BUFFER),
            None => false,
        };
        let mut buffer = match self.buffers.len() {
            _ if free => self.buffers.pop_front().unwrap_or_default(),
            0..MOST => BytesMut::with_capacity(BUFFER),
            _ => BytesMut::with_capacity(len),
        };
        fill(&mut buffer);
        let filled = buffer.split();
        if self.buffers.len() < MOST {
            self.buffers.push_back(buffer);
        }
        filled
    }

    /// The periodic check: gives all back if none was used since the last one.
    pub fn check(&mut self) {
        if !std::mem::take(&mut self.was_used) {
            self.buffers = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_serves_again_once_it_is_dropped() {
        let mut pool = BufferPool::default();
        let first = pool.copy_of(&[1; BUFFER]).freeze();
        let at = first.as_ptr();
        let second = pool.filled(BUFFER - 1, |bytes| bytes.fill(2));
        assert_ne!(second.as_ptr(), at, "the first is still held");
        let part = first.slice(100..);
        drop(first);
        let third = pool.copy_of(&[3; SHORTEST]);
        assert_ne!(third.as_ptr(), at, "a part of the first is still held");
        assert_eq!(part, [1; BUFFER - 100][..]);
        drop(part);
        let fourth = pool.copy_of(&[4; SHORTEST]);
        assert_eq!(fourth.as_ptr(), at);
        assert_eq!(second, [2; BUFFER - 1][..]);
        assert_eq!(third, [3; SHORTEST][..]);
        assert_eq!(fourth, [4; SHORTEST][..]);
    }

    #[test]
    fn what_is_kept_is_bounded_and_goes_when_it_is_not_used() {
        let mut pool = BufferPool::default();
        let held: Vec<_> = (0..2 * MOST).map(|_| pool.copy_of(&[0; BUFFER])).collect();
        assert_eq!(pool.buffers.len(), MOST);
        pool.check();
        assert_eq!(pool.buffers.len(), MOST);
        pool.check();
        assert_eq!((pool.buffers.len(), pool.buffers.capacity()), (0, 0));
        drop(held);
    }

    #[test]
    fn a_short_run_holds_no_long_buffer() {
        let mut pool = BufferPool::default();
        let short = pool.copy_of(&[5; SHORTEST - 1]);
        assert!(short.capacity() < SHORTEST + 64, "{}", short.capacity());
        let filled = pool.filled(3, |bytes| bytes.copy_from_slice(b"abc"));
        assert_eq!(&filled[..], b"abc");
        assert!(pool.buffers.is_empty());
    }
}
