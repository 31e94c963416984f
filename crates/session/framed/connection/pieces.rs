//! Pieces of memory that drivers send from and receive into.

#![allow(unsafe_code, reason = "memory that is under way, or the transport contract")]

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use smallvec::SmallVec;

use crate::framed::windows::WindowAccess;
use crate::memory::{Place, Store};

/// A piece of memory to send, laid out as C's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// First byte. If it lies in a window, a peer may be writing there: for system calls, not for slices.
    pub at: *const u8,
    /// Length in bytes; not 0.
    pub len: usize,
    memory: PhantomData<&'a [u8]>,
}

/// Pieces that [`super::Connection::gather`] found. The value lies on the stack.
pub struct Pieces<'a> {
    /// Pieces; the first `len` are set.
    pieces: [MaybeUninit<Piece<'a>>; MOST],
    len: usize,
    bytes: usize,
}

const MOST: usize = 64;

impl<'a> Pieces<'a> {
    /// Upper bound of pieces that are gathered at a time.
    pub const MOST: usize = MOST;

    /// An empty list.
    pub fn new() -> Self {
        Pieces { pieces: [const { MaybeUninit::uninit() }; MOST], len: 0, bytes: 0 }
    }

    /// The pieces, in stream order.
    pub fn as_slice(&self) -> &[Piece<'a>] {
        // SAFETY: the first `len` are set (`push`), and laid out as what they are.
        unsafe { std::slice::from_raw_parts(self.pieces.as_ptr().cast(), self.len) }
    }

    /// Length of all pieces together, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the pieces, in order, to the front of `to`, for drivers that make packets. Returns the bytes copied.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in self.as_slice() {
            let n = piece.len.min(to.len() - done);
            if let Some(from) = std::ptr::NonNull::new(piece.at.cast_mut()) {
                // SAFETY: readable as long as the connection is borrowed, which the lifetime says; it may be memory that
                // somebody writes at the same time.
                unsafe { udeck_sys::copy_in(&mut to[done..done + n], from) };
            }
            done += n;
        }
        done
    }

    pub(super) fn has_room(&self) -> bool {
        self.len < MOST
    }

    /// Appends the bytes of `places` from byte `from` on, at most `limit` bytes and as far as there is room. Returns the
    /// number of bytes. The places stay while the connection is borrowed for `'a`.
    #[inline]
    pub(super) fn append(
        &mut self,
        places: impl IntoIterator<Item = Place>,
        from: usize,
        limit: usize,
    ) -> usize {
        let (mut skipped, mut left) = (from, limit);
        for place in places {
            if skipped >= place.len() {
                skipped -= place.len();
                continue;
            }
            if left == 0 || !self.has_room() {
                break;
            }
            let place = place.behind(std::mem::take(&mut skipped));
            let place = place.first(place.len().min(left));
            self.push(place);
            left -= place.len();
        }
        limit - left
    }

    fn push(&mut self, place: Place) {
        self.bytes += place.len();
        let piece = Piece { at: place.at().as_ptr(), len: place.len(), memory: PhantomData };
        self.pieces[self.len].write(piece);
        self.len += 1;
    }
}

impl Default for Pieces<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Pieces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pieces({} of {} bytes)", self.len, self.bytes)
    }
}

/// Lengths in which expected messages are alike ([`super::expected`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of the message's head.
    pub head: u8,
    /// Bytes of its body.
    pub body: usize,
}

/// Memory for the body of an expected message.
#[derive(Debug)]
pub struct Expected {
    pub(super) shape: Shape,
    pub(super) store: Store,
}

/// A piece of memory to receive into, laid out as C's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PieceMut {
    /// First byte. For system calls, not for slices.
    pub at: *mut u8,
    /// Length in bytes; not 0.
    pub len: usize,
}

/// Places for the next bytes of the incoming stream: up to [`Direct::MOST`] pieces, maybe none. Use it under the same lock
/// for one non-blocking read, then pass it to [`super::Connection::on_receive`].
#[derive(Debug, Default)]
pub struct Direct {
    pieces: SmallVec<[PieceMut; crate::SEGMENTS]>,
    len: usize,
    before: usize,
    /// Memory of the pieces, for a body that is only expected.
    pub(super) expected: Option<Expected>,
    /// Guard of the window in which the pieces lie: the window is not given back before this is dropped.
    #[allow(dead_code, reason = "held, not read")]
    access: Option<WindowAccess>,
}

impl Direct {
    /// Upper bound of pieces.
    pub const MOST: usize = crate::SEGMENTS;

    /// The pieces, in stream order.
    pub fn pieces(&self) -> &[PieceMut] {
        &self.pieces
    }

    /// Length of all pieces together, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the stream before the pieces. They belong to the front of the driver's scratch, and the bytes behind the
    /// pieces follow there.
    pub fn before(&self) -> usize {
        self.before
    }

    /// Whether there is no place: nothing is known of the next byte, or the bytes are thrown away.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, place: Place) {
        if place.len() > 0 && self.pieces.len() < Self::MOST {
            self.len += place.len();
            self.pieces.push(PieceMut { at: place.at().as_ptr(), len: place.len() });
        }
    }

    /// Adds a place for a message like the last two, with `before` bytes before its body.
    pub(super) fn expect(&mut self, before: usize, mut expected: Expected) {
        if let Some(place) = expected.store.room(0) {
            self.push(place);
            (self.before, self.expected) = (before, Some(expected));
        }
    }

    pub(super) fn keep_open(&mut self, access: WindowAccess) {
        self.access = Some(access);
    }
}
