//! Types that mailboxes carry: plain data, or packed messages.

use bytemuck::Pod;
use udeck_via::Block;

use crate::error::{Error, Result};
use crate::memory::buffer::Buf;
use crate::message::{Message, Packed};
use crate::postable::Postable;

/// Type that a mailbox carries: elements of plain data, or [`Packed`] messages.
///
/// Sealed: implemented for every [`Pod`] type, and for [`Packed`]. A program's own type derives [`Pod`], as
/// the documentation of [`Pod`] shows.
#[diagnostic::on_unimplemented(
    message = "a mailbox cannot carry `{Self}`",
    label = "neither plain data (`Pod`) nor `Packed`",
    note = "derive it, with `use udeck::bytemuck::{{Pod, Zeroable}}`: \
            `#[derive(Clone, Copy, Pod, Zeroable)] #[repr(C)] #[bytemuck(crate = \"udeck::bytemuck\")]`",
    note = "a message is a slice of elements: for `Vec<f64>` or `[f64]` take a mailbox of `f64`, for `String` or `str` one of `u8`; \
            for `bool` take `u8`, for `char` `u32`",
    note = "types that are not plain data (enums, nested vectors) travel packed: `world.mailbox::<Packed>(…)`, `world.message(…)`"
)]
pub trait Payload: sealed::SealedPayload + Sized + 'static {
    /// The library's own message type for this payload.
    type Outgoing: Postable<Self>;
    /// Bytes of one element. A message's length is a multiple of it.
    #[doc(hidden)]
    const SIZE: usize;
    /// Alignment of one element.
    #[doc(hidden)]
    const ALIGN: usize;
    /// The registered memory of a message.
    #[doc(hidden)]
    fn into_block(outgoing: Self::Outgoing) -> Block;
    /// The type's name, compared between postbox and mailbox.
    #[doc(hidden)]
    fn kind() -> &'static str;
}

mod sealed {
    pub trait SealedPayload {}
    impl<T: bytemuck::Pod> SealedPayload for T {}
    impl SealedPayload for super::Packed {}
}

#[diagnostic::do_not_recommend]
impl<T: Pod> Payload for T {
    type Outgoing = Buf<T>;
    const SIZE: usize = size_of::<T>();
    const ALIGN: usize = align_of::<T>();
    fn kind() -> &'static str {
        std::any::type_name::<T>()
    }
    fn into_block(outgoing: Buf<T>) -> Block {
        outgoing.into_block()
    }
}

impl Payload for Packed {
    type Outgoing = Message;
    const SIZE: usize = 1;
    const ALIGN: usize = 8;
    fn kind() -> &'static str {
        "packed messages"
    }
    fn into_block(outgoing: Message) -> Block {
        outgoing.into_block()
    }
}

/// Checks that messages can consist of elements of `T`.
///
/// # Errors
/// [`Error::BadPayload`]: the elements have no size, or need more than 64-byte alignment.
pub(crate) fn check_payload<T: Payload>() -> Result {
    let why = match (T::SIZE, T::ALIGN) {
        (0, _) => "its elements have no size",
        (_, align) if align > 64 => "its elements need more than 64-byte alignment",
        _ => return Ok(()),
    };
    Err(Error::BadPayload { kind: T::kind(), why })
}
