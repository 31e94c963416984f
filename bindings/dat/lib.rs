//! uDAPL over µDECK's Virtual Interface layer: a provider for the DAT registry (`libdat2`), which programs load by a line of dat.conf.
//!
//! Rust programs get the same objects, safe: [`Ia`], [`Pz`], [`Lmr`], [`SharedLmr`], [`Rmr`], [`Ep`], [`Srq`], [`Evd`], [`Cno`], [`Psp`], [`Rsp`].
//!
//! `core/` has uDAPL's objects, of which `core/state.rs` is without I/O; `ffi/` is the C side: the table of calls that the registry
//! goes through, structures, pointers; `api/` is the Rust side. The book's page "Coming from uDAPL" has the state of each call.
//!
//! A message there and back. (Usually the two ends are two processes, which open an adapter each by [`Ia::open`].)
//!
//! ```
//! use std::time::Duration;
//! use udeck::via::{Deadline, auth::Keys};
//! use udeck_dat::{Connection, Ep, EpAttributes, Event, Evd, Ia, Lmr, Psp, Pz, Result};
//!
//! fn completion(evd: &Evd) -> Result<Lmr> {
//!     match evd.wait(Deadline::after(Duration::from_secs(10)))? {
//!         Event::Dto(completion) => Ok(completion.done().expect("nothing breaks the connection")),
//!         other => panic!("{other:?}"),
//!     }
//! }
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let nic = udeck::open_nic("shm0", &udeck::NicOptions::new(Keys::from([1; 32])))?;
//! let ia = Ia::on_nic(&nic)?;
//! let pz = Pz::new(&ia);
//! let (work, connections) = (Evd::new(&ia, 64), Evd::new(&ia, 16));
//! let psp = Psp::new(7, &connections)?;
//!
//! // Receives are posted before the peer can send.
//! let asking = Ep::new(&pz, &work, &work, &Evd::new(&ia, 16), EpAttributes::default())?;
//! let answering = Ep::new(&pz, &work, &work, &connections, EpAttributes::default())?;
//! answering.post_receive(Lmr::new(&pz, 8)?, 0).map_err(|(error, _)| error)?;
//! asking.post_receive(Lmr::new(&pz, 8)?, 0).map_err(|(error, _)| error)?;
//!
//! asking.connect(&psp.address(), Duration::from_secs(10), b"hello")?;
//! let Event::Request(request) = connections.wait(Deadline::after(Duration::from_secs(10)))? else { panic!() };
//! assert_eq!(request.private_data(), b"hello");
//! answering.accept(request, b"").map_err(|(error, _)| error)?;
//! let established = connections.wait(Deadline::after(Duration::from_secs(10)))?;
//! assert!(matches!(established, Event::Connection { what: Connection::Established, .. }));
//!
//! let mut ping = Lmr::new(&pz, 8)?;
//! ping.copy_from_slice(b"ping....");
//! answering.post_send(ping, 1).map_err(|(error, _)| error)?; // moves the memory
//! let (sent, received) = (completion(&work)?, completion(&work)?); // and here it is again
//! assert_eq!((&sent[..], &received[..]), (&b"ping...."[..], &b"ping...."[..]));
//! # Ok(())
//! # }
//! ```

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod api;
mod core;
mod ffi;

pub use api::*;
#[doc(hidden)]
pub use ffi::provider_table;
