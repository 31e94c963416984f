//! Addresses of hosts, as 16 bytes.
//!
//! A host is an IP address (IPv4 in its IPv6 form), or under a launcher the number of the host in the job.

use std::net::{IpAddr, Ipv6Addr};

/// Bytes of a host address.
pub const HOST: usize = 16;

/// A host.
pub type Host = [u8; HOST];

const OF_JOB: &[u8; 12] = b"udeck host: ";

/// Converts an IP address to the address of a host.
pub fn of_ip(ip: IpAddr) -> Host {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The IP address of a host.
pub fn ip_of(host: &Host) -> IpAddr {
    let v6 = Ipv6Addr::from(*host);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Converts the number of a job's host to its address.
pub fn of_job(nth: u32) -> Host {
    let mut host = [0; HOST];
    host[..12].copy_from_slice(OF_JOB);
    host[12..].copy_from_slice(&nth.to_be_bytes());
    host
}

/// The number of a job's host; `None`: the host is not of a job.
pub fn job_host(host: &Host) -> Option<u32> {
    let number = host.strip_prefix(OF_JOB)?;
    Some(u32::from_be_bytes(*number.first_chunk()?))
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a string takes everything
        text
    })
}
