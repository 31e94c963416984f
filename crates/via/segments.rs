//! Sharing of memory between ranks of one host: one of them makes a segment, and gives its descriptor to the others.
//!
//! The ranks that share a segment are its *members*, numbered by the order of their ranks. The lowest rank is the *maker*: it makes the
//! memory ([`udeck_sys::shared_memory`]) and offers it ([`Service`]). Each other member asks the maker for it ([`fetch`]), over a Unix
//! socket whose address the maker has made known. Both prove which rank they are before anything is given, as on every
//! connection of a job; the descriptor travels over that socket and nowhere else. What is asked for (name, type, length, members) has
//! to be what is offered; otherwise the maker refuses, and says what it has.
//!
//! No transport is involved: two ranks of a host share memory whatever carries their messages.
//!
//! | file | what it is |
//! |---|---|
//! | `wire` | the datagrams, and the shape of a segment |
//! | `handshake` | the order of the datagrams, without I/O |
//! | `service` | the maker's side: a reactor's thread |
//! | `fetch` | the others' side: a call |
//!
//! The maker's thread, `deck-segments`, sleeps in epoll and exists in ranks that have offered a segment.

mod fetch;
mod handshake;
mod service;
#[cfg(test)]
mod tests;
mod wire;

pub use fetch::{FetchError, fetch};
pub use service::{MAX_REQUESTS, Service};
pub use udeck_sys::closer::PassedFd;
pub use udeck_sys::event_count::EventCount;
pub use udeck_sys::member_table::MemberState;
pub use udeck_sys::robust_lock::Abandoned;
pub use udeck_sys::shared_memory::{LockGuard, SharedMemory, SharedUse};
pub use udeck_sys::{Elements, MAX_PERMITS};
pub use wire::{Purpose, Shape};
