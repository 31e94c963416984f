//! Network addresses: a host, as 16 bytes, and a discriminator.
//!
//! A host is an IP address (IPv4 as IPv6 has it), or under a launcher the number of the host in the job. A program gets it from
//! `VipNSGetHostByName` or `VipQueryNic`, and looks no further into it.

use std::net::{IpAddr, Ipv6Addr};

use super::types::NetAddressHead;

/// Bytes of a host address.
pub(super) const HOST: usize = 16;
/// Longest discriminator.
pub(super) const MAX_DISCRIMINATOR: usize = 64;

pub(super) type Host = [u8; HOST];

const OF_JOB: &[u8; 12] = b"udeck host: ";

pub(super) fn of_ip(ip: IpAddr) -> Host {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

pub(super) fn ip_of(host: &Host) -> IpAddr {
    let v6 = Ipv6Addr::from(*host);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// A host of a job, by its number.
pub(super) fn of_job(nth: u32) -> Host {
    let mut host = [0; HOST];
    host[..12].copy_from_slice(OF_JOB);
    host[12..].copy_from_slice(&nth.to_be_bytes());
    host
}

pub(super) fn job_host(host: &Host) -> Option<u32> {
    let number = host.strip_prefix(OF_JOB)?;
    Some(u32::from_be_bytes(*number.first_chunk()?))
}

/// What a program's `VIP_NET_ADDRESS` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetAddress {
    /// `None`: not of our length.
    pub host: Option<Host>,
    pub discriminator: Vec<u8>,
}

/// Reads it. `None`: no address, or too long a discriminator.
///
/// # Safety
/// NULL, or an address with as many bytes behind its two lengths as these say.
pub(super) unsafe fn read(from: *const NetAddressHead) -> Option<NetAddress> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the two lengths are there.
    let head = unsafe { from.read_unaligned() };
    let (host_len, len) = (usize::from(head.host_len), usize::from(head.discriminator_len));
    if len > MAX_DISCRIMINATOR {
        return None;
    }
    // SAFETY: as many bytes follow as the lengths say.
    let bytes = unsafe {
        std::slice::from_raw_parts(from.cast::<u8>().add(size_of::<NetAddressHead>()), host_len + len)
    };
    let (host, discriminator) = bytes.split_at(host_len);
    Some(NetAddress { host: host.try_into().ok(), discriminator: discriminator.to_vec() })
}

/// Writes it, if there is a place.
///
/// # Safety
/// NULL, or room for an address with a host and a discriminator of such lengths.
pub(super) unsafe fn write(to: *mut NetAddressHead, host: &[u8], discriminator: &[u8]) {
    if to.is_null() {
        return;
    }
    let head = NetAddressHead { host_len: host.len() as u16, discriminator_len: discriminator.len() as u16 };
    // SAFETY: room for the lengths and so many bytes, as promised.
    unsafe {
        to.write_unaligned(head);
        let bytes = to.cast::<u8>().add(size_of::<NetAddressHead>());
        std::ptr::copy_nonoverlapping(host.as_ptr(), bytes, host.len());
        std::ptr::copy_nonoverlapping(discriminator.as_ptr(), bytes.add(host.len()), discriminator.len());
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a string takes everything
        text
    })
}
