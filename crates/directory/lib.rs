//! How connections of the interfaces for other programs (`vipl.h`, uDAPL) find each other: hosts by name, and who waits at a host's
//! discriminators. [`open`] says by which means.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

pub mod address;
mod names;

pub use names::{Names, open};
