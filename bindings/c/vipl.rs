//! The VIA Provider Library in C: `vipl.h`.
//!
//! | file | what it is |
//! |---|---|
//! | `calls/` | the 41 functions: each checks what C gave it, and calls what is below |
//! | `types.rs` | `vipl.h`'s types and values |
//! | `handle.rs`, `memory.rs` | handles, and memory that the library may touch: nothing of C's is followed unchecked |
//! | `work_request.rs` | a posted descriptor, read once |
//! | `vi.rs`, `cq.rs` | work queues and completion queues |
//! | `wire.rs` | what the two ends of a connection say while it is made |
//! | `engine.rs` | a NIC, waiting, and the threads |
//! | `connect.rs` | connections; `udeck::names` knows how VIs find each other |

#![allow(unsafe_code, reason = "C's pointers, checked")]

mod address;
mod calls;
mod connect;
mod cq;
mod engine;
mod error;
mod handle;
mod memory;
mod types;
mod vi;
mod wire;
mod work_request;
