//! Network interfaces of this host and their addresses.

use std::{
    ffi::CStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

/// An address of an interface. An interface with several addresses has several entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, such as `eth0`.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
    /// Whether the interface is up.
    pub up: bool,
}

/// All IPv4 and IPv6 addresses of this host (of its network namespace), in the kernel's order.
///
/// # Errors
/// Errors of the kernel.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is valid for writing a pointer; on success it heads a list that is ours until freeifaddrs.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: the pointer is not null, so it is a node of the list, which is not freed before the loop is over.
        let node = unsafe { &*next };
        next = node.ifa_next;
        // SAFETY: ifa_addr is null or points to a socket address of the family that it names, as getifaddrs promises.
        let Some(address) = (unsafe { address(node.ifa_addr) }) else { continue };
        // SAFETY: ifa_name is a C string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(node.ifa_name) }.to_string_lossy().into_owned();
        found.push(Interface { name, address, up: node.ifa_flags & libc::IFF_UP as u32 != 0 });
    }
    // SAFETY: getifaddrs gave the list out, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Whether an address is valid on its own link only (RFC 4291, 2.5.6).
pub fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// Why a link-local address is of no use: each host has a number of its own for the interface behind it, and ranks are told
/// addresses only.
pub const LINK_LOCAL: &str = "a link-local address means nothing to other hosts";

/// The address of this host that the user asks for: by an interface's name, or by the address itself. IPv4 is preferred.
///
/// # Errors
/// Why there is no such address, in words.
pub fn address_of(asked: &str, existing: &[Interface]) -> Result<IpAddr, String> {
    // The address may have the interface behind a `%`, as other programs write it.
    let address = asked.split('%').next().unwrap_or_default().parse::<IpAddr>();
    if address.is_ok_and(|address| is_link_local(&address)) {
        return Err(LINK_LOCAL.into());
    }
    if let Ok(address) = asked.parse::<IpAddr>() {
        let is_own = existing.iter().any(|interface| interface.address == address);
        return is_own.then_some(address).ok_or_else(|| "no interface of this host has this address".into());
    }
    let named: Vec<_> = existing.iter().filter(|interface| interface.name == asked).collect();
    if named.is_empty() {
        return Err("there is no such interface, or it has no address".into());
    }
    if named.iter().all(|interface| !interface.up) {
        return Err("this interface is down".into());
    }
    let usable = || named.iter().map(|interface| interface.address).filter(|address| !is_link_local(address));
    usable()
        .find(IpAddr::is_ipv4)
        .or_else(|| usable().next())
        .ok_or_else(|| format!("it has no address but link-local ones; {LINK_LOCAL}"))
}

/// The usable addresses as a text, for the user to choose from.
pub fn listed(existing: &[Interface]) -> String {
    let shown: Vec<_> = existing
        .iter()
        .filter(|interface| !is_link_local(&interface.address))
        .map(|Interface { name, address, up }| {
            format!("{name} {address}{}", if *up { "" } else { " (down)" })
        })
        .collect();
    shown.join(", ")
}

/// Decodes a socket address.
///
/// # Safety
/// `at` is null, or points to a socket address as long as its family says.
unsafe fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the pointer is not null; every socket address begins with its family. The read is unaligned, because alignment
    // is not promised.
    match i32::from(unsafe { ptr::read_unaligned(at) }.sa_family) {
        libc::AF_INET => {
            // SAFETY: the address is of this family, so it is as long as sockaddr_in.
            let v4 = unsafe { ptr::read_unaligned(at.cast::<libc::sockaddr_in>()) };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the address is of this family, so it is as long as sockaddr_in6.
            let v6 = unsafe { ptr::read_unaligned(at.cast::<libc::sockaddr_in6>()) };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Adds advice to an error of reaching `to`, if there is no route to it.
pub fn advise_route(error: io::Error, to: IpAddr) -> io::Error {
    match route_advice(&error, to) {
        "" => error,
        advice => io::Error::new(error.kind(), format!("{error}{advice}")),
    }
}

/// Advice to follow the error's words, if there is no route to `to`; otherwise empty.
pub fn route_advice(error: &io::Error, to: IpAddr) -> &'static str {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkDown, NetworkUnreachable};
    match error.kind() {
        AddrNotAvailable | HostUnreachable | NetworkDown | NetworkUnreachable if to.is_loopback() => {
            "; the loopback interface of this network namespace is down: `ip link set lo up`"
        }
        AddrNotAvailable | HostUnreachable | NetworkDown | NetworkUnreachable => {
            "; see `ip route`, or choose other interfaces by --iface"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there_with_its_address() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|interface| interface.name == "lo").expect("lo");
        assert!(loopback.address.is_loopback() && loopback.up, "{found:?}");
    }
}
