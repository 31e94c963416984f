//! Ports for programs that bind them later.

/// A port on which no socket is bound, of TCP or UDP, and which no other test gets as long as this process lives.
///
/// # Panics
/// Panics if there is no such port.
#[must_use]
pub fn free_port() -> u16 {
    udeck_sys::free_port().unwrap_or_else(|error| panic!("a free port: {error}"))
}
