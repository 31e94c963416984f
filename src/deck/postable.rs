//! What can be posted, and how it becomes a block of registered memory, which is all that a channel carries.

use bytemuck::Pod;

use crate::error::PostError;
use crate::send::poster::Poster;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;

/// What a postbox of `T` takes: [`crate::Buf`], [`crate::SharedBuf`], [`crate::ExternalBuf`] and a slice, of which a copy is posted,
/// for plain data; [`crate::Message`] for [`crate::Packed`].
///
/// Sealed.
pub trait Postable<T>: sealed::Sealed + Sized {
    #[doc(hidden)]
    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl<T: Pod> sealed::Sealed for &[T] {}

/// Posts a copy: a short message goes straight into its descriptor, a longer one into a buffer of the library's. Its tag
/// is 0.
impl<T: Pod> Postable<T> for &[T] {
    #[inline]
    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        poster
            .post_copy(bytemuck::cast_slice(self), 0, policy)
            .map_err(|error| PostError { error, message: Some(self) })
    }
}
