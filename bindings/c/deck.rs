//! DECK in C: the calls of `deck.h`, whose comments describe each call.
//!
//! | file | what it is |
//! |---|---|
//! | `error` | codes, texts, and the end of every call |
//! | `table` | the objects behind C's structures: checked numbers, no pointers |
//! | `pointer` | C's arguments: checked, and converted to a slice, a name or a value |
//! | `stage` | the job that this process is in |
//! | `world` | start and end, ranks, the barrier, the naming service |
//! | `message` | `deck_msg_t`: memory, packing, unpacking |
//! | `mailbox` | `deck_mbox_t`: create, clone, post, retrieve |
//! | `buffer` | the forms that do not copy: `deck_buf_t`, `deck_view_t` |
//! | `group` | `deck_group_t`: groups and collective calls |
//! | `service` | `deck_semaph_t`, `deck_shmem_t` |
//! | `thread` | `deck_thread_t` |
//! | `span` | spans of the program's own in the trace |
//!
//! A structure of C holds a number; the object itself lies in a [`table::Table`]. A structure that was never created,
//! was destroyed, or is a copy of such a structure is an error, as far as its bytes tell. One thread at a time uses a mailbox: a
//! second thread waits for the first.

mod buffer;
mod error;
mod group;
mod mailbox;
mod message;
mod pointer;
mod service;
mod span;
mod stage;
mod table;
mod thread;
mod world;
