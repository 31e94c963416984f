//! Messages before their post, by the memory that they lie in, and the message memory itself.
//!
//! | file | contents |
//! |---|---|
//! | `buffer` | a typed message in memory of the library |
//! | `shared_buf` | one message to many mailboxes |
//! | `external_buf` | a message in memory of the program |
//! | `allocation` | allocating memory for messages, and waiting if there is none |
//! | `accounting` | the holders of message memory, and the bounds of what a mailbox grants |
//!
//! Packed messages are in `message` and `pack`, received ones in `received` and `parcel`.

pub(crate) mod accounting;
mod allocation;
pub(crate) mod buffer;
pub(crate) mod external_buf;
pub(crate) mod shared_buf;
