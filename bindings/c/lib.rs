//! µDECK for C: the interfaces of the literature, `deck.h` (DECK) and `vipl.h` (the VIA Provider Library).
//!
//! Each call is a thin layer over the Rust interface of the same name: `deck/` over [`udeck`]'s worlds and mailboxes, `vipl/` over
//! [`udeck::via`]. Both share two rules: no panic leaves the library, and no pointer is used before it was checked.
//!
//! `include/` has the headers, which are the documentation of the calls; `cargo xtask install` makes the libraries.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod boundary;
mod deck;
mod vipl;
