//! Messages over UDP.
//!
//! So far the part without I/O: what turns datagrams, which networks lose, double, reorder, spoil and hold up, into what
//! a Virtual Interface promises. Nothing in it has a socket, a clock, a thread or a lock: `(now, input) -> actions`.
//!
//! | file | what it is |
//! |---|---|
//! | `wire` | every datagram's first 16 bytes, the checksum, and what follows for each kind |
//! | `flow` | a reliable, ordered stream of bytes: for VIs of the reliable levels |
//! | `pieces` | messages in datagrams, each whole and at most once or not at all: for unreliable VIs |
//!
//! # Trust
//! A datagram finds its connection by 64 random bits that only the two ends know, and carries a CRC-32C over all of it.
//! That keeps out what strangers send and what links spoil. It does not keep out who reads the network: the job's secret
//! is proven when a connection is made, not by every datagram.

pub mod flow;
pub mod pieces;
pub mod wire;
