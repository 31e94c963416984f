//! Ports for programs that bind them later: a test or a measurement starts such a program, and has to tell it and its peer
//! the number beforehand.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;

use parking_lot::Mutex;

/// First port that is tried. Programs with a known port have smaller ones.
const FIRST: u16 = 10_000;
/// File with the range of ports that outgoing connections get.
const OUTGOING: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Reservations of this process, which end with it.
static RESERVED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// A port on which no socket is bound, of TCP or UDP, and which no other caller on this host gets as long as this process lives.
///
/// Port 0 of `bind` would give one of the ports of outgoing connections. As soon as it is free again, any connection of any
/// program may get it, and then nobody can listen there, and nobody answers.
///
/// # Errors
/// There is no such port, or the system has no descriptor left.
///
/// ```
/// let port = udeck_sys::free_port()?;
/// std::net::TcpListener::bind(("127.0.0.1", port))?;
/// # Ok::<_, std::io::Error>(())
/// ```
pub fn free_port() -> io::Result<u16> {
    let end = least_outgoing().filter(|end| *end > FIRST + 1000).unwrap_or(u16::MAX);
    let count = u32::from(end - FIRST);
    // Processes begin at distant ports.
    let begin = process::id().wrapping_mul(101);
    for step in 0..count {
        let port = FIRST + (begin.wrapping_add(step) % count) as u16;
        if take(port)? {
            return Ok(port);
        }
    }
    Err(io::Error::other(format!("no port from {FIRST} to {} is free", end - 1)))
}

/// The first port of outgoing connections.
fn least_outgoing() -> Option<u16> {
    fs::read_to_string(OUTGOING).ok()?.split_whitespace().next()?.parse().ok()
}

/// Reserves a port, and keeps the reservation if no socket is bound there. Returns whether it did.
fn take(port: u16) -> io::Result<bool> {
    let Some(reservation) = unless_taken(reserve(port))? else { return Ok(false) };
    let is_free = is_free(port)?;
    if is_free {
        RESERVED.lock().push(reservation);
    }
    Ok(is_free)
}

/// Takes a name for a port, which one process has at a time.
fn reserve(port: u16) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("udeck-port-{port}"))?)
}

fn is_free(port: u16) -> io::Result<bool> {
    let at = (Ipv4Addr::UNSPECIFIED, port);
    let bound = TcpListener::bind(at).and_then(|_| UdpSocket::bind(at));
    Ok(unless_taken(bound)?.is_some())
}

/// Returns the socket of a bind; `None` if another socket has the address.
fn unless_taken<S>(bound: io::Result<S>) -> io::Result<Option<S>> {
    match bound {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_is_none_of_outgoing_connections() {
        let [first, second] = [free_port().unwrap(), free_port().unwrap()];
        assert_ne!(first, second);
        assert_eq!(reserve(first).expect_err("it is reserved").kind(), io::ErrorKind::AddrInUse);
        let least = least_outgoing().expect("Linux has it");
        assert!(least <= FIRST + 1000 || (first < least && second < least), "{first} {second} {least}");
    }

    #[test]
    fn a_port_with_a_socket_is_not_reserved() {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = bound.local_addr().unwrap().port();
        assert!(!take(port).unwrap());
        reserve(port).expect("no reservation of it was kept");
    }
}
