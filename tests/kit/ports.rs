//! Ports for programs that bind them later.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process,
    sync::Mutex,
};

/// First port that is tried. Programs with a known port have smaller ones.
const FIRST: u16 = 10_000;
/// File with the range of ports that outgoing connections get.
const OUTGOING: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Reservations of this process, which end with it.
static RESERVED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// A port on which no socket is bound, of TCP or UDP, and which no other test gets as long as this process lives.
///
/// Port 0 of `bind` would give one of the ports of outgoing connections. As soon as it is free again, any connection of any
/// program may get it, and then nobody can listen there, and nobody answers.
///
/// # Panics
/// Panics if there is no such port.
#[must_use]
pub fn free_port() -> u16 {
    let outgoing = fs::read_to_string(OUTGOING).ok();
    let end = outgoing.and_then(|range| range.split_whitespace().next()?.parse().ok());
    let end = end.filter(|end| *end > FIRST + 1000).unwrap_or(u16::MAX);
    let count = u32::from(end - FIRST);
    // Processes begin at distant ports.
    let begin = process::id().wrapping_mul(101);
    let ports = (0..count).map(|step| FIRST + (begin.wrapping_add(step) % count) as u16);
    let is_free = |port: &u16| {
        let at = (Ipv4Addr::UNSPECIFIED, *port);
        reserve(*port) && TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
    };
    let found = ports.into_iter().find(is_free);
    found.unwrap_or_else(|| panic!("no port from {FIRST} to {} is free", end - 1))
}

/// Takes a name for a port, which one process has at a time.
fn reserve(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("udeck-test-port-{port}")).expect("a short name");
    let reserved = UnixDatagram::bind_addr(&name);
    reserved.map(|socket| RESERVED.lock().expect("no panic while it is locked").push(socket)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_is_none_of_outgoing_connections() {
        let [first, second] = [free_port(), free_port()];
        assert_ne!(first, second);
        assert!(!reserve(first));
        let outgoing = fs::read_to_string(OUTGOING).expect("Linux has it");
        let least: u16 = outgoing.split_whitespace().next().expect("two numbers").parse().expect("a port");
        assert!(least <= FIRST + 1000 || (first < least && second < least), "{first} {second} {outgoing}");
    }
}
