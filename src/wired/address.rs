//! Where a NIC is found: `ip:port`, and `[ip]:port` for IPv6, as text.

use std::io;
use std::net::SocketAddr;

use udeck_via::{Error, NetAddress, Result};

/// As other processes are told it.
pub fn encode(address: SocketAddr) -> Vec<u8> {
    address.to_string().into_bytes()
}

/// The socket's address of a NIC that is to be asked.
///
/// # Errors
/// What cannot be one is an address at which nobody is.
pub fn decode(to: &NetAddress) -> Result<SocketAddr> {
    let text = String::from_utf8_lossy(&to.host);
    text.parse().map_err(|_| {
        let what = format!("connecting to {text:?}, which is no \"ip:port\" or \"[ipv6]:port\"");
        Error::os(what, io::ErrorKind::InvalidInput)
    })
}

/// # Errors
/// [`Error::InvalidParameter`]: nobody shall be reached by way of an interface that nobody has chosen.
pub fn check_bind(bind: SocketAddr) -> Result {
    if bind.ip().is_unspecified() || bind.ip().is_multicast() {
        let what = format!("a NIC at {bind}: give it the address of one interface, never that of all");
        return Err(Error::InvalidParameter(what));
    }
    Ok(())
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
