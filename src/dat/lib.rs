//! uDAPL over µDECK's Virtual Interface layer: a provider for the DAT registry (`libdat2`), which programs load by a line of dat.conf.
//!
//! `core/` has uDAPL's objects, of which `core/state.rs` is without I/O; `ffi/` is the C side: the table of calls that the registry
//! goes through, structures, pointers. The book's page "Coming from uDAPL" has the state of each call.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod core;
mod ffi;
