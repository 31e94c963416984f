//! The Virtual Interface layer: VIA's objects under VIA's names, uDAPL's in brackets.
//!
//! | object | what it is |
//! |---|---|
//! | [`Nic`] \[IA\] | an opened transport device |
//! | [`Ptag`] \[PZ\] | protection tag: memory and VI must carry the same one |
//! | [`Region`] \[LMR\], [`Window`] \[RMR\] | registered memory: our own, or written by a peer's RDMA |
//! | [`Descriptor`] | a gather/scatter list with 32-bit immediate data, and an address for RDMA |
//! | [`Vi`] \[EP\] | a send queue and a receive queue, FIFO, with VIA's states |
//! | [`SharedReceives`] \[SRQ\] | receive descriptors that many VIs take from |
//! | [`Cq`] \[EVD\] | tells which of many work queues has news; poll, or wait with a deadline |
//! | [`Cno`] \[CNO\], [`Notify`] | one wait on several completion queues; a thread that serves one |
//! | [`Listener`], [`Request`] \[PSP, CR\] | client/server connection with a discriminator |
//! | [`Vi::peer_request`] | peer-to-peer connection |
//! | [`Nic::on_error`] | handler of errors that no call returns |
//! | [`names::NameService`] | hosts by name and by address |
//! | [`segments`] | memory that ranks of one host share beside their messages |
//!
//! A VI receives in one of two ways, fixed when it is made ([`Receive`]): into descriptors that the program posted, as VIA
//! has it; or *lent*: the transport hands out the bytes in place (in the ring cell, or in the sender's own memory), and
//! dropping them gives them back. Message libraries use the second: it saves the copy that a posted buffer would cost.
//!
//! Transports implement [`transport`]'s traits. What all of them have in common is in this crate: memory arenas,
//! descriptors, states, checks. `udeck-session` has what network transports have in common.
//!
//! Source of names and guarantees: *Virtual Interface Architecture Specification 1.0* (Compaq, Intel,
//! Microsoft, 1997) and the *Intel VI Architecture Developer's Guide*.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

// `tests/script` names this crate as `udeck-faults` does, which shares it.
#[cfg(test)]
extern crate self as udeck_via;

mod attributes;
mod caps;
mod connect;
mod connection_quota;
mod cq;
mod descriptor;
mod error;
pub mod mem;
pub mod names;
mod nic;
mod on_error;
mod peer;
mod rejection;
mod report;
#[cfg(test)]
#[path = "tests/script/mod.rs"]
#[allow(dead_code, reason = "`udeck-faults` uses the rest")]
mod script;
pub mod segments;
mod shared;
mod state;
pub mod transport;
mod vi;
mod withdrawal;

pub use attributes::{NetAddress, NicAttributes, Receive, Reliability, ServiceLevel, ViAttributes};
pub use caps::Caps;
pub use connect::{Listener, Request};
pub use cq::{Cno, Cq, CqEntry, CqHandle, Notify, Source, Watch, Watcher};
pub use descriptor::{Completion, Descriptor, Segment, Status};
pub use error::{Error, Result};
pub use mem::{
    Arena, ArenaUse, Block, CacheUse, Lent, LentSlice, MemAttributes, MemHandle, Ptag, Readable, Region,
    RemoteBuffer, Rights, Settled, StableBuffer, UserMemory, Window,
};
pub use nic::Nic;
pub use rejection::{RejectKind, Rejection};
pub use report::{ErrorCode, ErrorEvent, Resource};
pub use shared::SharedReceives;
pub use state::State;
pub use transport::{Arrival, Queue};
pub use udeck_auth as auth;
pub use udeck_sys::process::{check as check_process, is_forked};
pub use udeck_sys::quota;
pub use udeck_sys::{
    AtomicSpinHistory, Deadline, Pause, PollBudget, PreferredCpu, SpinHistory, Spinner, copy_bytes, fault,
    host_key, job_time, missed, say, stderr_line, thread,
};
pub use vi::{ReadDone, Reading, Vi};
pub use withdrawal::{Until, Withdrawal};
