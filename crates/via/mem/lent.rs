//! Lent messages: a peer's memory that we may read for a while.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

/// Upper bound of the pieces of one lent message.
const MAX_PARTS: usize = 3;

/// Keeps lent memory mapped, and is told when its reader is done.
pub trait Lender: Send + Sync {
    /// Notes that the reader of `token` is done.
    fn give_back(&self, token: u16);
    /// Notes that the message of `token` found no place at its receiver, which is done with it. Senders that wait for their
    /// messages' arrival are told the difference.
    fn refuse(&self, token: u16) {
        self.give_back(token);
    }
}

/// A message in its sender's memory, readable until dropped. Dropping it gives the buffer back to the sender.
///
/// The message lies in one piece or in several, as its sender decides; a program that needs a slice asks for one
/// ([`Lent::into_slice`]). The type is small, because it is moved by value: most messages have one piece, so the others are
/// boxed.
pub struct Lent {
    first: Option<Part>,
    others: Option<Box<[Option<Part>; MAX_PARTS - 1]>>,
    loan: Loan,
}

/// A [`Lent`] message in one piece: a slice until dropped.
pub struct LentSlice {
    piece: Part,
    loan: Loan,
}

type Part = (NonNull<u8>, usize);

/// The lender's claim to the memory. The loan ends when it is dropped.
struct Loan {
    lender: Arc<dyn Lender>,
    token: u16,
    refused: bool,
}

// SAFETY: read-only memory, and a lender that is `Send + Sync`.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}
// SAFETY: as above.
unsafe impl Send for LentSlice {}
// SAFETY: as above.
unsafe impl Sync for LentSlice {}

impl Lent {
    /// Upper bound of the pieces of one lent message.
    pub const MAX_PARTS: usize = MAX_PARTS;

    /// A message in memory of a peer.
    ///
    /// # Safety
    /// Until `lender.give_back(token)` is called, and at least while `lender` lives, each part is mapped and
    /// readable, and nobody writes it (SAFETY.md: an admitted peer is trusted not to write what it gave away).
    pub unsafe fn new(parts: &[(NonNull<u8>, usize)], lender: Arc<dyn Lender>, token: u16) -> Self {
        assert!(parts.len() <= MAX_PARTS);
        let others =
            (parts.len() > 1).then(|| Box::new(std::array::from_fn(|at| parts.get(1 + at).copied())));
        Lent { first: parts.first().copied(), others, loan: Loan::new(lender, token) }
    }

    fn places(&self) -> impl Iterator<Item = Part> {
        self.first.into_iter().chain(self.others.iter().flat_map(|others| others.iter().flatten().copied()))
    }

    /// Gives the buffer back, and tells the sender that the message found no place here.
    pub fn refuse(mut self) {
        self.loan.refused = true;
    }

    /// The pieces, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: mapped, readable and unwritten while `self` lives, as `new` was promised.
        self.places().map(|(at, len)| unsafe { std::slice::from_raw_parts(at.as_ptr(), len) })
    }

    /// The message as one slice.
    ///
    /// # Errors
    /// The message itself, if it lies in several pieces.
    #[inline]
    pub fn into_slice(self) -> Result<LentSlice, Lent> {
        if self.others.is_some() {
            return Err(self);
        }
        let piece = self.first.unwrap_or((NonNull::dangling(), 0));
        Ok(LentSlice { piece, loan: self.loan })
    }

    /// The message, if it lies in one piece.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match (&self.others, self.first) {
            (Some(_), _) => None,
            (None, None) => Some(&[]),
            // SAFETY: as in `parts`.
            (None, Some((at, len))) => Some(unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }),
        }
    }

    /// Length of all pieces together, in bytes.
    pub fn len(&self) -> usize {
        self.places().map(|(_, len)| len).sum()
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl LentSlice {
    /// A message of one piece, as by [`Lent::new`].
    ///
    /// # Safety
    /// The conditions of [`Lent::new`].
    #[inline]
    pub unsafe fn new(piece: (NonNull<u8>, usize), lender: Arc<dyn Lender>, token: u16) -> Self {
        LentSlice { piece, loan: Loan::new(lender, token) }
    }
}

impl Deref for LentSlice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (at, len) = self.piece;
        // SAFETY: mapped, readable and unwritten while `self` lives, as `new` was promised; nothing, if it is no memory.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }
    }
}

impl From<LentSlice> for Lent {
    #[inline]
    fn from(LentSlice { piece, loan }: LentSlice) -> Self {
        Lent { first: Some(piece), others: None, loan }
    }
}

impl Loan {
    #[inline]
    fn new(lender: Arc<dyn Lender>, token: u16) -> Self {
        Loan { lender, token, refused: false }
    }
}

impl Drop for Loan {
    #[inline]
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            // The parent gives it back.
            return;
        }
        if self.refused {
            self.lender.refuse(self.token);
        } else {
            self.lender.give_back(self.token);
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes, token {})", self.len(), self.loan.token)
    }
}

impl fmt::Debug for LentSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentSlice({} bytes, token {})", self.len(), self.loan.token)
    }
}

/// A private copy of a peer's bytes, 64-byte aligned, in the form of a [`Lent`] message: for receivers that hold too much of
/// a sender's memory, or that do not trust the sender.
pub struct PrivateCopy {
    lines: Vec<Line>,
    /// The message that was copied, if it is given back with the copy.
    original: Mutex<Option<Lent>>,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "only its address is used")] [u8; 64]);

impl PrivateCopy {
    /// Copies the pieces, in order, into one.
    ///
    /// # Safety
    /// Each piece is mapped and readable (a peer may be writing there).
    pub unsafe fn take(pieces: &[(NonNull<u8>, usize)]) -> LentSlice {
        // SAFETY: as the caller promises.
        unsafe { Self::copy(pieces, None, |_| {}) }
    }

