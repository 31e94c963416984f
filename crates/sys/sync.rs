//! Synchronisation between processes and threads: rings, doorbells, tokens, windows, locks, and how a thread waits.
//!
//! Everything here works in memory that several processes share, and blocks by futexes only.

#[cfg(all(feature = "access-trace", not(loom)))]
pub mod access_trace;
pub mod atomic;
pub mod doorbell;
pub mod event_count;
pub mod leader_follower;
pub(crate) mod member_barrier;
pub mod member_table;
pub(crate) mod missed;
pub mod parker;
pub(crate) mod poll_budget;
pub mod position;
#[cfg(not(loom))]
pub mod ranked;
pub mod ring;
pub mod robust_lock;
pub(crate) mod semaphore;
pub mod tokens;
pub(crate) mod wait;
pub mod window;
