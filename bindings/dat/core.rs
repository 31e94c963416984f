//! uDAPL's objects, without C: the provider's calls are made of them.
//!
//! | file | what it is |
//! |---|---|
//! | `state.rs` | an end point's states: which call is allowed, what each event leads to |
//! | `ep.rs` | end points: what may be posted, uDAPL's face of the engine, the connection as the state sees it |
//! | `service.rs` | service points, connection requests, and attempts to connect |
//! | `evd.rs`, `cno.rs`, `agent.rs`, `event.rs` | event dispatchers, waits for several, functions that are called then, and events |
//! | `ia.rs` | an interface adapter; `udeck-rdma` moves its end points on |
//! | `memory.rs` | registered memory, by its contexts |
//! | `srq.rs` | receives, shared or not |
//! | `qos.rs` | qualities of service, and their levels |
//! | `wire.rs` | the messages of the connection handshake |
//! | `slot.rs`, `code.rs`, `address.rs` | handles, error codes, addresses |

pub mod address;
pub mod agent;
pub mod cno;
pub mod code;
pub mod ep;
pub mod evd;
pub mod event;
pub mod ia;
pub mod memory;
pub mod qos;
pub mod service;
pub mod slot;
pub mod srq;
pub mod state;
pub mod wire;
