//! Discovery for the interfaces of other programs (`vipl.h`, uDAPL): addresses of hosts by their names, and listeners by a host's
//! discriminators. [`open`] chooses the means.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

pub mod address;
mod names;

pub use names::{Names, open};
