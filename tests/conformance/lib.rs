//! The suite that every transport passes: what VIA promises, asked of whatever [`Fabric`] it is given.
//!
//! # Adding a transport
//! Write `tests/NAME.rs`, with `harness = false` in `Cargo.toml`:
//! ```text
//! struct Tcp;
//! impl Fabric for Tcp {
//!     fn name(&self) -> &'static str { "tcp" }
//!     fn open(&self, options: &Options) -> Nic { udeck_tcp::open(/* ... */).unwrap() }
//! }
//! fn main() -> ExitCode { udeck_conformance::main(&[&Tcp]) }
//! ```
//! Nothing in here names a transport. A case that needs an ability says so ([`Case::needs`]) and is skipped, with
//! the missing [`Caps`] printed, where the NIC does not have it; nothing else is a reason to skip. A limit of the
//! NIC is read from its attributes.
//!
//! # Adding a case
//! A function `fn(&dyn Fabric)` in the file of its topic under `cases/`, and a line in that file's table. It opens
//! its own NICs, panics when the promise is broken, and waits for events with [`kit::soon`] as a safety net only.
//! Cases run one after another, so that one may count the descriptors of the process.
//!
//! # Rules and the cases that hold transports to them
//! [`rules`] has them one by one, with the cases of each; `cargo test --test shm -- --rules` prints it. By topic:
//!
//! | rule of VIA (Specification 1.0, Developer's Guide) | topic |
//! |---|---|
//! | NIC attributes: what `VipQueryNic` reports is what holds | `attributes`, `limits` |
//! | VI states: each call is legal in some states only, and fails without effect in the others | `connection`, `errors` |
//! | Connect, accept, reject, wait: exactly one answer per request; a discriminator is compared by its bytes | `connection` |
//! | Both VIs of a connection have one reliability level, and each side learns when they have not | `connection` |
//! | Peer-to-peer: both ask, exactly one connection results; who has given up is never connected | `peer` |
//! | Disconnect: posted descriptors are flushed in order; the VI can be connected again | `connection` |
//! | Work queues are FIFO; immediate data travel with their descriptor | `transfer`, `completion`, `order` |
//! | A receive descriptor is there, and long enough, when the message comes; else the connection breaks | `errors` |
//! | Each reliability level: when a send is done, what a lost or misplaced message does | `reliability` |
//! | Memory and VI carry the same protection tag | `memory` |
//! | RDMA writes reach what the peer has registered and enabled, and nothing else | `memory` |
//! | RDMA reads show what the peer has registered and enabled for it, and nothing else | `read` |
//! | RDMA write with immediate data consumes a receive descriptor, after the data are visible | `memory` |
//! | Completion queues name every queue with news; a waiter is woken, or returns at its deadline | `completion`, `many` |
//! | Resources are bounded, exhaustion is an error, and its end is the end of it | `limits`, `flood`, `many` |
//! | A descriptor's memory is the NIC's until it is reported, and whole when the receiver reads it | `connection`, `lent`, `raw` |
//! | *(not VIA's)* a received message is the sender's own memory until dropped | `lent` |

pub mod cases;
pub mod kit;
pub mod rules;
mod runner;

use udeck_via::{Caps, Nic};

pub use runner::{main, main_of_one};

/// A transport under test: opens NICs that behave as those of different processes of a job, all in this process.
pub trait Fabric: Sync {
    /// Names the transport in the output.
    fn name(&self) -> &'static str;

    /// Opens one more NIC. NICs with the same secret are of one job.
    fn open(&self, options: &Options) -> Nic;
}

/// How a case wants its NIC.
#[derive(Clone, Debug)]
pub struct Options {
    /// The job's secret.
    pub secret: [u8; 32],
    /// Bytes of memory that messages may take, and that windows may take.
    pub arena_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { secret: [0x5a; 32], arena_limit: 64 << 20 }
    }
}

/// One promise.
#[derive(Clone, Copy)]
pub struct Case {
    /// The file that it is in.
    pub topic: &'static str,
    /// What is promised.
    pub name: &'static str,
    /// Abilities without which the promise is not made.
    pub needs: &'static [Caps],
    /// Panics when it is broken.
    pub run: fn(&dyn Fabric),
}
