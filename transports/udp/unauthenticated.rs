//! Bounds for unauthenticated callers, whose places are shared out among their sources.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use udeck_sys::unauthenticated::Bounds;

/// Bounds of the unauthenticated callers that are kept. Others are ignored, and retransmit.
pub const BOUNDS: Bounds = Bounds { most: 64, grace: Duration::from_secs(1), limit: Duration::from_secs(5) };

/// Returns the source to which a share is counted: an IPv4 address, or the network of an IPv6 address (/64, of which
/// a host may take any address).
pub fn source(at: IpAddr) -> IpAddr {
    match at.to_canonical() {
        IpAddr::V6(at) => Ipv6Addr::from_bits(at.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::source;

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let source = |at: &str| source(at.parse().unwrap());
        assert_eq!(source("2001:db8:0:1::7:1"), source("2001:db8:0:1::7:3e7"));
        assert_ne!(source("2001:db8:0:1::7:1"), source("2001:db8:0:2::7:1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("::ffff:10.0.0.1"), source("::ffff:10.0.0.2"));
    }
}
