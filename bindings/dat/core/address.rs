//! Addresses as the program has them: `struct sockaddr`. A host of a job is an IPv6 address that nobody else has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use udeck::names::address::{Host, ip_of, of_ip};

/// A `sockaddr_in` or `sockaddr_in6`, which the program may read by a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct SockAddr([u8; SockAddr::LEN]);

/// An address that the library may change while the program reads it by a pointer.
#[derive(Debug, Default)]
#[repr(C, align(8))]
pub struct SharedSockAddr([AtomicU64; SockAddr::LEN.div_ceil(8)]);

impl SharedSockAddr {
    pub fn set(&self, address: &SockAddr) {
        let mut bytes = [0; SockAddr::LEN.next_multiple_of(8)];
        bytes[..SockAddr::LEN].copy_from_slice(&address.0);
        for (to, word) in self.0.iter().zip(bytes.as_chunks().0) {
            to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }
}

const INET: u16 = libc::AF_INET as u16;
const INET6: u16 = libc::AF_INET6 as u16;

impl SockAddr {
    /// Bytes of the longer structure.
    pub const LEN: usize = size_of::<libc::sockaddr_in6>();

    pub fn of(host: &Host) -> SockAddr {
        let mut bytes = [0; SockAddr::LEN];
        match ip_of(host) {
            IpAddr::V4(ip) => {
                bytes[..2].copy_from_slice(&INET.to_ne_bytes());
                bytes[4..8].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes[..2].copy_from_slice(&INET6.to_ne_bytes());
                bytes[8..24].copy_from_slice(&ip.octets());
            }
        }
        SockAddr(bytes)
    }

    /// Bytes of an address of this family; `None`: the family is unknown.
    pub fn len_of(family: u16) -> Option<usize> {
        match family {
            INET => Some(size_of::<libc::sockaddr_in>()),
            INET6 => Some(size_of::<libc::sockaddr_in6>()),
            _ => None,
        }
    }

    /// The host of a `sockaddr_in` or `sockaddr_in6`.
    pub fn host(bytes: &[u8]) -> Option<Host> {
        let family = u16::from_ne_bytes(*bytes.first_chunk()?);
        let ip: IpAddr = match family {
            INET => Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into(),
            INET6 => Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some(of_ip(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udeck::names::address::of_job;

    #[test]
    fn addresses_go_to_the_program_and_back() {
        for host in [of_ip(Ipv4Addr::new(192, 0, 2, 7).into()), of_ip(Ipv6Addr::LOCALHOST.into()), of_job(3)]
        {
            assert_eq!(SockAddr::host(&SockAddr::of(&host).0), Some(host));
        }
        assert_eq!(SockAddr::host(&[9; 28]), None);
        assert_eq!(SockAddr::len_of(INET), Some(16));
    }
}
