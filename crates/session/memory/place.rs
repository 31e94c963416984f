//! Places in memory by address. Their bounds were checked when they were made. Their makers in this crate answer for the
//! rest: the memory stays, and nobody else accesses it ([`Place::fill`]).

use std::ptr::NonNull;

use udeck_via::Arena;

/// Bytes of an arena, or of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; accesses are decided under the connection's lock.
unsafe impl Send for Place {}

impl Place {
    /// The place `[offset, offset + len)` of an arena, if it is inside.
    pub fn of(arena: &Arena, offset: u64, len: usize) -> Option<Self> {
        Some(Place { at: arena.place(offset, len)?, len })
    }

    /// A place in memory that its maker keeps for as long as the place is used.
    pub(super) fn new(at: NonNull<u8>, len: usize) -> Self {
        Place { at, len }
    }

    /// A place of bytes on the heap, which stay as long as their box.
    pub fn bytes(bytes: &[u8]) -> Self {
        Place { at: NonNull::from(bytes).cast(), len: bytes.len() }
    }

    /// A place that the program lends for a while; the maker forgets it before the program has it again.
    pub fn lent(bytes: &mut [u8]) -> Self {
        Place { len: bytes.len(), at: NonNull::from(bytes).cast() }
    }

    pub fn at(self) -> NonNull<u8> {
        self.at
    }

    pub fn len(self) -> usize {
        self.len
    }

    /// The place without its first `skipped` bytes.
    pub fn behind(self, skipped: usize) -> Self {
        assert!(skipped <= self.len);
        // SAFETY: within the place, or at its end.
        Place { at: unsafe { self.at.add(skipped) }, len: self.len - skipped }
    }

    /// The first `len` bytes of the place.
    pub fn first(self, len: usize) -> Self {
        assert!(len <= self.len);
        Place { at: self.at, len }
    }

    /// Copies `bytes`, which fit, to the front of the place: a store that is being filled, the segments of a read, or a
    /// window that somebody is inside of.
    pub fn fill(self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: a place to be filled is kept by what it was made of (the store, the read's owner, the guard of the
        // window, the program that lends it), and nobody has a slice of it: stores give theirs out when they are full,
        // the segments of a read are the endpoint's until it is over, windows have none, and what the program lends it has
        // no access to meanwhile. `bytes` is a slice, so it lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr(), bytes.len()) };
    }
}
