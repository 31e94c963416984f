//! Types that can be posted, and how each becomes a block of registered memory, which is all that a channel
//! carries.

use bytemuck::Pod;

use crate::error::PostError;
use crate::send::poster::Poster;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;

/// Type that a postbox of `T` can post.
///
/// | to post | what travels |
/// |---|---|
/// | [`crate::Buf`], [`crate::SharedBuf`] | the memory itself |
/// | [`crate::Received`] | the memory itself, where it is this rank's; otherwise a copy |
/// | [`crate::ExternalBuf`] | a copy, or where a NIC can, the memory itself |
/// | a slice, `&array`, `&vec`, `&buf`, and a slice [with a tag](WithTag) | a copy; the program keeps the original |
/// | [`crate::Message`], for [`crate::Packed`] | the memory itself |
///
/// Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be posted to a mailbox of `{T}`",
    label = "not a message of `{T}`",
    note = "a postbox of `{T}` takes `Buf<{T}>`, `SharedBuf<{T}>`, `Received<{T}>` and `ExternalBuf<{T}>`, which are moved, and \
            `&[{T}]`, `&[{T}; N]`, `&Vec<{T}>`, which are copied; a postbox of `Packed` takes `Message`",
    note = "a single value is posted as `&[value]`, other slices as `&values[..]`; a `Vec` as `&values`, which copies it, or as \
            `ExternalBuf::new(values)`, which moves it; text as `text.as_bytes()`"
)]
pub trait Postable<T>: sealed::Sealed + Sized {
    /// Type that comes back if the post fails: a moved message itself, or `()` for a copied one, whose
    /// original the program still has.
    type Unposted;

    #[doc(hidden)]
    fn unposted(self) -> Self::Unposted;

    #[doc(hidden)]
    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>>;
}

/// Converts a failed post's message to the type that its poster gets back.
#[cold]
pub(crate) fn unposted<T, M: Postable<T>>(failed: PostError<M>) -> PostError<M::Unposted> {
    PostError { error: failed.error, message: failed.message.map(M::unposted) }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl<T: Pod> sealed::Sealed for &[T] {}

/// Posts a copy, with tag 0: a short message goes straight into its descriptor, a longer one into a buffer of
/// the library.
impl<T: Pod> Postable<T> for &[T] {
    type Unposted = ();

    fn unposted(self) {}

    #[inline]
    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        poster
            .post_copy(bytemuck::cast_slice(self), 0, policy)
            .map_err(|error| PostError { error, message: Some(self) })
    }
}

/// Posts a copy, like a slice.
macro_rules! post_as_slice {
    ($([$($generics:tt)*] $name:ty;)*) => {$(
        impl<$($generics)*> sealed::Sealed for &$name {}

        /// Posts a copy, like a slice.
        impl<$($generics)*> Postable<T> for &$name {
            type Unposted = ();

            fn unposted(self) {}

            #[inline]
            fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
                poster
                    .post_copy(bytemuck::cast_slice(&self[..]), 0, policy)
                    .map_err(|error| PostError { error, message: Some(self) })
            }
        }
    )*};
}

post_as_slice! {
    [T: Pod, const N: usize] [T; N];
    [T: Pod] Vec<T>;
    [T: Pod] Box<[T]>;
}

/// Gives the elements of a slice a tag for their post: `out.post(row[1..2].with_tag(7))`. (Arrays and vectors
/// are slices, too.) The library's message types have a method of the same name.
///
/// ```
/// # use udeck_deck::{Postbox, Result, World};
/// use udeck_deck::WithTag;
/// # fn step(world: &World, out: &Postbox<f64>, limit: std::time::Duration) -> Result {
/// out.post([1.0, 2.0].with_tag(7))?;                   // a copy
/// out.post_timeout(vec![3.0; 10].with_tag(7), limit)?; // every call that posts takes it
/// out.post(world.buf(1000)?.with_tag(7))?;             // the message itself
/// # Ok(()) }
/// ```
///
/// Sealed.
pub trait WithTag: sealed::Sealed {
    /// Type of the elements.
    type Element;

    /// Returns the elements, with a tag, as a message that is posted by copying it.
    fn with_tag(&self, tag: u32) -> Tagged<'_, Self::Element>;
}

impl<T: Pod> sealed::Sealed for [T] {}

impl<T: Pod> WithTag for [T] {
    type Element = T;

    #[inline]
    fn with_tag(&self, tag: u32) -> Tagged<'_, T> {
        Tagged { elements: self, tag }
    }
}

/// A slice with a tag, to be posted by copying it ([`WithTag::with_tag`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it is not posted yet"]
pub struct Tagged<'a, T> {
    elements: &'a [T],
    tag: u32,
}

impl<T: Pod> sealed::Sealed for Tagged<'_, T> {}

impl<T: Pod> Postable<T> for Tagged<'_, T> {
    type Unposted = ();

    fn unposted(self) {}

    #[inline]
    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        poster
            .post_copy(bytemuck::cast_slice(self.elements), self.tag, policy)
            .map_err(|error| PostError { error, message: Some(self) })
    }
}
