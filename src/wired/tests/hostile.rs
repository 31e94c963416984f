//! Peers that lie.
