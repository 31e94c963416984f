//! A libibverbs and a librdmacm that need no RDMA: one software device, for queue pairs of one process.
//!
//! The verbs transport loads its library at run time; loading this one instead (`DECK_VERBS_LIBRARY`) lets it be
//! developed, tested and its instructions counted on any host. It is a second opinion, not a simulator of some NIC: where
//! the InfiniBand specification leaves a choice, this library takes the one that is harder for the program. README.md
//! lists what it models and how it is configured.
//!
//! **Structure.** `abi` has the header's structures; `exports` has the functions that programs call, which make the
//! checks of a library, kernel and driver and change the [`world`]; `engine` moves the data. A program's handles are
//! only names: all state lies in the world, by number, so that the engine follows no pointer of a program, except into
//! registered memory.
//!
//! **Threads.** One lock protects everything. Posting only queues; the engine, a thread of its own, takes one work request
//! at a time and acknowledges it in a later step, so completions come after the call and behind those of other queues. With
//! `STANDIN_ENGINE=inline` the posting thread does all that is possible before it returns, and the same calls take the same
//! instructions every time. The engine's thread then only does work that must wait for time to pass.
//!
//! **Deliberate differences** from an adapter: numbers of queue pairs and keys are never used twice; queues have exactly
//! the requested number of entries; entries of work queues become free when their completion is *polled*; the fields of a
//! failed completion that the specification calls undefined contain nonsense.

#![allow(unsafe_code, reason = "a C interface: it trusts the pointers of its caller, as libibverbs does")]

pub mod abi;
mod config;
mod connection_manager;
mod engine;
mod exports;
mod objects;
mod transitions;
mod world;

pub use exports::standin::StandinCounters;
