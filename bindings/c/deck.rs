//! DECK in C: `deck.h`, which says what each call does.
//!
//! | file | what it is |
//! |---|---|
//! | `error` | codes, words, and how every call ends |
//! | `table` | what C's structures stand for: numbers that are checked, no pointers |
//! | `pointer` | what C passes: checked, and made a slice, a name or a value |
//! | `stage` | the job that this process is in |
//! | `world` | start and end, ranks, the barrier, the naming service |
//! | `message` | `deck_msg_t`: memory, packing, unpacking |
//! | `mailbox` | `deck_mbox_t`: create, clone, post, retrieve |
//! | `buffer` | the forms that do not copy: `deck_buf_t`, `deck_view_t` |
//! | `group` | `deck_group_t`: groups and collective calls |
//! | `service` | `deck_semaph_t`, `deck_shmem_t` |
//! | `thread` | `deck_thread_t` |
//!
//! A structure of C's holds a kind and a number; the object itself lies in a [`table::Table`]. So a structure that was never made,
//! was destroyed, or is a copy of such a one is an error, as far as its bytes tell. A mailbox is used by one thread at a time: a
//! second thread waits for the first.

mod buffer;
mod error;
mod group;
mod mailbox;
mod message;
mod pointer;
mod service;
mod stage;
mod table;
mod thread;
mod world;
