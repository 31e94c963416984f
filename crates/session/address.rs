//! Addresses of NICs as text: `ip:port`, and `[ip]:port` for IPv6.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use udeck_via::{Error, NetAddress, Result};

/// Encodes an address in the form that other processes are told.
pub fn encode(address: SocketAddr) -> Vec<u8> {
    address.to_string().into_bytes()
}

/// Decodes the socket address of a NIC that a connection is asked from.
///
/// # Errors
/// [`Error::Os`] with `InvalidInput`: the text is no such address.
pub fn decode(to: &NetAddress) -> Result<SocketAddr> {
    let text = String::from_utf8_lossy(&to.host);
    text.parse().map_err(|_| {
        let what = format!("connecting to {text:?}, which is no \"ip:port\" or \"[ipv6]:port\"");
        Error::os(what, io::ErrorKind::InvalidInput)
    })
}

/// Checks that an address is that of one interface.
///
/// # Errors
/// [`Error::InvalidParameter`]: a wildcard or multicast address. Peers must not reach a NIC through an interface that nobody
/// has chosen.
pub fn check_bind(bind: SocketAddr) -> Result {
    if bind.ip().is_unspecified() || bind.ip().is_multicast() {
        let what = format!("a NIC at {bind}: give it the address of one interface, never that of all");
        return Err(Error::InvalidParameter(what));
    }
    Ok(())
}

/// Whether the kernel reports no route to an address at the moment: an interface is down, or its route is gone with it. A
/// caller that asks for a connection then keeps trying for as long as an open connection would endure it.
pub fn is_outage(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(error.kind(), HostUnreachable | NetworkDown | NetworkUnreachable)
}

/// The error of a call whose deadline passes during an outage: the call can be repeated.
pub fn late_by_outage(at: SocketAddr, error: &io::Error, waited: Duration) -> Error {
    let advice = udeck_sys::route_advice(error, at.ip());
    Error::Timeout { what: format!("the network to the process at {at} ({error}{advice})"), waited }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &[u8]) -> Result<SocketAddr> {
        decode(&NetAddress { host: host.to_vec(), discriminator: Vec::new() })
    }

    #[test]
    fn addresses_round_trip() {
        for text in ["127.0.0.1:1", "10.1.2.3:65535", "[::1]:80", "[fe80::1%3]:4"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(encode(address), text.as_bytes());
            assert_eq!(at(text.as_bytes()).unwrap(), address);
        }
    }

    #[test]
    fn what_is_no_address_says_so() {
        for text in [&b""[..], b"localhost:1", b"1.2.3.4", b"1.2.3.4:99999", b"::1:4", b"\xff\xfe:1"] {
            let error = at(text).unwrap_err().to_string();
            assert!(error.contains("ip:port"), "{error}");
        }
    }

    #[test]
    fn all_interfaces_are_refused() {
        for text in ["0.0.0.0:0", "[::]:7", "224.0.0.1:1"] {
            let error = check_bind(text.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains("one interface"), "{error}");
        }
        check_bind("127.0.0.1:0".parse().unwrap()).unwrap();
    }
}
