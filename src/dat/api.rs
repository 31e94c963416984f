//! uDAPL's objects for Rust programs: safe, without C.
//!
//! | file | what it is |
//! |---|---|
//! | `ia.rs` | interface adapters and protection zones, and where service points are |
//! | `memory.rs` | memory that posting moves, memory that peers reach, and where a peer's is |
//! | `ep.rs` | end points: connections and work |
//! | `evd.rs`, `event.rs` | event dispatchers, and typed events |
//! | `service.rs`, `request.rs` | service points and connection requests |
//! | `error.rs`, `id.rs` | errors, and numbers of objects |

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

mod ep;
mod error;
mod evd;
mod event;
mod ia;
mod id;
mod memory;
mod request;
mod service;

pub use crate::core::state::EpState;
pub use ep::{Ep, EpAttributes, Flags, Peer, Refused};
pub use error::{Error, Result};
pub use evd::Evd;
pub use event::{Asynchronous, Completion, Connection, Event, Operation, Status};
pub use ia::{Ia, MAX_PRIVATE_DATA, Pz, ServiceAddress};
pub use id::{EpId, EvdId, RmrId, ServiceId, SrqId};
pub use memory::{Iov, Lmr, RemoteMemory, Rights, SharedLmr};
pub use request::ConnectionRequest;
pub use service::Psp;
