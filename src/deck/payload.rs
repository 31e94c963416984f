//! What mailboxes carry.

use bytemuck::Pod;

use crate::buffer::Buf;
use crate::message::{Message, Packed};
use crate::postable::Postable;

/// What a mailbox carries: elements of plain data, or [`Packed`] messages.
///
/// Sealed: implemented for every [`Pod`] type, and for [`Packed`].
pub trait Payload: sealed::SealedPayload + Sized + 'static {
    /// The library's own message for it.
    type Outgoing: Postable<Self>;
    /// Bytes of one element; lengths of messages are whole numbers of it.
    #[doc(hidden)]
    const SIZE: usize;
    /// Alignment of one element.
    #[doc(hidden)]
    const ALIGN: usize;
    /// The type's name, for comparing the two ends.
    #[doc(hidden)]
    fn kind() -> &'static str;
}

mod sealed {
    pub trait SealedPayload {}
    impl<T: bytemuck::Pod> SealedPayload for T {}
    impl SealedPayload for super::Packed {}
}

impl<T: Pod> Payload for T {
    type Outgoing = Buf<T>;
    const SIZE: usize = size_of::<T>();
    const ALIGN: usize = align_of::<T>();
    fn kind() -> &'static str {
        std::any::type_name::<T>()
    }
}

impl Payload for Packed {
    type Outgoing = Message;
    const SIZE: usize = 1;
    const ALIGN: usize = 8;
    fn kind() -> &'static str {
        "packed messages"
    }
}
