//! Path MTU: whether a path takes QUIC's packets. A datagram of the handshake has 1,200 bytes, and nothing shorter
//! will do (RFC 9000, section 14): over a path that takes only shorter packets, no connection is ever made.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
use udeck_via::{Error, Result};

/// Lower bound of the longest UDP payload, in bytes, that a path must carry for QUIC to work over it.
pub const LEAST_DATAGRAM: usize = 1200;

/// Smallest MTU in bytes with which this transport works at an address: that of a packet with such a datagram.
pub fn needed(ip: IpAddr) -> usize {
    let header = if ip.is_ipv4() { 20 } else { 40 };
    LEAST_DATAGRAM + header + 8
}

/// Checks, before a NIC is opened, that the interface of its address takes such packets. An interface that does not
/// report its MTU passes.
///
/// # Errors
/// [`Error::Unavailable`]: another transport may do.
pub fn check_interface(bind: SocketAddr) -> Result {
    let Some((name, mtu)) = interface(bind.ip()) else { return Ok(()) };
    let needed = needed(bind.ip());
    if mtu >= needed {
        return Ok(());
    }
    Err(Error::Unavailable {
        what: format!("udp at {}", bind.ip()),
        why: format!(
            "the MTU of {name} is {mtu}, and QUIC needs {needed} (RFC 9000, section 14): `ip link set dev {name} mtu 1280`, or \
             --transport tcp, which has no such bound"
        ),
    })
}

/// Returns the name and the MTU of the interface that has the address.
fn interface(ip: IpAddr) -> Option<(String, usize)> {
    let name = udeck_sys::interfaces().ok()?.into_iter().find(|one| one.address == ip)?.name;
    let mtu = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?.trim().parse().ok()?;
    Some((name, mtu))
}

/// Returns the MTU of the route from `local` to `to`, if the kernel knows it.
fn known(local: IpAddr, to: SocketAddr) -> Option<usize> {
    let probe = UdpSocket::bind((local, 0)).ok()?;
    // This sends nothing.
    probe.connect(to).ok()?;
    let mtu = if to.is_ipv4() { ip_mtu(&probe) } else { ipv6_mtu(&probe) };
    mtu.ok().map(|mtu| mtu as usize)
}

/// Returns advice for a handshake that nobody answers: the path's MTU, or how to find it out. Empty between
/// addresses of one host.
#[cold]
pub fn advice(local: IpAddr, to: SocketAddr) -> String {
    let needed = needed(to.ip());
    match known(local, to) {
        Some(mtu) if mtu < needed => format!(
            " (the path's MTU is {mtu}, and QUIC needs {needed}: raise it to 1280, or take --transport tcp, which has no such bound)"
        ),
        _ if to.ip() == local || to.ip().is_loopback() => String::new(),
        _ => format!(
            " (a path with an MTU below {needed} answers nothing: `ping -M do -s {} {}` shows that, and --transport tcp has no \
             such bound)",
            LEAST_DATAGRAM,
            to.ip()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_takes_all_of_quics_packets() {
        let at = SocketAddr::from(([127, 0, 0, 1], 9));
        check_interface(at).expect("its MTU is 65536");
        assert!(interface(at.ip()).is_none_or(|(_, mtu)| mtu >= needed(at.ip())));
        assert!(known(at.ip(), at).is_some_and(|mtu| mtu >= needed(at.ip())));
        assert_eq!(advice(at.ip(), at), "");
        let nobody = SocketAddr::from(([192, 0, 2, 1], 9));
        check_interface(nobody).expect("no interface has it: binding says so");
    }

    #[test]
    fn headers_count() {
        assert_eq!((needed([10, 0, 0, 1].into()), needed([0u16; 8].into())), (1228, 1248));
    }
}
