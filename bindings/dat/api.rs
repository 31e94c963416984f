//! uDAPL's objects for Rust programs: safe, without C.
//!
//! | file | what it is |
//! |---|---|
//! | `ia.rs` | interface adapters and protection zones, and where service points are |
//! | `memory.rs` | memory that posting moves, memory that peers reach, and where a peer's is |
//! | `rmr.rs` | windows that are opened to peers in order with other work |
//! | `ep.rs`, `srq.rs` | end points: connections and work; receives that they share |
//! | `evd.rs`, `event.rs`, `cno.rs` | event dispatchers, typed events, and a wait for several dispatchers |
//! | `service.rs`, `request.rs` | service points and connection requests |
//! | `error.rs`, `id.rs` | errors, and numbers of objects |

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

mod cno;
mod ep;
mod error;
mod evd;
mod event;
mod ia;
mod id;
mod memory;
mod request;
mod rmr;
mod service;
mod srq;

pub use crate::core::qos::Qos;
pub use crate::core::state::EpState;
pub use cno::Cno;
pub use ep::{Ep, EpAttributes, Flags, Peer};
pub use error::{Error, Result};
pub use evd::Evd;
pub use event::{Asynchronous, Completion, Connection, Event, Operation, Status};
pub use ia::{Ia, MAX_PRIVATE_DATA, Pz, ServiceAddress};
pub use id::{EpId, EvdId, RmrId, ServiceId, SrqId};
pub use memory::{Iov, Lmr, Refused, RemoteMemory, Rights, SharedLmr};
pub use request::ConnectionRequest;
pub use rmr::Rmr;
pub use service::{Psp, Rsp};
pub use srq::Srq;
