//! What can be posted, and how it becomes a block of registered memory: the one thing a channel carries.

use bytemuck::Pod;

use crate::buffer::Buf;
use crate::channel::{Patience, Ticket};
use crate::error::PostError;
use crate::item::{Item, Packed};
use crate::message::Message;
use crate::postbox::Postbox;

/// What a postbox of `T` takes: [`Buf`], [`crate::SharedBuf`], [`crate::Adopted`] and a slice, of which a copy is posted,
/// for plain data; [`Message`] for [`Packed`].
///
/// Sealed.
pub trait Postable<T: Item>: sealed::Sealed + Sized {
    #[doc(hidden)]
    fn post_to(self, postbox: &Postbox<T>, patience: Patience) -> Result<Ticket, PostError<Self>>;
}

mod sealed {
    pub trait Sealed {}
    impl<T: bytemuck::Pod> Sealed for super::Buf<T> {}
    impl<T: bytemuck::Pod> Sealed for &[T] {}
    impl Sealed for super::Message {}
    impl<T: bytemuck::Pod + Send> Sealed for crate::Adopted<T> {}
    impl<T: bytemuck::Pod> Sealed for crate::SharedBuf<T> {}
}

impl<T: Pod> Postable<T> for Buf<T> {
    #[inline]
    fn post_to(self, postbox: &Postbox<T>, patience: Patience) -> Result<Ticket, PostError<Self>> {
        postbox
            .post_block(self.into_block(), patience)
            .map_err(|(error, block)| PostError { error, message: block.map(Buf::new) })
    }
}

/// Posts a copy: a short message goes straight into its descriptor, a longer one into a buffer of the library's. Its tag
/// is 0.
impl<T: Pod> Postable<T> for &[T] {
    #[inline]
    fn post_to(self, postbox: &Postbox<T>, patience: Patience) -> Result<Ticket, PostError<Self>> {
        postbox
            .post_copy(bytemuck::cast_slice(self), 0, patience)
            .map_err(|error| PostError { error, message: Some(self) })
    }
}

impl Postable<Packed> for Message {
    fn post_to(self, postbox: &Postbox<Packed>, patience: Patience) -> Result<Ticket, PostError<Self>> {
        let capacity = self.capacity();
        postbox.post_block(self.into_block(), patience).map_err(|(error, block)| PostError {
            error,
            message: block.map(|block| Message::from_block(block, capacity)),
        })
    }
}