    /// Copies `lent`. The original is given back, or refused, when the copy is: for senders that wait to be told.
    pub fn keeping(lent: Lent) -> LentSlice {
        Self::altered(lent, |_| {})
    }

    /// The same as [`PrivateCopy::keeping`], but `alter` changes the copy.
    pub fn altered(lent: Lent, alter: impl FnOnce(&mut [u8])) -> LentSlice {
        let parts: Vec<Part> = lent.places().collect();
        // SAFETY: mapped and readable while `lent` lives, as `Lent::new` was promised.
        unsafe { Self::copy(&parts, Some(lent), alter) }
    }

    /// Copies the message once more; this copy gives nothing back.
    pub fn twin(lent: &Lent) -> LentSlice {
        // SAFETY: mapped and readable while `lent` lives, as `Lent::new` was promised.
        unsafe { Self::take(&lent.places().collect::<Vec<Part>>()) }
    }

    /// Copies the pieces, and lets `alter` change the copy.
    ///
    /// # Safety
    /// The conditions of [`PrivateCopy::take`].
    unsafe fn copy(
        pieces: &[(NonNull<u8>, usize)],
        original: Option<Lent>,
        alter: impl FnOnce(&mut [u8]),
    ) -> LentSlice {
        let len = pieces.iter().map(|piece| piece.1).sum::<usize>();
        let mut copy =
            PrivateCopy { lines: vec![Line([0; 64]); len.div_ceil(64)], original: Mutex::new(original) };
        let at = NonNull::from(copy.lines.as_mut_slice()).cast::<u8>();
        // SAFETY: the vector holds at least `len` bytes, ours alone.
        let all = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) };
        let mut to = &mut *all;
        for &(from, len) in pieces {
            let (piece, rest) = to.split_at_mut(len);
            // SAFETY: as the caller promises; fresh memory does not overlap.
            unsafe { udeck_sys::copy_in(piece, from) };
            to = rest;
        }
        alter(all);
        // SAFETY: the lines live in the lender, at a stable address, and nobody writes them any more.
        unsafe { LentSlice::new((at, len), Arc::new(copy), 0) }
    }
}

impl Lender for PrivateCopy {
    fn give_back(&self, _: u16) {
        drop(self.original.lock().take());
    }
    fn refuse(&self, _: u16) {
        if let Some(original) = self.original.lock().take() {
            original.refuse();
        }
    }
}

impl fmt::Debug for PrivateCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateCopy({} lines)", self.lines.len())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A message whose memory is never written again.
    pub(crate) fn lent(bytes: &'static [u8], lender: Arc<dyn Lender>, token: u16) -> Lent {
        // SAFETY: the bytes live for ever, and nobody can write them.
        unsafe { Lent::new(&[(NonNull::from(bytes).cast(), bytes.len())], lender, token) }
    }

    #[test]
    fn private_copies_are_aligned_and_equal() {
        for len in [0usize, 1, 63, 64, 65, 1000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            // SAFETY: the two pieces are `bytes`, readable for its length.
            let copy = unsafe {
                PrivateCopy::take(&[
                    (NonNull::from(&bytes[..len / 3]).cast(), len / 3),
                    (NonNull::from(&bytes[len / 3..]).cast(), len - len / 3),
                ])
            };
            assert_eq!(*copy, bytes);
            assert!(len == 0 || copy.as_ptr().addr().is_multiple_of(64));
        }
    }

    #[test]
    fn a_message_in_several_pieces_is_no_slice() {
        let home = Arc::new(Home::default());
        let of = |parts: &[&'static [u8]]| {
            let parts: Vec<Part> =
                parts.iter().map(|part| (NonNull::from(*part).cast(), part.len())).collect();
            // SAFETY: the bytes live for ever, and nobody can write them.
            unsafe { Lent::new(&parts, home.clone(), 1) }
        };
        for parts in [&[&b"ab"[..], b"c"][..], &[b"a", b"b", b"c"], &[b"abc", b""]] {
            let lent = of(parts);
            assert_eq!((lent.as_slice(), lent.len()), (None, 3));
            let lent = lent.into_slice().unwrap_err();
            assert!(home.0.lock().is_empty(), "it is still ours");
            assert_eq!(lent.parts().collect::<Vec<_>>().concat(), b"abc");
            drop(lent);
            assert_eq!(home.0.lock().split_off(0), ["given back"]);
        }
        for parts in [&[&b"abc"[..]][..], &[]] {
            let bytes = parts.concat();
            let lent = of(parts);
            assert_eq!(lent.as_slice(), Some(&bytes[..]));
            let slice = lent.into_slice().unwrap();
            assert_eq!((&*slice, home.0.lock().len()), (&bytes[..], 0));
            drop(slice);
            assert_eq!(home.0.lock().split_off(0), ["given back"]);
        }
    }

    #[derive(Default)]
    struct Home(Mutex<Vec<&'static str>>);
    impl Lender for Home {
        fn give_back(&self, _: u16) {
            self.0.lock().push("given back");
        }
        fn refuse(&self, _: u16) {
            self.0.lock().push("refused");
        }
    }

    #[test]
    fn an_altered_copy_goes_home_once_and_a_twin_never() {
        let home = Arc::new(Home::default());
        let original = lent(b"abc", home.clone(), 1);
        let twin = PrivateCopy::twin(&original);
        let altered = PrivateCopy::altered(original, |bytes| bytes[1] = b'B');
        assert_eq!((&*twin, &*altered), (&b"abc"[..], &b"aBc"[..]));
        drop(twin);
        assert!(home.0.lock().is_empty());
        Lent::from(altered).refuse();
        assert_eq!(*home.0.lock(), ["refused"]);
    }
}
